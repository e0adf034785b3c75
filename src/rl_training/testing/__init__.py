"""Checks of an algorithm: the suite that the built-in algorithms pass, for an algorithm of your own.

`check_algorithm` runs every check below. Each can be called by itself with an `AlgorithmCase`:

- `check_construction`: the constructor works, and every tensor and generator can be saved;
- `check_act`: shape, dtype and range of the actions; deterministic without `explore`;
- `check_masks`: no invalid action is taken, if the algorithm obeys action masks;
- `check_spaces`: unsuitable action spaces raise an `EnvError`, accepted ones work;
- `check_update`: finite scalar metrics; some parameter changes; no global random generator is used;
- `check_inputs`: observations and batches are not modified;
- `check_truncation`: a truncated episode is bootstrapped (off-policy and offline);
- `check_state`: `load_state_dict` restores everything that `act` and `update` change;
- `check_seed`: the same seed gives the same run, another seed another run;
- `check_resume`: a run that is stopped and resumed equals the run that was never stopped;
- `check_metrics`: log lines have the mean of every metric;
- `check_gradient_steps`: gradient steps and updates are counted right;
- `check_evaluation`: `evaluate_checkpoint` reproduces the logged scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.config import AlgorithmConfig
from rl_training.experiment.registry import Loop
from rl_training.testing.case import AlgorithmCase, AlgorithmCheckError
from rl_training.testing.object_checks import (
    check_act,
    check_construction,
    check_inputs,
    check_masks,
    check_spaces,
    check_state,
    check_truncation,
    check_update,
)
from rl_training.testing.run_checks import (
    check_evaluation,
    check_gradient_steps,
    check_metrics,
    check_resume,
    check_seed,
)

CHECKS = (
    *(
        check_construction,
        check_act,
        check_masks,
        check_spaces,
        check_update,
        check_inputs,
        check_truncation,
        check_state,
    ),
    *(check_seed, check_resume, check_metrics, check_gradient_steps, check_evaluation),
)
"""Every check, in the order in which `check_algorithm` runs them."""

__all__ = [
    "CHECKS",
    "AlgorithmCase",
    "AlgorithmCheckError",
    "check_algorithm",
    *(check.__name__ for check in CHECKS),
]


def check_algorithm(
    algorithm_class: type[Algorithm[Any]],
    config_class: type[AlgorithmConfig],
    loop: Loop,
    *,
    env_id: str | None = None,
    algo_kwargs: Mapping[str, Any] | None = None,
) -> None:
    """Run every check; the first that fails raises an `AlgorithmCheckError` with the fault and the remedy.

    The algorithm need not be registered, and is not afterwards. It is run for about 100 steps at a time, on the CPU
    with one thread, in a temporary folder. `env_id` is the first of `TEST_ENVS` that `check_spaces` accepts, unless
    given. `algo_kwargs` override the small settings of these runs. A config class that does not fit the loop, or a
    wrong setting, is a `ConfigError`.
    """
    case = AlgorithmCase(algorithm_class, config_class, loop, env_id, dict(algo_kwargs or {}))
    for check in CHECKS:
        check(case)

"""Workflows on a checkpoint: evaluate, predict, record a dataset, resume training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rl_training.algorithms.base import Algorithm
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.envs.factory import EnvSource
from rl_training.errors import CheckpointError, ConfigError, DatasetError, EnvError
from rl_training.evaluation.evaluator import Evaluator
from rl_training.evaluation.fitted_q import fitted_q_evaluation
from rl_training.evaluation.prediction import NO_STATE, predict
from rl_training.experiment.checkpointing import CheckpointState, load_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.plugins.gate import network_needs, refuse_unknown
from rl_training.runtime.assembly import make_algorithm, try_to_close
from rl_training.runtime.execution import choose_execution
from rl_training.runtime.loops.offline import check_data
from rl_training.runtime.recording import Recording, noisy_policy, record_transitions
from rl_training.runtime.resuming.plan import ResumePlan, plan_resume
from rl_training.runtime.resuming.saved_state import check_network_size, translate_state_errors
from rl_training.runtime.resuming.trust import (
    read_config,
    read_spaces,
    refuse_untrusted_env,
)
from rl_training.runtime.run import resume_training, run_plan
from rl_training.runtime.run_utils import RunSeeds
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.spec import Spaces
from rl_training.terminal.progress import counter
from rl_training.terminal.streams import tell

__all__ = [
    "ResumePlan",
    "check_spaces",
    "evaluate_algorithm",
    "evaluate_checkpoint",
    "evaluate_checkpoint_offline",
    "evaluation_source",
    "load_algorithm",
    "open_evaluator",
    "plan_resume",
    "predict",
    "predict_checkpoint",
    "record_checkpoint",
    "restore_algorithm",
    "resume_training",
    "run_plan",
    "stored_step",
]


def load_algorithm(
    path: str | Path, *, device: str = "auto", network: type | str | None = None
) -> tuple[TrainConfig, Algorithm[Any], CheckpointState]:
    """Load the trained algorithm of a checkpoint, without its buffer and without creating an environment.

    `network` is the user's network class, if the checkpoint names one that is elsewhere.
    """
    state = load_checkpoint(path, include_buffer=False)
    config = read_config(state, device=device)
    if network is not None:
        config = config.replace(algo_kwargs={**config.algo_kwargs, "network": network})
    refuse_unknown(network_needs(config.algo_kwargs.get("network")), state.metadata)
    return config, restore_algorithm(config, state.algorithm_state), state


def restore_algorithm(config: TrainConfig, algorithm_state: dict[str, Any]) -> Algorithm[Any]:
    """Create an algorithm and load its `state_dict`."""
    algo_config = get_algorithm_spec(config.algo).parse_kwargs(config.algo_kwargs)
    spaces = read_spaces(algorithm_state)
    check_network_size(algo_config, spaces, algorithm_state)
    with translate_state_errors():
        algorithm = make_algorithm(config, algo_config, spaces, RunSeeds.from_seed(config.seed))
        algorithm.load_state_dict(algorithm_state)
    return algorithm


def evaluate_checkpoint(
    path: str | Path, *, num_episodes: int | None = None, device: str = "auto"
) -> dict[str, float]:
    """Evaluate a checkpoint (or a run folder's last one) as training does.

    With the run's own `eval_episodes`, the result equals the metrics that training logged.
    """
    config, algorithm, state = load_algorithm(path, device=device)
    with choose_execution(config, state).applied():
        metrics = evaluate_algorithm(config, algorithm, num_episodes, state.metadata)
    return {"global_step": stored_step(state), **metrics}


def stored_step(state: CheckpointState) -> int:
    """The environment step (offline: update) at which a checkpoint was written."""
    step = state.metadata.get("global_step", 0)
    if type(step) is not int or step < 0:
        raise CheckpointError(
            f"bad value {step!r:.100} for the checkpoint's global_step: should be an integer of at least 0"
        )
    return step


def evaluate_checkpoint_offline(
    path: str | Path, dataset: TransitionDataset, *, num_updates: int = 10_000, device: str = "auto"
) -> dict[str, float]:
    """Estimate the return of a checkpoint's policy from a dataset (fitted Q evaluation), with its raw rewards."""
    config, algorithm, state = load_algorithm(path, device=device)
    if algorithm.initial_state(1) is not None:
        raise DatasetError(
            "fitted Q evaluation does not support policies with memory: evaluate in an environment"
        )
    if not dataset.has_rewards:
        raise DatasetError(
            "fitted Q evaluation estimates returns, and the dataset has no rewards: store 'rewards'"
        )
    check_data(dataset, algorithm.spaces)
    data = dataset.to_model_space(algorithm.spaces)
    with choose_execution(config, state).applied():
        score = fitted_q_evaluation(algorithm, data, num_updates=num_updates, seed=config.seed)
    return {"global_step": stored_step(state), **vars(score)}


def evaluate_algorithm(
    config: TrainConfig,
    algorithm: Algorithm[Any],
    num_episodes: int | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """Evaluate on the run's evaluation seeds. Errors name the plugins recorded in a checkpoint's `metadata`."""
    with open_evaluator(config, algorithm, num_episodes, metadata) as evaluator:
        with counter(len(evaluator.seeds), "evaluating", "episodes", shows_time=True) as show:
            metrics = evaluator.evaluate(algorithm, show)
        if evaluator.num_restarts:
            tell(f"environments that failed and were recreated: {evaluator.num_restarts}")
        return metrics


@contextlib.contextmanager
def open_evaluator(
    config: TrainConfig,
    algorithm: Algorithm[Any],
    num_episodes: int | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Iterator[Evaluator]:
    """The evaluator of a run's algorithm, closed at the end; what the environment may not do is refused."""
    if num_episodes is not None and num_episodes < 1:
        raise ConfigError(
            f"bad value {num_episodes} for the number of evaluation episodes: should be at least 1"
        )
    source = evaluation_source(config, algorithm, metadata or {})
    seeds = RunSeeds.from_seed(config.seed).eval_seeds(num_episodes or config.eval_episodes)
    evaluator = Evaluator(source, seeds)
    try:
        check_spaces(source.env_id, evaluator.spaces, algorithm)
        yield evaluator
    finally:
        failure = try_to_close(evaluator)
        if failure is not None:
            tell(f"the evaluation is done, but closing failed: {failure}")


def evaluation_source(
    config: TrainConfig, algorithm: Algorithm[Any], metadata: Mapping[str, Any]
) -> EnvSource:
    """The source of the evaluation environments; an error if the user did not permit code or files that it needs."""
    if config.env_id is None:
        raise ConfigError(
            "this run was trained on a dataset and has no env_id to evaluate in: estimate its return with"
            " `rl-training eval RUN --dataset FILE` (in Python: evaluate_checkpoint_offline)"
        )
    refuse_untrusted_env(config, metadata)
    source = EnvSource.parse(config.env_id, config.env_kwargs)
    return source if algorithm.spaces.has_masks else source.without_masks()


def check_spaces(env_id: str, spaces: Spaces, algorithm: Algorithm[Any]) -> None:
    """Raise an `EnvError` if an environment does not have the spaces and action masks that the policy needs."""
    if not spaces.equals(algorithm.spaces):
        raise EnvError(
            f"the spaces of environment '{env_id}' differ from those the policy was trained with"
        )
    if algorithm.spaces.has_masks and not spaces.has_masks:
        raise EnvError(
            f"the policy was trained with action masks, which environment '{env_id}' does not give"
        )


def record_checkpoint(
    path: str | Path, num_steps: int, *, seed: int = 0, epsilon: float = 0.0, noise: float = 0.0
) -> Recording:
    """Record the deterministic policy of a checkpoint in its environment, with the run's `env_kwargs`.

    Actions are random with probability `epsilon`; Box actions get Gaussian noise of standard deviation `noise` in model
    space ([-1, 1] for a bounded Box, else the environment's scale).
    """
    config, algorithm, state = load_algorithm(path, device="cpu")
    env_id = config.required_env_id
    refuse_untrusted_env(config, state.metadata)
    if noise and algorithm.spaces.action.kind is not ActionKind.CONTINUOUS:
        raise ConfigError("noise is for Box actions: use epsilon for random discrete actions")
    env_seed, action_seed = (int(value) for value in np.random.SeedSequence(seed).generate_state(2))
    act = noisy_policy(algorithm, epsilon, noise, action_seed)
    with choose_execution(config, state).applied():
        initial = algorithm.initial_state(1)
        kwargs = (
            config.env_kwargs
            if algorithm.spaces.has_masks
            else {"action_masks": False, **config.env_kwargs}
        )
        return record_transitions(env_id, kwargs, num_steps, env_seed, lambda spaces: act, initial)


def predict_checkpoint(
    path: str | Path,
    obs: npt.ArrayLike,
    *,
    deterministic: bool = True,
    state: Any = NO_STATE,
    mask: npt.ArrayLike | None = None,
) -> Any:
    """Action for one observation, or actions for a batch, of the policy in a checkpoint; arguments as in `predict`.

    Each call reads the checkpoint; for repeated calls, load it once with `load` of the algorithm's class.
    """
    _, algorithm, _ = load_algorithm(path)
    return predict(algorithm, obs, state=state, mask=mask, deterministic=deterministic)

"""Checks the settings of runs without training them, and estimates their memory: for studies, before the first run."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from rl_training.algorithms.config import OfflineConfig
from rl_training.errors import ConfigError
from rl_training.evaluation.evaluator import Evaluator
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.plugins.given import has_given, is_given_id
from rl_training.runtime.assembly import (
    BYTES_OF_A_WEIGHT,
    RunSetup,
    check_networks_fit,
    check_watched_metric,
    count_weights,
)
from rl_training.runtime.loops import LOOPS
from rl_training.runtime.loops.offline import check_dataset_settings
from rl_training.runtime.run_utils import resolve_device

PROCESS_BYTES = 420_000_000
"""Memory of a process that trains a small network on CartPole: Python, torch and the libraries they load."""
NETWORKS = 6
"""Networks counted in the estimate: an actor, two critics and their targets, and what a gradient step holds."""


@dataclass(frozen=True)
class Needs:
    """What a run needs."""

    num_threads: int
    memory_bytes: int
    """Estimate of the memory of its process, without the environments and a dataset."""
    warnings: tuple[str, ...] = ()
    """What the run would warn of when it starts."""


@dataclass
class SettingsChecker:
    """Checks one configuration after the other; each environment is made once."""

    _evaluators: dict[str, Evaluator] = field(default_factory=dict)

    def check(self, config: TrainConfig) -> Needs:
        """What a run with this configuration needs; raises an error where it could not start."""
        if is_given_id(config.env_id) and not has_given(config.required_env_id):
            raise ConfigError(
                f"environment '{config.env_id}' is an object of a Python process, and each run has its own process: put"
                " its class or function into a module or file, and write module:Name or path/to/file.py:Name"
            )
        setup = RunSetup.parse(config)
        device = resolve_device(config.device)
        if isinstance(setup.algo_config, OfflineConfig):
            check_dataset_settings(setup)
            path = setup.algo_config.dataset_path
            if path is not None and not path.is_file():
                raise ConfigError(
                    f"dataset_path '{path}' does not exist (looked from {Path.cwd()})"
                )
        evaluator = self._evaluator(setup)
        check_watched_metric(setup.algo_config, evaluator)
        num_threads, warnings = setup.execution.num_threads, tuple(setup.warnings())
        if evaluator is None:  # the spaces are known when the dataset is read
            return Needs(num_threads, PROCESS_BYTES, warnings)
        spaces = evaluator.spaces
        get_algorithm_spec(config.algo).check_spaces(spaces)
        with check_networks_fit(setup.algo_config, spaces, device):
            networks = NETWORKS * BYTES_OF_A_WEIGHT * count_weights(setup.algo_config, spaces)[1]
        stored = LOOPS[get_algorithm_spec(config.algo).loop].buffer_bytes(setup, spaces)
        return Needs(num_threads, PROCESS_BYTES + networks + stored, warnings)

    def close(self) -> None:
        """Close the environments."""
        for evaluator in self._evaluators.values():
            with contextlib.suppress(Exception):  # they were only looked at
                evaluator.close()

    def _evaluator(self, setup: RunSetup) -> Evaluator | None:
        if setup.env is None:
            return None
        key = repr((setup.config.env_id, setup.config.env_kwargs))
        if key not in self._evaluators:
            self._evaluators[key] = Evaluator(setup.env, [0])
        return self._evaluators[key]

"""Checks the settings of runs without training them, and estimates their memory: for studies, before the first run."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_training.algorithms.config import AlgorithmConfig, OfflineConfig, OfflineToOnlineConfig
from rl_training.envs.factory import EnvSource
from rl_training.errors import ConfigError
from rl_training.evaluation.evaluator import Evaluator
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import Loop, get_algorithm_spec
from rl_training.experiment.tracking.settings import check_installed
from rl_training.plugins.given import has_given, is_given_id
from rl_training.replay.frame_replay import replay_bytes
from rl_training.replay.transitions import storage_bytes
from rl_training.runtime.assembly import check_watched_metric
from rl_training.runtime.checks.memory import (
    BYTES_OF_A_WEIGHT,
    check_batch_fits,
    check_networks_fit,
    check_replay_fits,
    check_rollout_fits,
    count_weights,
)
from rl_training.runtime.execution import choose_execution
from rl_training.runtime.run_utils import resolve_device
from rl_training.spaces.spec import Spaces

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
        check_installed(config.loggers)
        spec = get_algorithm_spec(config.algo)
        algo_config = spec.parse_kwargs(config.algo_kwargs)
        execution = choose_execution(config, None, algo_config)
        device = resolve_device(config.device)
        _check_dataset(algo_config)
        evaluator = None if config.env_id is None else self._evaluator(config)
        check_watched_metric(algo_config, evaluator)
        if evaluator is None:  # the spaces are known when the dataset is read
            return Needs(execution.num_threads, PROCESS_BYTES)
        spaces = evaluator.spaces
        spec.check_spaces(spaces)
        with check_networks_fit(algo_config, spaces, device):
            networks = NETWORKS * BYTES_OF_A_WEIGHT * count_weights(algo_config, spaces)[1]
        stored = _check_storage(spec.loop, config, algo_config, spaces)
        return Needs(execution.num_threads, PROCESS_BYTES + networks + stored)

    def close(self) -> None:
        """Close the environments."""
        for evaluator in self._evaluators.values():
            with contextlib.suppress(Exception):  # they were only looked at
                evaluator.close()

    def _evaluator(self, config: TrainConfig) -> Evaluator:
        key = repr((config.env_id, config.env_kwargs))
        if key not in self._evaluators:
            self._evaluators[key] = Evaluator(EnvSource.parse(config.required_env_id, config.env_kwargs), [0])
        return self._evaluators[key]


def _check_dataset(algo_config: AlgorithmConfig) -> None:
    if not isinstance(algo_config, OfflineConfig):
        return
    if algo_config.dataset_kind is None:
        raise ConfigError("dataset_kind is not set: set algo_kwargs.dataset_kind to npz, pt, minari or random")
    path = algo_config.dataset_path
    if path is not None and not path.is_file():
        raise ConfigError(f"dataset_path '{path}' does not exist (looked from {Path.cwd()})")


def _check_storage(loop: Loop, config: TrainConfig, algo_config: Any, spaces: Spaces) -> int:
    """Bytes of the buffer at its fullest; raises if it would not fit into memory."""
    if loop is Loop.ON_POLICY:
        check_rollout_fits(spaces, algo_config.num_steps, config.num_envs)
        return storage_bytes(spaces, algo_config.num_steps * config.num_envs)
    check_batch_fits(spaces, algo_config.batch_size)
    if loop is Loop.OFF_POLICY:
        check_replay_fits(spaces, algo_config.buffer_capacity, config.total_timesteps, algo_config.replay.kind)
        return replay_bytes(spaces, min(algo_config.buffer_capacity, config.total_timesteps))
    online = algo_config.online if isinstance(algo_config, OfflineToOnlineConfig) else None
    new_steps = 0 if online is None else config.total_timesteps - online.after_updates
    if online is None or new_steps <= 0:
        return 0
    check_replay_fits(spaces, online.buffer_capacity, new_steps, key="online.buffer_capacity")
    return replay_bytes(spaces, min(online.buffer_capacity, new_steps))

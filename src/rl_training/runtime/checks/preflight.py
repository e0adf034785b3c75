"""Warnings, before the first step, about settings with which a run would learn little."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_training.algorithms.config import (
    AlgorithmConfig,
    OfflineConfig,
    OfflineToOnlineConfig,
    OffPolicyConfig,
    OnPolicyConfig,
)
from rl_training.envs.single.construction import newer_version
from rl_training.envs.wrapping.trust import listed_wrappers
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.loops.off_policy import UpdateRatio, updates_due

LATE = 0.1
"""A run that ends later than `total_timesteps` by this fraction says so."""
STATISTICS = {
    "gymnasium.wrappers:NormalizeObservation": "normalize_obs",
    "gymnasium.wrappers:NormalizeReward": "normalize_reward",
}
"""Wrappers with running statistics, and the setting of algorithms that does the same."""


def learning_warnings(
    config: TrainConfig, algo_config: AlgorithmConfig, dataset_size: int | None, first_step: int = 0
) -> list[str]:
    """Warnings: a run that ends late, no gradient step, batches that repeat transitions, an outdated environment.

    `first_step` is the step at which the run took over a trained policy, with an empty replay buffer.
    """
    total, found = config.total_timesteps, []
    newest = None if config.env_id is None else newer_version(config.env_id)
    if newest is not None:
        found.append(f"environment '{config.env_id}' is out of date: use '{newest}'")
    found += _resetting_statistics(config.env_kwargs)
    last_step = algo_config.last_step(total, config.num_envs)
    if last_step >= (1 + LATE) * total:
        rollout = f"num_steps {algo_config.num_steps:,} x " if isinstance(algo_config, OnPolicyConfig) else ""
        found.append(
            f"the run ends at step {last_step:,} instead of total_timesteps {total:,}, since it completes its last"
            f" collection of {rollout}num_envs {config.num_envs:,}: lower {'algo_kwargs.num_steps or ' * bool(rollout)}"
            "num_envs"
        )
    if isinstance(algo_config, OffPolicyConfig):
        left = total - first_step
        found += _without_updates(algo_config, left, config.num_envs, "learning_starts")
        found += _repeating(algo_config.batch_size, min(algo_config.buffer_capacity, left), "the replay buffer")
    if isinstance(algo_config, OfflineConfig) and dataset_size is not None:
        found += _repeating(algo_config.batch_size, dataset_size, "the dataset")
    online = algo_config.online if isinstance(algo_config, OfflineToOnlineConfig) else None
    if online is not None and total > online.after_updates:
        found += _without_updates(online, total - online.after_updates, config.num_envs, "online.learning_starts")
    return [f"WARNING: {text}" for text in found]


def _resetting_statistics(env_kwargs: Mapping[str, Any]) -> list[str]:
    """Warnings about wrappers whose running statistics begin anew in each evaluation episode."""
    names = [call.name for call in listed_wrappers(env_kwargs)]
    return [
        f"wrapper '{name}' begins its statistics anew in every evaluation episode, so evaluations differ from training:"
        f" use algo_kwargs.{STATISTICS[name]}=true instead, where the algorithm has it"
        for name in names
        if name in STATISTICS
    ]


def _without_updates(ratio: UpdateRatio, num_steps: int, num_envs: int, key: str) -> list[str]:
    last_step = -(-num_steps // num_envs) * num_envs
    if updates_due(ratio, last_step, 0) > 0:
        return []
    return [
        f"nothing will be learned in the environment: {key} {ratio.learning_starts:,} and train_frequency"
        f" {ratio.train_frequency:,} leave no gradient step in {num_steps:,} steps; lower algo_kwargs.{key} or raise"
        " total_timesteps"
    ]


def _repeating(batch_size: int, num_stored: int, where: str) -> list[str]:
    if batch_size <= num_stored:
        return []
    return [
        f"batch_size {batch_size:,} is larger than {where}, which holds at most {num_stored:,} transitions: every batch"
        " repeats some; lower algo_kwargs.batch_size"
    ]

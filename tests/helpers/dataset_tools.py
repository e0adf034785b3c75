"""Datasets for tests: made-up rows that can be traced, and steps in a real environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rl_training.data.offline_dataset import TransitionDataset

Fields = dict[str, np.ndarray]


def make_fields(count: int = 60, length: int = 10, *, offset: float = 0.0) -> Fields:
    """Truncated episodes of `length` steps; every column of an observation is its row, plus `offset`."""
    rng = np.random.default_rng(0)
    obs = np.repeat(np.arange(count, dtype=np.float32)[:, None] + offset, 3, axis=1)
    truncated = np.arange(count) % length == length - 1
    return {
        "obs": obs,
        "actions": rng.uniform(-1, 1, (count, 2)).astype(np.float32),
        "rewards": rng.normal(size=count).astype(np.float32),
        "next_obs": np.where(truncated[:, None], obs + 0.5, obs + 1).astype(np.float32),
        "terminated": np.zeros(count, np.bool_),
        "truncated": truncated,
    }


def make_dataset(
    count: int = 60, length: int = 10, *, offset: float = 0.0, **options: Any
) -> TransitionDataset:
    return TransitionDataset(**make_fields(count, length, offset=offset), **options)


def act_in(
    env: Any, num_steps: int, policy: Callable[[Any], Any] | None = None
) -> list[tuple[Any, ...]]:
    """Steps as they were seen: observation, action, reward, next observation, terminated, truncated."""
    env.action_space.seed(0)
    steps = []
    obs, _ = env.reset(seed=0)
    for _ in range(num_steps):
        action = env.action_space.sample() if policy is None else policy(obs)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        steps.append((obs, action, reward, next_obs, terminated, truncated))
        obs = next_obs
        if terminated or truncated:
            obs, _ = env.reset()
    return steps

"""Recorded transitions and an agent's own, drawn in a fixed proportion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import torch

from rl_training.replay.replay_buffer import ReplayBuffer
from rl_training.replay.transitions import Array, Storage, Transitions
from rl_training.spaces.rewards import RewardTransformConfig, transform_rewards


class RecordedTransitions(Protocol):
    """A dataset to sample from."""

    def sample_batches(self, batch_size: int, count: int) -> Iterator[Transitions]:
        """Sample several batches."""

    def state_dict(self) -> dict[str, Any]:
        """The sampling state, and which data it belongs to."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""


class MixedReplay:
    """A replay buffer whose batches hold a share of a data set; all of it while nothing else is stored.

    New rewards go through the transform that the data's went through, so that the two can be learned from together.
    """

    def __init__(
        self, dataset: RecordedTransitions, replay: ReplayBuffer, offline_ratio: float, transform: RewardTransformConfig
    ) -> None:
        self.dataset = dataset
        self._replay = replay
        self._offline_ratio = offline_ratio
        self._transform = transform

    def add(
        self, obs: Array, actions: Array, rewards: Array, next_obs: Array, terminated: Array, truncated: Array
    ) -> None:
        """Store one step of every environment."""
        rewards = transform_rewards(rewards.astype(np.float32), self._transform)
        self._replay.add(obs, actions, rewards, next_obs, terminated, truncated)

    def truncate_newest(self) -> None:
        """End the agent's episodes with the newest row."""
        self._replay.truncate_newest()

    def newest(self, count: int) -> Iterable[Storage]:
        """The agent's last `count` rows."""
        return self._replay.newest(count)

    def sample_batches(self, batch_size: int, count: int) -> Iterator[Transitions]:
        """Draw several batches at once; each begins with the recorded transitions."""
        recorded = round(self._offline_ratio * batch_size) if len(self._replay) else batch_size
        if recorded == batch_size:
            return self.dataset.sample_batches(batch_size, count)
        own = self._replay.sample_batches(batch_size - recorded, count)
        if recorded == 0:
            return own
        return (_joined(*pair) for pair in zip(self.dataset.sample_batches(recorded, count), own, strict=True))

    def state_dict(self) -> dict[str, Any]:
        """The agent's rows in segments, and which data the rest comes from."""
        return {**self._replay.state_dict(), "dataset": self.dataset.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.dataset.load_state_dict(state["dataset"])
        self._replay.load_state_dict(state)


def _joined(first: Transitions, second: Transitions) -> Transitions:
    fields = {name: value for name, value in vars(first).items() if value is not None}
    return Transitions(**{name: torch.cat([value, getattr(second, name)]) for name, value in fields.items()})

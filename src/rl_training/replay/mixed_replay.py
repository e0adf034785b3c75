"""Batches that mix a dataset and a replay buffer in a fixed ratio, for online fine-tuning."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import torch

from rl_training.replay.replay_buffer import ReplayBuffer
from rl_training.replay.sequences import Sampling, pad_to_one_length
from rl_training.replay.transitions import Storage, Transitions
from rl_training.spaces.rewards import RewardTransformConfig, transform_rewards


class RecordedTransitions(Protocol):
    """A dataset to sample from."""

    def sample_sequences(self, batch_size: int, sampling: Sampling) -> Transitions:
        """Sample one batch of sequences."""

    def sample_batches(self, batch_size: int, count: int) -> Iterator[Transitions]:
        """Sample several batches."""

    def state_dict(self) -> dict[str, Any]:
        """State of the sampler, and the identity of the dataset."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""


class MixedReplay:
    """Samples a fraction `offline_ratio` from a dataset, the rest from a replay buffer (nothing while it is empty).

    New rewards get the same transform as the dataset's, so that both are on one scale.
    """

    def __init__(
        self,
        dataset: RecordedTransitions,
        replay: ReplayBuffer,
        offline_ratio: float,
        transform: RewardTransformConfig,
    ) -> None:
        self.dataset = dataset
        self._replay = replay
        self._offline_ratio = offline_ratio
        self._transform = transform

    def add(self, step: Storage) -> None:
        """Store one step of every environment, by field."""
        rewards = transform_rewards(step["rewards"].astype(np.float32), self._transform)
        self._replay.add({**step, "rewards": rewards})

    def truncate_newest(self) -> None:
        """Mark the newest step of every environment truncated, unless terminated."""
        self._replay.truncate_newest()

    def newest(self, count: int) -> Iterable[Storage]:
        """The last `count` rows of the replay buffer."""
        return self._replay.newest(count)

    def newest_step(self) -> Transitions | None:
        """The newest step of the replay buffer, [1, N]; None if it is empty."""
        return self._replay.newest_step()

    def sample_batches(self, batch_size: int, count: int) -> Iterator[Transitions]:
        """Sample `count` batches; in each, the dataset's transitions come first."""
        num_offline = round(self._offline_ratio * batch_size) if len(self._replay) else batch_size
        if num_offline == batch_size:
            return self.dataset.sample_batches(batch_size, count)
        online = self._replay.sample_batches(batch_size - num_offline, count)
        if num_offline == 0:
            return online
        return (
            _concatenate(*pair)
            for pair in zip(self.dataset.sample_batches(num_offline, count), online, strict=True)
        )

    def sample_sequences(self, batch_size: int, sampling: Sampling) -> Transitions:
        """Sample one batch of sequences, the dataset's first; the shorter ones are padded to one length."""
        num_offline = round(self._offline_ratio * batch_size) if len(self._replay) else batch_size
        parts = [
            source.sample_sequences(count, sampling)
            for source, count in (
                (self.dataset, num_offline),
                (self._replay, batch_size - num_offline),
            )
            if count
        ]
        return parts[0] if len(parts) == 1 else _concatenate(*pad_to_one_length(*parts), dim=1)

    def state_dict(self) -> dict[str, Any]:
        """State of the replay buffer and of the dataset."""
        return {**self._replay.state_dict(), "dataset": self.dataset.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.dataset.load_state_dict(state["dataset"])
        self._replay.load_state_dict(state)


def _concatenate(first: Transitions, second: Transitions, dim: int = 0) -> Transitions:
    others = second.tensors()
    return Transitions.from_tensors(
        {
            name: torch.cat([value, others[name]], dim)
            for name, value in first.tensors().items()
            if name in others
        }
    )

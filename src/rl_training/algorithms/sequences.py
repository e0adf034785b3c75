"""Rollouts cut into sequences, for policies with memory."""

from __future__ import annotations

import torch
from pydantic import PositiveInt
from torch import Tensor

from rl_training.models.memory import MemoryKind
from rl_training.validation import FrozenConfig


class MemoryConfig(FrozenConfig):
    """Recurrent memory of a policy and of its value function."""

    kind: MemoryKind = "lstm"
    """`lstm` or `gru`."""
    size: PositiveInt = 64
    """Length of the hidden vector."""
    sequence_length: PositiveInt = 32
    """Steps over which gradients flow back; at most `num_steps`, which must be a multiple of it."""

    def length_in(self, num_steps: int) -> int:
        """Length of the sequences of a rollout."""
        return min(self.sequence_length, num_steps)


def cut(field: Tensor, length: int) -> Tensor:
    """Cut a rollout [T, N, ...] into sequences of consecutive steps, [T / length * N, length, ...]."""
    return field.reshape(-1, length, *field.shape[1:]).transpose(1, 2).flatten(0, 1)


def episode_starts(dones: Tensor, length: int) -> Tensor:
    """Where, within sequences [S, length] of a rollout with flags [T, N], a step begins another episode.

    The first step of a sequence never counts: the state stored with it is right already.
    """
    starts = torch.zeros_like(cut(dones, length))
    starts[:, 1:] = cut(dones, length)[:, :-1]
    return starts

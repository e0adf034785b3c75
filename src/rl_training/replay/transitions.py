"""A batch of transitions, and the arrays that store them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from rl_training.spaces.spec import Spaces

Array = npt.NDArray[Any]
Storage = dict[str, Array]

FIELDS = ("obs", "actions", "rewards", "next_obs", "terminated", "truncated")


@dataclass(frozen=True)
class Transitions:
    """Tensors of equal leading shape: [B] for a replay batch, [T, N] for a rollout of T steps in N envs."""

    obs: Tensor
    actions: Tensor
    rewards: Tensor
    next_obs: Tensor
    """Next observation; at the end of an episode its final observation."""
    terminated: Tensor
    truncated: Tensor
    discounts: Tensor | None = None
    """Discount of V(next_obs) with n-step returns: gamma**n for the n steps that were summed; else None."""
    unscaled_weights: Tensor | None = None
    """1 / (N P(i)) with prioritized replay, else None. Importance weights are its power beta over the maximum."""
    index: Tensor | None = None
    """Slot of each transition in a prioritized replay buffer; else None."""

    @property
    def dones(self) -> Tensor:
        """Terminated or truncated."""
        return self.terminated | self.truncated

    def split(self, size: int) -> Iterator[Transitions]:
        """Consecutive batches of `size` transitions, sharing memory."""
        fields = {name: tensor.split(size) for name, tensor in vars(self).items() if tensor is not None}
        for parts in zip(*fields.values(), strict=True):
            yield Transitions(**dict(zip(fields, parts, strict=True)))


def allocate(spaces: Spaces, *leading: int) -> Storage:
    """Zeroed arrays for transitions with the given leading shape (memory is committed as they fill)."""
    obs, action = spaces.obs, spaces.action
    return {
        "obs": np.zeros((*leading, *obs.shape), obs.dtype),
        "actions": np.zeros((*leading, *action.model_shape), action.model_dtype),
        "rewards": np.zeros(leading, np.float32),
        "next_obs": np.zeros((*leading, *obs.shape), obs.dtype),
        "terminated": np.zeros(leading, np.bool_),
        "truncated": np.zeros(leading, np.bool_),
    }


def as_index(value: Any, largest: int) -> int:
    """A saved position, if it is a whole number from 0 to `largest`; else a `ValueError`."""
    if type(value) is not int or not 0 <= value <= largest:
        raise ValueError(f"{value!r:.100} is not a position from 0 to {largest}")
    return value


def copy_rows(name: str, saved: Array, target: Array) -> None:
    """Copy saved rows of a field into the buffer; shapes and types must be equal."""
    if saved.shape != target.shape or saved.dtype != target.dtype:
        raise ValueError(f"saved '{name}' {saved.dtype}{saved.shape} does not fit {target.dtype}{target.shape}")
    target[:] = saved


def storage_bytes(spaces: Spaces, count: int) -> int:
    """Bytes of `count` transitions."""
    return count * sum(array.nbytes for array in allocate(spaces, 1).values())

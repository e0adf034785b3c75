"""A batch of transitions, and the arrays that hold many of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from rl_training.spaces.observations import ObsSpec
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
    """The observation that followed, which at an ending is the true final one."""
    terminated: Tensor
    truncated: Tensor
    discounts: Tensor | None = None
    """How much the value of `next_obs` counts, where that differs from gamma (n-step returns)."""
    weights: Tensor | None = None
    """How much less often than its share each was drawn, where they are drawn unevenly."""
    index: Tensor | None = None
    """Where each is stored, where that matters to the buffer."""

    @property
    def dones(self) -> Tensor:
        """Where the episode ended, in either way."""
        return self.terminated | self.truncated

    def split(self, size: int) -> Iterator[Transitions]:
        """Consecutive parts of `size` transitions each, which share this one's memory."""
        fields = {name: tensor.split(size) for name, tensor in vars(self).items() if tensor is not None}
        for parts in zip(*fields.values(), strict=True):
            yield Transitions(**dict(zip(fields, parts, strict=True)))

    def bootstrap(self, gamma: float) -> Tensor:
        """What to multiply the next value with: the discount, and 0 where the episode terminated."""
        alive = (~self.terminated).float()
        return alive * (gamma if self.discounts is None else self.discounts)


def allocate(spaces: Spaces, *leading: int) -> Storage:
    """Zeroed arrays for transitions with the given leading shape (the system commits them as they fill)."""
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
    """A saved position, if it lies within a store whose last one is `largest`."""
    if type(value) is not int or not 0 <= value <= largest:
        raise ValueError(f"{value!r:.100} is not a position from 0 to {largest}")
    return value


def copy_rows(name: str, saved: Array, target: Array) -> None:
    """Put saved rows of a field back in their place; nothing is stretched to fit."""
    if saved.shape != target.shape or saved.dtype != target.dtype:
        raise ValueError(f"saved '{name}' {saved.dtype}{saved.shape} does not fit {target.dtype}{target.shape}")
    target[:] = saved


def storage_bytes(spaces: Spaces, count: int) -> int:
    """Memory that `count` transitions take."""
    return count * sum(array.nbytes for array in allocate(spaces, 1).values())


def find_non_finite(rows: Mapping[str, Array], obs_spec: ObsSpec) -> tuple[str, int, int] | None:
    """The field, row and environment of the first number in [rows, envs, ...] that is NaN or infinite."""
    numbers = {name: obs_spec.numbers(rows[name]) if name.endswith("obs") else rows[name] for name in FIELDS[:4]}
    floats = {name: array for name, array in numbers.items() if array.dtype.kind == "f"}
    with np.errstate(over="ignore", invalid="ignore"):
        # The sum of squares is the cheapest question that every bad number answers.
        if math.isfinite(sum(flat.dot(flat) for flat in (array.reshape(-1) for array in floats.values()))):
            return None
    found = []
    for order, (name, array) in enumerate(floats.items()):
        bad = ~np.isfinite(array.reshape(*array.shape[:2], -1)).all(-1)
        found += [(int(row), order, name, int(env)) for row, env in np.argwhere(bad)[:1]]
    if not found:
        return None
    row, _, name, env = min(found)
    return name, row, env

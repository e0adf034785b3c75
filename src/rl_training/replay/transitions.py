"""A batch of transitions, the arrays that store them, and the segments in which checkpoints save them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_training.spaces.spec import Spaces

Array = npt.NDArray[Any]
Storage = dict[str, Array]

FIELDS = ("obs", "actions", "rewards", "next_obs", "terminated", "truncated")
MASK_FIELDS = ("masks", "next_masks")
SEGMENT_BYTES = 1 << 20
MAX_SEGMENTS = 1024


@dataclass(frozen=True)
class StepField:
    """Shape and dtype, for one environment, of a further field of the step record."""

    shape: tuple[int, ...] = ()
    dtype: str = "float32"


StepFields = Mapping[str, StepField]
"""Further fields of the step record, by name."""


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
    masks: Tensor | None = None
    """Valid actions of `obs`, [..., num_options], where the environment gives action masks; else None."""
    next_masks: Tensor | None = None
    """Valid actions of `next_obs`; else None."""
    valid: Tensor | None = None
    """In sequences [L, B]: False after the end of the episode, where a row repeats its last step; else None."""
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    """Further fields that the algorithm declares, by name."""

    @property
    def dones(self) -> Tensor:
        """Terminated or truncated."""
        return self.terminated | self.truncated

    def split(self, size: int) -> Iterator[Transitions]:
        """Consecutive batches of `size` transitions, sharing memory."""
        fields = {name: torch.split(tensor, size) for name, tensor in self.tensors().items()}
        for parts in zip(*fields.values(), strict=True):
            yield Transitions.from_tensors(dict(zip(fields, parts, strict=True)))

    def tensors(self) -> dict[str, Tensor]:
        """Every field that is present, further ones included, by name."""
        known = {
            name: value
            for name, value in vars(self).items()
            if value is not None and name != "extras"
        }
        return {**known, **self.extras} if self.extras else known

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Any]) -> Transitions:
        """Build from fields by name; those that this class does not know become `extras`."""
        if tensors.keys() <= KNOWN_FIELDS:
            return cls(**tensors)
        known = {name: tensors[name] for name in tensors.keys() & KNOWN_FIELDS}
        return cls(
            **known, extras={name: tensors[name] for name in tensors if name not in KNOWN_FIELDS}
        )


KNOWN_FIELDS = Transitions.__dataclass_fields__.keys() - {"extras"}


def allocate(spaces: Spaces, *leading: int, fields: StepFields | None = None) -> Storage:
    """Zeroed arrays for transitions with the given leading shape (memory is committed as they fill)."""
    obs, action = spaces.obs, spaces.action
    mask_names = MASK_FIELDS if spaces.has_masks else ()
    return {
        "obs": np.zeros((*leading, *obs.shape), obs.dtype),
        "actions": np.zeros((*leading, *action.model_shape), action.model_dtype),
        "rewards": np.zeros(leading, np.float32),
        "next_obs": np.zeros((*leading, *obs.shape), obs.dtype),
        "terminated": np.zeros(leading, np.bool_),
        "truncated": np.zeros(leading, np.bool_),
        **{name: np.zeros((*leading, action.num_options), np.bool_) for name in mask_names},
        **{
            name: np.zeros((*leading, *part.shape), part.dtype)
            for name, part in (fields or {}).items()
        },
    }


def as_index(value: Any, largest: int) -> int:
    """A saved position, if it is a whole number from 0 to `largest`; else a `ValueError`."""
    if type(value) is not int or not 0 <= value <= largest:
        raise ValueError(f"{value!r:.100} is not a position from 0 to {largest}")
    return value


def copy_rows(name: str, saved: Array, target: Array) -> None:
    """Copy saved rows of a field into the buffer; shapes and types must be equal."""
    if saved.shape != target.shape or saved.dtype != target.dtype:
        raise ValueError(
            f"saved '{name}' {saved.dtype}{saved.shape} does not fit {target.dtype}{target.shape}"
        )
    target[:] = saved


def storage_bytes(spaces: Spaces, count: int, fields: StepFields | None = None) -> int:
    """Bytes of `count` transitions."""
    return count * sum(array.nbytes for array in allocate(spaces, 1, fields=fields).values())


@dataclass(frozen=True)
class Segment:
    """Consecutive rows of a replay buffer. Equal non-zero `version` and length imply equal content."""

    version: int
    arrays: dict[str, Array]


def rows_per_segment(num_rows: int, row_bytes: int) -> int:
    """Rows per segment: a power of two, about `SEGMENT_BYTES`, larger if `MAX_SEGMENTS` would be exceeded."""
    rows = max(1, SEGMENT_BYTES // max(1, row_bytes))
    rows = 1 << (rows.bit_length() - 1)
    while num_rows > rows * MAX_SEGMENTS:
        rows *= 2
    return rows

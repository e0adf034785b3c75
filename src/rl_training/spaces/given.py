"""Observations, policy states and masks that a user gives to a policy, checked and as a batch. Needs NumPy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from rl_training.errors import ConfigError, EnvError

Array = npt.NDArray[Any]
LeafPath = tuple[str | int, ...]
MASK_KEY = "action_mask"
"""Key of the mask in an environment's info, and in a Dict observation."""


@dataclass(frozen=True)
class ObsLeaf:
    """One array of an observation, a leaf of a Dict or Tuple or the whole: its path and its stored form."""

    path: LeafPath
    shape: tuple[int, ...]
    is_image: bool = False
    scale: float = 1.0
    """Factor of its numbers: 1/255 for byte vectors."""
    choices: tuple[int, ...] = ()
    """Number of categories of each component; empty for numbers."""
    start: tuple[int, ...] = ()
    """First category of each component."""

    @property
    def name(self) -> str:
        """Its path as text, such as `arm/camera`; empty for an observation that is one array."""
        return "/".join(map(str, self.path))

    @property
    def dtype(self) -> str:
        """float32 for numbers, uint8 for bytes and images, int64 for categories."""
        if self.choices:
            return "int64"
        return "uint8" if self.is_image or self.scale != 1.0 else "float32"

    @property
    def width(self) -> int:
        """Length of its stored row."""
        return sum(self.choices) or prod(self.shape)

    def find(self, obs: Any) -> Any:
        """The leaf in an observation."""
        for key in self.path:
            obs = obs[key]
        return obs

    def row(self, obs: Any) -> Array:
        """The leaf of a batch of observations in stored form, [B, width]."""
        values = np.asarray(self.find(obs))
        rows = values.reshape(len(values), prod(self.shape))
        if self.is_image:
            return rows
        if not self.choices:
            return rows.astype(np.float32) * np.float32(self.scale)
        columns = zip((rows - np.asarray(self.start)).T, self.choices, strict=True)
        return np.hstack([column[:, None] == np.arange(count) for column, count in columns]).astype(
            np.float32
        )


def read_parts(obs: Any, parts: Sequence[ObsLeaf]) -> tuple[list[Array], bool]:
    """The parts of an observation or a batch, each [B, *shape] in its dtype, and whether it was a batch.

    Raises an `EnvError` if a part is missing, has another shape, or holds what the space cannot hold: NaN, infinity,
    categories out of range, or numbers that are no bytes.
    """
    arrays = [_array(obs, part) for part in parts]
    answers = {array.shape != part.shape for array, part in zip(arrays, parts, strict=True)}
    if len(answers) > 1:
        raise EnvError("some parts of the observation are a batch and others are not")
    is_batch = answers.pop()
    batches = [array if is_batch else array[None] for array in arrays]
    if len({len(batch) for batch in batches}) > 1:
        raise EnvError("the parts of the observation are batches of different lengths")
    return [_checked(batch, part) for batch, part in zip(batches, parts, strict=True)], is_batch


def read_state(state: Any, count: int, shape: tuple[int, ...], *, is_batch: bool) -> Array:
    """Policy states [B, *shape], given for one observation or for a batch."""
    try:
        given = np.asarray(state, np.float32)
    except (ValueError, TypeError):
        raise ConfigError(
            "the policy state is not an array of numbers: pass what the call before returned"
        ) from None
    expected = (count, *shape) if is_batch else shape
    if given.shape != expected:
        raise ConfigError(f"the policy state has shape {given.shape}, where {expected} is expected")
    return given if is_batch else given[None]


def read_masks(mask: Any, choices: tuple[int, ...]) -> Array:
    """Mask rows [..., sum(choices)] from booleans or numbers (0 is invalid), or from one array per component."""
    if isinstance(mask, (tuple, list)) and _is_one_per_component(mask, choices):
        mask = np.concatenate(mask, -1)
    try:
        rows = np.asarray(mask)
    except ValueError:  # rows of different lengths
        rows = np.asarray(mask, object)
    if rows.dtype.kind not in "biuf" or rows.ndim == 0 or rows.shape[-1] != sum(choices):
        raise EnvError(
            f"an action mask is {rows.dtype} of shape {rows.shape}: give one boolean for each option,"
            f" {sum(choices)} in all"
        )
    if rows.dtype.kind == "f" and not np.isfinite(rows).all():
        raise EnvError(
            "an action mask holds NaN or infinity: give 1 for valid and 0 for invalid options"
        )
    return rows.astype(np.bool_)


def find_fault(mask: Array, choices: tuple[int, ...]) -> str | None:
    """What is wrong with a mask [sum(choices)] that permits no action; None if it permits one."""
    if len(choices) == 1:
        return None if mask.any() else "permits no action"
    parts = np.split(mask, np.cumsum(choices)[:-1])
    empty = next((index for index, part in enumerate(parts) if not part.any()), None)
    return None if empty is None else f"permits no option of component {empty}"


def check_masks(mask: Any, count: int, choices: tuple[int, ...], *, is_batch: bool) -> Array:
    """Masks [B, sum(choices)] given for one observation or for a batch of `count`; each permits an action."""
    given = read_masks(mask, choices)
    rows = given if is_batch else given[None]
    if rows.shape != (count, sum(choices)):
        raise ConfigError(
            f"mask has shape {given.shape}: give one row of {sum(choices)} per observation"
        )
    for number, row in enumerate(rows):
        fault = find_fault(row, choices)
        if fault is not None:
            raise ConfigError(
                f"mask{f' {number}' if is_batch else ''} {fault}: permit at least one"
            )
    return rows


def mask_in(obs: Any, parts: Sequence[ObsLeaf]) -> Any | None:
    """The mask that a Dict observation holds under `action_mask`; None if it holds none."""
    return obs[MASK_KEY] if any(part.path == (MASK_KEY,) for part in parts) else None


def _is_one_per_component(parts: Sequence[Any], choices: tuple[int, ...]) -> bool:
    """Whether these are one array [..., n] for each component, not one row for each observation."""
    try:
        return len(parts) > 1 and tuple(np.shape(part)[-1] for part in parts) == choices
    except (ValueError, IndexError):
        return False


def _array(obs: Any, part: ObsLeaf) -> Array:
    try:
        found = part.find(obs)
    except (KeyError, IndexError, TypeError):
        raise EnvError(f"the observation has no part '{part.name}'") from None
    try:
        array = np.asarray(found)
    except ValueError:  # rows of different lengths
        raise EnvError(f"{_what(part)} is not an array: its rows have different lengths") from None
    if array.dtype.kind not in "biuf":
        raise EnvError(f"{_what(part)} is not numeric, but {array.dtype}")
    if array.shape != part.shape and (not array.shape or array.shape[1:] != part.shape):
        raise EnvError(
            f"{_what(part)} has shape {array.shape}, which does not fit: expected {part.shape},"
            f" or {('batch', *part.shape)}"
        )
    return array


def _checked(batch: Array, part: ObsLeaf) -> Array:
    """A batch in the dtype of its part, if every value can be one of the space."""
    if batch.dtype == part.dtype and not part.choices and batch.dtype.kind != "f":
        return batch
    with np.errstate(over="ignore"):
        values = batch.astype(part.dtype, copy=False) if part.dtype == "float32" else batch
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise EnvError(f"{_what(part)} holds NaN or infinity")
    if part.choices:
        _check_categories(values, part)
    elif (
        part.dtype == "uint8"
        and not ((values >= 0) & (values <= 255) & (values == np.floor(values))).all()
    ):
        raise EnvError(
            f"{_what(part)} is of bytes, whole numbers from 0 to 255, but holds others: give it as the environment"
            " does, not scaled"
        )
    return values.astype(part.dtype, copy=False)


def _check_categories(values: Array, part: ObsLeaf) -> None:
    first = np.asarray(part.start, np.int64).reshape(part.shape)
    last = first + np.asarray(part.choices, np.int64).reshape(part.shape) - 1
    fits = (values >= first) & (values <= last) & (values == np.floor(values))
    if not fits.all():
        index = tuple(np.argwhere(~fits)[0])
        component = index[1:]
        raise EnvError(
            f"{_what(part)} has the category {values[index]:g}, which is not in its space: whole numbers from"
            f" {first[component]} to {last[component]}"
        )


def _what(part: ObsLeaf) -> str:
    return f"part '{part.name}' of the observation" if part.path else "the observation"

"""Convert observations between dataset files, replay storage and the environment's spaces.

Storage scales small uint8 arrays of a Dict or Tuple to [0, 1]. Files keep them from 0 to 255, as the environment and
`gymnasium.spaces.flatten` give them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rl_training.data.dataset_fields import row_blocks, rows_where
from rl_training.errors import DatasetError
from rl_training.replay.transitions import Array
from rl_training.spaces.observations import FLOAT_BYTES, LeafPath, ObsLeaf, ObsSpec
from rl_training.spaces.spec import describe_observation

MAX_BYTE = 255


def recorded_spec(spec: ObsSpec) -> ObsSpec:
    """The spec without scaling: observations in the environment's units."""
    return dataclasses.replace(spec, leaves=tuple(dataclasses.replace(part, scale=1.0) for part in spec.leaves))


def to_recorded(spec: ObsSpec, rows: Array) -> Array:
    """Convert stored rows [n, *shape] to file rows; the same array if nothing is scaled."""
    if not _has_scales(spec):
        return rows
    recorded = rows.copy()
    numbers = spec.numbers(recorded)
    for part, columns in _number_columns(spec):
        if part.scale != 1.0:
            numbers[:, columns] = np.rint(numbers[:, columns] / part.scale)
    return recorded


def from_recorded(spec: ObsSpec, rows: Array) -> Array:
    """Convert file rows to stored rows: the inverse of `to_recorded`."""
    if not _has_scales(spec):
        return rows
    stored = np.array(rows)
    numbers = spec.numbers(stored)
    for part, columns in _number_columns(spec):
        if part.scale != 1.0:
            numbers[:, columns] *= np.float32(part.scale)
    return stored


def check_recorded(name: str, rows: Array, spec: ObsSpec) -> None:
    """Raise a `DatasetError` unless uint8 parts hold bytes and discrete parts are one-hot."""
    if not spec.leaves:
        return
    for part, columns in _number_columns(spec):
        key = "/".join(map(str, part.path)) or "obs"
        if part.scale != 1.0:
            fault = _first_row(spec, rows, columns, _is_not_byte)
            remedy = "the environment has integers from 0 to 255: store them unscaled, or record the dataset again"
        elif part.choices:
            fault = _first_row(spec, rows, columns, lambda values, part=part: _is_not_one_hot(values, part))
            remedy = "the environment has categories: store each one-hot"
        else:
            continue
        if fault is not None:
            row, values = fault
            raise DatasetError(f"{name}[{row}] has {values[:8].tolist()} for '{key}': {remedy}")


def as_observations(space: Space[Any], rows: Array) -> Any:
    """Convert file rows [n, *shape] to a batch of observations of `space`."""
    spec = describe_observation(space)
    if not spec.leaves:
        return rows.reshape(len(rows), *space.shape).astype(space.dtype)  # type: ignore[misc]
    numbers, found = spec.numbers(rows), dict[LeafPath, Array]()
    for part, columns in _number_columns(spec):
        found[part.path] = numbers[:, columns]
    start = FLOAT_BYTES * spec.num_features
    for part in (part for part in spec.leaves if part.is_image):
        found[part.path] = rows[:, start : start + part.width]
        start += part.width
    return _nested(space, (), found)


def _nested(space: Space[Any], path: LeafPath, found: dict[LeafPath, Array]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _nested(inner, (*path, key), found) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_nested(inner, (*path, index), found) for index, inner in enumerate(space.spaces))
    values = found[path]
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        start = np.asarray(space.start).reshape(-1)
        choices = [int(space.n)] if isinstance(space, spaces.Discrete) else space.nvec.reshape(-1).tolist()
        parts = np.split(values, np.cumsum(choices)[:-1], axis=1)
        values = np.stack([part.argmax(1) for part in parts], 1) + start
    return values.reshape(len(values), *(space.shape or ())).astype(space.dtype)


def _has_scales(spec: ObsSpec) -> bool:
    return any(part.scale != 1.0 for part in spec.leaves)


def _number_columns(spec: ObsSpec) -> Iterator[tuple[ObsLeaf, slice]]:
    """Each part that is not an image, and its columns in the numeric part of a row."""
    start = 0
    for part in spec.leaves:
        if not part.is_image:
            yield part, slice(start, start + part.width)
            start += part.width


def _first_row(spec: ObsSpec, rows: Array, columns: slice, is_wrong: Any) -> tuple[int, Array] | None:
    for block in row_blocks(rows):
        values = spec.numbers(rows[block])[:, columns]
        wrong = rows_where(is_wrong, values)
        if len(wrong):
            return block.start + int(wrong[0]), values[wrong[0]]
    return None


def _is_not_byte(values: Array) -> Array:
    is_byte: Array = (values >= 0) & (values <= MAX_BYTE) & (values == np.rint(values))
    return ~is_byte


def _is_not_one_hot(values: Array, part: ObsLeaf) -> Array:
    """Whether any component of each row is not one-hot, [n, 1]."""
    is_code: Array = ((values == 0) | (values == 1)).all(1)
    sums = np.add.reduceat(values, np.cumsum((0, *part.choices[:-1])), axis=1)
    is_code &= (sums == 1).all(1)
    return ~is_code[:, None]

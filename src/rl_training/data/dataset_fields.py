"""The fields of a data set: the names files use for them, the types they are kept in, and those that can be derived."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np
import torch

from rl_training.errors import DatasetError
from rl_training.replay.transitions import FIELDS, Array

NAMES: dict[str, tuple[str, ...]] = {
    "obs": ("obs", "observations"),
    "actions": ("actions", "action"),
    "rewards": ("rewards", "reward"),
    "next_obs": ("next_obs", "next_observations"),
    "terminated": ("terminated", "terminations", "terminals"),
    "truncated": ("truncated", "truncations", "timeouts"),
    "dones": ("dones", "done"),
}
ENDINGS = ("terminated", "truncated", "dones")
BLOCK_BYTES = 1 << 22


def find_fields(keys: Iterable[str], source: str) -> dict[str, str]:
    """Which key holds which field; a `DatasetError` says what is there if one is missing or given twice."""
    keys = list(keys)
    found: dict[str, str] = {}
    for field, names in NAMES.items():
        present = [name for name in names if name in keys]
        if len(present) > 1:
            raise DatasetError(f"{source} has both '{present[0]}' and '{present[1]}' for {field}: keep one of them")
        if present:
            found[field] = present[0]
    missing = [field for field in ("obs", "actions", "rewards") if field not in found]
    if "terminated" not in found and "dones" not in found:
        missing.append("terminated")
    if missing:
        wanted = ", ".join(f"{field} (named {' or '.join(map(repr, NAMES[field]))})" for field in missing)
        there = ", ".join(map(repr, sorted(keys)[:12])) or "nothing"
        raise DatasetError(f"{source} lacks {wanted}; it has {there}")
    return found


def stored_dtype(field: str, dtype: np.dtype[Any], source: str) -> np.dtype[Any]:
    """The type a field is kept in: floats as float32, images as uint8, categories as int64, endings as bool."""
    if dtype.hasobject:
        raise DatasetError(f"{field} of {source} is an object array, which only a pickle can hold: store plain numbers")
    if dtype.kind not in "biuf":
        raise DatasetError(f"{field} of {source} has dtype {dtype}: store numbers or booleans")
    if field in ENDINGS:
        return np.dtype(np.bool_)
    if field == "rewards" or dtype.kind == "f" or (dtype.kind == "b" and field != "actions"):
        return np.dtype(np.float32)
    return np.dtype(np.uint8 if dtype == np.uint8 and field != "actions" else np.int64)


def as_stored(field: str, value: Any, source: str) -> Array:
    """The value as an array of the right type, in C order; it shares the input's memory where it can."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.is_floating_point() else value).numpy()
    array: Array = np.asarray(value)
    target = stored_dtype(field, array.dtype, source)
    if target == np.bool_ and len(wrong := np.flatnonzero((array != 0) & (array != 1))):
        value = array.reshape(-1)[wrong[0]]
        raise DatasetError(f"{field}[{wrong[0]}] of {source} is {value}: an ending is 0 or 1")
    is_column = array.ndim == 2 and array.size == len(array) and field in ("rewards", *ENDINGS)
    shape = array.shape[:1] if is_column else array.shape
    return np.ascontiguousarray(array, dtype=target).view(np.ndarray).reshape(shape)


def derive_missing(fields: MutableMapping[str, Array]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """All six fields from those a file has, and what the reader should know about the derived ones.

    `fields` is emptied on the way, so that what is copied does not stay in memory twice.
    """
    notes = [*_derive_endings(fields)]
    if "next_obs" not in fields:
        notes.append(_derive_next_obs(fields))
    return {name: fields.pop(name) for name in FIELDS}, tuple(notes)


def check_lengths(fields: Mapping[str, Array], source: str) -> None:
    """Every field must have as many rows as the observations, and at least one."""
    for name, array in fields.items():
        if array.ndim == 0:
            raise DatasetError(f"{name} of {source} is a single number: give one row for each transition")
    obs = fields["obs"]
    if not any(map(len, fields.values())):
        raise DatasetError(f"{source} is empty: it has no transition")
    for name, array in fields.items():
        shape, fault = array.shape[1:], ""
        if len(array) != len(obs):
            fault = f"has {len(array):,} rows and obs has {len(obs):,}: give one row for each transition"
        elif name in ("rewards", *ENDINGS) and shape:
            fault = f"has shape {array.shape}: give one number for each transition"
        elif 0 in shape:
            fault = f"has rows of shape {shape}, which hold no number"
        elif name == "next_obs" and shape != obs.shape[1:]:
            fault = f"has rows of shape {shape} and obs {obs.shape[1:]}: they must be alike"
        if fault:
            raise DatasetError(f"{name} of {source} {fault}")


def flat_rows(array: Array) -> Array:
    """[n, ...] as [n, columns], for no rows too."""
    return array.reshape(len(array), math.prod(array.shape[1:]))


def row_blocks(*arrays: Array) -> Iterator[slice]:
    """Slices that cover the rows, each a few megabytes, so that work on them needs little memory."""
    row_bytes = max(1, sum(array[:1].nbytes for array in arrays))
    size = max(1, BLOCK_BYTES // row_bytes)
    for start in range(0, len(arrays[0]), size):
        yield slice(start, start + size)


def rows_where(is_wanted: Callable[[Array], Array], array: Array) -> Array:
    """The rows of which any number is wanted."""
    return np.concatenate(
        [np.flatnonzero(flat_rows(is_wanted(array[block])).any(1)) + block.start for block in row_blocks(array)]
    )


def spread_rows(num_rows: int, count: int) -> Array:
    """At most `count` rows, evenly spread."""
    return np.linspace(0, num_rows - 1, min(num_rows, count)).astype(np.int64)


def _derive_endings(fields: MutableMapping[str, Array]) -> Iterator[str]:
    dones: Any = fields.pop("dones", None)
    if dones is None and "truncated" not in fields:
        yield (
            "it has no 'truncated': time limits cannot be told from the middle of an episode,"
            " so an episode cut short is seen only where the next observation does not follow"
        )
    elif "terminated" not in fields and "truncated" not in fields:
        yield (
            "it has only 'dones': every ending is taken as terminated, so the value after a time limit is learned as 0,"
            " which lowers the values of long episodes; store 'terminated' and 'truncated' apart to avoid that"
        )
    if "terminated" not in fields:
        fields["terminated"] = dones & ~fields.get("truncated", np.False_)
    if "truncated" not in fields:
        fields["truncated"] = (fields["terminated"] if dones is None else dones) & ~fields["terminated"]


def _derive_next_obs(fields: MutableMapping[str, Array]) -> str:
    """Take each next observation from the row below, and drop the rows for which that row is another episode's."""
    terminated, truncated = fields["terminated"], fields["truncated"].copy()
    keep = ~truncated | terminated
    keep[-1] = terminated[-1]
    if not keep.any():
        raise DatasetError("no 'next_obs' is given and no transition is followed by another of its episode")
    rows, dropped = np.flatnonzero(keep), np.flatnonzero(~keep)
    before = dropped[dropped > 0] - 1
    truncated[before] |= ~terminated[before]
    fields["truncated"] = truncated
    # A terminal state has no value, so its next observation is never used: its own stands in.
    wanted = np.where(terminated[rows], rows, rows + 1)
    # Most are the observation of the next kept row; only the others are fetched from the file, which may be mapped.
    others = np.append(np.flatnonzero(wanted[:-1] != rows[1:]), len(rows) - 1)
    fetched = fields["obs"][wanted[others]]
    if len(dropped):
        for name in ("obs", "actions", "rewards", "terminated", "truncated"):
            fields[name] = fields.pop(name)[rows]
    fields["next_obs"] = np.roll(fields["obs"], -1, axis=0)
    fields["next_obs"][others] = fetched
    return (
        f"it has no 'next_obs', which is taken from the following row; {len(dropped):,} of {len(keep):,} transitions"
        " were dropped because theirs is not in the file (the last before a time limit or the end)"
    )

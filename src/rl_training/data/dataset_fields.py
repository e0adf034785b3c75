"""Fields of a dataset: their names in files, their stored dtypes and lengths, and blocks of their rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rl_training.errors import DatasetError
from rl_training.memory import check_data_fits
from rl_training.replay.transitions import MASK_FIELDS, Array

FIELD_ALIASES: dict[str, tuple[str, ...]] = {
    "obs": ("obs", "observations"),
    "actions": ("actions", "action"),
    "rewards": ("rewards", "reward"),
    "next_obs": ("next_obs", "next_observations"),
    "terminated": ("terminated", "terminations", "terminals"),
    "truncated": ("truncated", "truncations", "timeouts"),
    "dones": ("dones", "done"),
    "masks": ("masks", "action_masks", "action_mask"),
    "next_masks": ("next_masks", "next_action_masks", "next_action_mask"),
}
FOREIGN_ALIASES: dict[str, tuple[str, ...]] = {
    "actions": ("acts", "acs"),
    "rewards": ("rews",),
    "terminated": ("terminal",),
}
"""Names of other libraries, read only where a field has none of the names above."""
CUT_FIELDS = ("episode_lengths", "episode_ends", "episode_starts", "indices")
"""Fields that cut episodes stored end to end; one is read if `next_obs` or the episode ends are missing."""
EPISODE_END_FIELDS = ("terminated", "truncated", "dones")
NUMBER_FIELDS = ("rewards", *EPISODE_END_FIELDS)
"""Fields with one number per transition."""
JOIN_EPISODES = (
    "convert it where you trust it: join the episodes with numpy.concatenate, and save arrays of numbers with"
    " numpy.savez(FILE, obs=..., actions=..., rewards=..., terminated=..., episode_lengths=...)"
)
BLOCK_BYTES = 1 << 22
"""Arrays are processed in blocks of about this size, so that temporary copies stay small."""


def find_fields(keys: Iterable[str], source: str) -> dict[str, str]:
    """Map each field to its key; a `DatasetError` if a field is missing or has two keys.

    Rewards may be missing, and without them episode ends too: such a dataset can still be imitated.
    """
    keys = list(keys)
    found: dict[str, str] = {}
    for field, aliases in FIELD_ALIASES.items():
        present = [alias for alias in aliases if alias in keys]
        if len(present) > 1:
            raise DatasetError(
                f"{source} has both '{present[0]}' and '{present[1]}' for {field}: remove one of them"
            )
        present += [alias for alias in FOREIGN_ALIASES.get(field, ()) if alias in keys]
        if present:
            found[field] = present[0]
    cuts = [name for name in CUT_FIELDS if name in keys]
    # 'terminal' may have one flag per episode; a file with the other names and next_obs needs no cuts.
    has_step_ends = "dones" in found or found.get("terminated") not in (None, "terminal")
    if "next_obs" not in found or not has_step_ends:
        found |= {cut: cut for cut in cuts}
    missing = [field for field in ("obs", "actions") if field not in found]
    if missing and "rewards" not in found:
        missing.append("rewards")
    has_ends = cuts or "terminated" in found or "dones" in found
    if not has_ends and (missing or "rewards" in found):
        missing.append("terminated")
    if "next_masks" in found and "masks" not in found:
        raise DatasetError(
            f"{source} has '{found['next_masks']}' and no 'masks': store both, or neither"
        )
    if missing:
        raise DatasetError(_describe_missing(missing, keys, source))
    return found


def _describe_missing(missing: list[str], keys: list[str], source: str) -> str:
    wanted = ", ".join(
        f"{field} (named {' or '.join(map(repr, FIELD_ALIASES[field]))})" for field in missing
    )
    message = (
        f"{source} lacks {wanted}; it has {', '.join(map(repr, sorted(keys)[:12])) or 'no field'}"
    )
    if missing == ["terminated"]:
        message += "; 'episode_lengths' can cut episodes without end flags"
    return message


def stored_dtype(field: str, dtype: np.dtype[Any], source: str) -> np.dtype[Any]:
    """Dtype in which a field is stored: floats float32, images uint8, categories int64, episode end flags bool."""
    if dtype.hasobject:
        raise DatasetError(
            f"{field} of {source} is an object array, which needs pickle to load: {JOIN_EPISODES}"
        )
    if dtype.kind not in "biuf":
        raise DatasetError(f"{field} of {source} has dtype {dtype}: store numbers or booleans")
    if field in CUT_FIELDS:
        if dtype.kind == "f":
            raise DatasetError(f"{field} of {source} has dtype {dtype}: store integers")
        return np.dtype(np.int64)
    if field in EPISODE_END_FIELDS or field in MASK_FIELDS:
        return np.dtype(np.bool_)
    if field == "rewards" or dtype.kind == "f" or (dtype.kind == "b" and field != "actions"):
        return np.dtype(np.float32)
    return np.dtype(np.uint8 if dtype == np.uint8 and field != "actions" else np.int64)


def as_stored(field: str, value: Any, source: str) -> Array:
    """The value as a C-ordered array of the stored dtype; shares the input's memory where possible."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.is_floating_point() else value).numpy()
    array: Array = np.asarray(value)
    target = stored_dtype(field, array.dtype, source)
    if target == np.bool_ != array.dtype and len(
        wrong := np.flatnonzero((array != 0) & (array != 1))
    ):
        value = array.reshape(-1)[wrong[0]]
        what = "an action mask" if field in MASK_FIELDS else "an episode end flag"
        raise DatasetError(f"{field}[{wrong[0]}] of {source} is {value}: {what} is 0 or 1")
    is_column = array.ndim == 2 and array.size == len(array)
    shape = array.shape
    if is_column and field in (*NUMBER_FIELDS, *CUT_FIELDS):
        shape = array.shape[:1]
    return np.ascontiguousarray(array, dtype=target).view(np.ndarray).reshape(shape)


@dataclass(frozen=True)
class FieldHeader:
    """A field of a file before it is read."""

    shape: tuple[int, ...]
    stored_dtype: np.dtype[Any]
    is_copied: bool = True
    """Whether loading takes memory for it; not if it stays in a mapped file or in the tensor that was read."""

    @property
    def num_bytes(self) -> int:
        """Size of the stored field."""
        return math.prod(self.shape) * self.stored_dtype.itemsize


def check_fits(headers: Mapping[str, FieldHeader], source: str, remedy: str) -> None:
    """Raise a `DatasetError` if the fields, and those derived from them, exceed the free memory."""
    needed = sum(header.num_bytes for header in headers.values() if header.is_copied)
    if "next_obs" not in headers:
        # Derived from obs, which is copied too if it has final observations.
        obs = headers["obs"]
        num_copies = 1 if obs.shape[:1] == headers["actions"].shape[:1] else 2
        needed += num_copies * obs.num_bytes
    check_data_fits(needed, source, remedy)


def check_lengths(fields: Mapping[str, Array], source: str) -> None:
    """Raise a `DatasetError` unless every field has one row per transition, and there is at least one."""
    for name, array in fields.items():
        if array.ndim == 0:
            raise DatasetError(
                f"{name} of {source} is a single number: give one row per transition"
            )
    obs = fields["obs"]
    if not any(map(len, fields.values())):
        raise DatasetError(f"{source} is empty: it has no transitions")
    for name, array in fields.items():
        shape, fault = array.shape[1:], ""
        if len(array) != len(obs):
            fault = f"has {len(array):,} rows and obs has {len(obs):,}: give one row per transition"
        elif name in NUMBER_FIELDS and shape:
            fault = f"has shape {array.shape}: give one number per transition"
            if name == "rewards":
                fault += (
                    "; join stacked episodes [E, T] end to end, and store their 'episode_lengths'"
                )
        elif 0 in shape:
            fault = f"has rows of shape {shape}: store at least one number per row"
        elif name == "next_obs" and shape != obs.shape[1:]:
            fault = f"has rows of shape {shape} and obs {obs.shape[1:]}: store both in one shape"
        if fault:
            raise DatasetError(f"{name} of {source} {fault}")


def flat_rows(array: Array) -> Array:
    """Reshape [n, ...] to [n, columns]; n may be 0."""
    return array.reshape(len(array), math.prod(array.shape[1:]))


def row_blocks(*arrays: Array) -> Iterator[slice]:
    """Slices of about `BLOCK_BYTES` each that together cover all rows."""
    row_bytes = max(1, sum(array[:1].nbytes for array in arrays))
    size = max(1, BLOCK_BYTES // row_bytes)
    for start in range(0, len(arrays[0]), size):
        yield slice(start, start + size)


def rows_where(condition: Callable[[Array], Array], array: Array) -> Array:
    """Indices of the rows in which any number satisfies the condition."""
    return np.concatenate(
        [
            np.flatnonzero(flat_rows(condition(array[block])).any(1)) + block.start
            for block in row_blocks(array)
        ]
    )


def find_following(obs: Array, next_obs: Array) -> Array:
    """Whether the next row's `obs` equals this row's `next_obs`, for all rows but the last, [n - 1]."""
    follows = np.ones(len(obs) - 1, np.bool_)
    width = obs[0].size
    for block in row_blocks(obs[1:], next_obs[:-1]):
        after, before = obs[1:][block].reshape(-1), next_obs[:-1][block].reshape(-1)
        # Few numbers differ, so locating them is faster than comparing row by row.
        differing = np.flatnonzero(after != before)
        both_nan = np.isnan(after[differing]) & np.isnan(before[differing])
        follows[block.start + differing[~both_nan] // width] = False
    return follows


def evenly_spaced_rows(num_rows: int, count: int) -> Array:
    """At most `count` row indices, evenly spaced."""
    return np.linspace(0, num_rows - 1, min(num_rows, count)).astype(np.int64)

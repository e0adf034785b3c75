"""Layouts of published demonstrations: episodes end to end, final observations, missing rewards or episode ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np

from rl_training.data.dataset_fields import (
    CUT_FIELDS,
    EPISODE_END_FIELDS,
    check_lengths,
    derive_missing,
)
from rl_training.errors import DatasetError
from rl_training.replay.transitions import Array

NO_REWARDS = "'rewards' is missing: the file can be imitated (bc); every other algorithm refuses it"
ONLY_PAIRS = (
    "episode ends are missing: each row counts as an episode of one step, which is enough"
    " to imitate the actions (bc)"
)


def complete_fields(
    fields: MutableMapping[str, Array], source: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Arguments of `TransitionDataset` from the fields of a file, and notes on what was derived.

    `fields` is emptied, so that copied arrays are not held twice.
    """
    has_rewards = "rewards" in fields
    notes = [] if has_rewards else [NO_REWARDS]
    # Fields that are single numbers or empty are reported by check_lengths.
    if fields["obs"].ndim and fields["actions"].ndim and len(fields["actions"]):
        notes += _split_episodes(fields, source)
    if not has_rewards:
        fields["rewards"] = np.zeros(fields["actions"].shape[:1], np.float32)
    check_lengths(fields, source)
    complete, derived = derive_missing(fields)
    return {**complete, "has_rewards": has_rewards}, (*notes, *derived)


def _split_episodes(fields: MutableMapping[str, Array], source: str) -> Iterator[str]:
    """Replace episode starts, flags of whole episodes and final observations by one row per transition."""
    cuts = {name: fields.pop(name) for name in CUT_FIELDS if name in fields}
    key = next(iter(cuts), None)
    num_obs, num_steps = len(fields["obs"]), len(fields["actions"])
    if key is not None and _tells_every_end(fields):
        return  # the flags suffice, and lengths may count finished episodes only
    starts = _starts_from_flags(fields) if key is None else _agreed_starts(cuts, num_steps, source)
    has_finals = "next_obs" not in fields and num_obs == num_steps + len(starts)
    has_flags = any(name in fields for name in EPISODE_END_FIELDS)
    if key is None and not has_finals:
        if not has_flags:
            yield _keep_pairs(fields)
        return  # one row per transition, or lengths that check_lengths reports
    if not has_finals and num_obs != num_steps:
        raise DatasetError(
            f"obs of {source} has {num_obs:,} rows for {num_steps:,} actions in {len(starts):,} episodes (by '{key}'):"
            f" give {num_steps:,} rows, or {num_steps + len(starts):,} with the final observation of each episode"
        )
    ends = np.append(starts[1:], num_steps) - 1
    note = f"{len(starts):,} episodes by {'their end flags' if key is None else repr(key)}"
    if has_finals:
        _take_next(fields, starts, num_steps)
        note += ", with one more observation than actions in each, from which 'next_obs' was taken"
    yield note
    yield from _mark_ends(fields, ends, num_steps, source)


def _tells_every_end(fields: MutableMapping[str, Array]) -> bool:
    """Whether flags with one row per observation mark both kinds of episode end."""
    flags = [fields[name] for name in EPISODE_END_FIELDS if name in fields]
    is_per_step = len(fields["obs"]) == len(fields["actions"]) and all(
        flag.shape == fields["actions"].shape[:1] for flag in flags
    )
    return is_per_step and ("dones" in fields or {"terminated", "truncated"} <= fields.keys())


def _keep_pairs(fields: MutableMapping[str, Array]) -> str:
    """Flags for rows without episode ends; without `next_obs`, no row may continue in the next one."""
    is_end = "next_obs" not in fields
    fields["terminated"] = np.full(len(fields["actions"]), is_end)
    fields["truncated"] = np.zeros(len(fields["actions"]), np.bool_)
    if not is_end:
        return "episode ends are missing: an episode ends where the next row does not follow"
    fields["next_obs"] = fields["obs"]  # a placeholder: a terminated step does not bootstrap
    return ONLY_PAIRS


def _starts_from_flags(fields: MutableMapping[str, Array]) -> Array:
    """First row of each episode by flags with one row per transition; one episode without such flags."""
    num_steps = len(fields["actions"])
    is_end = np.zeros(num_steps, np.bool_)
    for name in EPISODE_END_FIELDS:
        if name in fields and fields[name].shape == (num_steps,):
            is_end |= fields[name]
    return np.append(0, np.flatnonzero(is_end[:-1]) + 1)


def _agreed_starts(cuts: Mapping[str, Array], num_steps: int, source: str) -> Array:
    """First row of each episode, by one field or by several that say the same."""
    (key, starts), *others = (
        (name, _read_starts(name, values, num_steps, source)) for name, values in cuts.items()
    )
    for other, others_starts in others:
        if not np.array_equal(starts, others_starts):
            raise DatasetError(
                f"{key} and {other} of {source} cut the actions differently: keep one of them"
            )
    return starts


def _read_starts(key: str, values: Array, num_steps: int, source: str) -> Array:
    """First row of each episode by the field `key`."""
    if values.ndim != 1:
        raise DatasetError(
            f"{key} of {source} has shape {values.shape}: give one number per episode"
        )
    is_flags = len(values) == num_steps and bool(np.isin(values, (0, 1)).all())
    if key == "episode_lengths":
        starts, is_valid = np.cumsum(values), bool(np.all((values > 0) & (values <= num_steps)))
        is_valid &= int(values.sum()) == num_steps
        rule = f"give numbers above 0 whose sum is the number of actions, {num_steps:,}"
    elif is_flags:
        starts, is_valid, rule = np.flatnonzero(values) + (key == "episode_ends"), True, ""
    else:
        # The last end is the number of rows, or the last row itself.
        is_last_row = key == "episode_ends" and len(values) > 0 and values[-1] == num_steps - 1
        starts = values + is_last_row
        is_valid = bool(
            np.all(starts[1:] > starts[:-1]) and np.all((starts >= 0) & (starts <= num_steps))
        )
        rule = f"give increasing rows of the actions, from 0 to {num_steps:,}"
        if key == "episode_ends":
            is_valid &= len(starts) > 0 and int(starts[-1]) == num_steps
            rule += f", the last one {num_steps:,}"
    if not is_valid:
        raise DatasetError(
            f"{key} of {source} does not cut {num_steps:,} actions into episodes: {rule}"
        )
    return np.union1d([0], starts[starts < num_steps])


def _take_next(fields: MutableMapping[str, Array], starts: Array, num_steps: int) -> None:
    """Observations and masks of N + E rows as those before and after each of N steps."""
    lengths = np.diff(np.append(starts, num_steps))
    before = np.arange(num_steps) + np.repeat(np.arange(len(starts)), lengths)
    for name in ("obs", "masks"):
        if (
            name in fields
            and f"next_{name}" not in fields
            and len(fields[name]) == num_steps + len(starts)
        ):
            array = fields[name]
            fields[f"next_{name}"] = array[before + 1]
            fields[name] = array[before]


def _mark_ends(
    fields: MutableMapping[str, Array], ends: Array, num_steps: int, source: str
) -> Iterator[str]:
    """Flags with one row per transition; an episode that did not terminate was truncated."""
    given = {name: fields.pop(name) for name in EPISODE_END_FIELDS if name in fields}
    flags = {
        name: _per_step(name, values, ends, num_steps, source) for name, values in given.items()
    }
    truncated = flags.get("truncated", np.zeros(num_steps, np.bool_))
    terminated = flags.get("terminated", flags.get("dones", np.zeros(num_steps, np.bool_)))
    # A flag of a whole episode, and 'dones', say that it ended; 'truncated' says how.
    is_any_end = "terminated" not in given or given["terminated"].shape != (num_steps,)
    if is_any_end:
        terminated &= ~truncated
    if "terminated" in flags and "dones" in flags:
        truncated |= flags["dones"] & ~terminated
    truncated[ends] |= ~terminated[ends]
    fields["terminated"], fields["truncated"] = terminated, truncated
    if not given:
        yield "how the episodes ended is missing: all count as truncated; store 'terminated' if the task ended them"
    elif is_any_end and "truncated" not in given and terminated.any():
        yield _describe_ends(terminated, ends)


def _per_step(name: str, values: Array, ends: Array, num_steps: int, source: str) -> Array:
    if values.shape == (num_steps,):
        return values.copy()
    if values.size != len(ends):
        raise DatasetError(
            f"{name} of {source} has shape {values.shape}: give one flag per transition ({num_steps:,}) or per episode"
            f" ({len(ends):,})"
        )
    flags = np.zeros(num_steps, np.bool_)
    flags[ends] = values.reshape(-1)
    return flags


def _describe_ends(terminated: Array, ends: Array) -> str:
    lengths = np.diff(ends, prepend=-1)
    count, longest = int(terminated[ends].sum()), int(lengths.max())
    num_longest = int(np.sum(terminated[ends] & (lengths == longest)))
    return (
        f"the file does not tell time limits from terminations: {count:,} of {len(ends):,} episodes count as"
        f" terminated, {num_longest:,} of them with the maximum length of {longest:,}; if that is a time limit, store"
        " 'truncated', one flag per episode (bc does not use it)"
    )

"""Layouts of files: episodes end to end, final observations, missing rewards, episode ends or next observations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np

from rl_training.data.dataset_fields import (
    CUT_FIELDS,
    EPISODE_END_FIELDS,
    check_lengths,
    find_following,
)
from rl_training.errors import DatasetError
from rl_training.replay.transitions import FIELDS, MASK_FIELDS, Array

NO_REWARDS = "'rewards' is missing: the file can be imitated (bc); every other algorithm refuses it"
ONLY_PAIRS = (
    "episode ends are missing: each row counts as an episode of one step, which is enough"
    " to imitate the actions (bc)"
)
ONLY_SEAMS = "episode ends are missing: an episode ends where the next row does not follow"
NO_TIME_LIMITS = (
    "'truncated' is missing: time limits are unknown, so a truncated episode is detected only where the next"
    " row does not follow; store 'truncated' to keep them"
)
NO_ENDS = "how the episodes ended is missing: all count as truncated; store 'terminated' if the task ended them"
ONLY_DONES = (
    "only 'dones' is given: every episode end is taken as terminated, so the state value after a time limit is"
    " learned as 0, which lowers the values of long episodes; store 'terminated' and 'truncated' instead"
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
    _derive_flags(fields)
    if "next_obs" not in fields:
        notes.append(_derive_next_obs(fields))
    if "masks" in fields and "next_masks" not in fields:
        notes.append(_derive_next_masks(fields))
    complete = {name: fields.pop(name) for name in (*FIELDS, *MASK_FIELDS) if name in fields}
    return {**complete, "has_rewards": has_rewards}, tuple(notes)


def _split_episodes(fields: MutableMapping[str, Array], source: str) -> Iterator[str]:
    """Replace episode starts, flags of whole episodes and final observations by one row per transition."""
    cuts = {name: fields.pop(name) for name in CUT_FIELDS if name in fields}
    if _has_every_end(fields):
        cuts = {}  # the flags suffice, and lengths may count finished episodes only
    num_obs, num_steps = len(fields["obs"]), len(fields["actions"])
    starts = _agreed_starts(cuts, num_steps, source) if cuts else _starts_from_flags(fields)
    has_finals = "next_obs" not in fields and num_obs == num_steps + len(starts)
    if not cuts and not has_finals:
        yield from _note_flags(
            fields
        )  # one row per transition, or lengths that check_lengths reports
        return
    key = next(iter(cuts), None)
    if not has_finals and num_obs != num_steps:
        raise DatasetError(
            f"obs of {source} has {num_obs:,} rows for {num_steps:,} actions in {len(starts):,} episodes (by '{key}'):"
            f" give {num_steps:,} rows, or {num_steps + len(starts):,} with the final observation of each episode"
        )
    note = f"{len(starts):,} episodes by {'their end flags' if key is None else repr(key)}"
    if has_finals:
        _take_next(fields, starts, num_steps)
        note += ", with one more observation than actions in each, from which 'next_obs' was taken"
    yield note
    yield from _mark_ends(fields, np.append(starts[1:], num_steps) - 1, num_steps, source)


def _has_every_end(fields: Mapping[str, Array]) -> bool:
    """Whether flags with one row per observation mark both kinds of episode end."""
    flags = [fields[name] for name in EPISODE_END_FIELDS if name in fields]
    is_per_step = len(fields["obs"]) == len(fields["actions"]) and all(
        flag.shape == fields["actions"].shape[:1] for flag in flags
    )
    return is_per_step and ("dones" in fields or {"terminated", "truncated"} <= fields.keys())


def _note_flags(fields: MutableMapping[str, Array]) -> Iterator[str]:
    """Describe missing flags; without any, mark rows that cannot continue in the next one as terminated."""
    names = fields.keys() & EPISODE_END_FIELDS
    if not names:
        is_pairs = "next_obs" not in fields
        yield ONLY_PAIRS if is_pairs else ONLY_SEAMS
        fields["terminated"] = np.full(len(fields["actions"]), is_pairs)
        if is_pairs:
            fields["next_obs"] = fields[
                "obs"
            ]  # a placeholder: a terminated step does not bootstrap
    elif names == {"terminated"}:
        yield NO_TIME_LIMITS
    elif names == {"dones"}:
        yield ONLY_DONES


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
    for name, values in given.items():
        fields[name] = _per_step(name, values, ends, num_steps, source)
    dones: Array = fields.get("dones", np.zeros((), np.bool_))
    _derive_flags(fields)
    terminated, truncated = fields["terminated"], fields["truncated"]
    # A flag of a whole episode, and 'dones', say that it ended; 'truncated' says how.
    is_any_end = "terminated" not in given or given["terminated"].shape != (num_steps,)
    if is_any_end:
        terminated &= ~truncated
    truncated |= dones & ~terminated
    truncated[ends] |= ~terminated[ends]
    if not given:
        yield NO_ENDS
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


def _derive_flags(fields: MutableMapping[str, Array]) -> None:
    """Set `terminated` and `truncated` from those that are given and from `dones`, which is removed."""
    no_ends = np.zeros(len(fields["actions"]), np.bool_)
    dones: Array = fields.pop("dones", fields.get("terminated", no_ends))
    if "terminated" not in fields:
        fields["terminated"] = dones & ~fields.get("truncated", no_ends)
    if "truncated" not in fields:
        fields["truncated"] = dones & ~fields["terminated"]


def _derive_next_obs(fields: MutableMapping[str, Array]) -> str:
    """Take `next_obs` from the next row, and drop the rows whose next row belongs to another episode."""
    terminated, truncated = fields["terminated"], fields["truncated"].copy()
    keep = ~truncated | terminated
    keep[-1] = terminated[-1]
    if not keep.any():
        raise DatasetError(
            "'next_obs' is missing and no transition has a next row of its episode: store 'next_obs'"
        )
    rows, dropped = np.flatnonzero(keep), np.flatnonzero(~keep)
    before = dropped[dropped > 0] - 1
    truncated[before] |= ~terminated[before]
    fields["truncated"] = truncated
    # A terminated step does not bootstrap, so its next observation is never used: obs is a placeholder.
    wanted = np.where(terminated[rows], rows, rows + 1)
    # Most are the obs of the next kept row; only the others are read again from the file, which may be mapped.
    others = np.append(np.flatnonzero(wanted[:-1] != rows[1:]), len(rows) - 1)
    fetched = fields["obs"][wanted[others]]
    if len(dropped):
        for name in [name for name in fields if name != "next_obs"]:
            fields[name] = fields.pop(name)[rows]
    fields["next_obs"] = np.roll(fields["obs"], -1, axis=0)
    fields["next_obs"][others] = fetched
    return (
        f"'next_obs' is missing and was taken from the next row; {len(dropped):,} of {len(keep):,} transitions were"
        " dropped because their next observation is not in the file (before a time limit or the end of the file)"
    )


def _derive_next_masks(fields: MutableMapping[str, Array]) -> str:
    """Take `next_masks` from the next row; where it does not follow, every action counts as valid."""
    next_masks = np.roll(fields["masks"], -1, axis=0)
    ended = fields["terminated"] | fields["truncated"]
    ended[-1] = True
    ended[:-1] |= ~find_following(fields["obs"], fields["next_obs"])
    next_masks[ended] = True
    fields["next_masks"] = next_masks
    return (
        "'next_masks' is missing and was taken from the next row; after the last step of an episode every action counts"
        " as valid"
    )

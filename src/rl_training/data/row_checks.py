"""Checks that compare rows with each other: misaligned observations, endings nobody marked, repeats."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rl_training.data.dataset_fields import flat_rows, row_blocks, spread_rows
from rl_training.data.findings import Finding, Level
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.replay.transitions import Array

JUMP = 6.0
"""From which miss on a step is a jump."""
STANDS_OUT = 3.0
"""How many times the misses just before and after it a jump is."""
LEAP = 0.5
"""How far a jump goes at least, in standard deviations."""
MANY_REPEATS = 1e-3
SHIFTS = {0: "the same row's observation", 2: "the observation two rows on", -1: "the row before's observation"}


def check_alignment(dataset: TransitionDataset, misses: Array | None) -> Iterator[Finding]:
    """Rows inside an episode whose `next_obs` is not the next row's observation; `misses` tells more of them."""
    inside = ~dataset.dones[:-1]
    breaks = inside & ~dataset.follows
    rows = np.flatnonzero(breaks)
    if len(rows) > 0.5 * inside.sum():
        yield _nothing_follows(dataset, rows)
        return
    padded = np.pad(breaks, 1)
    # Several in a row cannot all be episodes of one step.
    is_wrong = padded[rows] | padded[rows + 2]
    if misses is not None:
        is_wrong |= misses[rows] > JUMP
    wrong, unmarked = rows[is_wrong], rows[~is_wrong]
    if len(wrong):
        found = f"next_obs is not what the next row observes in {len(wrong):,} places inside episodes"
        remedy = "rebuild next_obs from the recording: values would be learned for states that did not follow"
        yield Finding(Level.ERROR, "next_obs_misaligned", found, remedy, int(wrong[0]))
    if len(unmarked):
        found = f"{len(unmarked):,} episodes stop without a mark: the next row belongs to another one"
        remedy = "mark these rows truncated if a time limit or the recorder cut them, terminated if the task ended"
        yield Finding(Level.WARNING, "unmarked_endings", found, remedy, int(unmarked[0]))


def _nothing_follows(dataset: TransitionDataset, breaks: Array) -> Finding:
    rows = spread_rows(len(dataset), 1000)
    for shift, meaning in SHIFTS.items():
        later = np.clip(rows + shift, 0, len(dataset) - 1)
        if flat_rows(dataset.next_obs[rows] == dataset.obs[later]).all(1).mean() > 0.5:
            found = f"next_obs is {meaning} nearly everywhere"
            remedy = "rebuild next_obs from the recording: row t needs the observation of row t + 1"
            return Finding(Level.ERROR, "next_obs_misaligned", found, remedy, int(breaks[0]))
    found = f"{len(breaks):,} rows are not followed by the row they lead to:"
    found += " the transitions are shuffled, or next_obs is wrong"
    remedy = "training on single steps still works if they are only shuffled; episodes and returns cannot be told"
    return Finding(Level.WARNING, "rows_not_in_order", found, remedy, int(breaks[0]))


def check_jumps(dataset: TransitionDataset, misses: Array, leaps: Array) -> Iterator[Finding]:
    """Steps far larger than those before and after: an ending that nobody marked."""
    around = np.maximum(np.append(misses[:1], misses[:-1]), np.append(misses[1:], misses[-1:]))
    is_jump = (misses > JUMP) & (misses > STANDS_OUT * (around + 0.3)) & (leaps > LEAP)
    rows = np.flatnonzero(is_jump & ~dataset.dones)
    if len(rows):
        found = f"{len(rows):,} steps inside episodes lead far away from where the steps around them lead"
        remedy = "they look like resets that nobody marked: mark the row before as truncated and drop this one"
        yield Finding(Level.WARNING, "jumps", found, remedy, int(rows[0]))


def check_repeats(dataset: TransitionDataset) -> Iterator[Finding]:
    """Transitions that occur more than once, bit for bit."""
    hashes = _row_hashes(dataset.obs, dataset.actions, dataset.rewards, dataset.next_obs)
    is_repeat = np.ones(len(dataset), np.bool_)
    is_repeat[np.unique(hashes, return_index=True)[1]] = False
    if not is_repeat.any():
        return
    # In a world of few states the same step is taken again and again.
    is_expected = dataset.obs.dtype.kind != "f" or len(np.unique(_row_hashes(dataset.obs))) < 0.1 * len(dataset)
    share = is_repeat.mean()
    found = f"{is_repeat.sum():,} transitions ({share:.1%}) repeat an earlier one exactly"
    remedy = (
        "natural where states are few" if is_expected else "a file joined twice weighs these episodes double: drop them"
    )
    level = Level.INFO if is_expected or share < MANY_REPEATS else Level.WARNING
    yield Finding(level, "repeated_transitions", found, remedy, int(is_repeat.argmax()))


def _row_hashes(*arrays: Array) -> Array:
    """A 64-bit hash of each row's bytes."""
    hashes = np.empty(len(arrays[0]), np.int64)
    for block in row_blocks(*arrays):
        parts = [np.ascontiguousarray(flat_rows(array[block])).view(np.uint8) for array in arrays]
        hashes[block] = [hash(row.tobytes()) for row in np.hstack(parts)]
    return hashes

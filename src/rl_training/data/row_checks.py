"""Checks across rows: misaligned next observations, missing episode end flags, repeated transitions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rl_training.data.dataset_fields import evenly_spaced_rows, flat_rows, row_blocks
from rl_training.data.findings import Finding, Level
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.replay.transitions import Array

JUMP_RESIDUAL = 6.0
"""Minimum residual of a jump."""
JUMP_RATIO = 3.0
"""Minimum ratio of a jump's residual to its neighbours'."""
JUMP_LENGTH = 0.5
"""Minimum length of a jump, in standard deviations."""
MANY_REPEATS = 1e-3
"""Fraction of repeated transitions from which they are a warning."""
SHIFTS = {0: "obs of the same row", 2: "obs two rows later", -1: "obs of the previous row"}


def check_alignment(dataset: TransitionDataset, residuals: Array | None) -> Iterator[Finding]:
    """Rows inside an episode whose `next_obs` is not the next row's `obs`; `residuals` separate faults from resets."""
    inside = ~dataset.dones[:-1]
    breaks = inside & ~dataset.follows
    rows = np.flatnonzero(breaks)
    if len(rows) > 0.5 * inside.sum():
        yield _describe_unordered(dataset, rows)
        return
    padded = np.pad(breaks, 1)
    # Consecutive breaks cannot all be episodes of one step.
    is_wrong = padded[rows] | padded[rows + 2]
    if residuals is not None:
        is_wrong |= residuals[rows] > JUMP_RESIDUAL
    wrong, unflagged = rows[is_wrong], rows[~is_wrong]
    if len(wrong):
        found = f"next_obs differs from the next row's obs in {len(wrong):,} rows inside episodes"
        remedy = "rebuild next_obs from the recording: TD targets would use the wrong next state"
        yield Finding(Level.ERROR, "next_obs_misaligned", found, remedy, int(wrong[0]))
    if len(unflagged):
        found = f"{len(unflagged):,} episodes end without a flag: the next row belongs to another episode"
        remedy = "set truncated there if a time limit or the recorder ended them, terminated if the task did"
        yield Finding(Level.WARNING, "unflagged_ends", found, remedy, int(unflagged[0]))


def _describe_unordered(dataset: TransitionDataset, breaks: Array) -> Finding:
    rows = evenly_spaced_rows(len(dataset), 1000)
    for shift, meaning in SHIFTS.items():
        later = np.clip(rows + shift, 0, len(dataset) - 1)
        if flat_rows(dataset.next_obs[rows] == dataset.obs[later]).all(1).mean() > 0.5:
            found = f"next_obs is {meaning} in most rows"
            remedy = "rebuild next_obs from the recording: row t needs the obs of row t + 1"
            return Finding(Level.ERROR, "next_obs_misaligned", found, remedy, int(breaks[0]))
    found = f"{len(breaks):,} rows are not followed by their next_obs: the rows are shuffled, or next_obs is wrong"
    remedy = "store the rows in order of time; shuffled rows still train, but their episodes and returns are unknown"
    return Finding(Level.WARNING, "rows_not_in_order", found, remedy, int(breaks[0]))


def check_jumps(dataset: TransitionDataset, residuals: Array, step_lengths: Array) -> Iterator[Finding]:
    """Steps with a far larger residual than their neighbours: probably a reset without an episode end flag."""
    neighbours = np.maximum(np.append(residuals[:1], residuals[:-1]), np.append(residuals[1:], residuals[-1:]))
    is_jump = (residuals > JUMP_RESIDUAL) & (residuals > JUMP_RATIO * (neighbours + 0.3)) & (step_lengths > JUMP_LENGTH)
    rows = np.flatnonzero(is_jump & ~dataset.dones)
    if len(rows):
        found = f"{len(rows):,} steps inside episodes jump: they do not fit the dynamics of the steps around them"
        remedy = "if they are resets without a flag, set truncated in the row before each and drop the row itself"
        yield Finding(Level.WARNING, "jumps", found, remedy, int(rows[0]))


def check_repeats(dataset: TransitionDataset) -> Iterator[Finding]:
    """Transitions that occur more than once, bit-exact."""
    hashes = _row_hashes(dataset.obs, dataset.actions, dataset.rewards, dataset.next_obs)
    is_repeat = np.ones(len(dataset), np.bool_)
    is_repeat[np.unique(hashes, return_index=True)[1]] = False
    if not is_repeat.any():
        return
    # With few states, equal transitions are normal.
    is_expected = dataset.obs.dtype.kind != "f" or len(np.unique(_row_hashes(dataset.obs))) < 0.1 * len(dataset)
    fraction = is_repeat.mean()
    found = f"{is_repeat.sum():,} transitions ({fraction:.1%}) repeat an earlier one exactly"
    remedy = "normal with few states" if is_expected else "drop them if a file was joined twice: they count double"
    level = Level.INFO if is_expected or fraction < MANY_REPEATS else Level.WARNING
    yield Finding(level, "repeated_transitions", found, remedy, int(is_repeat.argmax()))


def _row_hashes(*arrays: Array) -> Array:
    """64-bit hash of each row's bytes."""
    hashes = np.empty(len(arrays[0]), np.int64)
    for block in row_blocks(*arrays):
        parts = [np.ascontiguousarray(flat_rows(array[block])).view(np.uint8) for array in arrays]
        hashes[block] = [hash(row.tobytes()) for row in np.hstack(parts)]
    return hashes

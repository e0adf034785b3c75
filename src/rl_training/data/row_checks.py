"""Checks that compare rows with each other: misaligned observations, endings nobody marked, repeats."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rl_training.data.dataset_fields import flat_rows, row_blocks
from rl_training.data.dataset_findings import Finding, Level
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.step_model import StepModel
from rl_training.data.transitions import Array

JUMP = 6.0
"""How many times a large miss of the step model, in most columns, makes a jump."""
STANDS_OUT = 3.0
"""How many times the misses just before and after it a jump is."""
LEAP = 0.5
"""How far a jump goes at least, in two columns of three, as a share of the column's standard deviation."""
MANY_REPEATS = 1e-3
SHIFTS = {0: "the same row's observation", 2: "the observation two rows on", -1: "the row before's observation"}


def check_alignment(dataset: TransitionDataset) -> Iterator[Finding]:
    """Rows inside an episode whose `next_obs` is not the next row's observation."""
    inside = ~dataset.dones[:-1]
    breaks = inside & ~dataset.follows
    rows = np.flatnonzero(breaks)
    if len(rows) == 0:
        return
    if len(rows) > 0.5 * inside.sum():
        yield _nothing_follows(dataset, len(rows), int(rows[0]))
        return
    padded = np.pad(breaks, 1)
    # Several in a row cannot all be episodes of one step.
    is_run = padded[rows] | padded[rows + 2]
    wrong = is_run | _is_far(dataset, rows)
    if wrong.any():
        yield Finding(
            Level.ERROR,
            "next_obs_misaligned",
            f"next_obs is not what the next row observes in {int(wrong.sum()):,} places inside episodes",
            "rebuild next_obs from the recording: values would be learned for states that did not follow",
            int(rows[wrong][0]),
        )
    if not wrong.all():
        yield Finding(
            Level.WARNING,
            "unmarked_endings",
            f"{int((~wrong).sum()):,} episodes stop without a mark: the next row belongs to another one",
            "mark these rows truncated if a time limit or the recorder cut them, terminated if the task ended",
            int(rows[~wrong][0]),
        )


def check_jumps(dataset: TransitionDataset) -> Iterator[Finding]:
    """Steps far larger than those before and after in most columns: an ending that nobody marked."""
    if dataset.obs.dtype.kind != "f" or len(dataset) < 20:
        return
    model = StepModel(dataset)
    if not model.is_usable:
        return
    found = []
    for block in row_blocks(dataset.obs, dataset.next_obs):
        first, last = max(block.start - 1, 0), min(block.stop + 1, len(dataset))
        is_jump = _jumps(model, first, last)[block.start - first :][: block.stop - block.start]
        found.append(np.flatnonzero(is_jump) + block.start)
    rows = np.concatenate(found)
    rows = rows[~dataset.dones[rows]]
    if len(rows):
        yield Finding(
            Level.WARNING,
            "jumps",
            f"{len(rows):,} steps inside episodes lead far away from where the steps around them lead",
            "they look like resets that nobody marked: mark the row before as truncated and drop this one",
            int(rows[0]),
        )


def check_repeats(dataset: TransitionDataset) -> Iterator[Finding]:
    """Transitions that occur more than once, bit for bit."""
    hashes = _row_hashes([dataset.obs, dataset.actions, dataset.rewards, dataset.next_obs])
    order = np.argsort(hashes, kind="stable")
    repeats = np.sort(order[1:][hashes[order[1:]] == hashes[order[:-1]]])
    if len(repeats) == 0:
        return
    share = len(repeats) / len(dataset)
    num_states = len(np.unique(_row_hashes([dataset.obs])))
    # In a world of few states the same step is taken again and again.
    is_expected = num_states < 0.1 * len(dataset) or dataset.obs.dtype.kind != "f"
    yield Finding(
        Level.INFO if is_expected or share < MANY_REPEATS else Level.WARNING,
        "repeated_transitions",
        f"{len(repeats):,} transitions ({share:.1%}) repeat an earlier one exactly",
        "natural where states are few"
        if is_expected
        else "a file joined twice weighs these episodes double: drop them",
        int(repeats[0]),
    )


def _nothing_follows(dataset: TransitionDataset, count: int, first: int) -> Finding:
    rows: Array = np.linspace(0, len(dataset) - 1, min(len(dataset), 1000)).astype(np.int64)
    for shift, meaning in SHIFTS.items():
        later = np.clip(rows + shift, 0, len(dataset) - 1)
        same = flat_rows(dataset.next_obs[rows] == dataset.obs[later]).all(1)
        if same.mean() > 0.5:
            remedy = "rebuild next_obs from the recording: row t needs the observation of row t + 1"
            found = f"next_obs is {meaning} nearly everywhere"
            return Finding(Level.ERROR, "next_obs_misaligned", found, remedy, first)
    return Finding(
        Level.WARNING,
        "rows_not_in_order",
        f"{count:,} rows are not followed by the row they lead to: the transitions are shuffled, or next_obs is wrong",
        "training on single steps still works if they are only shuffled; episodes and returns cannot be told",
        first,
    )


def _jumps(model: StepModel, first: int, last: int) -> Array:
    """Which rows from `first` to `last` jump; most columns must agree, since an impact may upset a few."""
    misses = model.misses(slice(first, last))
    is_jump: Array = np.median(misses, axis=1) > JUMP
    suspects = np.flatnonzero(is_jump)
    around = np.maximum(misses[np.maximum(suspects - 1, 0)], misses[np.minimum(suspects + 1, len(misses) - 1)])
    stands_out = np.median(misses[suspects] / (around + 0.3), axis=1) > STANDS_OUT
    is_jump[suspects] = stands_out & (np.quantile(model.leaps(first + suspects), 0.33, axis=1) > LEAP)
    return is_jump


def _is_far(dataset: TransitionDataset, rows: Array) -> Array:
    """Whether `next_obs` is too far from where a step from `obs` would lead."""
    if dataset.obs.dtype.kind != "f" or not (model := StepModel(dataset)).is_usable:
        return np.zeros(len(rows), np.bool_)
    far: Array = np.median(model.misses(rows), axis=1) > JUMP
    return far


def _row_hashes(arrays: list[Array]) -> Array:
    """A 64-bit hash of each row's bytes: a sum of its words, each times its own odd number."""
    rng = np.random.default_rng(0)
    hashes = np.zeros(len(arrays[0]), np.uint64)
    for array in arrays:
        size = max(1, array[:1].nbytes)
        word = np.dtype(np.uint32 if size % 4 == 0 else np.uint8)
        factors = rng.integers(0, 2**64, size // word.itemsize, np.uint64) | np.uint64(1)
        for block in row_blocks(array, array, array):
            words = np.ascontiguousarray(array[block]).view(np.uint8).reshape(-1).view(word)
            words = words.reshape(-1, len(factors)).astype(np.uint64)
            # Mixed before the sum, so that equal words in different columns do not cancel.
            mixed = (words + factors) * factors
            hashes[block] += ((mixed ^ (mixed >> np.uint64(29))) * factors).sum(1)
    return hashes

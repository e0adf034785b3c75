"""Checks of single rows (NaN, end flags, bounds, reward scale) and across rows (alignment, missing flags, repeats)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rl_training.data.dataset_fields import evenly_spaced_rows, flat_rows, row_blocks, rows_where
from rl_training.data.dataset_spaces import (
    actions_as_floats,
    actions_outside,
    describe_bounds,
    obs_to_model,
    shape_actions,
)
from rl_training.data.findings import Finding, Level
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.errors import DatasetError
from rl_training.replay.transitions import Array
from rl_training.spaces.actions import ActionKind, ActionSpec
from rl_training.spaces.spec import Spaces

AT_BOUND_FRACTION = 0.05
"""Fraction of action components exactly at a bound above which it is reported."""
SPARSE_FRACTION = 0.05
"""Fraction of rewards that differ from the median below which rewards are sparse."""
TINY_REWARD = 1e-3
HUGE_REWARD = 100.0
SAME_LENGTH_FRACTION = 0.8
"""Fraction of terminated episodes with the maximum length from which it looks like a time limit."""
JUMP_RESIDUAL = 6.0
"""Minimum residual of a jump."""
JUMP_RATIO = 3.0
"""Minimum ratio of a jump's residual to its neighbours'."""
JUMP_LENGTH = 0.5
"""Minimum length of a jump, in standard deviations."""
MANY_REPEATS = 1e-3
"""Fraction of repeated transitions from which they are a warning."""
SHIFTS = {0: "obs of the same row", 2: "obs two rows later", -1: "obs of the previous row"}


def _found(rows: Array, level: Level, name: str, found: str, remedy: str) -> Iterator[Finding]:
    """The finding about these rows; nothing if there are none."""
    if len(rows):
        yield Finding(level, name, found, remedy, int(rows[0]))


def check_finite(dataset: TransitionDataset) -> Iterator[Finding]:
    """NaN and infinite values, per field."""
    for name, array in dataset.arrays().items():
        if array.dtype.kind != "f":
            continue
        rows = rows_where(lambda part: ~np.isfinite(part), array)
        kinds = "NaN" if np.isnan(array[rows]).any() else "infinite values"
        yield from _found(
            rows,
            Level.ERROR,
            f"{name}_not_finite",
            f"{name} has {kinds} in {len(rows):,} of {len(array):,} rows",
            "drop these episodes and check the recorder: one such value makes every weight non-finite",
        )


def check_episode_ends(dataset: TransitionDataset) -> Iterator[Finding]:
    """Episode end flags that contradict each other or the rows around them."""
    num_ends = int(dataset.dones.sum())
    if num_ends == 0:
        yield Finding(
            Level.WARNING,
            "no_episode_ends",
            f"none of the {len(dataset):,} transitions ends an episode",
            "store 'terminated' and 'truncated', unless the task is one endless episode",
        )
    both = np.flatnonzero(dataset.terminated & dataset.truncated)
    yield from _found(
        both,
        # A time limit can coincide with termination, but rarely does.
        Level.INFO if len(both) <= max(1, 0.02 * num_ends) else Level.WARNING,
        "terminated_and_truncated",
        f"{len(both):,} of {num_ends:,} episode ends are both terminated and truncated",
        "they count as terminated; where the time limit ended the episode, clear 'terminated'",
    )
    continued = np.flatnonzero(dataset.dones[:-1] & dataset.follows)
    if len(continued):
        states = flat_rows(dataset.obs[evenly_spaced_rows(len(dataset), 2000)])
        yield from _found(
            continued,
            # With few states, an initial state can equal a final one.
            Level.INFO if len(np.unique(states, axis=0)) < 0.5 * len(states) else Level.ERROR,
            "continues_after_end",
            f"{len(continued):,} of {num_ends:,} episode ends are followed by a row that starts at their next_obs",
            "correct the flags if they are shifted by a row; if next_obs holds the next episode's first observation,"
            " store the final observation instead",
        )


def check_time_limits(dataset: TransitionDataset) -> Iterator[Finding]:
    """Terminations after the same number of steps, which look like a time limit."""
    starts, stops = dataset.episodes().T
    is_terminated = dataset.terminated[stops - 1]
    lengths, stops = (stops - starts)[is_terminated], stops[is_terminated]
    if len(lengths) < 5 or dataset.truncated.any() or lengths.max() < 5:
        return
    longest = stops[lengths == lengths.max()]
    if len(longest) >= SAME_LENGTH_FRACTION * len(lengths):
        yield from _found(
            longest - 1,
            Level.WARNING,
            "time_limit_as_termination",
            f"{len(longest):,} of {len(lengths):,} terminated episodes last exactly {lengths.max():,} steps",
            "if that is a time limit, set truncated instead: a terminated step does not bootstrap from the next state",
        )


def check_constants(dataset: TransitionDataset) -> Iterator[Finding]:
    """Constant columns of obs and actions."""
    for name, array in (("obs", dataset.obs), ("actions", dataset.actions)):
        flat = flat_rows(array)
        columns = np.arange(flat.shape[1])
        for block in row_blocks(flat):
            columns = columns[(flat[block][:, columns] == flat[0, columns]).all(0)]
        if len(flat) > 1 and len(columns):
            which = ", ".join(f"{column} (always {flat[0, column]:g})" for column in columns[:6])
            # Some environments have constant observations; the effect of a constant action is unknown.
            is_natural = name == "obs" and len(columns) < flat.shape[1]
            yield Finding(
                Level.INFO if is_natural else Level.WARNING,
                f"{name}_constant",
                f"{len(columns)} of {flat.shape[1]} columns of {name} are constant: {which}",
                "check that the sensor or actuator was recorded, or drop these columns",
            )


def check_rewards(dataset: TransitionDataset) -> Iterator[Finding]:
    """Missing, constant, tiny, huge or sparse rewards."""
    if not dataset.has_rewards:
        remedy = "use bc, which needs none; to train another algorithm, store 'rewards'"
        yield Finding(Level.INFO, "no_rewards", "the dataset has no rewards", remedy)
        return
    rewards = dataset.rewards[np.isfinite(dataset.rewards)]
    if len(rewards) < 2:
        return
    sizes, common = np.abs(rewards), float(np.median(rewards))
    size, mean_size = float(sizes.max()), float(sizes.mean())
    fraction = float(np.mean(rewards != common))
    if fraction == 0.0:
        level, remedy = Level.WARNING, "use bc: constant rewards cannot rank actions"
        if common != 0.0:
            level = Level.INFO
            if dataset.terminated.any():
                remedy = "only the episode length can be learned from it"
        yield Finding(level, "reward_constant", f"every reward is {common:g}", remedy)
    elif size < TINY_REWARD:
        found = f"the largest absolute reward is {size:.3g}"
        remedy = f"set reward_scale to about {_power_of_ten(1 / size)}: small rewards are lost in rounding"
        yield Finding(Level.WARNING, "reward_tiny", found, remedy)
    elif fraction < SPARSE_FRACTION:
        found = f"only {fraction:.2%} of the rewards differ from {common:g}"
        remedy = "use iql with expectile 0.9 and a gamma near 1, which propagate sparse rewards further back"
        yield Finding(Level.INFO, "reward_sparse", found, remedy)
    if mean_size > HUGE_REWARD:
        found = f"the mean absolute reward is {mean_size:,.0f}"
        remedy = f"set reward_scale to about {_power_of_ten(1 / mean_size)}: critic gradients grow with the reward"
        yield Finding(Level.WARNING, "reward_huge", found, remedy)


CHECKS = (check_finite, check_episode_ends, check_time_limits, check_constants, check_rewards)


def check_spaces(dataset: TransitionDataset, spaces: Spaces) -> Iterator[Finding]:
    """Observations and actions that do not fit the environment's spaces; the errors name the remedy."""
    for name, obs in (("obs", dataset.obs), ("next_obs", dataset.next_obs)):
        try:
            obs_to_model(name, obs, spaces.obs)
        except DatasetError as error:
            yield Finding(Level.ERROR, f"{name}_misfit", str(error))
    try:
        actions = shape_actions(dataset.actions, spaces.action)
    except DatasetError as error:
        yield Finding(Level.ERROR, "actions_misfit", str(error))
        return
    if actions_as_floats(dataset.actions, spaces.action):
        found = f"actions are whole numbers stored as {dataset.actions.dtype}: they are read as integers"
        yield Finding(Level.INFO, "actions_as_floats", found)
    outside = actions_outside(actions, spaces.action)
    if len(outside):
        first, bounds = actions[outside[0]].tolist(), describe_bounds(spaces.action)
        found = f"{len(outside):,} of {len(actions):,} actions lie outside {bounds}, first {first}"
        remedy = "rescale or clip them to the environment's bounds"
        yield Finding(Level.ERROR, "actions_outside", found, remedy, int(outside[0]))
    elif spaces.action.kind is ActionKind.CONTINUOUS:
        yield from _check_range(actions, spaces.action)
    else:
        yield from _check_masks(dataset, actions, spaces)


def _check_range(actions: Array, spec: ActionSpec) -> Iterator[Finding]:
    """Continuous actions at their bounds, or far from them."""
    at_bound = flat_rows(
        (actions <= spec.low.astype(np.float32)) | (actions >= spec.high.astype(np.float32))
    )
    if at_bound.mean() > AT_BOUND_FRACTION:
        yield from _found(
            np.flatnonzero(at_bound.any(1)),
            Level.INFO,
            "actions_at_bounds",
            f"{at_bound.mean():.1%} of the action components lie exactly at a bound",
            "normal for a bang-bang policy or clipped noise; otherwise check the scale of the actions",
        )
    some = actions[evenly_spaced_rows(len(actions), 20_000)]
    used = float(np.max(np.ptp(some, axis=0) / np.maximum(spec.high - spec.low, 1e-12)))
    if spec.is_bounded and used < 0.1:
        found = f"the actions cover {used:.1%} of their range {describe_bounds(spec)}"
        remedy = "check that they are in the environment's units, not normalized by its bounds"
        yield Finding(Level.WARNING, "actions_narrow", found, remedy)


def _check_masks(dataset: TransitionDataset, actions: Array, spaces: Spaces) -> Iterator[Finding]:
    """Masks that forbid the recorded action, or every option of a component where an action follows."""
    masks, next_masks, spec = dataset.masks, dataset.next_masks, spaces.action
    if masks is None or next_masks is None or masks.shape[1:] != (spec.num_options,):
        return
    starts = np.cumsum([0, *spec.choices[:-1]])
    chosen = flat_rows(spec.to_model(actions)) + starts
    is_permitted = np.take_along_axis(masks, chosen, 1).all(1)
    has_option = np.logical_or.reduceat(next_masks, starts, 1).all(1) | dataset.terminated
    # Without masks in the environment, the dataset's are not used.
    level = Level.ERROR if spaces.has_masks else Level.WARNING
    for name, is_right, fault in (
        ("masks_forbid_actions", is_permitted, "masks forbid the recorded action"),
        (
            "next_masks_forbid_all",
            has_option,
            "next_masks permit no action, though the episode did not terminate",
        ),
    ):
        wrong = np.flatnonzero(~is_right)
        found = f"{len(wrong):,} of {len(masks):,} {fault}"
        remedy = "correct the masks, or remove them from the file"
        yield from _found(wrong, level, name, found, remedy)


def _power_of_ten(value: float) -> str:
    return f"{10.0 ** np.round(np.log10(value)):g}"


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
    yield from _found(
        wrong,
        Level.ERROR,
        "next_obs_misaligned",
        f"next_obs differs from the next row's obs in {len(wrong):,} rows inside episodes",
        "rebuild next_obs from the recording: TD targets would use the wrong next state",
    )
    yield from _found(
        unflagged,
        Level.WARNING,
        "unflagged_ends",
        f"{len(unflagged):,} episodes end without a flag: the next row belongs to another episode",
        "set truncated there if a time limit or the recorder ended them, terminated if the task did",
    )


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


def check_jumps(
    dataset: TransitionDataset, residuals: Array, step_lengths: Array
) -> Iterator[Finding]:
    """Steps with a far larger residual than their neighbours: probably a reset without an episode end flag."""
    neighbours = np.maximum(
        np.append(residuals[:1], residuals[:-1]), np.append(residuals[1:], residuals[-1:])
    )
    is_jump = (
        (residuals > JUMP_RESIDUAL)
        & (residuals > JUMP_RATIO * (neighbours + 0.3))
        & (step_lengths > JUMP_LENGTH)
    )
    rows = np.flatnonzero(is_jump & ~dataset.dones)
    yield from _found(
        rows,
        Level.WARNING,
        "jumps",
        f"{len(rows):,} steps inside episodes jump: they do not fit the dynamics of the steps around them",
        "if they are resets without a flag, set truncated in the row before each and drop the row itself",
    )


def check_repeats(dataset: TransitionDataset) -> Iterator[Finding]:
    """Transitions that occur more than once, bit-exact."""
    hashes = _row_hashes(dataset.obs, dataset.actions, dataset.rewards, dataset.next_obs)
    repeats = np.delete(np.arange(len(dataset)), np.unique(hashes, return_index=True)[1])
    if not len(repeats):
        return
    # With few states, equal transitions are normal.
    is_expected = dataset.obs.dtype.kind != "f" or len(
        np.unique(_row_hashes(dataset.obs))
    ) < 0.1 * len(dataset)
    fraction = len(repeats) / len(dataset)
    is_fault = not is_expected and fraction >= MANY_REPEATS
    yield from _found(
        repeats,
        Level.WARNING if is_fault else Level.INFO,
        "repeated_transitions",
        f"{len(repeats):,} transitions ({fraction:.1%}) repeat an earlier one exactly",
        "normal with few states"
        if is_expected
        else "drop them if a file was joined twice: they count double",
    )


def _row_hashes(*arrays: Array) -> Array:
    """64-bit hash of each row's bytes."""
    hashes = np.empty(len(arrays[0]), np.int64)
    for block in row_blocks(*arrays):
        parts = [np.ascontiguousarray(flat_rows(array[block])).view(np.uint8) for array in arrays]
        hashes[block] = [hash(row.tobytes()) for row in np.hstack(parts)]
    return hashes

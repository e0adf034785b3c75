"""Checks that read each number once: not-a-numbers, contradictory endings, bounds, constants, reward scale."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rl_training.data.dataset_fields import flat_rows, row_blocks
from rl_training.data.dataset_findings import Finding, Level
from rl_training.data.dataset_spaces import actions_outside, describe_bounds, obs_to_model, shape_actions
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.spaces import ActionKind, ActionSpec, Spaces
from rl_training.data.transitions import Array
from rl_training.errors import DatasetError

AT_BOUND_SHARE = 0.05
"""Above this share of action components exactly at a bound, a squashed policy cannot imitate the data."""
SPARSE_SHARE = 0.05
"""Below this share of rewards that differ from the commonest, the reward counts as sparse."""
TINY_REWARD = 1e-3
HUGE_REWARD = 100.0
SAME_LENGTH_SHARE = 0.8


def check_finite(dataset: TransitionDataset) -> Iterator[Finding]:
    """NaN and infinities, field by field."""
    for name, array in dataset.arrays().items():
        if array.dtype.kind != "f":
            continue
        rows = _rows_not_finite(array)
        if len(rows):
            kinds = "NaN" if np.isnan(array[rows]).any() else "infinities"
            yield Finding(
                Level.ERROR,
                f"{name}_not_finite",
                f"{name} has {kinds} in {len(rows):,} of {len(array):,} rows",
                "drop the episodes they are in, and look at what wrote them: one such number spoils every weight",
                int(rows[0]),
            )


def check_endings(dataset: TransitionDataset) -> Iterator[Finding]:
    """Marks that contradict each other or the rows around them."""
    both, num_endings = np.flatnonzero(dataset.terminated & dataset.truncated), int(dataset.dones.sum())
    if num_endings == 0:
        yield Finding(
            Level.WARNING,
            "no_endings",
            f"none of the {len(dataset):,} transitions ends an episode",
            "if the task has endings, their marks are lost: store 'terminated' and 'truncated'",
        )
    if len(both):
        # A time limit may well fall on the step that terminates, but rarely does.
        is_rare = len(both) <= max(1, 0.02 * num_endings)
        yield Finding(
            Level.INFO if is_rare else Level.WARNING,
            "both_endings",
            f"{len(both):,} of {num_endings:,} endings are marked both terminated and truncated",
            "they count as terminated; if time limits were meant, clear 'terminated' there",
            int(both[0]),
        )
    continued = np.flatnonzero(dataset.dones[:-1] & dataset.follows)
    if len(continued):
        yield Finding(
            Level.INFO if _has_few_states(dataset) else Level.ERROR,
            "ending_continues",
            f"{len(continued):,} of {num_endings:,} endings are followed by a row that goes on from their next_obs",
            "either the mark is wrong (shifted by a row?) or next_obs is the next episode's first observation where the"
            " final one belongs",
            int(continued[0]),
        )


def check_time_limits(dataset: TransitionDataset) -> Iterator[Finding]:
    """Terminations that all come after the same number of steps look like a time limit."""
    episodes = dataset.episodes()
    terminated = dataset.terminated[episodes[:, 1] - 1]
    lengths = (episodes[:, 1] - episodes[:, 0])[terminated]
    if len(lengths) < 5 or dataset.truncated.any() or lengths.max() < 5:
        return
    num_longest = int((lengths == lengths.max()).sum())
    if num_longest >= SAME_LENGTH_SHARE * len(lengths):
        yield Finding(
            Level.WARNING,
            "time_limit_as_termination",
            f"{num_longest:,} of {len(lengths):,} terminated episodes last exactly {lengths.max():,} steps",
            "if that is a time limit, mark them truncated instead: terminated teaches that nothing comes after",
            int(episodes[:, 1][terminated][lengths == lengths.max()][0] - 1),
        )


def check_constants(dataset: TransitionDataset) -> Iterator[Finding]:
    """Columns that never change."""
    for name in ("obs", "actions"):
        array = dataset.arrays()[name]
        flat = flat_rows(array)
        columns = _constant_columns(flat)
        if len(flat) > 1 and len(columns):
            which = ", ".join(f"{column} (always {flat[0, column]:g})" for column in columns[:6])
            # Some environments have observations that never change; an action that never changes was never tried.
            is_natural = name == "obs" and len(columns) < flat.shape[1]
            yield Finding(
                Level.INFO if is_natural else Level.WARNING,
                f"{name}_constant",
                f"{len(columns)} of {flat.shape[1]} columns of {name} never change: {which}",
                "they carry no information: check that the sensor or actuator was connected, or drop them",
            )


def check_rewards(dataset: TransitionDataset) -> Iterator[Finding]:
    """Rewards that are all alike, too small, too large, or rare."""
    rewards = dataset.rewards[np.isfinite(dataset.rewards)]
    if len(rewards) < 2:
        return
    size = float(np.abs(rewards).max())
    common = float(np.median(rewards))
    share = float(np.mean(rewards != common))
    if share == 0.0:
        yield Finding(
            Level.WARNING if common == 0.0 else Level.INFO,
            "reward_constant",
            f"every reward is {common:g}",
            "how long an episode lasts is all that can be learned from it"
            if common != 0.0 and dataset.terminated.any()
            else "all states look equally good: only imitation (bc) can learn from this",
        )
    elif size < TINY_REWARD:
        remedy = f"set reward_scale to about {_round(1.0 / size):g}: losses and values drown in rounding otherwise"
        yield Finding(Level.WARNING, "reward_tiny", f"no reward is larger than {size:.3g}", remedy)
    elif share < SPARSE_SHARE:
        remedy = "the reward is sparse: an expectile of 0.9 (iql) and a discount near 1 carry it further back"
        yield Finding(Level.INFO, "reward_sparse", f"only {share:.2%} of the rewards differ from {common:g}", remedy)
    mean_size = float(np.abs(rewards).mean())
    if mean_size > HUGE_REWARD:
        remedy = f"set reward_scale to about {_round(1.0 / mean_size):g}: gradients of the values grow with the reward"
        yield Finding(Level.WARNING, "reward_huge", f"rewards are {mean_size:,.0f} in size on average", remedy)


def check_spaces(dataset: TransitionDataset, spaces: Spaces) -> Iterator[Finding]:
    """Observations and actions against the environment that the policy will act in."""
    remedy = "give the environment and wrappers that the data was recorded in"
    for name in ("obs", "next_obs"):
        try:
            obs_to_model(name, dataset.arrays()[name], spaces.obs)
        except DatasetError as error:
            yield Finding(Level.ERROR, f"{name}_misfit", str(error), remedy)
    try:
        actions = shape_actions(dataset.actions, spaces.action)
    except DatasetError as error:
        yield Finding(Level.ERROR, "actions_misfit", str(error), remedy)
        return
    outside = actions_outside(actions, spaces.action)
    if len(outside):
        yield Finding(
            Level.ERROR,
            "actions_outside",
            f"{len(outside):,} of {len(actions):,} actions lie outside {describe_bounds(spaces.action)},"
            f" the first being {actions[outside[0]].tolist()}",
            "rescale or clip them to the environment's bounds",
            int(outside[0]),
        )
    elif spaces.action.kind is ActionKind.CONTINUOUS:
        yield from _check_range(actions, spaces.action)


def _check_range(actions: Array, spec: ActionSpec) -> Iterator[Finding]:
    at_bound = (actions <= spec.low.astype(np.float32)) | (actions >= spec.high.astype(np.float32))
    share = np.count_nonzero(at_bound) / at_bound.size
    if share > AT_BOUND_SHARE:
        yield Finding(
            Level.WARNING,
            "actions_at_bounds",
            f"{share:.1%} of the action components lie exactly at a bound",
            "a policy that squashes with tanh cannot reach a bound, and its log-probability there is infinite: prefer a"
            " deterministic policy (td3_bc, bc), or clip the actions a little inside",
            int(np.flatnonzero(flat_rows(at_bound).any(1))[0]),
        )
    if spec.is_bounded:
        some = actions[:: max(1, len(actions) // 20_000)]
        used = float(np.max(np.ptp(some, axis=0) / np.maximum(spec.high - spec.low, 1e-12)))
        if used < 0.1:
            yield Finding(
                Level.WARNING,
                "actions_narrow",
                f"the actions use {used:.1%} of their range of {describe_bounds(spec)}",
                "check that they are on the environment's scale and not already divided by its bounds",
            )


def _rows_not_finite(array: Array) -> Array:
    found = []
    for block in row_blocks(array):
        part = array[block]
        with np.errstate(invalid="ignore", over="ignore"):
            is_clean = np.isfinite(part.sum(dtype=np.float32))
        if not is_clean:
            finite = flat_rows(np.isfinite(part)).all(1)
            found.append(np.flatnonzero(~finite) + block.start)
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _constant_columns(flat: Array) -> Array:
    columns = np.arange(flat.shape[1])
    for block in row_blocks(flat):
        columns = columns[(flat[block][:, columns] == flat[0, columns]).all(0)]
        if len(columns) == 0:
            break
    return columns


def _has_few_states(dataset: TransitionDataset) -> bool:
    """Whether observations repeat so often that one can equal another by chance."""
    rows = np.linspace(0, len(dataset) - 1, min(len(dataset), 2000)).astype(np.int64)
    flat = flat_rows(dataset.obs[rows])
    return len(np.unique(flat, axis=0)) < 0.5 * len(rows)


def _round(value: float) -> float:
    """The nearest power of ten."""
    return float(10.0 ** np.round(np.log10(value)))

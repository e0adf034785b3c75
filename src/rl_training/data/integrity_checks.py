"""Checks that read each number once: not-a-numbers, contradictory endings, bounds, constants, reward scale."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rl_training.data.dataset_fields import flat_rows, row_blocks, rows_where, spread_rows
from rl_training.data.dataset_spaces import actions_outside, describe_bounds, obs_to_model, shape_actions
from rl_training.data.findings import Finding, Level
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.errors import DatasetError
from rl_training.replay.transitions import Array
from rl_training.spaces.actions import ActionKind, ActionSpec
from rl_training.spaces.spec import Spaces

AT_BOUND_SHARE = 0.05
"""Above this share of action components exactly at a bound, it is worth a word."""
SPARSE_SHARE = 0.05
"""Below this share of rewards that differ from the commonest, the reward counts as sparse."""
TINY_REWARD = 1e-3
HUGE_REWARD = 100.0
SAME_LENGTH_SHARE = 0.8


def check_finite(dataset: TransitionDataset) -> Iterator[Finding]:
    """NaN and infinities, field by field."""
    remedy = "drop the episodes they are in, and look at what wrote them: one such number spoils every weight"
    for name, array in dataset.arrays().items():
        if array.dtype.kind == "f" and len(rows := rows_where(lambda part: ~np.isfinite(part), array)):
            kinds = "NaN" if np.isnan(array[rows]).any() else "infinities"
            found = f"{name} has {kinds} in {len(rows):,} of {len(array):,} rows"
            yield Finding(Level.ERROR, f"{name}_not_finite", found, remedy, int(rows[0]))


def check_endings(dataset: TransitionDataset) -> Iterator[Finding]:
    """Marks that contradict each other or the rows around them."""
    both, num_endings = np.flatnonzero(dataset.terminated & dataset.truncated), int(dataset.dones.sum())
    if num_endings == 0:
        found = f"none of the {len(dataset):,} transitions ends an episode"
        remedy = "if the task has endings, their marks are lost: store 'terminated' and 'truncated'"
        yield Finding(Level.WARNING, "no_endings", found, remedy)
    if len(both):
        # A time limit may well fall on the step that terminates, but rarely does.
        level = Level.INFO if len(both) <= max(1, 0.02 * num_endings) else Level.WARNING
        found = f"{len(both):,} of {num_endings:,} endings are marked both terminated and truncated"
        remedy = "they count as terminated; if time limits were meant, clear 'terminated' there"
        yield Finding(level, "both_endings", found, remedy, int(both[0]))
    continued = np.flatnonzero(dataset.dones[:-1] & dataset.follows)
    if len(continued):
        states = flat_rows(dataset.obs[spread_rows(len(dataset), 2000)])
        # Where states are few, one can equal another by chance.
        level = Level.INFO if len(np.unique(states, axis=0)) < 0.5 * len(states) else Level.ERROR
        found = f"{len(continued):,} of {num_endings:,} endings are followed by a row that goes on from their next_obs"
        remedy = (
            "either the mark is wrong (shifted by a row?) or next_obs is the next episode's first observation where the"
            " final one belongs"
        )
        yield Finding(level, "ending_continues", found, remedy, int(continued[0]))


def check_time_limits(dataset: TransitionDataset) -> Iterator[Finding]:
    """Terminations that all come after the same number of steps look like a time limit."""
    starts, stops = dataset.episodes().T
    is_terminated = dataset.terminated[stops - 1]
    lengths, stops = (stops - starts)[is_terminated], stops[is_terminated]
    if len(lengths) < 5 or dataset.truncated.any() or lengths.max() < 5:
        return
    longest = stops[lengths == lengths.max()]
    if len(longest) >= SAME_LENGTH_SHARE * len(lengths):
        found = f"{len(longest):,} of {len(lengths):,} terminated episodes last exactly {lengths.max():,} steps"
        remedy = "if that is a time limit, mark them truncated instead: terminated teaches that nothing comes after"
        yield Finding(Level.WARNING, "time_limit_as_termination", found, remedy, int(longest[0] - 1))


def check_constants(dataset: TransitionDataset) -> Iterator[Finding]:
    """Columns that never change."""
    for name, array in (("obs", dataset.obs), ("actions", dataset.actions)):
        flat = flat_rows(array)
        columns = np.arange(flat.shape[1])
        for block in row_blocks(flat):
            columns = columns[(flat[block][:, columns] == flat[0, columns]).all(0)]
        if len(flat) > 1 and len(columns):
            which = ", ".join(f"{column} (always {flat[0, column]:g})" for column in columns[:6])
            found = f"{len(columns)} of {flat.shape[1]} columns of {name} never change: {which}"
            remedy = "they carry no information: check that the sensor or actuator was connected, or drop them"
            # Some environments have observations that never change; an action that never changes was never tried.
            is_natural = name == "obs" and len(columns) < flat.shape[1]
            yield Finding(Level.INFO if is_natural else Level.WARNING, f"{name}_constant", found, remedy)


def check_rewards(dataset: TransitionDataset) -> Iterator[Finding]:
    """Rewards that are all alike, too small, too large, or rare."""
    rewards = dataset.rewards[np.isfinite(dataset.rewards)]
    if len(rewards) < 2:
        return
    sizes, common = np.abs(rewards), float(np.median(rewards))
    size, mean_size, share = float(sizes.max()), float(sizes.mean()), float(np.mean(rewards != common))
    if share == 0.0:
        level, remedy = Level.WARNING, "all states look equally good: only imitation (bc) can learn from this"
        if common != 0.0:
            level = Level.INFO
            if dataset.terminated.any():
                remedy = "how long an episode lasts is all that can be learned from it"
        yield Finding(level, "reward_constant", f"every reward is {common:g}", remedy)
    elif size < TINY_REWARD:
        remedy = f"set reward_scale to about {_power_of_ten(1 / size)}: losses and values drown in rounding otherwise"
        yield Finding(Level.WARNING, "reward_tiny", f"no reward is larger than {size:.3g}", remedy)
    elif share < SPARSE_SHARE:
        remedy = "the reward is sparse: an expectile of 0.9 (iql) and a discount near 1 carry it further back"
        yield Finding(Level.INFO, "reward_sparse", f"only {share:.2%} of the rewards differ from {common:g}", remedy)
    if mean_size > HUGE_REWARD:
        remedy = (
            f"set reward_scale to about {_power_of_ten(1 / mean_size)}: gradients of the values grow with the reward"
        )
        yield Finding(Level.WARNING, "reward_huge", f"rewards are {mean_size:,.0f} in size on average", remedy)


CHECKS = (check_finite, check_endings, check_time_limits, check_constants, check_rewards)


def check_spaces(dataset: TransitionDataset, spaces: Spaces) -> Iterator[Finding]:
    """Observations and actions against the environment that the policy will act in."""
    remedy = "give the environment and wrappers that the data was recorded in"
    for name, obs in (("obs", dataset.obs), ("next_obs", dataset.next_obs)):
        try:
            obs_to_model(name, obs, spaces.obs)
        except DatasetError as error:
            yield Finding(Level.ERROR, f"{name}_misfit", str(error), remedy)
    try:
        actions = shape_actions(dataset.actions, spaces.action)
    except DatasetError as error:
        yield Finding(Level.ERROR, "actions_misfit", str(error), remedy)
    else:
        yield from _check_actions(actions, spaces.action)


def _check_actions(actions: Array, spec: ActionSpec) -> Iterator[Finding]:
    outside, bounds = actions_outside(actions, spec), describe_bounds(spec)
    if len(outside):
        first = actions[outside[0]].tolist()
        found = f"{len(outside):,} of {len(actions):,} actions lie outside {bounds}, the first being {first}"
        remedy = "rescale or clip them to the environment's bounds"
        yield Finding(Level.ERROR, "actions_outside", found, remedy, int(outside[0]))
        return
    if spec.kind is not ActionKind.CONTINUOUS:
        return
    at_bound = flat_rows((actions <= spec.low.astype(np.float32)) | (actions >= spec.high.astype(np.float32)))
    if at_bound.mean() > AT_BOUND_SHARE:
        found = f"{at_bound.mean():.1%} of the action components lie exactly at a bound"
        remedy = "natural for a hard-driving policy or clipped noise; if it was neither, check their scale"
        yield Finding(Level.INFO, "actions_at_bounds", found, remedy, int(at_bound.any(1).argmax()))
    some = actions[spread_rows(len(actions), 20_000)]
    used = float(np.max(np.ptp(some, axis=0) / np.maximum(spec.high - spec.low, 1e-12)))
    if spec.is_bounded and used < 0.1:
        found = f"the actions use {used:.1%} of their range of {bounds}"
        remedy = "check that they are on the environment's scale and not already divided by its bounds"
        yield Finding(Level.WARNING, "actions_narrow", found, remedy)


def _power_of_ten(value: float) -> str:
    return f"{10.0 ** np.round(np.log10(value)):g}"

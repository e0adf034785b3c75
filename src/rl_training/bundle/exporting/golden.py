"""Golden pairs: observations, masks and states, and the actions that the algorithm itself gives for them.

Real ones are from evaluation episodes; extreme ones are zeros, bounds, large numbers and every category.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from gymnasium.spaces import Box

from rl_training.algorithms.base import Algorithm
from rl_training.bundle.exporting.describing import Description, state_columns
from rl_training.bundle.loading import differing, replay
from rl_training.bundle.program import ACTION, MASK, NEXT_STATE, OBS, STATE, Program
from rl_training.bundle.reading import Array
from rl_training.bundle.spaces import BundleSpaces, parse_spaces
from rl_training.evaluation.episode_runner import Episode
from rl_training.evaluation.evaluator import act_on
from rl_training.spaces.given import ObsLeaf

MAX_REAL = 64
MAX_CATEGORIES = 256
MAX_GOLDEN_BYTES = 1 << 22
LARGE = (0.0, 1.0, -1.0, 10.0, -10.0, 1e3, -1e3, 1e6, -1e6)
NUM_RANDOM = 8
ROWS_AT_ONCE = 64
PERTURBATION = 1e-6
"""Relative change of weights that must not change a golden action: twenty times the rounding of float32."""
NUM_PERTURBED = 4


@dataclass
class Situations:
    """Inputs of a policy: observation parts [N, ...], masks and, for a policy with memory, states of the algorithm."""

    spaces: BundleSpaces
    rows: list[tuple[list[Array], Array | None, Array | None]] = field(default_factory=list)
    """Observation parts, mask and state of each."""
    stride: int = 1
    """Of the steps that are watched, every so many-th is kept."""
    _num_seen: int = 0

    def watch(self, obs: Any, episodes: Sequence[Episode]) -> None:
        """Keep some of the observations of an evaluation, evenly spaced over its steps."""
        leaves, _ = self.spaces.as_batch(obs)
        for index, episode in enumerate(episodes):
            if self._num_seen % self.stride == 0:
                state = None if episode.policy_state is None else episode.policy_state.cpu().numpy()
                mask = None if episode.mask is None else np.asarray(episode.mask, np.bool_)
                self.rows.append(([leaf[index].copy() for leaf in leaves], mask, state))
            self._num_seen += 1
        if len(self.rows) >= 2 * MAX_REAL:
            self.rows, self.stride = self.rows[::2], 2 * self.stride

    def limited(self, count: int) -> list[tuple[list[Array], Array | None, Array | None]]:
        """At most `count` rows, evenly spaced."""
        return self.rows[:: max(1, -(-len(self.rows) // count))]


def make_golden(
    algorithm: Algorithm[Any],
    description: Description,
    real: Situations,
    obs_space: Space[Any] | None,
) -> dict[str, Array]:
    """The golden pairs of a policy; pairs whose action depends on rounding are left out."""
    spaces = real.spaces
    extreme = _extremes(spaces, obs_space)
    num_bytes = sum(part[0].nbytes for part in extreme)
    count = max(4, min(MAX_REAL, MAX_GOLDEN_BYTES // max(1, num_bytes)))
    kept = real.limited(count)
    num_extreme = len(extreme[0])
    if count < MAX_REAL:
        num_extreme = min(num_extreme, max(count, 8))
    leaves = [
        np.stack([*(row[0][index] for row in kept), *part[:num_extreme]]).astype(part.dtype)
        for index, part in enumerate(extreme)
    ]
    generator = np.random.default_rng(0)
    masks = _masks(spaces, [row[1] for row in kept], num_extreme, generator)
    states = _states(algorithm, [row[2] for row in kept], num_extreme, generator)
    actions, next_states = answers(algorithm, leaves, masks, states)
    golden = {f"{OBS}.{index}": leaf for index, leaf in enumerate(leaves)} | {ACTION: actions}
    if masks is not None:
        golden[MASK] = masks
    if states is not None and next_states is not None:
        columns = state_columns(algorithm)
        golden |= {STATE: states[:, columns], NEXT_STATE: next_states[:, columns]}
    stable = stable_rows(description, golden)
    return {name: np.ascontiguousarray(array[stable]) for name, array in golden.items()}


def stable_rows(description: Description, golden: dict[str, Array]) -> Array:
    """Pairs that small changes of the weights do not change: rounding differs between machines, by less."""
    spaces = parse_spaces(description.spaces)
    generator = np.random.default_rng(0)
    keep = np.ones(len(golden[ACTION]), np.bool_)
    changed = (
        {name: _perturbed(array, generator) for name, array in description.tensors.items()}
        for _ in range(NUM_PERTURBED)
    )
    unchanged: Array | None = None
    for tensors in chain([description.tensors], changed):
        actions, state = replay(Program(description.operations, tensors, spaces), spaces, golden)
        unchanged = actions if unchanged is None else unchanged
        keep &= ~differing(spaces, actions, unchanged, factor=10.0)
        if state is not None:
            keep &= np.isfinite(state).all(1)
    return keep


def answers(
    algorithm: Algorithm[Any], leaves: list[Array], masks: Array | None, states: Array | None
) -> tuple[Array, Array | None]:
    """Environment actions and next states of the algorithm itself."""
    acted = []
    for start in range(0, len(leaves[0]), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        state = None if states is None else torch.from_numpy(states[rows]).to(algorithm.device)
        obs = algorithm.spaces.obs.nested([leaf[rows] for leaf in leaves])
        mask = None if masks is None else masks[rows]
        acted.append(act_on(algorithm, obs, state, mask, deterministic=True))
    actions, after = zip(*acted, strict=True)
    next_states = None if states is None else np.concatenate([one.cpu().numpy() for one in after])
    return np.concatenate(actions), next_states


def _extremes(spaces: BundleSpaces, obs_space: Space[Any] | None) -> list[Array]:
    """Extreme observations, each part [N, *shape]."""
    generator = np.random.default_rng(0)
    parts = [
        _extremes_of(leaf, None if obs_space is None else leaf.find(obs_space), generator)
        for leaf in spaces.observation
    ]
    longest = max(map(len, parts))
    # Parts are combined as they come: the shorter ones begin again.
    return [part[np.arange(longest) % len(part)] for part in parts]


def _extremes_of(leaf: ObsLeaf, space: Space[Any] | None, generator: np.random.Generator) -> Array:
    if leaf.choices:
        return _every_category(leaf)
    if leaf.dtype == "uint8":
        noise = generator.integers(0, 256, (NUM_RANDOM, *leaf.shape), np.uint8)
        bounds = [np.full(leaf.shape, value, np.uint8) for value in (0, 255)]
        return np.stack([*bounds, *noise])
    rows: list[Array] = [np.full(leaf.shape, value) for value in LARGE]
    if isinstance(space, Box):
        rows += [
            np.where(np.isfinite(bound), bound, 0.0).clip(-1e6, 1e6)
            for bound in (space.low, space.high)
        ]
    rows += list(generator.standard_normal((NUM_RANDOM, *leaf.shape)))
    return np.stack(rows).astype(np.float32)


def _every_category(leaf: ObsLeaf) -> Array:
    """Observations in which each category of each component occurs, the first of the other components beside it."""
    start, last = np.asarray(leaf.start, np.int64), np.asarray(leaf.choices, np.int64) - 1
    rows = [start, start + last]
    for component, number in enumerate(leaf.choices):
        is_component = np.arange(len(start)) == component
        rows += [start + is_component * option for option in range(1, number)]
        if len(rows) > MAX_CATEGORIES:
            break
    return np.stack([row.reshape(leaf.shape) for row in rows[:MAX_CATEGORIES]])


def _masks(
    spaces: BundleSpaces, real: list[Array | None], num_extreme: int, generator: np.random.Generator
) -> Array | None:
    """Masks of the real pairs (all valid where there are none), and random ones for the extreme pairs."""
    if spaces.mask_use == "none":
        return None
    options = spaces.action.num_options
    masks = [np.ones(options, np.bool_) if mask is None else mask for mask in real]
    first = np.cumsum([0, *spaces.action.choices[:-1]])
    for number in range(num_extreme):
        mask = np.ones(options, np.bool_)
        if number % 2:
            mask = generator.random(options) < 0.5
            mask[first + generator.integers(0, spaces.action.choices)] = (
                True  # each component keeps an option
            )
        masks.append(mask)
    return np.stack(masks)


def _states(
    algorithm: Algorithm[Any],
    real: list[Array | None],
    num_extreme: int,
    generator: np.random.Generator,
) -> Array | None:
    """Policy states: from the episodes, and zeros and random ones for the extreme pairs."""
    initial = algorithm.initial_state(1)
    if initial is None:
        return None
    first = initial[0].cpu().numpy()
    states = [first if state is None else state for state in real]
    states += [
        first if number % 2 else generator.uniform(-1, 1, first.shape)
        for number in range(num_extreme)
    ]
    return np.stack(states).astype(np.float32)


def _perturbed(array: Array, generator: np.random.Generator) -> Array:
    change = 1.0 + PERTURBATION * generator.uniform(-1, 1, array.shape)
    return (array * change).astype(array.dtype) if array.dtype == np.float32 else array

"""Prioritized sampling of transitions with a sum tree (Schaul et al. 2016)."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_training.replay.transitions import Array, copy_rows

BRANCHES = 16
EPSILON = 1e-6
"""Added to absolute TD errors, so that every transition keeps a positive probability."""


class SumTree:
    """A tree with `BRANCHES` children per node, each inner node holding the sum of its children.

    Sums are recomputed from the children, never incremented, so the tree is a function of its leaves.
    """

    def __init__(self, num_leaves: int) -> None:
        self._levels = [np.zeros((-(-num_leaves // BRANCHES), BRANCHES))]
        while len(self._levels[-1]) > 1:
            self._levels.append(np.zeros((-(-len(self._levels[-1]) // BRANCHES), BRANCHES)))

    @property
    def leaves(self) -> Array:
        """The leaf values, padded with zeros."""
        return self._levels[0].reshape(-1)

    @property
    def total(self) -> float:
        """Sum of all leaves."""
        return float(self._levels[-1].sum())

    def set(self, index: Array, values: Any) -> None:
        """Set leaf values and update the sums above them."""
        self.leaves[index] = values
        for below, level in zip(self._levels, self._levels[1:], strict=False):
            index = index // BRANCHES
            level.reshape(-1)[index] = below[index].sum(1)

    def find(self, targets: Array) -> Array:
        """For each target, the leaf at which the cumulative sum of the leaves exceeds it."""
        node = np.zeros(len(targets), np.int64)
        rest, rows = targets.astype(np.float64), np.arange(len(targets))
        for level in reversed(self._levels):
            children = level[node]
            sums = children.cumsum(1)
            choice = np.count_nonzero(sums <= rest[:, None], axis=1)
            if choice.max() == BRANCHES:  # rounding put the target past the last sum: take the last non-zero child
                choice = np.minimum(choice, BRANCHES - 1 - (children[:, ::-1] > 0.0).argmax(1))
            rest -= sums[rows, choice] - children[rows, choice]
            node = node * BRANCHES + choice
        return node


class PrioritizedSampler:
    """Samples slots in proportion to |TD error| ** alpha (Schaul et al. 2016, proportional variant)."""

    def __init__(self, num_slots: int, alpha: float, rng: np.random.Generator) -> None:
        self._tree = SumTree(num_slots)
        self._alpha = alpha
        self._rng = rng
        self._max_priority = 1.0

    def add(self, slots: Array) -> None:
        """Give new transitions the largest priority so far."""
        self._tree.set(slots, self._max_priority)

    def sample(self, count: int, num_stored: int) -> tuple[Array, Array]:
        """Stratified sample of slots, and 1 / (N P(i)) of each."""
        total = self._tree.total
        slots = self._tree.find((np.arange(count) + self._rng.random(count)) * (total / count))
        return slots, total / (num_stored * self._tree.leaves[slots])  # eq. 1 and section 3.4

    def update_priorities(self, slots: Array, td_errors: Array) -> None:
        """Set the priorities of slots from their absolute TD errors."""
        priorities = (td_errors.astype(np.float64) + EPSILON) ** self._alpha
        self._tree.set(slots, priorities)
        self._max_priority = max(self._max_priority, float(priorities.max()))

    def state_dict(self) -> dict[str, Any]:
        """Priorities only: the replay buffer saves the generator."""
        return {"priorities": self._tree.leaves, "max_priority": self._max_priority}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        priorities = np.zeros_like(self._tree.leaves)
        copy_rows("priorities", state["priorities"], priorities)
        if not (np.isfinite(priorities).all() and (priorities >= 0.0).all()):
            raise ValueError("saved priorities must be finite and not negative")
        self._tree.set(np.arange(len(priorities)), priorities)
        self._max_priority = float(state["max_priority"])

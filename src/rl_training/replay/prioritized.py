"""Drawing stored transitions in proportion to a priority each has, in logarithmic time."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_training.replay.transitions import Array, copy_rows

BRANCHES = 16
EPSILON = 1e-6
"""Added to errors, so that nothing is never drawn again."""


class SumTree:
    """Numbers, and the sums of every 16 of them, and the sums of every 16 of those, up to the sum of all.

    A sum is always that of the numbers below it as they are now, so the tree is a function of its leaves.
    """

    def __init__(self, num_leaves: int) -> None:
        self._levels = [np.zeros((-(-num_leaves // BRANCHES), BRANCHES))]
        while len(self._levels[-1]) > 1:
            self._levels.append(np.zeros((-(-len(self._levels[-1]) // BRANCHES), BRANCHES)))

    @property
    def leaves(self) -> Array:
        """The numbers, padded with zeros."""
        return self._levels[0].reshape(-1)

    @property
    def total(self) -> float:
        """The sum of all."""
        return float(self._levels[-1].sum())

    def set(self, index: Array, values: Any) -> None:
        """Change some of the numbers."""
        self.leaves[index] = values
        for below, level in zip(self._levels, self._levels[1:], strict=False):
            index = index // BRANCHES
            level.reshape(-1)[index] = below[index].sum(1)

    def find(self, targets: Array) -> Array:
        """For each target, the leaf at which the running sum over all leaves passes it."""
        node = np.zeros(len(targets), np.int64)
        rest, rows = targets.astype(np.float64), np.arange(len(targets))
        for level in reversed(self._levels):
            children = level[node]
            sums = children.cumsum(1)
            choice = np.count_nonzero(sums <= rest[:, None], axis=1)
            if choice.max() == BRANCHES:  # carried beyond the last sum by rounding: the last that is not empty is meant
                choice = np.minimum(choice, BRANCHES - 1 - (children[:, ::-1] > 0.0).argmax(1))
            rest -= sums[rows, choice] - children[rows, choice]
            node = node * BRANCHES + choice
        return node


class PrioritizedSampler:
    """Chooses stored transitions by their last error (Schaul et al. 2016, proportional variant)."""

    def __init__(self, num_slots: int, alpha: float, rng: np.random.Generator) -> None:
        self._tree = SumTree(num_slots)
        self._alpha = alpha
        self._rng = rng
        self._largest = 1.0

    def add(self, slots: Array) -> None:
        """New transitions are drawn as often as the one with the largest error so far."""
        self._tree.set(slots, self._largest)

    def draw(self, count: int, num_stored: int) -> tuple[Array, Array]:
        """Slots, one from each of `count` equal parts of the sum, and how much less often than its share each comes."""
        total = self._tree.total
        slots = self._tree.find((np.arange(count) + self._rng.random(count)) * (total / count))
        return slots, total / (num_stored * self._tree.leaves[slots])  # 1 / (N P(i)), eq. 1 and section 3.4

    def update_priorities(self, slots: Array, errors: Array) -> None:
        """What the last update made of these."""
        priorities = (errors.astype(np.float64) + EPSILON) ** self._alpha
        self._tree.set(slots, priorities)
        self._largest = max(self._largest, float(priorities.max()))

    def state_dict(self) -> dict[str, Any]:
        """The priorities; the generator is the buffer's."""
        return {"priorities": self._tree.leaves, "largest": self._largest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        priorities = np.zeros_like(self._tree.leaves)
        copy_rows("priorities", state["priorities"], priorities)
        if not (np.isfinite(priorities).all() and (priorities >= 0.0).all()):
            raise ValueError("the saved priorities are not all finite and positive")
        self._tree.set(np.arange(len(priorities)), priorities)
        self._largest = float(state["largest"])

"""Confidence intervals by inverting a test: the shifts of A that it does not reject."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rl_training.studies.statistics.kernel import Statistic, p_values, rejects
from rl_training.studies.statistics.scores import Array, Look, merged, spread, units


@dataclass(frozen=True)
class ShiftedTest:
    """A test of runs, repeated with A's scores lowered by a shift in the `units` of all runs."""

    looks: tuple[Look, ...]
    labels: tuple[Mapping[str, Array], ...]
    alphas: tuple[float, ...]
    kind: Statistic = "welch"

    @functools.cached_property
    def _units(self) -> dict[str, Array]:
        return units(merged(self.looks))

    @property
    def spread(self) -> float:
        """Standard deviation of all runs, in the units of a shift; 1 if all are equal."""
        together = merged(self.looks)
        return float(spread(next(iter(together.values())).scores)[0]) or 1.0 if len(together) == 1 else 1.0

    def p_values(self, shifts: Array) -> Array:
        """Stage-wise p-values [K, J] of `shifts` [K] at every look."""
        shifted = [
            {task: runs.shifted(shifts * self._units[task][0]) for task, runs in look.items()} for look in self.looks
        ]
        return p_values(shifted, self.labels, self.alphas, self.kind)

    def accepts(self, shifts: Array) -> npt.NDArray[np.bool_]:
        """Which shifts no look rejects."""
        rejected = rejects(self.p_values(shifts), np.array(self.alphas))
        return np.logical_not(rejected.any(axis=1), dtype=np.bool_)


Accepts = Callable[[Array], npt.NDArray[np.bool_]]
"""Which of several shifts the test does not reject."""

NUM_DOUBLINGS = 11
NUM_BISECTIONS = 36


def accepted_interval(accepts: Accepts, estimates: Array, unit: float) -> tuple[float, float]:
    """The interval of accepted shifts around the first of the `estimates` that is accepted.

    It contains 0 exactly if 0 is accepted. An end is infinite if no shift up to some thousand `unit`s is rejected.
    Where the test rejects every estimate, the interval is the first one alone.
    """
    *are_accepted, is_zero_accepted = accepts(np.append(estimates, 0.0))
    inside = [float(value) for value, accepted in zip(estimates, are_accepted, strict=True) if accepted][:1]
    if not inside and not is_zero_accepted:
        return float(estimates[0]), float(estimates[0])
    if is_zero_accepted:
        inside.append(0.0)
    # Brackets of the two ends: row 0 goes down, row 1 goes up.
    signs = np.array([-1.0, 1.0])
    starts = np.array([min(inside), max(inside)])
    steps = unit * 2.0 ** np.arange(-1, NUM_DOUBLINGS)
    points = starts[:, None] + signs[:, None] * steps  # [2, K]
    if not is_zero_accepted:
        side = 0 if starts[0] > 0 else 1
        beyond = signs[side] * points[side] >= 0
        points[side, beyond] = 0.0
    accepted = accepts(points.ravel()).reshape(points.shape)
    return _refined(accepts, starts, points, accepted)


def _refined(accepts: Accepts, starts: Array, points: Array, accepted: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Bisect between the last accepted and the first rejected point of each row; the accepted side is returned."""
    is_open = accepted.all(axis=1)
    first = np.where(is_open, 0, (~accepted).argmax(axis=1))
    rejected = np.take_along_axis(points, first[:, None], axis=1)[:, 0]
    before = np.take_along_axis(points, np.maximum(first - 1, 0)[:, None], axis=1)[:, 0]
    inner = np.where(first > 0, before, starts)
    if not is_open.all():
        for _ in range(NUM_BISECTIONS):
            middle = (inner + rejected) / 2
            is_accepted = accepts(middle)
            inner, rejected = np.where(is_accepted, middle, inner), np.where(is_accepted, rejected, middle)
    low, high = np.where(is_open, np.array([-math.inf, math.inf]), inner)
    return float(low), float(high)

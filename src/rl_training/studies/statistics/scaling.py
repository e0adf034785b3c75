"""Scores as distances from a typical one, in a unit of their size: results do not depend on offset and scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rl_training.studies.statistics.scores import Array, Look, TaskRuns

ROUNDING = 4 * float(np.finfo(np.float64).eps)
"""Scores that differ by less, in units of the largest one, differ by rounding errors only."""


@dataclass(frozen=True)
class Scale:
    """Where scores lie, and how far apart: sums and squares of `(score - centre) / unit` neither overflow nor vanish.

    The centre is one of the scores, so that equal scores are 0 exactly. The unit is a power of two, which adds no
    rounding errors.
    """

    centre: float
    unit: float
    rounding: float
    """Distances up to it are 0."""

    @classmethod
    def of(cls, scores: Array, place: str, centre: float | None = None) -> Scale:
        """The scale of scores around their median, or around `centre`; ValueError if their distances overflow."""
        middle = float(np.partition(scores, scores.size // 2)[scores.size // 2]) if centre is None else centre
        low, high = float(scores.min()), float(scores.max())
        if not math.isfinite(high - low):
            raise ValueError(
                f"the scores {place} reach from {low:g} to {high:g}, which is too far to compute with: divide all of"
                " them by the same number"
            )
        farthest = max(high - middle, middle - low)
        rounding = ROUNDING * max(abs(low), abs(high))
        unit = math.ldexp(1.0, math.frexp(farthest)[1] - 1) if farthest > rounding else 1.0
        return cls(middle, unit, rounding)

    def apply(self, scores: Array) -> Array:
        """The distances in units."""
        distances = scores - self.centre
        result: Array = np.where(np.abs(distances) > self.rounding, distances, 0.0) / self.unit
        return result


def rescaled(*looks: Look) -> tuple[list[Look], float]:
    """Looks with every task's scores as distances in its own unit, and the unit of a difference of means.

    Several tasks are measured in their standard deviations, of which the unit is 1. The centre is that of the first
    look: later ones do not change its distances.
    """
    scales = {}
    for task, runs in looks[0].items():
        first = runs.scores[0]
        every = np.concatenate([look[task].scores[0] for look in looks if task in look])
        scales[task] = Scale.of(every, f"on task '{task}'", Scale.of(first, f"on task '{task}'").centre)
    found: list[Look] = [
        {task: TaskRuns(scales[task].apply(runs.scores), runs.num_a) for task, runs in look.items()} for look in looks
    ]
    return found, next(iter(scales.values())).unit if len(scales) == 1 else 1.0


def times(interval: Sequence[float], unit: float) -> tuple[float, float]:
    """Both ends in the units of the scores."""
    low, high = interval
    return low * unit, high * unit

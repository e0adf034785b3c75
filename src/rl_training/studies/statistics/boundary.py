"""The guard against unequal spreads: the same sequential test, with normal instead of permuted statistics.

A permutation test of means is exact where both algorithms have the same distribution. With five runs of each and
unequal spreads, it rejects equal means in about 7 % instead of 5 %; Welch's test stays near 5 % there, and is the one
that fails elsewhere. The larger one of both p-values holds wherever either test does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rl_training.studies.statistics.scores import Array, Look

NODES, WEIGHTS = np.polynomial.legendre.leggauss(48)
"""Gauss-Legendre quadrature on [-1, 1]: the density between the boundaries is smooth."""
_erfc = np.frompyfunc(math.erfc, 1, 1)


def upper_tail(z: Array) -> Array:
    """Probability that a standard normal variable exceeds `z`."""
    return 0.5 * np.asarray(_erfc(z / math.sqrt(2)), dtype=np.float64)


@dataclass(frozen=True)
class Stage:
    """A look of the normal test: where the statistics are that have not crossed, before the look's increment."""

    points: Array
    masses: Array
    """Probability at each point."""
    increment: float
    """Standard deviation of the increment, in units of the standard deviation of the sum."""
    spent: float
    """Error spent at earlier looks."""

    def p_values(self, magnitudes: Array) -> Array:
        """Error spent before, and the probability to lie at least as far out at this look."""
        above = upper_tail((magnitudes[:, None] - self.points) / self.increment)
        return np.minimum(1.0, self.spent + 2 * (above @ self.masses))

    def boundary(self, alpha: float) -> float:
        """The magnitude whose p-value is `alpha`."""
        low, high = 0.0, 40.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.p_values(np.array([middle]))[0] > alpha else (low, middle)
        return high


@dataclass(frozen=True)
class Guard:
    """Stage-wise p-values of normal statistics: sums of independent increments, looked at as often as the runs."""

    stages: tuple[Stage, ...]

    @classmethod
    def of(cls, looks: Sequence[Look], alphas: Sequence[float]) -> Guard:
        """The guard for data with these runs up to each look and these cumulative errors."""
        return cls(_stages(tuple(_information(look) for look in looks), tuple(alphas)))

    def p_values(self, look: int, magnitudes: Array) -> Array:
        """P-values at a look (0-based) of statistics that did not cross earlier."""
        return self.stages[look].p_values(magnitudes)


def _information(look: Look) -> float:
    """Precision of the difference in units of the runs' variance, up to a factor."""
    return 1 / sum(1 / runs.num_a + 1 / runs.num_b for runs in look.values())


@functools.lru_cache(maxsize=64)
def _stages(information: tuple[float, ...], alphas: tuple[float, ...]) -> tuple[Stage, ...]:
    """The stages of all looks; cached, since an interval asks for the same ones for every shift."""
    stages = [Stage(np.zeros(1), np.ones(1), 1.0, 0.0)]
    for now, later, alpha in zip(information, information[1:], alphas, strict=False):
        stages.append(_next_stage(stages[-1], alpha, now / later))
    return tuple(stages)


def _next_stage(stage: Stage, alpha: float, fraction: float) -> Stage:
    """The stage after one that spends up to `alpha`; `fraction` is its information over that of the next."""
    boundary = stage.boundary(alpha)
    points = boundary * NODES
    deviates = (points[:, None] - stage.points) / stage.increment
    densities = np.exp(-(deviates**2) / 2) / (math.sqrt(2 * math.pi) * stage.increment)
    masses = boundary * WEIGHTS * (densities @ stage.masses)
    # The next statistic is the old one times the root of the fraction, plus the increment.
    return Stage(points * math.sqrt(fraction), masses, math.sqrt(1 - fraction), alpha)

"""The permutation test for many data sets at once, look by look; and its guard against unequal spreads.

A permutation test of means is exact where both algorithms have the same distribution. With five runs of each and
unequal spreads, it rejects equal means in about 7 % instead of 5 %; Welch's test stays near 5 % there, and is the one
that fails elsewhere. The larger one of both p-values holds wherever either test does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from rl_training.studies.statistics.samples import (
    Array,
    Look,
    Mask,
    TaskRuns,
    merged,
    num_labelings,
    smallest_p,
    spread,
)

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
            if self.p_values(np.array([middle]))[0] > alpha:
                low = middle
            else:
                high = middle
        return high


def information(look: Look) -> float:
    """Precision of the difference in units of the runs' variance, up to a factor."""
    return 1 / sum(1 / runs.num_a + 1 / runs.num_b for runs in look.values())


@functools.lru_cache(maxsize=64)
def normal_stages(informations: tuple[float, ...], alphas: tuple[float, ...]) -> tuple[Stage, ...]:
    """The looks of the normal test, by the `information` up to each look and the cumulative errors.

    Cached, since an interval asks for the same ones for every shift.
    """
    stages = [Stage(np.zeros(1), np.ones(1), 1.0, 0.0)]
    for now, later, alpha in zip(informations, informations[1:], alphas, strict=False):
        stages.append(_next_stage(stages[-1], alpha, now / later))
    return tuple(stages)


def _next_stage(stage: Stage, alpha: float, fraction: float) -> Stage:
    """The stage after one that spends up to `alpha`; `fraction` is its information over the next stage's."""
    boundary = stage.boundary(alpha)
    points = boundary * NODES
    deviates = (points[:, None] - stage.points) / stage.increment
    densities = np.exp(-(deviates**2) / 2) / (math.sqrt(2 * math.pi) * stage.increment)
    masses = boundary * WEIGHTS * (densities @ stage.masses)
    # The next statistic is the old one times the root of the fraction, plus the increment.
    return Stage(points * math.sqrt(fraction), masses, math.sqrt(1 - fraction), alpha)


Statistic = Literal["welch", "mean"]
"""`welch`: the difference of means over its standard error, with the guard against unequal spreads. `mean`: the plain
difference of means."""

TIE = 1e-6
"""Statistics that differ by less, relatively, are equal: their sums are the same up to rounding."""
SMALLEST_VARIANCE = 1e-8
"""In units of the variance of all runs of a task; smaller ones are lost to rounding where the arms are far apart."""
CHUNK = 1 << 18
"""Statistics computed at once: the arrays of a chunk fit the processor's cache."""


def magnitude(statistics: Array) -> Array:
    """How far a statistic is from equality. The test is two-sided, so both signs count."""
    return np.abs(statistics)


def statistic(look: Look, kind: Statistic) -> Array:
    """The statistic of every data set and labeling [R, M], positive where A's runs are the higher ones.

    `welch` is the sum over tasks of the standardized differences over its standard error, expressed as the normal
    deviate that has the same probability as Student's t with the Welch-Satterthwaite degrees of freedom.
    """
    sums = [_task_sums(runs, kind) for runs in look.values()]
    gap, variance, weights = (functools.reduce(np.add, parts) for parts in zip(*sums, strict=True))
    return gap if kind == "mean" else normal_deviate(gap / np.sqrt(variance), variance**2 / weights)


def normal_deviate(t: Array, degrees: Array) -> Array:
    """The normal deviate with the tail probability of Student's t, by Wallace's approximation (1959)."""
    deviate = np.sqrt(degrees * np.log1p(t**2 / degrees)) * (8 * degrees + 1) / (8 * degrees + 3)
    result: Array = np.copysign(deviate, t)
    return result


def _task_sums(runs: TaskRuns, kind: Statistic) -> tuple[Array, Array, Array]:
    """Difference of the standardized means, its squared standard error, and the weights of its degrees of freedom.

    They come from two matrix products: of the standardized scores and of their squares. `mean` needs the first only.
    """
    num_a, num_b, labels = runs.num_a, runs.num_b, runs.labels
    scale = spread(runs.scores)[:, None]
    scores = runs.scores - runs.scores.mean(axis=1, keepdims=True)
    scores = scores / np.where(scale > 0, scale, np.inf)
    total = scores @ labels  # sum of A's scores; B's is its negative, as the mean of all is 0
    gap = total * (1 / num_a + 1 / num_b)
    if kind == "mean":
        return gap, gap, gap
    if num_a == num_b == 1:  # nothing is known about the spread within an arm
        constant = np.full_like(gap, 2.0)
        return gap, constant, constant**2
    squares = scores**2
    of_a = squares @ labels
    within_a = of_a - total**2 / num_a
    within_b = squares.sum(axis=1, keepdims=True) - of_a - total**2 / num_b
    if min(num_a, num_b) == 1:  # one arm's spread is used for both
        degrees = num_a + num_b - 2
        pooled = np.maximum((within_a + within_b) / degrees, SMALLEST_VARIANCE)
        variance = pooled * (1 / num_a + 1 / num_b)
        return gap, variance, variance**2 / degrees
    variance_a = np.maximum(within_a / (num_a - 1), SMALLEST_VARIANCE) / num_a
    variance_b = np.maximum(within_b / (num_b - 1), SMALLEST_VARIANCE) / num_b
    weights = variance_a**2 / (num_a - 1) + variance_b**2 / (num_b - 1)
    return gap, variance_a + variance_b, weights


def p_values(looks: Sequence[Look], alphas: Sequence[float], kind: Statistic = "welch") -> Array:
    """Stage-wise p-values [R, J] of data sets that are looked at J times.

    `looks` are the new runs of each look with their labelings, `alphas` the cumulative error allowed at each look.
    Equality is rejected at look j if the p-value is at most `alphas[j]`. With the statistic `welch`, a p-value is the
    larger one of the permutation test's and of the guard's.
    """
    num_rows = len(next(iter(looks[0].values())).scores)
    rows = max(1, CHUNK // num_labelings(looks[0]))
    together = [merged(looks[: j + 1]) for j in range(len(looks))]
    chunks = [
        _chunk_p_values([_rows(look, start, start + rows) for look in together], alphas, kind)
        for start in range(0, num_rows, rows)
    ]
    # A labeling and its mirror image are equally far out, which rounding can hide where the arms are far apart.
    smallest = np.array([smallest_p(*looks[: j + 1]) for j in range(len(looks))])
    at_least: Array = np.maximum(np.concatenate(chunks), smallest)
    return at_least


def _rows(look: Look, start: int, stop: int) -> dict[str, TaskRuns]:
    return {task: replace(runs, scores=runs.scores[start:stop]) for task, runs in look.items()}


def _chunk_p_values(together: Sequence[Look], alphas: Sequence[float], kind: Statistic) -> Array:
    """P-values [R, J] from all runs up to each look."""
    crossed: Mask = np.zeros((1, 1), dtype=np.bool_)
    permuted, observed = [], []
    for look, alpha in zip(together, alphas, strict=True):
        values = magnitude(statistic(look, kind))
        permuted.append(stage_p_values(values, crossed))
        observed.append(values[:, 0])
        if look is not together[-1]:
            crossed = crossed | newly_crossed(values, crossed, alpha)
    p = _frozen(permuted, alphas)
    if kind == "welch":
        stages = normal_stages(tuple(map(information, together)), tuple(alphas))
        guarded = [stage.p_values(one) for stage, one in zip(stages, observed, strict=True)]
        p = np.maximum(p, _frozen(guarded, alphas))
    return p


def rejects(p: Array, alpha: float | Array) -> Mask:
    """Whether p-values are at most `alpha`, up to rounding errors of `alpha`."""
    result: Mask = p <= alpha * (1 + 1e-12)
    return result


def _frozen(by_look: Sequence[Array], alphas: Sequence[float]) -> Array:
    """The p-values [R, J]; the one of the look at which the boundary was first crossed is kept at later looks."""
    p = np.stack(by_look, axis=1)
    for j in range(1, p.shape[1]):
        p[:, j] = np.where(rejects(p[:, j - 1], alphas[j - 1]), p[:, j - 1], p[:, j])
    return p


def just_below(magnitudes: Array) -> Array:
    """A bound that equal magnitudes exceed in spite of rounding errors, also where they are 0."""
    return magnitudes * (1 - TIE) - 1e-12


def stage_p_values(magnitudes: Array, crossed: Mask) -> Array:
    """P-values of column 0 [R]: the fraction that crossed earlier or lies at least as far out at this look."""
    further = magnitudes >= just_below(magnitudes[:, :1])
    further |= crossed
    fraction: Array = further.mean(axis=1)
    return fraction


def newly_crossed(magnitudes: Array, crossed: Mask, alpha: float) -> Mask:
    """Labelings that cross the boundary at this look, after those that `crossed` earlier.

    They are those with the largest magnitude, at most the fraction `alpha` at all looks together. Ties at the boundary
    do not cross, and the error that they leave unspent is carried over.
    """
    most = math.floor(alpha * magnitudes.shape[1] + 1e-9)
    allowed = most - crossed.sum(axis=1)  # [R]
    alive = np.where(crossed, -np.inf, magnitudes)
    largest = -np.sort(np.partition(-alive, most, axis=1)[:, : most + 1], axis=1)
    first_kept = np.take_along_axis(largest, allowed[:, None], axis=1)
    result: Mask = just_below(alive) > first_kept
    return result

"""The permutation test for many data sets at once, look by look; and its guard against unequal spreads.

A permutation test of means is exact where both algorithms have the same distribution. With five runs of each and
unequal spreads, it rejects equal means in about 7 % instead of 5 %; Welch's test stays near 5 % there, and is the one
that fails elsewhere. The larger one of both p-values holds wherever either test does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from rl_training.studies.statistics.samples import Array, Look, TaskRuns, merged, smallest_p, spread

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
            low, high = (
                (middle, high) if self.p_values(np.array([middle]))[0] > alpha else (low, middle)
            )
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


@dataclass(frozen=True)
class Sums:
    """Numerator and squared standard error of the difference, summed over tasks; `weights` is for its degrees."""

    gap: Array
    variance: Array
    weights: Array


def statistic(look: Look, labels: Mapping[str, Array], kind: Statistic) -> Array:
    """The statistic of every labeling [R, M], positive where A's runs are the higher ones.

    `welch` is the sum over tasks of the standardized differences over its standard error, expressed as the normal
    deviate that has the same probability as Student's t with the Welch-Satterthwaite degrees of freedom.
    """
    parts = [_task_sums(look[task], labels[task], kind) for task in look]
    gap = sum((part.gap for part in parts[1:]), parts[0].gap)
    if kind == "mean":
        return gap
    variance = sum((part.variance for part in parts[1:]), parts[0].variance)
    weights = sum((part.weights for part in parts[1:]), parts[0].weights)
    return normal_deviate(gap / np.sqrt(variance), variance**2 / weights)


def normal_deviate(t: Array, degrees: Array) -> Array:
    """The normal deviate with the tail probability of Student's t, by Wallace's approximation (1959)."""
    deviate = np.sqrt(degrees * np.log1p(t**2 / degrees)) * (8 * degrees + 1) / (8 * degrees + 3)
    result: Array = np.copysign(deviate, t)
    return result


def _task_sums(runs: TaskRuns, labels: Array, kind: Statistic) -> Sums:
    """The sums of one task from two matrix products: of the standardized scores and of their squares."""
    num_a, num_b = runs.num_a, runs.num_b
    scale = spread(runs.scores)[:, None]
    scores = runs.scores - runs.scores.mean(axis=1, keepdims=True)
    scores = np.where(scale > 0, scores / np.where(scale > 0, scale, 1.0), 0.0)
    total = scores @ labels  # sum of A's scores; B's is its negative, as the mean of all is 0
    gap = total * (1 / num_a + 1 / num_b)
    if kind == "mean":
        return Sums(gap, gap, gap)
    if num_a == num_b == 1:  # nothing is known about the spread within an arm
        constant = np.full_like(gap, 2.0)
        return Sums(gap, constant, constant**2)
    squares = scores**2
    of_a = squares @ labels
    within_a = of_a - total**2 / num_a
    within_b = squares.sum(axis=1, keepdims=True) - of_a - total**2 / num_b
    if min(num_a, num_b) == 1:  # one arm's spread is used for both
        degrees = num_a + num_b - 2
        variance = np.maximum((within_a + within_b) / degrees, SMALLEST_VARIANCE) * (
            1 / num_a + 1 / num_b
        )
        return Sums(gap, variance, variance**2 / degrees)
    variance_a = np.maximum(within_a / (num_a - 1), SMALLEST_VARIANCE) / num_a
    variance_b = np.maximum(within_b / (num_b - 1), SMALLEST_VARIANCE) / num_b
    return Sums(
        gap, variance_a + variance_b, variance_a**2 / (num_a - 1) + variance_b**2 / (num_b - 1)
    )


def p_values(
    looks: Sequence[Look],
    labels: Sequence[Mapping[str, Array]],
    alphas: Sequence[float],
    kind: Statistic = "welch",
) -> Array:
    """Stage-wise p-values [R, J] of data sets that are looked at J times.

    `looks` and `labels` are the new runs of each look and their labelings, `alphas` the cumulative error allowed at
    each look. Equality is rejected at look j if the p-value is at most `alphas[j]`. With the statistic `welch`, a
    p-value is the larger one of the permutation test's and of the guard's.
    """
    num_rows = len(next(iter(looks[0].values())).scores)
    num_columns = next(iter(labels[0].values())).shape[1]
    rows = max(1, CHUNK // num_columns)
    together = [_with_labels(looks[: j + 1], labels[: j + 1]) for j in range(len(looks))]
    guard = Guard.of([all_runs for all_runs, _ in together], alphas) if kind == "welch" else None
    chunks = [
        _chunk_p_values(
            [(_rows(runs, start, start + rows), columns) for runs, columns in together],
            alphas,
            kind,
            guard,
        )
        for start in range(0, num_rows, rows)
    ]
    # A labeling and its mirror image are equally far out, which rounding can hide where the arms are far apart.
    smallest = np.array([smallest_p(*looks[: j + 1]) for j in range(len(looks))])
    at_least: Array = np.maximum(np.concatenate(chunks), smallest)
    return at_least


def _rows(look: Look, start: int, stop: int) -> dict[str, TaskRuns]:
    return {task: TaskRuns(runs.scores[start:stop], runs.num_a) for task, runs in look.items()}


def _with_labels(
    looks: Sequence[Look], labels: Sequence[Mapping[str, Array]]
) -> tuple[dict[str, TaskRuns], dict[str, Array]]:
    """All runs so far, and their labels in the same order."""
    columns = {}
    for task in looks[0]:
        present = [
            (look[task], label[task])
            for look, label in zip(looks, labels, strict=True)
            if task in look
        ]
        arms = [label[: runs.num_a] for runs, label in present] + [
            label[runs.num_a :] for runs, label in present
        ]
        columns[task] = np.concatenate(arms)
    return merged(looks), columns


def _chunk_p_values(
    together: Sequence[tuple[Look, Mapping[str, Array]]],
    alphas: Sequence[float],
    kind: Statistic,
    guard: Guard | None,
) -> Array:
    stages = Stages()
    permuted, guarded = [], []
    for j, ((look, columns), alpha) in enumerate(zip(together, alphas, strict=True)):
        values = magnitude(statistic(look, columns, kind))
        permuted.append(stages.p_values(values))
        guarded.append(guard.p_values(j, values[:, 0]) if guard else np.zeros(len(values)))
        if j + 1 < len(together):
            stages.discard(values, alpha)
    return np.maximum(
        _frozen(np.stack(permuted, axis=1), alphas), _frozen(np.stack(guarded, axis=1), alphas)
    )


def rejects(p: Array, alpha: float | Array) -> npt.NDArray[np.bool_]:
    """Whether p-values are at most `alpha`, up to rounding errors of `alpha`."""
    result: npt.NDArray[np.bool_] = p <= alpha * (1 + 1e-12)
    return result


def _frozen(p: Array, alphas: Sequence[float]) -> Array:
    """Keep the p-value of the look at which the boundary was first crossed."""
    for j in range(1, p.shape[1]):
        p[:, j] = np.where(rejects(p[:, j - 1], alphas[j - 1]), p[:, j - 1], p[:, j])
    return p


def just_below(magnitudes: Array) -> Array:
    """A bound that equal magnitudes exceed in spite of rounding errors, also where they are 0."""
    return magnitudes * (1 - TIE) - 1e-12


class Stages:
    """Which labelings have crossed the boundary so far, and the p-values that follow from it.

    At each look, the labelings with the largest magnitude are discarded, as many as the newly spent error allows;
    labelings that crossed at an earlier look are not counted again. Ties at the boundary are kept, and the error that
    they leave unspent is carried over.
    """

    def __init__(self) -> None:
        self._crossed: npt.NDArray[np.bool_] | None = None  # [R, M]

    def p_values(self, magnitudes: Array) -> Array:
        """P-values of column 0 [R]: the fraction that crossed earlier or lies at least as far out at this look."""
        further = magnitudes >= just_below(magnitudes[:, :1])
        if self._crossed is not None:
            further |= self._crossed
        fraction: Array = further.mean(axis=1)
        return fraction

    def discard(self, magnitudes: Array, alpha: float) -> None:
        """Discard the labelings that cross at this look, at most the fraction `alpha` at all looks together."""
        if self._crossed is None:
            self._crossed = np.zeros(magnitudes.shape, dtype=bool)
        most = math.floor(alpha * magnitudes.shape[1] + 1e-9)
        allowed = most - self._crossed.sum(axis=1)  # [R]
        alive = np.where(self._crossed, -np.inf, magnitudes)
        largest = -np.sort(np.partition(-alive, most, axis=1)[:, : most + 1], axis=1)
        first_kept = np.take_along_axis(largest, allowed[:, None], axis=1)
        self._crossed |= just_below(alive) > first_kept

"""Summaries of runs beside the mean: probability of improvement, interquartile mean, performance profile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rl_training.studies.statistics.kernel import TIE
from rl_training.studies.statistics.permutation import check_alpha
from rl_training.studies.statistics.samples import (
    Array,
    Indices,
    Look,
    Scale,
    Scores,
    TaskRuns,
    checked_arm,
    first_labelings,
    pair,
)

FEWEST_FOR_IMPROVEMENT = 3
"""Runs of each algorithm over all tasks; below, the interval is [0, 1]: a narrower one misses the truth too often."""
FEWEST_ON_A_TASK = 2
"""The same, on every single task."""
FEWEST_FOR_IQM = 8
"""Below, the middle half is fewer than four runs."""
SMALLEST_ERROR = 0.25
"""In units of the error of the runs at hand; a resample of eight runs can be nearly constant in its middle half."""


@dataclass(frozen=True)
class Estimate:
    """A number computed from runs, with its confidence interval."""

    value: float
    interval: tuple[float, float]
    num_runs: int
    """Whole runs that it was computed from."""


@dataclass(frozen=True)
class Profile:
    """Fraction of runs above each threshold, averaged over tasks, with a band that holds for all thresholds at once."""

    thresholds: tuple[float, ...]
    fractions: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    num_runs: int


def probability_of_improvement(
    a: Scores,
    b: Scores,
    generator: np.random.Generator,
    *,
    alpha: float = 0.05,
    max_labelings: int = 20_000,
) -> Estimate:
    """Probability that a run of A scores higher than a run of B on the same task; ties count half.

    It is the Mann-Whitney statistic U / (n m), averaged over tasks. The interval contains the probabilities p with
    |estimate - p| <= c * sd(p): sd is Newcombe's (2006), and c is such that 0.5 is excluded exactly where the
    permutation test of U rejects that both algorithms are equal. With fewer than three runs of an algorithm, or a
    single one on some task, it is [0, 1].
    """
    check_alpha(alpha)
    look = pair(a, b)
    labelled = first_labelings(look, max_labelings, generator)
    values = np.mean([_superiority(runs) for runs in labelled.values()], axis=0)
    estimate = float(values[0])
    distances = np.sort(np.abs(values - 0.5))[::-1]
    allowed = math.floor(alpha * len(distances) + 1e-9)
    reach = float(distances[allowed]) + TIE
    low, high = _superiority_interval(look, estimate, reach / _superiority_deviation(look, 0.5))
    if abs(estimate - 0.5) <= reach:  # an end that is 0.5 up to the tolerance of ties is 0.5
        low, high = (0.5 if abs(end - 0.5) <= 4 * TIE else end for end in (low, high))
    if _are_few(look):
        low, high = 0.0, 1.0
    return Estimate(estimate, (low, high), sum(runs.scores.shape[1] for runs in look.values()))


def _are_few(look: Look) -> bool:
    """Whether so few runs leave the probability open."""
    counts = [[runs.num_a for runs in look.values()], [runs.num_b for runs in look.values()]]
    return any(sum(arm) < FEWEST_FOR_IMPROVEMENT or min(arm) < FEWEST_ON_A_TASK for arm in counts)


def _superiority(runs: TaskRuns) -> Array:
    """U / (n m) of every labeling [M], by midranks."""
    ordered = np.sort(runs.scores[0])
    below = np.searchsorted(ordered, runs.scores[0], side="left")
    not_above = np.searchsorted(ordered, runs.scores[0], side="right")
    ranks = (below + not_above + 1) / 2
    u: Array = ranks @ runs.labels - runs.num_a * (runs.num_a + 1) / 2
    return u / (runs.num_a * runs.num_b)


def _superiority_deviation(look: Look, p: float) -> float:
    """Standard deviation of the estimate if the probability is `p` (Newcombe 2006, from exponential scores)."""
    total = 0.0
    for runs in look.values():
        others = (runs.num_a + runs.num_b) / 2 - 1
        factor = 1 + others * ((1 - p) / (2 - p) + p / (1 + p))
        total += p * (1 - p) * factor / (runs.num_a * runs.num_b)
    return math.sqrt(total) / len(look)


def _superiority_interval(look: Look, estimate: float, factor: float) -> tuple[float, float]:
    ends = []
    for outside in (0.0, 1.0):
        inside = estimate
        for _ in range(60):
            middle = (inside + outside) / 2
            if abs(estimate - middle) <= factor * _superiority_deviation(look, middle):
                inside = middle
            else:
                outside = middle
        ends.append(inside)
    return ends[0], ends[1]


def interquartile_mean(
    scores: Scores,
    generator: np.random.Generator,
    *,
    alpha: float = 0.05,
    num_resamples: int = 5_000,
) -> Estimate:
    """Mean of the middle half of the runs of all tasks; scores of different tasks must share a scale.

    A quarter of the runs, rounded down, is cut at each end. The interval is a bootstrap-t: whole runs are
    resampled within their task, and the error of each resampled mean is divided by its own standard error.
    """
    check_alpha(alpha)
    arms = checked_arm(scores, "the algorithm")
    pooled = np.concatenate(list(arms.values()))
    if pooled.size < FEWEST_FOR_IQM:
        raise ValueError(
            f"the interquartile mean needs at least {FEWEST_FOR_IQM} runs over all tasks, and there are {pooled.size}:"
            " use the mean, or train more seeds"
        )
    groups = np.repeat(
        np.arange(len(arms), dtype=np.intp), [len(values) for values in arms.values()]
    )
    scale = Scale.of(pooled, "of all tasks")
    pooled = scale.apply(pooled)
    value, error = _trimmed(pooled[None, :], groups)
    centre = float(value[0]) * scale.unit + scale.centre
    if error[0] == 0:
        return Estimate(centre, (centre, centre), pooled.size)
    indices = _resampled(groups, num_resamples, generator)
    means, errors = _trimmed(pooled[indices], groups)
    ratios = np.abs(means - value) / np.maximum(errors, SMALLEST_ERROR * error)
    most = np.sort(ratios)[min(num_resamples - 1, math.ceil((1 - alpha) * (num_resamples + 1)) - 1)]
    half = float(most * error[0]) * scale.unit
    return Estimate(centre, (centre - half, centre + half), pooled.size)


def _resampled(groups: Indices, count: int, generator: np.random.Generator) -> Indices:
    """Indices of `count` resamples [count, N], drawn with replacement within each group."""
    columns = []
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        columns.append(generator.choice(members, (count, members.size)))
    return np.concatenate(columns, axis=1)


def _trimmed(rows: Array, groups: Indices) -> tuple[Array, Array]:
    """Interquartile mean of each row and its standard error from the winsorized deviations within each group."""
    count = rows.shape[1]
    cut = count // 4
    ordered = np.sort(rows, axis=1)
    middle = ordered[:, cut : count - cut]
    kept = np.clip(rows, middle[:, :1], middle[:, -1:])
    squares = np.zeros(len(rows))
    degrees = 0
    for group in np.unique(groups):
        members = kept[:, groups == group]
        squares += ((members - members.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
        degrees += members.shape[1] - 1
    if degrees == 0:  # one run of each task: the spread between tasks is all that is known
        return _trimmed(rows, np.zeros(count, dtype=np.intp))
    # Tukey and McLaughlin (1963), with the deviations taken within tasks.
    size = middle.shape[1]
    errors: Array = np.sqrt(squares / degrees * (count - 1) / (size * (size - 1)))
    return middle.mean(axis=1), np.where(errors > 1e-13 * np.abs(rows).max(axis=1), errors, 0.0)


def performance_profile(
    scores: Scores,
    thresholds: Sequence[float],
    generator: np.random.Generator,
    *,
    alpha: float = 0.05,
    num_samples: int = 10_000,
) -> Profile:
    """Fraction of runs above each threshold, averaged over tasks; the scores of all tasks share a scale.

    The band contains the true profile at all thresholds at once with probability 1 - `alpha`. Its width is the
    quantile of the largest deviation of an average of empirical distributions (Kolmogorov 1933), from simulated runs
    of as many tasks and as many runs; it is at least as wide as needed where scores are tied or the tasks differ.
    """
    check_alpha(alpha)
    arms = checked_arm(scores, "the algorithm")
    levels = np.asarray(thresholds, dtype=np.float64)
    if levels.ndim != 1 or not levels.size or not np.isfinite(levels).all():
        raise ValueError("thresholds are a list of at least one finite number")
    fractions = np.mean(
        [(values[:, None] > levels).mean(axis=0) for values in arms.values()], axis=0
    )
    weights = np.concatenate(
        [np.full(len(values), 1 / (len(values) * len(arms))) for values in arms.values()]
    )
    half = _largest_deviation(weights, num_samples, alpha, generator)
    return Profile(
        thresholds=tuple(levels.tolist()),
        fractions=tuple(fractions.tolist()),
        low=tuple(np.maximum(fractions - half, 0.0).tolist()),
        high=tuple(np.minimum(fractions + half, 1.0).tolist()),
        num_runs=weights.size,
    )


def _largest_deviation(
    weights: Array, count: int, alpha: float, generator: np.random.Generator
) -> float:
    """The 1 - `alpha` quantile of the largest distance between a weighted empirical distribution and its truth."""
    draws = generator.random((count, weights.size))
    order = draws.argsort(axis=1)
    ordered = np.take_along_axis(draws, order, axis=1)
    after = np.cumsum(weights[order], axis=1)
    before = after - weights[order]
    distances = np.maximum(np.abs(after - ordered), np.abs(before - ordered)).max(axis=1)
    return float(np.sort(distances)[min(count - 1, math.ceil((1 - alpha) * count))])

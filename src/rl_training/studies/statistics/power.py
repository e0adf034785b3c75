"""How many runs a comparison needs."""

from __future__ import annotations

import math
import statistics

import numpy as np

from rl_training.studies.statistics.permutation import check_alpha
from rl_training.studies.statistics.scaling import rescaled
from rl_training.studies.statistics.scores import Scores, TaskRuns, pair, units

MOST_RUNS = 1_000_000
"""Returned where no affordable number of runs is enough."""


def runs_needed(
    scores_a: Scores, scores_b: Scores, difference: float, *, alpha: float = 0.05, power: float = 0.8
) -> int:
    """Runs of each algorithm, over all tasks, with which `compare_means` decides a true difference of this size.

    The spreads are estimated from the scores at hand; `difference` is in the units of `compare_means`. `power` is the
    probability of a decision. The number is that of Welch's test for normal scores, with the correction of Guenther
    (1981) for the estimated spread. At most a million is returned, as for a difference of 0, which no number decides.
    """
    check_alpha(alpha)
    if not 0 < power < 1:
        raise ValueError(f"power is {power}: choose a probability between 0 and 1, such as 0.8")
    if not math.isfinite(difference):
        raise ValueError(f"difference is {difference}: give the size of difference that matters to you")
    (look,), scale = rescaled(pair(scores_a, scores_b))
    difference, unit = difference / scale, units(look)
    variances = np.array(
        [np.array(_variances(runs)) / float(unit[task][0] or 1.0) ** 2 for task, runs in look.items()]
    )  # [T, 2]
    if difference == 0:
        return MOST_RUNS
    # Standard deviation of the difference with one run of each algorithm on each task; the bound avoids overflow.
    deviation = math.sqrt(variances.sum()) / len(look)
    if deviation > 0:
        ratio = min(deviation / abs(difference), 1e9) ** 2
        inequality = float((variances**2).sum() / variances.sum() ** 2)
    else:
        ratio = inequality = 0.0
    # Few labelings reach a smaller level only, which takes more runs.
    count = max(1, math.ceil(min(_runs_per_task(ratio, inequality, alpha, power), MOST_RUNS)))
    while count * len(look) < MOST_RUNS:
        if _runs_per_task(ratio, inequality, attainable(count, len(look), alpha), power) <= count:
            return count * len(look)
        count += 1
    return MOST_RUNS


def _variances(runs: TaskRuns) -> tuple[float, float]:
    """Variance of A's and of B's scores; an arm of one run takes the other's."""
    arms = (runs.scores[0, : runs.num_a], runs.scores[0, runs.num_a :])
    known = [float(arm.var(ddof=1)) for arm in arms if arm.size > 1]
    if not known:
        raise ValueError("one run of each algorithm says nothing about the spread: train at least two seeds")
    return known[0], known[-1]


def _runs_per_task(ratio: float, inequality: float, alpha: float, power: float) -> float:
    """Runs for a test at level `alpha`.

    `ratio` is the variance of the difference over the squared difference. `inequality` is 1 over the number of arms
    that contribute to the variance, counted over tasks; the fewer, the fewer degrees of freedom.
    """
    if alpha <= 0:
        return math.inf
    normal = statistics.NormalDist()
    critical = normal.inv_cdf(1 - alpha / 2)
    return (critical + normal.inv_cdf(power)) ** 2 * ratio + critical**2 / 2 * inequality


def attainable(count: int, num_tasks: int, alpha: float) -> float:
    """The largest level up to `alpha` of the permutation test with `count` runs of each algorithm on each task.

    0 if so few runs can decide nothing. Two-sided p-values are multiples of two labelings: each one and its mirror.
    """
    if count * num_tasks > 30:
        return alpha
    pairs = math.comb(2 * count, count) ** num_tasks // 2
    return float(math.floor(alpha * pairs + 1e-9) / pairs)

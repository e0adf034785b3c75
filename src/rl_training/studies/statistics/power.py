"""How many runs a comparison needs."""

from __future__ import annotations

import math
import statistics

import numpy as np

from rl_training.studies.statistics.permutation import check_alpha
from rl_training.studies.statistics.scores import Scores, TaskRuns, pair, units

MOST_RUNS = 1_000_000
"""Returned where no affordable number of runs is enough."""


def runs_needed(
    scores_a: Scores, scores_b: Scores, difference: float, *, alpha: float = 0.05, power: float = 0.8
) -> int:
    """Runs of each algorithm, over all tasks, with which `compare_means` decides a true difference of this size.

    The spreads are estimated from the scores at hand; `difference` is in the units of `compare_means`. `power` is the
    probability of a decision. The number is that of Welch's test for normal scores, with the correction of Guenther
    (1981) for the estimated spread. At most a million is returned.
    """
    check_alpha(alpha)
    if not 0 < power < 1:
        raise ValueError(f"power is {power}: choose a probability between 0 and 1, such as 0.8")
    if not math.isfinite(difference):
        raise ValueError(f"difference is {difference}: give the size of difference that matters to you")
    look = pair(scores_a, scores_b)
    unit = units(look)
    variances = [_variance(runs) / (unit[task][0] or 1.0) ** 2 for task, runs in look.items()]
    fewest = _fewest_runs(len(look), alpha)
    if difference == 0:
        return MOST_RUNS
    normal = statistics.NormalDist()
    critical = normal.inv_cdf(1 - alpha / 2)
    variance = sum(variances) / len(look) ** 2  # of the difference, with one run of each algorithm on each task
    if variance == 0:
        return fewest * len(look)
    per_task = (critical + normal.inv_cdf(power)) ** 2 * variance / difference**2 + critical**2 / (4 * len(look))
    return min(MOST_RUNS, max(fewest, math.ceil(per_task)) * len(look))


def _variance(runs: TaskRuns) -> float:
    """Variance of a difference of one run of A and one of B; an arm of one run takes the other's spread."""
    arms = [arm for arm in (runs.scores[0, : runs.num_a], runs.scores[0, runs.num_a :]) if arm.size > 1]
    if not arms:
        raise ValueError("one run of each algorithm says nothing about the spread: train at least two seeds")
    return 2 * float(np.mean([arm.var(ddof=1) for arm in arms]))


def _fewest_runs(num_tasks: int, alpha: float) -> int:
    """The fewest runs of each algorithm on each task with which the permutation test can reject at all."""
    count = 1
    while 2 / math.comb(2 * count, count) ** num_tasks > alpha:
        count += 1
    return count

"""The mean of whole runs and its 95 % interval: worked numbers, tables, and how often it holds the truth."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from rl_training.studies.statistics import MeanInterval, mean_interval, t_quantile


@pytest.mark.parametrize(
    ("degrees", "error"), [(range(1, 31), 5.1e-5), ((31, 35, 40, 60, 120, 1000), 1.2e-4)]
)
def test_the_quantile_is_that_of_students_t(degrees: Sequence[int], error: float) -> None:
    for number in degrees:
        assert t_quantile(number) == pytest.approx(stats.t.ppf(0.975, number), abs=error)


def test_the_quantile_falls_towards_that_of_the_normal_distribution() -> None:
    quantiles = [t_quantile(degrees) for degrees in range(1, 2000)]
    assert all(one > next_one for one, next_one in itertools.pairwise(quantiles))
    assert t_quantile(10**9) == pytest.approx(1.959964, abs=1e-6)


@pytest.mark.parametrize(
    ("scores", "mean", "half"),
    [
        # Two runs: deviation sqrt(2), error 1, t(1) = 12.7062.
        ([1.0, 3.0], 2.0, 12.7062),
        # Three runs 2, 4, 9: mean 5, variance (9 + 1 + 16) / 2 = 13, error sqrt(13 / 3), t(2) = 4.3027.
        ([2.0, 4.0, 9.0], 5.0, 4.3027 * math.sqrt(13 / 3)),
        # Five runs 10..50: variance 250, error sqrt(50), t(4) = 2.7764.
        ([10, 20, 30, 40, 50], 30.0, 2.7764 * math.sqrt(50)),
        ([7.0, 7.0, 7.0], 7.0, 0.0),
        ([-1e6, 1e6], 0.0, 12.7062e6),
    ],
)
def test_mean_and_interval_are_those_worked_by_hand(
    scores: list[float], mean: float, half: float
) -> None:
    interval = mean_interval(scores)
    assert interval.mean == pytest.approx(mean)
    assert (interval.low, interval.high) == pytest.approx((mean - half, mean + half))
    assert interval.count == len(scores)


def test_one_run_has_a_mean_and_no_interval() -> None:
    interval = mean_interval([500.0])
    assert interval == MeanInterval(500.0, None, None, 1)
    assert str(interval) == "500.0 (one run: no interval)"
    assert str(mean_interval([1.0, 2.0, 3.0])) == "2.0 [-0.5, 4.5]"


def test_numpy_arrays_are_scores_of_their_values() -> None:
    for kind in (np.int64, np.float32, np.float64):
        assert mean_interval(np.array([1, 2, 6], dtype=kind)) == mean_interval([1.0, 2.0, 6.0])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("scores", "part"),
    [
        ([], "there is no score"),
        ([1.0, math.nan], "a score is nan"),
        ([math.inf], "a score is inf"),
        ([1.7e308, 1.7e308], "too large to compute with"),
        ([1.7e308, -1.7e308], "too large to compute with"),
    ],
)
def test_scores_without_a_mean_or_an_interval_are_refused(scores: list[float], part: str) -> None:
    with pytest.raises(ValueError, match=part):
        mean_interval(scores)


@pytest.mark.parametrize("count", [2, 5, 40])
def test_nineteen_of_twenty_intervals_hold_the_true_mean(count: int) -> None:
    repetitions, true_mean = 4000, 3.0
    scores = np.random.default_rng(0).normal(true_mean, 10.0, (repetitions, count))
    hits = 0
    for row in scores:
        found = mean_interval(row)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= true_mean <= found.high
    error = math.sqrt(0.95 * 0.05 / repetitions)
    assert abs(hits / repetitions - 0.95) < 3 * error

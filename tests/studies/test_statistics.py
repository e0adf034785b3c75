"""The mean of whole runs and its 95 % interval: worked numbers, tables, and how often it holds the truth."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from rl_training.studies.statistics import MeanInterval, mean_interval, t_quantile

TABLE = {
    **dict(enumerate((12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228), 1)),
    **dict(enumerate((2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086), 11)),
    **dict(enumerate((2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042), 21)),
    **{35: 2.030, 40: 2.021, 50: 2.009, 60: 2.000, 80: 1.990, 100: 1.984, 120: 1.980, 1000: 1.962},
}
"""97.5 % quantiles of Student's t by degrees of freedom, from a printed table."""


@pytest.mark.parametrize(("degrees", "quantile"), TABLE.items())
def test_the_quantile_is_that_of_the_table(degrees: int, quantile: float) -> None:
    assert t_quantile(degrees) == pytest.approx(quantile, abs=0.00055)


@pytest.mark.parametrize(
    ("degrees", "cumulative"),
    [
        (1, lambda t: 0.5 + math.atan(t) / math.pi),
        (2, lambda t: 0.5 + t / (2 * math.sqrt(2 + t * t))),
        (4, lambda t: 0.5 + 3 / 8 * (u := t / math.sqrt(1 + t * t / 4)) * (1 - u * u / 12)),
    ],
)
def test_the_quantile_solves_the_distribution_function(degrees: int, cumulative: object) -> None:
    assert callable(cumulative)
    assert cumulative(t_quantile(degrees)) == pytest.approx(0.975, abs=2e-6)


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


def test_the_order_of_the_runs_does_not_matter_and_shifts_shift() -> None:
    one, other, shifted = (
        mean_interval(scores) for scores in ([1, 5, 6], [6, 1, 5], [101, 105, 106])
    )
    assert one == other
    assert (shifted.mean, shifted.low, shifted.high) == pytest.approx(
        (one.mean + 100, (one.low or 0) + 100, (one.high or 0) + 100)
    )


def test_one_run_has_a_mean_and_no_interval() -> None:
    interval = mean_interval([500.0])
    assert interval == MeanInterval(500.0, None, None, 1)
    assert str(interval) == "500.0 (one run: no interval)"


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


def test_an_interval_is_written_with_its_ends() -> None:
    assert str(mean_interval([1.0, 2.0, 3.0])) == "2.0 [-0.5, 4.5]"


@pytest.mark.parametrize("count", [2, 5, 40])
def test_nineteen_of_twenty_intervals_hold_the_true_mean(count: int) -> None:
    repetitions, true_mean = 4000, 3.0
    scores = np.random.default_rng(0).normal(true_mean, 10.0, (repetitions, count))
    intervals = [mean_interval(row.tolist()) for row in scores]
    hits = sum(
        interval.low is not None
        and interval.high is not None
        and interval.low <= true_mean <= interval.high
        for interval in intervals
    )
    error = math.sqrt(0.95 * 0.05 / repetitions)
    assert abs(hits / repetitions - 0.95) < 3 * error

"""What pictures show of the runs of a group: by how many there are."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rl_training.studies.statistics.summaries import summarize, summarize_points


@pytest.mark.parametrize(
    ("scores", "kind", "value", "low", "high"),
    [
        ([3.0], "run", 3.0, None, None),
        ([1.0, 3.0], "median", 2.0, 1.0, 3.0),
        ([9.0, 1.0, 3.0], "median", 3.0, 1.0, 9.0),
        ([1.7e308, 1.7e308], "median", 1.7e308, 1.7e308, 1.7e308),
        ([5.0] * 6, "iqm", 5.0, 5.0, 5.0),
    ],
)
def test_few_runs_have_no_interval(
    scores: list[float], kind: str, value: float, low: float | None, high: float | None
) -> None:
    found = summarize(scores)
    assert (found.kind, found.value, found.low, found.high) == (
        kind,
        pytest.approx(value),
        low,
        high,
    )
    assert found.count == len(scores)


def test_four_and_more_runs_have_their_interquartile_mean_or_their_mean() -> None:
    scores = [0.0, 1.0, 2.0, 3.0, 1000.0]
    found = summarize(scores)
    assert (found.kind, found.value) == (
        "iqm",
        pytest.approx(2.0),
    )  # a quarter, rounded down, is cut at each end
    mean = summarize(scores, use_mean=True)
    assert (mean.kind, mean.value) == ("mean", pytest.approx(201.2))
    assert mean.low is not None
    assert mean.low < 0, "no run is below zero"
    assert math.isfinite(summarize([1.7e308] * 8).value)


def test_the_interval_holds_about_what_it_says_and_stays_among_the_runs() -> None:
    table = np.random.default_rng(0).normal(size=(10, 2000))
    _, low, high = summarize_points(table)
    assert (low >= table.min(axis=0)).all()
    assert (high <= table.max(axis=0)).all()
    assert 0.91 < np.mean((low < 0) & (high > 0)) < 0.95

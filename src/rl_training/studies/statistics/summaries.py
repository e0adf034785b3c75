"""What pictures show of the runs of one group: median and range of a few runs, interquartile mean and interval of more.

The report's page computes the same in the browser (`assets/charts.js`), with the same resamples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from rl_training.studies.statistics.intervals import mean_interval

FEWEST_FOR_INTERVAL = 4
"""Below, an interval says more about its assumptions than about the runs."""
NUM_RESAMPLES, RANK = 399, 10
"""The 10th smallest and 10th largest of 399 are the limits of a 95 % interval."""
MULTIPLIER, MODULUS = 48_271, 2**31 - 1
"""Lehmer's generator: the same resamples in Python and in the browser."""
Kind = Literal["run", "median", "iqm", "mean"]
Array = npt.NDArray[np.float64]
NAMES: dict[Kind, str] = {
    "run": "score",
    "median": "median",
    "iqm": "interquartile mean",
    "mean": "mean",
}
WORDS: dict[Kind, str] = {
    "run": "one run",
    "median": "median and range of the runs",
    "iqm": "interquartile mean and its 95 % bootstrap interval",
    "mean": "mean and its 95 % interval (Student's t)",
}


@dataclass(frozen=True)
class Summary:
    """One number for several runs, and the limits of what is drawn around it."""

    kind: Kind
    value: float
    low: float | None
    """None for a single run."""
    high: float | None
    count: int


def summary_kind(count: int, *, use_mean: bool = False) -> Kind:
    """What is shown of `count` runs."""
    if count < FEWEST_FOR_INTERVAL:
        return "run" if count == 1 else "median"
    return "mean" if use_mean else "iqm"


def summarize(scores: Sequence[float], *, use_mean: bool = False) -> Summary:
    """The summary of one score per run: at least one, all finite."""
    value, low, high = (
        float(row[0])
        for row in summarize_points(np.array(scores, float)[:, None], use_mean=use_mean)
    )
    kind = summary_kind(len(scores), use_mean=use_mean)
    if kind == "run":
        return Summary(kind, value, None, None, 1)
    return Summary(kind, value, low, high, len(scores))


def summarize_points(table: Array, *, use_mean: bool = False) -> tuple[Array, Array, Array]:
    """Summary, lower and upper limit at each point of curves, from values [runs, points]."""
    kind = summary_kind(len(table), use_mean=use_mean)
    ordered = np.sort(table, axis=0)
    if kind == "mean":
        found = [mean_interval(values) for values in table.T]
        mean, low, high = np.array([(one.mean, one.low, one.high) for one in found], float).T
        return mean, low, high
    if kind != "iqm":
        last = len(table) - 1
        return 0.5 * ordered[last // 2] + 0.5 * ordered[(last + 1) // 2], ordered[0], ordered[-1]
    # The interquartile mean of a resample weighs the sorted runs by how often each is in its middle.
    resampled = np.sort(_resample_weights(len(table)) @ ordered, axis=0)
    return _middle_weights(len(table)) @ ordered, resampled[RANK - 1], resampled[-RANK]


def _middle_weights(count: int) -> Array:
    """Weights of the sorted runs in their interquartile mean: a quarter, rounded down, is cut at each end."""
    cut = count // 4
    weights = np.zeros(count)
    weights[cut : count - cut] = 1 / (count - 2 * cut)
    return weights


@cache
def _resample_weights(count: int) -> Array:
    """Weights [resamples, runs] of the sorted runs in the interquartile mean of each resample."""
    state, cut = 1, count // 4
    weights = np.zeros((NUM_RESAMPLES, count))
    for row in weights:
        drawn = []
        for _ in range(count):
            state = state * MULTIPLIER % MODULUS
            drawn.append(state * count // MODULUS)
        for rank in sorted(drawn)[cut : count - cut]:
            row[rank] += 1 / (count - 2 * cut)
    return weights

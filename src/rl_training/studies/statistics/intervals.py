"""Statistics of whole runs: the mean of their scores and its interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

T_QUANTILES = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)
"""97.5 % quantiles of Student's t distribution with 1 to 30 degrees of freedom."""


@dataclass(frozen=True)
class MeanInterval:
    """The mean of several runs' scores, and the 95 % interval of Student's t around it."""

    mean: float
    low: float | None
    """None with a single run: one run says nothing about the spread."""
    high: float | None
    count: int

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.mean:.1f} (one run: no interval)"
        return f"{self.mean:.1f} [{self.low:.1f}, {self.high:.1f}]"


def mean_interval(scores: Sequence[float]) -> MeanInterval:
    """Mean and 95 % interval of at least one score; the unit is a whole run. NumPy arrays are sequences, too."""
    values = [float(score) for score in scores]
    if not values:
        raise ValueError("there is no score: give the score of at least one run")
    for value in values:
        if not math.isfinite(value):
            raise ValueError(f"a score is {value}: give finite scores")
    count = len(values)
    if count == 1:
        return MeanInterval(values[0], None, None, 1)
    try:
        mean = statistics.fmean(values)
        half = t_quantile(count - 1) * statistics.stdev(values) / math.sqrt(count)
    except OverflowError:
        mean = half = math.inf
    if not math.isfinite(abs(mean) + half):
        raise ValueError(
            f"scores up to {max(values, key=abs):g} are too large to compute with: divide them by a number"
        )
    return MeanInterval(mean, mean - half, mean + half, count)


def t_quantile(degrees: int) -> float:
    """The 97.5 % quantile of Student's t distribution."""
    if degrees <= len(T_QUANTILES):
        return T_QUANTILES[degrees - 1]
    normal = statistics.NormalDist().inv_cdf(0.975)
    # Cornish-Fisher expansion in 1/degrees: four significant digits from 30 degrees of freedom on.
    second = (normal**3 + normal) / (4 * degrees)
    third = (5 * normal**5 + 16 * normal**3 + 3 * normal) / (96 * degrees**2)
    return normal + second + third

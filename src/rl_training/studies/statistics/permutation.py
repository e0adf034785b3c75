"""Comparison of two algorithms by the means of their runs: a permutation test, and the interval that inverts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np

from rl_training.studies.statistics.inversion import ShiftedTest, accepted_interval
from rl_training.studies.statistics.kernel import Statistic
from rl_training.studies.statistics.labelings import first_labelings, smallest_p
from rl_training.studies.statistics.scaling import rescaled, times
from rl_training.studies.statistics.scores import Scores, difference, pair


@dataclass(frozen=True)
class MeanComparison:
    """Difference of two algorithms' means, with its interval and p-value."""

    difference: float
    """Mean of A minus mean of B. With several tasks: in standard deviations of each task's runs around their common
    mean, averaged over the tasks."""
    interval: tuple[float, float]
    """Differences that the test does not reject at `alpha`; infinite where so few runs can exclude nothing."""
    p_value: float
    """Two-sided; at most `alpha` exactly if 0 is outside of the interval."""
    smallest_p: float
    """The smallest p-value that so many runs can give; above `alpha`, nothing can be decided."""
    num_permutations: int
    """Labelings in the test, the observed one included."""
    is_exact: bool
    """All labelings were enumerated."""


def check_alpha(alpha: float) -> None:
    """ValueError unless `alpha` is a probability between 0 and 1."""
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is {alpha}: choose an error probability between 0 and 1, such as 0.05")


def compare_means(
    a: Scores,
    b: Scores,
    generator: np.random.Generator,
    *,
    alpha: float = 0.05,
    statistic: Statistic = "welch",
    max_enumerated: int = 50_000,
    num_permutations: int = 20_000,
) -> MeanComparison:
    """Compare the means of two algorithms' runs.

    The labels A and B are permuted among whole runs, within each task. All labelings are enumerated if there are at
    most `max_enumerated`, else `num_permutations` are drawn. With the statistic `welch` the difference is divided by
    its standard error, and the p-value is at least that of Welch's test; `mean` is the plain difference of means,
    exact where both algorithms have the same distribution and unsafe where their spreads differ.

    The interval contains the shifts of A that the test does not reject: A's scores lowered by the shift (with several
    tasks: by that many standard deviations of the task's runs) look like B's.
    """
    check_alpha(alpha)
    if statistic not in get_args(Statistic):
        raise ValueError(f"statistic is {statistic!r}: choose {' or '.join(map(repr, get_args(Statistic)))}")
    (look,), unit = rescaled(pair(a, b))
    # `max_enumerated` bounds the enumeration; drawn labelings are fewer, since more add no precision that matters.
    labelings = first_labelings(look, max_enumerated, generator, num_drawn=num_permutations)
    test = ShiftedTest((look,), (labelings.columns,), (alpha,), statistic)
    estimate = difference(look)
    return MeanComparison(
        difference=estimate * unit,
        interval=times(accepted_interval(test.accepts, np.array([estimate]), test.spread), unit),
        p_value=float(test.p_values(np.zeros(1))[0, 0]),
        smallest_p=smallest_p(look),
        num_permutations=next(iter(labelings.columns.values())).shape[1],
        is_exact=labelings.is_exact,
    )

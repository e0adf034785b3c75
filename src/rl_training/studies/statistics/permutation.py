"""The permutation test of two arms or of all pairs of several, its interval, and the runs that it needs."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from rl_training.studies.statistics.kernel import (
    Statistic,
    just_below,
    magnitude,
    p_values,
    rejects,
    statistic,
    upper_tail,
)
from rl_training.studies.statistics.samples import (
    Arm,
    Array,
    Look,
    Mask,
    Scores,
    TaskRuns,
    checked_arm,
    checked_pair,
    count_labelings,
    difference,
    first_labelings,
    merged,
    num_labelings,
    rescaled,
    side_by_side,
    smallest_p,
    spread,
    units,
)

NUM_DOUBLINGS = 11
NUM_BISECTIONS = 36


@dataclass(frozen=True)
class ShiftedTest:
    """A test of runs with their labelings, repeated with A's scores lowered by a shift in the `units` of all runs."""

    looks: Sequence[Look]
    alphas: Sequence[float]
    """Cumulative error allowed at each look."""
    scale: float
    """Unit of the scores, in which the difference and its interval are returned."""
    kind: Statistic = "welch"

    @functools.cached_property
    def _together(self) -> Look:
        return merged(self.looks)

    @functools.cached_property
    def _units(self) -> dict[str, Array]:
        return units(self._together)

    @property
    def difference(self) -> float:
        """Mean of A minus mean of B over all looks."""
        return difference(self._together) * self.scale

    def p_values(self, shifts: Array) -> Array:
        """Stage-wise p-values [K, J] of `shifts` [K] at every look."""
        shifted = [
            {task: runs.shifted(shifts * self._units[task][0]) for task, runs in look.items()}
            for look in self.looks
        ]
        return p_values(shifted, self.alphas, self.kind)

    def accepts(self, shifts: Array) -> Mask:
        """Which shifts no look rejects."""
        rejected = rejects(self.p_values(shifts), np.array(self.alphas))
        return np.logical_not(rejected.any(axis=1), dtype=np.bool_)

    def interval(self) -> tuple[float, float]:
        """The interval of accepted shifts around the estimate of the latest look whose estimate is accepted.

        It contains 0 exactly if 0 is accepted. An end is infinite if no shift up to some thousand standard deviations
        of all runs is rejected. Where the test rejects every estimate, the interval is the latest one alone.
        """
        estimates = np.array(
            [difference(merged(self.looks[:count])) for count in range(len(self.looks), 0, -1)]
        )
        accepted = self.accepts(np.append(estimates, 0.0))
        inside = estimates[accepted[:-1]].tolist()[:1]
        if accepted[-1]:
            inside.append(0.0)
        if not inside:
            return self.difference, self.difference
        # Row 0 goes down from the lower start, row 1 goes up from the upper one.
        starts, signs = np.array([min(inside), max(inside)]), np.array([-1.0, 1.0])
        steps = self._spread * 2.0 ** np.arange(-1, NUM_DOUBLINGS)
        points = starts[:, None] + signs[:, None] * steps  # [2, K]
        if not accepted[-1]:  # neither end lies beyond 0
            points[points * np.sign(starts[0]) < 0] = 0.0
        low, high = self._refined(starts, points) * self.scale
        return float(low), float(high)

    @property
    def _spread(self) -> float:
        """Standard deviation of all runs; several tasks are measured in these already."""
        if len(self._together) > 1:
            return 1.0
        return float(spread(next(iter(self._together.values())).scores)[0]) or 1.0

    def _refined(self, starts: Array, points: Array) -> Array:
        """Bisect between the last accepted and the first rejected point of each row; the accepted side is returned."""
        accepted = self.accepts(points.ravel()).reshape(points.shape)
        is_open = accepted.all(axis=1)
        first = (~accepted).argmax(axis=1)
        rows = np.arange(2)
        inner, rejected = np.column_stack([starts, points])[rows, first], points[rows, first]
        if not is_open.all():
            for _ in range(NUM_BISECTIONS):
                middle = (inner + rejected) / 2
                is_accepted = self.accepts(middle)
                inner = np.where(is_accepted, middle, inner)
                rejected = np.where(is_accepted, rejected, middle)
        return np.where(is_open, np.array([-math.inf, math.inf]), inner)


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
        raise ValueError(
            f"alpha is {alpha}: choose an error probability between 0 and 1, such as 0.05"
        )


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
    its standard error, and the p-value is at least Welch's; `mean` is the plain difference of means,
    exact where both algorithms have the same distribution and unsafe where their spreads differ.

    The interval contains the shifts of A that the test does not reject: A's scores lowered by the shift (with several
    tasks: by that many standard deviations of the task's runs) look like B's.
    """
    check_alpha(alpha)
    if statistic not in get_args(Statistic):
        raise ValueError(
            f"statistic is {statistic!r}: choose {' or '.join(map(repr, get_args(Statistic)))}"
        )
    arms, scale = rescaled(checked_pair(a, b))
    look = side_by_side(*arms)
    # `max_enumerated` bounds the enumeration; drawn labelings are fewer, since more add no precision that matters.
    labelled = first_labelings(look, max_enumerated, generator, num_drawn=num_permutations)
    test = ShiftedTest([labelled], [alpha], scale, statistic)
    return MeanComparison(
        difference=test.difference,
        interval=test.interval(),
        p_value=float(test.p_values(np.zeros(1))[0, 0]),
        smallest_p=smallest_p(look),
        num_permutations=num_labelings(labelled),
        is_exact=count_labelings(look) <= max_enumerated,
    )


MOST_RUNS = 1_000_000
"""Returned where no affordable number of runs is enough."""


def runs_needed(
    scores_a: Scores,
    scores_b: Scores,
    difference: float,
    *,
    alpha: float = 0.05,
    power: float = 0.8,
) -> int:
    """Runs of each algorithm, over all tasks, with which `compare_means` decides a true difference of this size.

    The spreads are estimated from the scores at hand; `difference` is in the units of `compare_means`. `power` is the
    probability of a decision. The number comes from Welch's test for normal scores, with the correction of Guenther
    (1981) for the estimated spread. At most a million is returned, as for a difference of 0, which no number decides.
    """
    check_alpha(alpha)
    if not 0 < power < 1:
        raise ValueError(f"power is {power}: choose a probability between 0 and 1, such as 0.8")
    if not math.isfinite(difference):
        raise ValueError(
            f"difference is {difference}: give the size of difference that matters to you"
        )
    arms, scale = rescaled(checked_pair(scores_a, scores_b))
    look = side_by_side(*arms)
    difference, unit = difference / scale, units(look)
    variances = np.array(
        [_variances(runs) / (unit[task][0] or 1.0) ** 2 for task, runs in look.items()]
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


def _variances(runs: TaskRuns) -> Array:
    """Variance of A's and of B's scores; an arm of one run takes the other's."""
    known = [arm[0].var(ddof=1) for arm in runs.arms if arm.size > 1]
    if not known:
        raise ValueError(
            "one run of each algorithm says nothing about the spread: train at least two seeds"
        )
    return np.array([known[0], known[-1]])


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


Pair = tuple[str, str]


def step_down(
    arms: Mapping[str, Scores], generator: np.random.Generator, *, num_permutations: int = 10_000
) -> dict[Pair, float]:
    """Adjusted two-sided p-values of all pairs of algorithms, by Westfall and Young's step-down method (1993).

    The pair with the largest |T| is tested first, against the permutations' largest |T| over all pairs; then the next
    one against the largest over the pairs that remain. At each step whole runs are permuted within each task and
    within the groups of algorithms that the remaining pairs connect. As in `compare_means`, a p-value is at least
    that of Welch's test, here after Holm's correction.
    """
    if not isinstance(arms, Mapping):
        raise TypeError(
            f"the algorithms are a {type(arms).__name__}: give a mapping of their names to their scores by task"
        )
    if len(arms) < 2:
        raise ValueError(f"{len(arms)} algorithm: a comparison needs at least two")
    checked = {name: checked_arm(scores, f"algorithm '{name}'") for name, scores in arms.items()}
    tasks = set(next(iter(checked.values())))
    for name, scores in checked.items():
        if set(scores) != tasks:
            lonely = sorted(tasks ^ set(scores))[0]
            raise ValueError(
                f"task '{lonely}' has runs of some algorithms only: '{name}' differs; compare on tasks"
                " that all were trained on"
            )
    scaled = dict(zip(checked, rescaled(list(checked.values()))[0], strict=True))
    pairs = list(itertools.combinations(scaled, 2))
    observed = {one: float(_magnitudes(scaled, one)[0]) for one in pairs}
    remaining = sorted(pairs, key=lambda one: -observed[one])
    permuted = _permuted_p_values(scaled, remaining, observed, num_permutations, generator)
    tails = 2 * upper_tail(np.array([observed[one] for one in remaining]))
    guarded = np.maximum.accumulate(tails * np.arange(len(pairs), 0, -1)).clip(max=1.0)
    adjusted = dict(zip(remaining, np.maximum(permuted, guarded).tolist(), strict=True))
    return {one: adjusted[one] for one in pairs}


def _permuted_p_values(
    arms: Mapping[str, Arm],
    remaining: Sequence[Pair],
    observed: Mapping[Pair, float],
    count: int,
    generator: np.random.Generator,
) -> Array:
    """Adjusted p-values of the pairs in the order of their statistics, which no later one may undercut."""
    groups: list[list[str]] = []
    largest: dict[Pair, Array] = {}
    p: list[float] = []
    for step, one in enumerate(remaining):
        if (now := connected(remaining[step:])) != groups:
            groups = now
            shuffled = _shuffled(arms, groups, count, generator)
            largest = {other: _magnitudes(shuffled, other) for other in remaining[step:]}
        most = np.max([largest[other] for other in remaining[step:]], axis=0)
        # The observed labeling counts as one of the permutations.
        p.append((1 + int((most >= just_below(np.array(observed[one]))).sum())) / (count + 1))
    return np.maximum.accumulate(p)


def connected(pairs: Sequence[Pair]) -> list[list[str]]:
    """Groups of algorithms that are connected by pairs, in alphabetical order."""
    groups: list[set[str]] = []
    for names in pairs:
        touching = [group for group in groups if group & set(names)]
        groups = [group for group in groups if not group & set(names)] + [
            set(names).union(*touching)
        ]
    return sorted(sorted(group) for group in groups)


def _shuffled(
    arms: Mapping[str, Arm],
    groups: Sequence[Sequence[str]],
    count: int,
    generator: np.random.Generator,
) -> dict[str, Arm]:
    """Scores [count, n] of each algorithm and task after `count` permutations of runs within groups and tasks."""
    result: dict[str, Arm] = {name: {} for group in groups for name in group}
    for group, task in itertools.product(groups, next(iter(arms.values()))):
        sizes = [len(arms[name][task]) for name in group]
        pooled = np.concatenate([arms[name][task] for name in group])
        rows = generator.permuted(np.tile(pooled, (count, 1)), axis=1)
        for name, part in zip(group, np.split(rows, np.cumsum(sizes)[:-1], axis=1), strict=True):
            result[name][task] = part
    return result


def _magnitudes(arms: Mapping[str, Arm], pair: Pair) -> Array:
    """The magnitude of one pair's statistic in every row."""
    first, second = (arms[name] for name in pair)
    return magnitude(statistic(side_by_side(first, second), "welch"))[:, 0]

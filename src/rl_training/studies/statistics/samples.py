"""Scores of whole runs by task, in units in which they can be compared, and the labelings of a permutation test."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]
Scores = Mapping[str, Sequence[float]]
"""Scores of one algorithm's runs by task (environment): one number for each whole training run."""
Arm = dict[str, Array]
"""The same, checked: tasks in the order of their names."""


@dataclass(frozen=True)
class TaskRuns:
    """New runs of both algorithms on one task; each row is one data set, and the first `num_a` columns are A's runs."""

    scores: Array  # [R, N]
    num_a: int
    labelings: Array | None = None
    """Zeros and ones [N, M], ones for runs of A; column 0 is the observed labeling. None: the observed one alone."""

    @property
    def num_b(self) -> int:
        """Number of B's runs."""
        return int(self.scores.shape[1]) - self.num_a

    @property
    def arms(self) -> tuple[Array, Array]:
        """The scores of A [R, num_a] and of B [R, num_b]."""
        return self.scores[:, : self.num_a], self.scores[:, self.num_a :]

    @property
    def observed(self) -> Array:
        """The observed labeling [N]."""
        return (np.arange(self.scores.shape[1]) < self.num_a).astype(np.float64)

    @property
    def labels(self) -> Array:
        """All labelings to test [N, M]."""
        return self.observed[:, None] if self.labelings is None else self.labelings

    def shifted(self, shifts: Array) -> TaskRuns:
        """One row for each shift: the scores with A's lowered by it. Needs a single row."""
        return replace(self, scores=self.scores - shifts[:, None] * self.observed)


Look = Mapping[str, TaskRuns]
"""The runs that one look adds, by task."""


def checked(scores: Scores, name: str) -> Arm:
    """Scores as arrays, in the order of the tasks' names; ValueError if one is not finite."""
    if not isinstance(scores, Mapping):
        raise TypeError(
            f"the scores of {name} are a {type(scores).__name__}: give a mapping of tasks to scores, such as"
            ' {"CartPole-v1": [480.0, 500.0]}'
        )
    arrays = {task: np.asarray(scores[task], dtype=np.float64) for task in sorted(scores)}
    for task, values in arrays.items():
        if values.ndim != 1:
            raise ValueError(
                f"{name} on task '{task}' has scores of shape {values.shape}: give one number per run"
            )
        if not np.isfinite(values).all():
            bad = values[~np.isfinite(values)][0]
            raise ValueError(
                f"{name} on task '{task}' has a score of {bad}: every run needs a finite score; repeat the run or"
                " count its failure as the lowest score"
            )
    return arrays


def checked_arm(scores: Scores, name: str) -> Arm:
    """Like `checked`, with at least one task and one run on every task."""
    arrays = checked(scores, name)
    if not arrays:
        raise ValueError(f"{name} has no tasks: give the scores of at least one run")
    empty = [task for task, values in arrays.items() if values.size == 0]
    if empty:
        raise ValueError(
            f"{name} has no runs on task '{empty[0]}': add at least one, or leave the task out"
        )
    return arrays


def checked_pair(a: Scores, b: Scores) -> list[Arm]:
    """The scores of both algorithms, which need runs on the same tasks."""
    arms = [checked_arm(a, "algorithm A"), checked_arm(b, "algorithm B")]
    lonely = sorted(set(arms[0]) ^ set(arms[1]))
    if lonely:
        has, lacks = ("A", "B") if lonely[0] in arms[0] else ("B", "A")
        raise ValueError(
            f"task '{lonely[0]}' has runs of {has} and none of {lacks}: compare on tasks that both were trained on"
        )
    return arms


def checked_later(a: Scores, b: Scores, tasks: Iterable[str]) -> list[Arm]:
    """The scores that a later look adds: on any of the `tasks` of the first look, also for one algorithm only."""
    arms = [checked(a, "algorithm A"), checked(b, "algorithm B")]
    unknown = sorted({*arms[0], *arms[1]} - {*tasks})
    if unknown:
        raise ValueError(
            f"task '{unknown[0]}' is new at a later look: every task needs runs at the first look"
        )
    if not any(values.size for arm in arms for values in arm.values()):
        raise ValueError("a look has no new runs: leave it out until there are some")
    return [{task: arm.get(task, np.empty(0)) for task in tasks} for arm in arms]


def side_by_side(a: Arm, b: Arm) -> dict[str, TaskRuns]:
    """The scores [n] or [R, n] of two algorithms as a look; tasks without runs are left out."""
    return {
        task: TaskRuns(
            np.atleast_2d(np.concatenate([a[task], b[task]], axis=-1)), a[task].shape[-1]
        )
        for task in a
        if a[task].size or b[task].size
    }


def pair(a: Scores, b: Scores) -> dict[str, TaskRuns]:
    """Both algorithms' runs, task by task; ValueError unless both have runs on the same tasks."""
    return side_by_side(*checked_pair(a, b))


def merged(looks: Sequence[Look]) -> dict[str, TaskRuns]:
    """All runs of several looks with their labelings, A's before B's."""
    together = {}
    for task in looks[0]:
        parts = [look[task] for look in looks if task in look]
        scores = _by_arm(part.arms for part in parts)
        labels = _by_arm((part.labels[: part.num_a], part.labels[part.num_a :]) for part in parts)
        together[task] = TaskRuns(
            np.concatenate(scores, axis=1),
            sum(part.num_a for part in parts),
            np.concatenate(labels),
        )
    return together


def _by_arm(parts: Iterable[tuple[Array, Array]]) -> list[Array]:
    """The arrays of A, then those of B, of pairs of both."""
    of_a, of_b = zip(*parts, strict=True)
    return [*of_a, *of_b]


def units(look: Look) -> dict[str, Array]:
    """The unit of a difference on each task, one for each row.

    A single task keeps the units of its scores. Of several tasks each is measured in standard deviations of all its
    runs around their common mean, so that no task dominates. The labels do not enter, which keeps the test exact.
    """
    if len(look) == 1:
        return {task: np.ones(len(runs.scores)) for task, runs in look.items()}
    return {task: spread(runs.scores) for task, runs in look.items()}


def spread(scores: Array) -> Array:
    """Standard deviation of each row around its mean; 0 where rounding errors are all there is."""
    deviations = scores - scores.mean(axis=1, keepdims=True)
    values: Array = np.sqrt((deviations**2).sum(axis=1) / max(scores.shape[1] - 1, 1))
    return np.where(values > 1e-13 * np.abs(scores).max(axis=1), values, 0.0)


def difference(look: Look) -> float:
    """Mean of A minus mean of B in the `units` of each task, averaged over the tasks; of the first row."""
    values = []
    for task, unit in units(look).items():
        a, b = look[task].arms
        gap = a[0].mean() - b[0].mean()
        values.append(gap / unit[0] if unit[0] > 0 else 0.0)
    return float(np.mean(values))


ROUNDING = 4 * float(np.finfo(np.float64).eps)
"""Scores that differ by less, in units of the largest one, differ by rounding errors only."""


@dataclass(frozen=True)
class Scale:
    """Where scores lie, and how far apart: sums and squares of `(score - centre) / unit` neither overflow nor vanish.

    The centre is one of the scores, so that equal scores are 0 exactly. The unit is a power of two, which adds no
    rounding errors.
    """

    centre: float
    unit: float
    rounding: float
    """Distances up to it are 0."""

    @classmethod
    def of(cls, scores: Array, place: str, count: int | None = None) -> Scale:
        """The scale of scores around the median of the first `count`; ValueError if their distances overflow."""
        first = scores[:count]
        centre = float(np.partition(first, first.size // 2)[first.size // 2])
        low, high = float(np.min(scores)), float(np.max(scores))
        if not math.isfinite(high - low):
            raise ValueError(
                f"the scores {place} reach from {low:g} to {high:g}, which is too far to compute with: divide all of"
                " them by the same number"
            )
        farthest = max(high - centre, centre - low)
        rounding = ROUNDING * max(abs(low), abs(high))
        unit = math.ldexp(1.0, math.frexp(farthest)[1] - 1) if farthest > rounding else 1.0
        return cls(centre, unit, rounding)

    def apply(self, scores: Array) -> Array:
        """The distances in units."""
        distances = scores - self.centre
        result: Array = np.where(np.abs(distances) > self.rounding, distances, 0.0) / self.unit
        return result


def rescaled(arms: Sequence[Arm], num_first: int | None = None) -> tuple[list[Arm], float]:
    """Arms with every task's scores as distances in its own unit, and the unit of a difference of means.

    Several tasks are measured in their standard deviations, of which the unit is 1. The centre is the median of the
    first `num_first` arms: later ones do not change their distances.
    """
    scaled: list[Arm] = [{} for _ in arms]
    for task in arms[0]:
        count = sum(arm[task].size for arm in arms[:num_first])
        every = np.concatenate([arm[task] for arm in arms])
        scale = Scale.of(every, f"on task '{task}'", count)
        for found, arm in zip(scaled, arms, strict=True):
            found[task] = scale.apply(arm[task])
    return scaled, scale.unit if len(arms[0]) == 1 else 1.0


def count_labelings(look: Look) -> int:
    """Number of ways to label the runs of a look, task by task."""
    return math.prod(math.comb(runs.scores.shape[1], runs.num_a) for runs in look.values())


def smallest_p(*looks: Look) -> float:
    """The smallest two-sided p-value: of the most extreme labeling, and its mirror image if there is one."""
    has_mirror = all(runs.num_a == runs.num_b for look in looks for runs in look.values())
    return min(1.0, (1 + has_mirror) / math.prod(map(count_labelings, looks)))


def first_labelings(
    look: Look,
    limit: int,
    generator: np.random.Generator,
    *,
    num_drawn: int | None = None,
    repeats: bool = False,
) -> dict[str, TaskRuns]:
    """The first look with all labelings if there are at most `limit`, else `num_drawn` (default: `limit`) random ones.

    With `repeats`, all labelings are repeated up to about `limit` columns. Later looks then draw labels of their own
    for each column. The observed column stays exchangeable with the others: the first look's labeling is uniform,
    and so are the later ones given the first.
    """
    if count_labelings(look) > limit:
        return random_labelings(look, num_drawn or limit, generator)
    every = [_all_labelings(runs.scores.shape[1], runs.num_a) for runs in look.values()]
    indices = np.indices([columns.shape[1] for columns in every]).reshape(len(every), -1)
    times = limit // indices.shape[1] if repeats else 1
    return {
        task: replace(look[task], labelings=np.tile(table[:, index], times))
        for task, table, index in zip(look, every, indices, strict=True)
    }


def random_labelings(look: Look, count: int, generator: np.random.Generator) -> dict[str, TaskRuns]:
    """A look with its observed labeling and `count - 1` random ones: a Monte Carlo test that holds its level."""
    labelled = {}
    for task, runs in look.items():
        labels = np.empty((runs.scores.shape[1], count))
        labels[:, 0] = runs.observed
        labels[:, 1:] = generator.permuted(np.tile(runs.observed, (count - 1, 1)), axis=1).T
        labelled[task] = replace(runs, labelings=labels)
    return labelled


def num_labelings(look: Look) -> int:
    """Number of labelings that a look is tested with."""
    return int(next(iter(look.values())).labels.shape[1])


def _all_labelings(num_runs: int, num_a: int) -> Array:
    """All choices of `num_a` runs as columns [N, M]; the first is the observed one."""
    count = math.comb(num_runs, num_a)
    chosen = itertools.chain.from_iterable(itertools.combinations(range(num_runs), num_a))
    rows = np.fromiter(chosen, dtype=np.intp, count=count * num_a)
    labels = np.zeros((num_runs, count))
    labels[rows, np.repeat(np.arange(count), num_a)] = 1.0
    return labels

"""Scores of runs as the tests take them: checked, and as arrays with the runs of A before those of B."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Scores = Mapping[str, Sequence[float]]
"""Scores of one algorithm's runs by task (environment): one number for each whole training run."""


@dataclass(frozen=True)
class TaskRuns:
    """New runs of both algorithms on one task; each row is one data set, and the first `num_a` columns are A's runs."""

    scores: Array  # [R, N]
    num_a: int

    @property
    def num_b(self) -> int:
        """Number of B's runs."""
        return int(self.scores.shape[1]) - self.num_a

    def shifted(self, shifts: Array) -> TaskRuns:
        """One row for each shift: the scores with A's lowered by it. Needs a single row."""
        is_a = np.arange(self.scores.shape[1]) < self.num_a
        return TaskRuns(self.scores - shifts[:, None] * is_a, self.num_a)


Look = Mapping[str, TaskRuns]
"""The runs that one look adds, by task."""


def checked(scores: Scores, name: str) -> dict[str, Array]:
    """Scores as arrays, in the order of the tasks' names; ValueError where there is none, or one is not finite."""
    if not isinstance(scores, Mapping):
        raise TypeError(
            f"the scores of {name} are a {type(scores).__name__}: give a mapping of tasks to scores, such as"
            ' {"CartPole-v1": [480.0, 500.0]}'
        )
    if not scores:
        raise ValueError(f"{name} has no tasks: give the scores of at least one run")
    arrays = {task: np.asarray(scores[task], dtype=np.float64) for task in sorted(scores)}
    for task, values in arrays.items():
        if values.ndim != 1:
            raise ValueError(f"{name} on task '{task}' has scores of shape {values.shape}: give one number per run")
        if not np.isfinite(values).all():
            bad = values[~np.isfinite(values)][0]
            raise ValueError(
                f"{name} on task '{task}' has a score of {bad}: every run needs a finite score; repeat the run or"
                " count its failure as the lowest score"
            )
    return arrays


def checked_arm(scores: Scores, name: str) -> dict[str, Array]:
    """Like `checked`, with at least one run on every task."""
    arrays = checked(scores, name)
    empty = [task for task, values in arrays.items() if values.size == 0]
    if empty:
        raise ValueError(f"{name} has no runs on task '{empty[0]}': add at least one, or leave the task out")
    return arrays


def pair(a: Scores, b: Scores) -> dict[str, TaskRuns]:
    """Both algorithms' runs, task by task; ValueError unless both have runs on the same tasks."""
    return _pair(checked_arm(a, "algorithm A"), checked_arm(b, "algorithm B"))


def pair_later(a: Scores, b: Scores, tasks: Mapping[str, TaskRuns]) -> dict[str, TaskRuns]:
    """Runs that a later look adds: on any of the `tasks` of the first look, also for one algorithm only."""
    arms = []
    for scores, name in ((a, "algorithm A"), (b, "algorithm B")):
        unknown = sorted(set(scores) - set(tasks)) if isinstance(scores, Mapping) else []
        if unknown:
            raise ValueError(f"task '{unknown[0]}' is new at a later look: every task needs runs at the first look")
        if isinstance(scores, Mapping):
            scores = {task: scores.get(task, ()) for task in tasks}
        given = checked(scores, name)
        arms.append(given)
    look = {task: runs for task, runs in _pair(*arms).items() if runs.scores.size}
    if not look:
        raise ValueError("a look has no new runs: leave it out until there are some")
    return look


def _pair(a: dict[str, Array], b: dict[str, Array]) -> dict[str, TaskRuns]:
    lonely = sorted(set(a) ^ set(b))
    if lonely:
        has, lacks = ("A", "B") if lonely[0] in a else ("B", "A")
        raise ValueError(
            f"task '{lonely[0]}' has runs of {has} and none of {lacks}: compare on tasks that both were trained on"
        )
    return {task: TaskRuns(np.concatenate([a[task], b[task]])[None, :], len(a[task])) for task in a}


def merged(looks: Sequence[Look]) -> dict[str, TaskRuns]:
    """All runs of several looks, A's before B's."""
    together = {}
    for task in looks[0]:
        parts = [look[task] for look in looks if task in look]
        arms = [part.scores[:, : part.num_a] for part in parts] + [part.scores[:, part.num_a :] for part in parts]
        together[task] = TaskRuns(np.concatenate(arms, axis=1), sum(part.num_a for part in parts))
    return together


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
        scores, num_a = look[task].scores[0], look[task].num_a
        gap = scores[:num_a].mean() - scores[num_a:].mean()
        values.append(gap / unit[0] if unit[0] > 0 else 0.0)
    return float(np.mean(values))

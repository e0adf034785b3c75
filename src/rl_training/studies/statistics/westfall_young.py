"""More than two algorithms: all pairs, with p-values that hold for all of them together."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from rl_training.studies.statistics.boundary import upper_tail
from rl_training.studies.statistics.kernel import just_below, magnitude, statistic
from rl_training.studies.statistics.scaling import Scale
from rl_training.studies.statistics.scores import Array, Scores, TaskRuns, checked_arm

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
    for task in tasks:
        scale = Scale.of(np.concatenate([scores[task] for scores in checked.values()]), f"on task '{task}'")
        for scores in checked.values():
            scores[task] = scale.apply(scores[task])
    pairs = list(itertools.combinations(checked, 2))
    observed = {one: float(magnitude(_statistics(checked, one))[0]) for one in pairs}
    remaining = sorted(pairs, key=lambda one: -observed[one])
    permuted = _permuted_p_values(checked, remaining, observed, num_permutations, generator)
    tails = 2 * upper_tail(np.array([observed[one] for one in remaining]))
    guarded = np.maximum.accumulate(tails * np.arange(len(pairs), 0, -1)).clip(max=1.0)
    adjusted = dict(zip(remaining, np.maximum(permuted, guarded).tolist(), strict=True))
    return {one: adjusted[one] for one in pairs}


def _permuted_p_values(
    arms: Mapping[str, dict[str, Array]],
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
            largest = {other: magnitude(_statistics(shuffled, other)) for other in remaining[step:]}
        most = np.max([largest[other] for other in remaining[step:]], axis=0)
        # The observed labeling counts as one of the permutations.
        p.append((1 + int((most >= just_below(np.array(observed[one]))).sum())) / (count + 1))
    return np.maximum.accumulate(p)


def connected(pairs: Sequence[Pair]) -> list[list[str]]:
    """Groups of algorithms that are connected by pairs, in alphabetical order."""
    groups: list[set[str]] = []
    for pair in pairs:
        touching = [group for group in groups if group & set(pair)]
        groups = [group for group in groups if not group & set(pair)] + [set(pair).union(*touching)]
    return sorted(sorted(group) for group in groups)


def _shuffled(
    arms: Mapping[str, dict[str, Array]], groups: Sequence[Sequence[str]], count: int, generator: np.random.Generator
) -> dict[str, dict[str, Array]]:
    """Scores [count, n] of each algorithm and task after `count` permutations of runs within groups and tasks."""
    result: dict[str, dict[str, Array]] = {name: {} for group in groups for name in group}
    for group, task in itertools.product(groups, next(iter(arms.values()))):
        sizes = [len(arms[name][task]) for name in group]
        pooled = np.concatenate([arms[name][task] for name in group])
        rows = generator.permuted(np.tile(pooled, (count, 1)), axis=1)
        for name, part in zip(group, np.split(rows, np.cumsum(sizes)[:-1], axis=1), strict=True):
            result[name][task] = part
    return result


def _statistics(arms: Mapping[str, dict[str, Array]], pair: Pair) -> Array:
    """The statistic of one pair in every row."""
    first, second = (arms[name] for name in pair)
    look, labels = {}, {}
    for task, ones in first.items():
        runs = np.concatenate([np.atleast_2d(ones), np.atleast_2d(second[task])], axis=1)
        num_a = np.atleast_2d(ones).shape[1]
        look[task] = TaskRuns(runs, num_a)
        labels[task] = (np.arange(runs.shape[1]) < num_a).astype(np.float64)[:, None]
    return statistic(look, labels, "welch")[:, 0]

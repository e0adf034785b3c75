"""Labelings: which runs could have been those of A if both algorithms were equal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rl_training.studies.statistics.scores import Array, Look


@dataclass(frozen=True)
class Labelings:
    """Columns of zeros and ones by task, ones for runs of A; column 0 is the labeling that was observed."""

    columns: Mapping[str, Array]  # task -> [N, M]
    is_exact: bool
    """All labelings, each equally often."""


def count_labelings(look: Look) -> int:
    """Number of ways to label the runs of a look, task by task."""
    return math.prod(math.comb(runs.scores.shape[1], runs.num_a) for runs in look.values())


def smallest_p(*looks: Look) -> float:
    """The smallest two-sided p-value: that of the most extreme labeling, and of its mirror image if there is one."""
    has_mirror = all(runs.num_a == runs.num_b for look in looks for runs in look.values())
    return min(1.0, (1 + has_mirror) / math.prod(map(count_labelings, looks)))


def first_labelings(
    look: Look, limit: int, generator: np.random.Generator, *, num_drawn: int | None = None, repeats: bool = False
) -> Labelings:
    """Labelings of the first look: all if there are at most `limit`, else `num_drawn` (default: `limit`) random ones.

    With `repeats`, all labelings are repeated up to about `limit` columns. Later looks then draw labels of their own
    for each column. The observed column stays exchangeable with the others: the first look's labeling is uniform,
    and so are the later ones given the first.
    """
    if count_labelings(look) > limit:
        return Labelings(random_labelings(look, num_drawn or limit, generator), is_exact=False)
    every = [_all_labelings(runs.scores.shape[1], runs.num_a) for runs in look.values()]
    indices = np.indices([columns.shape[1] for columns in every]).reshape(len(every), -1)
    times = limit // indices.shape[1] if repeats else 1
    columns = {task: np.tile(table[:, index], times) for task, table, index in zip(look, every, indices, strict=True)}
    return Labelings(columns, is_exact=True)


def random_labelings(look: Look, count: int, generator: np.random.Generator) -> dict[str, Array]:
    """The observed labeling and `count - 1` random ones: a Monte Carlo test that holds its level exactly."""
    columns = {}
    for task, runs in look.items():
        num_runs = runs.scores.shape[1]
        observed = np.arange(num_runs) < runs.num_a
        labels = np.empty((num_runs, count))
        labels[:, 0] = observed
        labels[:, 1:] = generator.permuted(np.tile(observed, (count - 1, 1)), axis=1).T
        columns[task] = labels
    return columns


def _all_labelings(num_runs: int, num_a: int) -> Array:
    """All choices of `num_a` runs as columns [N, M]; the first is the observed one."""
    count = math.comb(num_runs, num_a)
    chosen = itertools.chain.from_iterable(itertools.combinations(range(num_runs), num_a))
    rows = np.fromiter(chosen, dtype=np.intp, count=count * num_a)
    labels = np.zeros((num_runs, count))
    labels[rows, np.repeat(np.arange(count), num_a)] = 1.0
    return labels

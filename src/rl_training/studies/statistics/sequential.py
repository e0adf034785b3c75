"""Group-sequential comparison: look at the runs several times, and keep the error probability of a single look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rl_training.studies.statistics.kernel import rejects
from rl_training.studies.statistics.permutation import ShiftedTest, check_alpha
from rl_training.studies.statistics.samples import (
    Look,
    Scores,
    checked_later,
    checked_pair,
    first_labelings,
    num_labelings,
    random_labelings,
    rescaled,
    side_by_side,
)


@dataclass(frozen=True)
class SequentialResult:
    """State of a sequential comparison after some of its looks."""

    look: int
    """Looks done."""
    decided_at: int | None
    """The look (1-based) at which equality was first rejected."""
    p_value: float
    """Stage-wise ordered: a rejection at an earlier look has a smaller p-value than any at a later one."""
    difference: float
    """Mean of A minus mean of B over all looks, in the units of `compare_means`."""
    interval: tuple[float, float]
    """Differences that no look so far has rejected (repeated confidence interval)."""
    alpha_spent: float
    """Error probability allowed up to this look."""


def sequential_test(
    blocks: Sequence[tuple[Scores, Scores]],
    num_looks: int,
    generator: np.random.Generator,
    *,
    alpha: float = 0.05,
    num_permutations: int = 10_000,
) -> SequentialResult:
    """Test two algorithms at each of up to `num_looks` planned looks; `blocks` are the new runs (A, B) of each look.

    Labels are permuted within each block and task. The error is spent linearly: `alpha * j / num_looks` up to look j.
    The same seed and the same first blocks give the same results at the first looks, however many blocks follow.
    With several tasks the unit of the interval is the spread of all runs so far, see `compare_means`.
    """
    check_alpha(alpha)
    if num_looks < 1:
        raise ValueError(f"num_looks is {num_looks}: plan at least one look")
    if not 1 <= len(blocks) <= num_looks:
        raise ValueError(
            f"{len(blocks)} blocks of runs for {num_looks} planned looks: give 1 to {num_looks}"
        )
    arms = checked_pair(*blocks[0])
    for a, b in blocks[1:]:
        arms += checked_later(a, b, list(arms[0]))
    arms, scale = rescaled(arms, num_first=2)
    looks = [side_by_side(*block) for block in zip(arms[::2], arms[1::2], strict=True)]
    alphas = spent(alpha, num_looks)[: len(blocks)]
    test = ShiftedTest(draw_labelings(looks, num_permutations, generator), alphas, scale)
    p = test.p_values(np.zeros(1))[0]
    crossed = np.flatnonzero(rejects(p, np.array(alphas)))
    return SequentialResult(
        look=len(blocks),
        decided_at=int(crossed[0]) + 1 if crossed.size else None,
        p_value=float(p[-1]),
        difference=test.difference,
        interval=test.interval(),
        alpha_spent=alphas[-1],
    )


def spent(alpha: float, num_looks: int) -> list[float]:
    """Error probability allowed up to each look: linear spending (Lan and DeMets 1983)."""
    return [alpha * (j + 1) / num_looks for j in range(num_looks)]


def draw_labelings(looks: Sequence[Look], count: int, generator: np.random.Generator) -> list[Look]:
    """The looks with about `count` labelings of their runs, drawn look by look."""
    first = first_labelings(looks[0], count, generator, repeats=True)
    return [
        first,
        *(random_labelings(look, num_labelings(first), generator) for look in looks[1:]),
    ]

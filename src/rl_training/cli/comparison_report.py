"""What `compare` prints: the verdict in one sentence, every score, and the difference with its interval."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rl_training.cli.study_report import cell_lines

if TYPE_CHECKING:
    from rl_training.studies.comparison.looks import LookPlan
    from rl_training.studies.comparison.run_scores import ScoreTable
    from rl_training.studies.comparison.verdict import Comparison, ManyComparisons


def comparison_lines(result: Comparison | ManyComparisons) -> list[str]:
    """The comparison of two arms, or of all pairs of several."""
    first = result.pairs[0]
    verdicts = [pair.sentence for pair in result.pairs]
    lines = [*verdicts, f"  score: {first.rule}", *_score_lines(result.table)]
    for pair in result.pairs:
        names = "" if len(result.pairs) == 1 else f"{pair.a.name} - {pair.b.name}: "
        judgement = pair.judgement
        difference = f"difference {judgement.difference:+.4g}{first.spread_unit} {interval_text(judgement.interval)}"
        lines.append(f"  {names}{difference}, p = {p_text(judgement.p_value)}")
    if len(result.pairs) == 1:
        probability = f"{first.prob_a_beats_b:.2f} {interval_text(first.prob_interval)}"
        lines.append(f"  probability that {first.a.name} beats {first.b.name}: {probability}")
    return lines + [f"  note: {note}" for note in result.notes]


def explanation_lines(result: Comparison | ManyComparisons, *, is_planned: bool) -> list[str]:
    """What the figures are, and when they hold."""
    from rl_training.studies.comparison.verdict import percent

    first = result.pairs[0]
    level, alpha = percent(1 - first.alpha), percent(first.alpha)
    lines = [
        "mean [low, high]: the mean over runs, and its 95 % interval of Student's t",
        f"difference [low, high], p: permutation test over runs. p is the probability of so large a difference if both"
        f" arms were equal; the {level} interval holds the differences that the test does not reject",
    ]
    if first.spread_unit:
        lines.append("standard deviations: of all runs of a task; with several tasks, averaged over them")
    if len(result.pairs) > 1:
        lines.append(
            f"several pairs: p is adjusted for all of them (step-down by the maximum), so that any wrong verdict has a"
            f" probability of at most {alpha}; the intervals are those of each pair alone"
        )
    else:
        lines.append("probability that one beats the other: of two runs, one of each arm (Mann and Whitney's U)")
    if is_planned:
        lines.append(f"planned looks share the {alpha}: the interval and p hold at all looks together")
    else:
        lines.append(
            f"ad hoc: {alpha} is the probability of calling equal arms different at one look. Comparing again after"
            " adding seeds voids it; plan the looks: --until-decided"
        )
    return ["", *(f"  {line}" for line in lines)]


def look_line(look: int, plan: LookPlan, comparison: Comparison) -> str:
    """One look of a planned comparison."""
    from rl_training.studies.comparison.looks import is_decided

    count = min(map(len, comparison.a.values.values()))
    judgement = comparison.judgement
    verdict = comparison.sentence if is_decided(comparison) else "not distinguishable"
    return (
        f"look {look} of {plan.looks}: {count} seeds each, difference {judgement.difference:+.4g}"
        f" {interval_text(judgement.interval)}, p = {p_text(judgement.p_value)}: {verdict}"
    )


def _score_lines(table: ScoreTable) -> list[str]:
    from rl_training.studies.statistics import mean_interval

    lines = []
    for task, budget in table.budgets.items():
        first, last = table.steps[task]
        reached = f"{last:,}" if first == last else f"{first:,} to {last:,}"
        planned = "" if (first, last) == (budget, budget) else f" (planned: {budget:,})"
        lines.append(f"  {task}, {reached} {table.unit}{planned}")
        for arm in table.arms:
            scores = arm.by_task[task]
            lines.append(f"    {arm.name}: mean {mean_interval(list(scores.values()))}, {len(scores)} runs")
            cells = [f"{_seed(name)} {score:.1f}" for name, score in scores.items()]
            lines += cell_lines(cells, "      ")
    return lines


def _seed(name: str) -> str:
    """The seed of a run by the name of its folder."""
    found = re.search(r"__seed(\d+)__", name)
    return f"seed {found[1]}:" if found else f"{name}:"


def interval_text(interval: Sequence[float]) -> str:
    """`[low, high]`; an infinite bound is written as such."""
    low, high = (f"{bound:.4g}" if math.isfinite(bound) else ("-inf" if bound < 0 else "inf") for bound in interval)
    return f"[{low}, {high}]"


def p_text(p_value: float) -> str:
    """A p-value with two digits."""
    return f"{p_value:.2g}" if p_value >= 0.001 else "< 0.001"

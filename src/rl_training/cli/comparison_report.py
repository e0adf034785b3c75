"""What `compare` prints: every score, the difference with its interval, and the verdict."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rl_training.cli.study_report import cell_lines

if TYPE_CHECKING:
    from rl_training.studies.comparison.looks import LookPlan
    from rl_training.studies.comparison.scores import ArmScores
    from rl_training.studies.comparison.verdict import Comparison, ManyComparisons


def comparison_lines(comparison: Comparison) -> list[str]:
    """The comparison of two arms."""
    from rl_training.studies.comparison.verdict import percent

    lines = [comparison.sentence, *_score_lines((comparison.a, comparison.b), comparison)]
    judgement = comparison.judgement
    unit = "" if len(comparison.a.by_task) == 1 else " (in standard deviations of each task)"
    lines.append(
        f"  difference {judgement.difference:+.4g} {interval_text(judgement.interval)}{unit},"
        f" p = {p_text(judgement.p_value)} ({percent(1 - comparison.alpha)} interval and p-value of a permutation test"
        " over runs)"
    )
    lines.append(
        f"  probability that {comparison.a.name} beats {comparison.b.name}: {comparison.prob_a_beats_b:.2f}"
        f" {interval_text(comparison.prob_interval)}"
    )
    return lines + [f"  note: {note}" for note in comparison.notes]


def many_lines(result: ManyComparisons) -> list[str]:
    """The comparison of all pairs of several arms."""
    from rl_training.studies.comparison.verdict import Verdict

    lines = _score_lines(result.arms, result.pairs[0])
    for pair in result.pairs:
        judgement = pair.judgement
        better = {Verdict.A_BETTER: (pair.a, pair.b), Verdict.B_BETTER: (pair.b, pair.a)}.get(pair.verdict)
        names = f"{pair.a.name} and {pair.b.name}"
        verdict = f"{better[0].name} is better than {better[1].name}" if better else f"{names}: {pair.sentence}"
        numbers = f"{judgement.difference:+.4g} {interval_text(judgement.interval)}"
        lines.append(f"  {verdict}: difference {numbers}, adjusted p = {p_text(judgement.p_value)}")
    lines.append("  adjusted for all pairs (step-down by the maximum); the intervals are those of each pair alone")
    return lines + [f"  note: {note}" for note in result.notes]


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


def _score_lines(arms: Sequence[ArmScores], comparison: Comparison) -> list[str]:
    from rl_training.studies.statistics import mean_interval

    lines = [f"  score: {comparison.rule}"]
    for task, budget in comparison.budgets.items():
        lines.append(f"  {task}, {budget:,} {comparison.unit}")
        for arm in arms:
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

"""Text of comparisons: verdicts, scores, and what the figures are."""

from __future__ import annotations

import re

from rl_training.studies.comparison.looks import LookPlan
from rl_training.studies.comparison.run_scores import ScoreTable
from rl_training.studies.comparison.verdict import Comparison, ManyComparisons, percent
from rl_training.studies.statistics import mean_interval
from rl_training.terminal.tables import cell_lines


def comparison_lines(result: Comparison | ManyComparisons) -> list[str]:
    """The comparison of two arms, or of all pairs of several."""
    first, *others = result.pairs
    lines = [pair.sentence for pair in result.pairs]
    lines += [f"  score: {first.rule}", *_score_lines(result.table)]
    for pair in result.pairs:
        names = f"{pair.a.name} - {pair.b.name}: " if others else ""
        lines.append(f"  {names}{_difference_text(pair, first.spread_unit)}")
    if not others:
        probability = f"{first.prob_a_beats_b:.2f} {_interval_text(first.prob_interval)}"
        lines.append(f"  probability that {first.a.name} beats {first.b.name}: {probability}")
    return lines + [f"  note: {note}" for note in result.notes]


def _difference_text(pair: Comparison, unit: str = "") -> str:
    """Difference, interval and p-value, which has two digits."""
    found = pair.judgement
    p_text = f"p = {found.p_value:.2g}" if found.p_value >= 0.001 else "p = < 0.001"
    return f"difference {found.difference:+.4g}{unit} {_interval_text(found.interval)}, {p_text}"


def _interval_text(interval: tuple[float, float]) -> str:
    return f"[{interval[0]:.4g}, {interval[1]:.4g}]"


def explanation_lines(result: Comparison | ManyComparisons, *, is_planned: bool) -> list[str]:
    """What the figures are, and when they hold."""
    first, *others = result.pairs
    level, alpha = percent(1 - first.alpha), percent(first.alpha)
    lines = [
        "mean [low, high]: the mean over runs, and its 95 % interval of Student's t",
        f"difference [low, high], p: permutation test over runs. p is the probability of so large a difference if both"
        f" arms were equal; the {level} interval holds the differences that the test does not reject",
    ]
    if first.spread_unit:
        lines.append(
            "standard deviations: of all runs of a task; with several tasks, averaged over them"
        )
    if others:
        lines.append(
            f"several pairs: p is adjusted for all of them (step-down by the maximum), so that any wrong verdict has a"
            f" probability of at most {alpha}; the intervals are those of each pair alone"
        )
    else:
        lines.append(
            "probability that one beats the other: of two runs, one of each arm (Mann and Whitney's U)"
        )
    if is_planned:
        lines.append(
            f"planned looks share the {alpha}: the interval and p hold at all looks together"
        )
    else:
        lines.append(
            f"ad hoc: {alpha} is the probability of calling equal arms different at one look. Comparing again after"
            " adding seeds voids it; plan the looks: --until-decided"
        )
    return ["", *(f"  {line}" for line in lines)]


def look_line(look: int, plan: LookPlan, comparison: Comparison) -> str:
    """One look of a planned comparison."""
    count = min(map(len, comparison.a.values.values()))
    verdict = comparison.sentence if comparison.is_decided else "not distinguishable"
    difference = _difference_text(comparison)
    return f"look {look} of {plan.looks}: {count} seeds each, {difference}: {verdict}"


def _score_lines(table: ScoreTable) -> list[str]:
    lines = []
    for task, budget in table.budgets.items():
        first, last = table.steps[task]
        reached = f"{last:,}" if first == last else f"{first:,} to {last:,}"
        planned = "" if (first, last) == (budget, budget) else f" (planned: {budget:,})"
        lines.append(f"  {task}, {reached} {table.unit}{planned}")
        for arm in table.arms:
            scores = arm.by_task[task]
            lines.append(
                f"    {arm.name}: mean {mean_interval(list(scores.values()))}, {len(scores)} runs"
            )
            cells = [f"{_seed(name)} {score:.1f}" for name, score in scores.items()]
            lines += cell_lines(cells, "      ")
    return lines


def _seed(name: str) -> str:
    """The seed of a run by the name of its folder."""
    found = re.search(r"__seed(\d+)__", name)
    return f"seed {found[1]}:" if found else f"{name}:"

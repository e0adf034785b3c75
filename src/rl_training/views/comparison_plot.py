"""Plots a comparison: every run's score, the means, and the difference with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.studies.comparison.run_scores import ArmScores
from rl_training.studies.comparison.verdict import Comparison, ManyComparisons, percent
from rl_training.studies.statistics import mean_interval
from rl_training.views.figures import new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LONGEST_TICK = 28


def plot_comparison(result: Comparison | ManyComparisons, target: Path) -> Path:
    """Draw a comparison into a file."""
    return save_figure(draw_comparison(result), target)


def draw_comparison(result: Comparison | ManyComparisons) -> Figure:
    """Scores of each arm, a panel for each task, and below them the differences with their intervals."""
    pairs = result.pairs if isinstance(result, ManyComparisons) else (result,)
    arms = result.arms if isinstance(result, ManyComparisons) else (result.a, result.b)
    tasks = list(arms[0].by_task)
    height = 1.6 + 0.42 * len(arms) + 0.42 * len(pairs)
    figure = new_figure(height + 1)
    grid = figure.add_gridspec(2, len(tasks), height_ratios=[len(arms) + 1, len(pairs) + 1])
    for column, task in enumerate(tasks):
        axes = figure.add_subplot(grid[0, column])
        _draw_scores(axes, arms, task)
        axes.set(xlabel=pairs[0].rule.metric, title=task)
        if column:
            axes.set_yticklabels([])
    _draw_differences(figure.add_subplot(grid[1, :]), pairs)
    title = result.sentence if isinstance(result, Comparison) else f"{len(arms)} arms, all pairs"
    figure.suptitle(title, fontsize="medium", wrap=True)
    figure.supxlabel("dots: runs; bars: mean and its 95 % interval (Student's t)", fontsize="small", color="0.4")
    return figure


def _draw_scores(axes: Any, arms: Sequence[ArmScores], task: str) -> None:
    generator = np.random.default_rng(0)  # of the vertical scatter, so that equal scores are all seen
    for row, arm in enumerate(arms):
        scores = list(arm.by_task[task].values())
        heights = row + generator.uniform(-0.18, 0.18, len(scores))
        axes.plot(scores, heights, "o", color=f"C{row % 10}", alpha=0.55, markersize=5)
        interval = mean_interval(scores)
        axes.plot([interval.mean], [row], "|", color="k", markersize=18, markeredgewidth=2)
        if interval.low is not None and interval.high is not None:
            axes.plot([interval.low, interval.high], [row, row], "-", color="k", linewidth=1.5)
    axes.set_yticks(range(len(arms)), [f"{_short(arm.name)} ({len(arm.by_task[task])})" for arm in arms])
    axes.set_ylim(len(arms) - 0.5, -0.5)
    axes.grid(alpha=0.3, axis="x")


def _draw_differences(axes: Any, pairs: Sequence[Comparison]) -> None:
    margin = pairs[0].margin
    if margin is not None:
        axes.axvspan(-margin, margin, color="0.85", zorder=0, label=f"equal within {margin:g}")
        axes.legend(loc="best", frameon=False, fontsize="small")
    axes.axvline(0, color="0.4", linewidth=1)
    for row, pair in enumerate(pairs):
        low, high = pair.judgement.interval
        is_bounded = math.isfinite(low) and math.isfinite(high)
        axes.plot([pair.judgement.difference], [row], "D", color="k", markersize=5)
        if is_bounded:
            axes.plot([low, high], [row, row], "-", color="k", linewidth=1.5)
        else:
            axes.annotate(
                "interval unbounded: too few runs",
                (pair.judgement.difference, row),
                (6, 4),
                "data",
                "offset points",
                fontsize="small",
            )
    axes.set_yticks(range(len(pairs)), [f"{_short(pair.a.name)} − {_short(pair.b.name)}" for pair in pairs])
    axes.set_ylim(len(pairs) - 0.5, -0.5)
    axes.grid(alpha=0.3, axis="x")
    axes.set_xlabel(f"difference of the means ({percent(1 - pairs[0].alpha)} interval)")


def _short(name: str) -> str:
    half = (LONGEST_TICK - 1) // 2
    return name if len(name) <= LONGEST_TICK else f"{name[:half]}…{name[-half:]}"

"""Plots runs into a picture or a table: curves of one run, many seeds, several settings; scores of a comparison."""

from __future__ import annotations

import csv
import io
import math
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.errors import ConfigError, RLTrainingError
from rl_training.experiment.run_folder import safe_name
from rl_training.files import translate_write_errors
from rl_training.studies.groups import RunGroup, RunRecord, find_groups, group_runs
from rl_training.studies.plan import open_study
from rl_training.studies.statistics.summaries import WORDS, summarize, summary_kind
from rl_training.views.curves import (
    RETURN,
    Curve,
    CurveSet,
    GroupCurves,
    XAxis,
    collect_curves,
    curve_of,
    seeds_text,
)
from rl_training.views.figures import (
    DASHES,
    MUTED,
    TABLE,
    TABLE_START,
    check_default_target,
    check_target,
    color_of,
    new_figure,
    save_figure,
    style_axes,
    value_limits,
)
from rl_training.views.report.blocks import metric_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rl_training.studies.comparison.run_scores import ArmScores
    from rl_training.studies.comparison.verdict import Comparison, ManyComparisons

RUN_PICTURE, STUDY_PICTURE = "learning_curve", "curves"
TRAINING_RETURN, RETURN_DEVIATION = "train_return_mean", "eval_return_std"
COLUMNS = (*TABLE_START.rstrip(",").split(","), "run", "seed", "x", "value", "low", "high")
TIME_UNITS = ((7200.0, 3600.0, "hours"), (600.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
"""From how many seconds on, seconds of the unit, its name."""
FEW_POINTS = 30
LONGEST_NAME, LONGEST_TICK = 60, 28
CAPTION_WIDTH = 125


@dataclass(frozen=True)
class Plotted:
    """A picture or table that was written, and what it shows."""

    path: Path
    curves: CurveSet
    caption: str

    @property
    def is_table(self) -> bool:
        """Whether the file is a table of numbers."""
        return self.path.suffix.lower() == TABLE

    def as_dict(self) -> dict[str, Any]:
        """For `--json`: the file, its caption, and for each group its runs and the last point of its summary."""
        curves = self.curves
        return {
            "table" if self.is_table else "picture": str(self.path),
            "metric": curves.metric,
            "x": curves.x_axis,
            "x_label": curves.x_label,
            "caption": self.caption,
            "groups": [_group_values(group) for group in curves.groups],
            "messages": list(curves.messages),
        }


def plot_learning_curve(run_dir: Path) -> Path:
    """Plot training and evaluation return over steps into `learning_curve.png` of the run folder."""
    return plot_runs(group_runs([run_dir])).path


def plot_runs(
    groups: Sequence[RunGroup],
    metric: str = RETURN,
    x_axis: XAxis = "steps",
    out: Path | None = None,
    *,
    use_mean: bool = False,
) -> Plotted:
    """Plot a metric of groups of runs into a picture (PNG, SVG, PDF) or a table (CSV)."""
    run = _only_run(groups)
    target = out or default_target(groups, run, metric, x_axis)
    check_default_target(target) if out is None else check_target(target)
    run = run if metric == RETURN else None
    if run is not None and not run.curve(RETURN)[0] and run.curve(TRAINING_RETURN)[0]:
        metric = TRAINING_RETURN
    figure = None if target.suffix.lower() == TABLE else new_figure()
    curves = collect_curves(groups, metric, x_axis, use_mean=use_mean)
    if figure is None:
        return Plotted(write_table(curves, target), curves, curves.caption)
    caption = draw_curves(figure, curves, run)
    figure.supxlabel(textwrap.fill(caption, CAPTION_WIDTH), fontsize="small", color=MUTED)
    return Plotted(save_figure(figure, target), curves, caption)


def draw_curves(figure: Figure, curves: CurveSet, run: RunRecord | None = None) -> str:
    """Draw the groups of runs, or of a single `run` its training and evaluation return; returns the caption."""
    axes = figure.add_subplot()
    unit, x_label = _unit(curves)
    if run is None:
        caption, y_label = curves.caption, metric_label(curves.metric)
        for index, group in enumerate(curves.groups):
            _draw_group(axes, group, index, unit)
        values = [y for group in curves.groups for curve in group.curves for y in curve.y]
    else:
        y_label = "return"
        caption, values = _draw_run(axes, run, curves.x_axis, unit)
    _mark_online(axes, curves.groups, unit)
    style_axes(axes)
    axes.set(xlabel=x_label, ylabel=y_label, ylim=value_limits(values))
    if len(axes.get_legend_handles_labels()[0]) > 1:
        axes.legend(loc="best", frameon=False, fontsize="small")
    return caption


def default_target(
    groups: Sequence[RunGroup], run: RunRecord | None, metric: str, x_axis: XAxis
) -> Path:
    """The picture of one run or of one whole study, in its folder; an error for anything else."""
    end = "" if metric == RETURN else f"-{safe_name(metric)}"
    if x_axis != "steps":
        end += f"-{x_axis}"
    if run is not None:
        return run.run_dir / f"{RUN_PICTURE}{end}.png"
    studies = {group.study for group in groups}
    study = studies.pop() if len(studies) == 1 else None
    if study is None or len(groups) != len(open_study(study).plan.vary):
        raise ConfigError(
            "runs that are not one whole study have no folder for their picture: add --out FILE"
        )
    return study / f"{STUDY_PICTURE}{end}.png"


def write_table(curves: CurveSet, target: Path) -> Path:
    """Write curves and summaries as rows of a CSV file; `kind` is `run`, `median`, `iqm` or `mean`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for group in curves.groups:
        start = (curves.metric, curves.x_axis, group.name)
        for curve in group.curves:
            name = (*start, "run", curve.run_dir.name, curve.seed)
            writer.writerows((*name, x, y, "", "") for x, y in zip(curve.x, curve.y, strict=True))
        if group.kind != "run":
            rows = zip(group.x, group.y, group.low, group.high, strict=True)
            writer.writerows((*start, group.kind, "", "", *row) for row in rows)
    with translate_write_errors(target, kind="the table "):
        target.write_text(text.getvalue(), encoding="utf-8")
    return target


def _group_values(group: GroupCurves) -> dict[str, Any]:
    last: dict[str, Any] | None = None
    if group.x:
        has_band = group.kind != "run"
        last = {
            "x": group.x[-1],
            "mean": group.mean[-1],
            "summary": group.kind,
            "value": group.y[-1],
            "low": group.low[-1] if has_band else None,
            "high": group.high[-1] if has_band else None,
        }
    runs = [str(curve.run_dir) for curve in group.curves]
    return {"name": group.name, "runs": runs, "online_from": group.online_from, "last": last}


def _only_run(groups: Sequence[RunGroup]) -> RunRecord | None:
    """The only run, if no study was named."""
    runs = [run for group in groups for run in group.runs]
    return runs[0] if len(runs) == len(groups) == 1 and groups[0].study is None else None


def _draw_run(axes: Any, run: RunRecord, x_axis: XAxis, unit: float) -> tuple[str, list[float]]:
    """Training and evaluation return of a run; returns the caption, and the values that the axis comes from."""
    training, returns, deviation = (
        curve_of(run, name, x_axis) for name in (TRAINING_RETURN, RETURN, RETURN_DEVIATION)
    )
    names = ("training (mean of the last 100 episodes)", "evaluation (deterministic policy)")
    for index, (name, curve) in enumerate(zip(names, (training, returns), strict=True)):
        if curve.x:
            marker = "o" if curve is returns or len(curve.x) == 1 else None
            _draw_line(axes, curve, unit, color=color_of(index), label=name, marker=marker)
    values = training.y + returns.y
    seeds = seeds_text([run.seed])
    caption = f"1 run ({seeds})" if seeds else "1 run"
    if returns.x and returns.x == deviation.x:
        y, spread = np.array(returns.y), np.array(deviation.y)
        floor = 0.0 if min(values) >= 0 else -math.inf
        low, high = np.maximum(floor, y - spread), y + spread
        _draw_band(axes, np.divide(returns.x, unit), low, high, color_of(1))
        values += [*low, *high]
        caption += "; band: one standard deviation of the evaluation's episodes"
    return caption, values


def _draw_group(axes: Any, group: GroupCurves, index: int, unit: float) -> None:
    """A thin line for each run if there are several, their summary, and its band."""
    count, color, grid = len(group.curves), color_of(index), np.divide(group.x, unit)
    if count > 1:
        for curve in group.curves:
            marker = "o" if len(curve.x) == 1 else None
            _draw_line(axes, curve, unit, color=color, linewidth=0.7, alpha=0.45, marker=marker)
        _draw_band(axes, grid, group.low, group.high, color)
    marker = "o" if len(grid) <= (FEW_POINTS if count == 1 else 1) else None
    name = group.name if len(group.name) <= LONGEST_NAME else f"{group.name[: LONGEST_NAME - 1]}…"
    text = f"{name} ({count} run{'' if count == 1 else 's'})"
    style = DASHES[index // 8 % len(DASHES)]
    axes.plot(
        grid, group.y, style, color=color, linewidth=2, marker=marker, markersize=5, label=text
    )


def _draw_band(axes: Any, x: Any, low: Any, high: Any, color: str) -> None:
    """The area between two limits; at a single point a vertical line."""
    if len(x) == 1:
        axes.vlines(x, low, high, color=color, alpha=0.3, linewidth=6)
    else:
        axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)


def _draw_line(axes: Any, curve: Curve, unit: float, **style: Any) -> None:
    axes.plot(np.divide(curve.x, unit), curve.y, markersize=4, **style)


def _mark_online(axes: Any, groups: Sequence[GroupCurves], unit: float) -> None:
    """A vertical line where runs went online; groups that did so at different places have lines of their colors."""
    places = {
        group.online_from: color_of(index)
        for index, group in enumerate(groups)
        if group.online_from is not None
    }
    label: str | None = "online from here"
    for place, color in places.items():
        shown = MUTED if len(places) == 1 else color
        axes.axvline(place / unit, color=shown, linestyle="--", linewidth=1, label=label)
        label = None  # once in the legend


def _unit(curves: CurveSet) -> tuple[float, str]:
    """What x values are divided by, and the label of their axis."""
    if curves.x_axis != "time":
        return 1.0, curves.x_label
    longest = max((curve.x[-1] for group in curves.groups for curve in group.curves), default=0.0)
    return next(
        (unit, f"wall time ({name})") for start, unit, name in TIME_UNITS if longest >= start
    )


def plot_comparison(result: Comparison | ManyComparisons, target: Path) -> Path:
    """Draw the scores of each arm, a panel for each task, and below them the differences with their intervals."""
    pairs, arms = result.pairs, result.table.arms
    tasks = list(arms[0].by_task)
    figure = new_figure(2.6 + 0.42 * len(arms) + 0.42 * len(pairs))
    grid = figure.add_gridspec(2, len(tasks), height_ratios=[len(arms) + 1, len(pairs) + 1])
    for column, task in enumerate(tasks):
        axes = figure.add_subplot(grid[0, column])
        _draw_scores(axes, arms, task)
        axes.set(xlabel=metric_label(pairs[0].rule.metric), title=task)
        if column:
            axes.set_yticklabels([])
    _draw_differences(figure.add_subplot(grid[1, :]), pairs)
    title = pairs[0].sentence if len(pairs) == 1 else f"{len(arms)} arms, all pairs"
    figure.suptitle(title, fontsize="medium", wrap=True)
    kinds = dict.fromkeys(
        summary_kind(len(scores)) for arm in arms for scores in arm.by_task.values()
    )
    shown = "; ".join(WORDS[kind] for kind in kinds)
    figure.supxlabel(f"dots: runs; bars: {shown}", fontsize="small", color=MUTED)
    return save_figure(figure, target)


def _draw_scores(axes: Any, arms: Sequence[ArmScores], task: str) -> None:
    scatter = np.random.default_rng(0)  # vertical, so that equal scores are all seen
    values: list[float] = []
    for row, arm in enumerate(arms):
        scores = list(arm.by_task[task].values())
        values += scores
        heights = row + scatter.uniform(-0.18, 0.18, len(scores))
        axes.plot(scores, heights, "o", color=color_of(row), alpha=0.55, markersize=5)
        summary = summarize(scores)
        axes.plot([summary.value], [row], "|", color="k", markersize=18, markeredgewidth=2)
        if summary.low is not None:
            axes.plot([summary.low, summary.high], [row, row], "-", color="k", linewidth=1.5)
    style_axes(axes, "x")
    names = [f"{_short(arm.name)} ({len(arm.by_task[task])})" for arm in arms]
    axes.set_yticks(range(len(arms)), names)
    axes.set(ylim=(len(arms) - 0.5, -0.5), xlim=value_limits(values))


def _draw_differences(axes: Any, pairs: Sequence[Comparison]) -> None:
    from rl_training.studies.comparison.verdict import percent

    margin = pairs[0].margin
    if margin is not None:
        axes.axvspan(-margin, margin, color="0.85", zorder=0, label=f"equal within {margin:g}")
        axes.legend(loc="best", frameon=False, fontsize="small")
    style_axes(axes, "x")
    axes.axvline(0, color=MUTED, linewidth=1)
    for row, pair in enumerate(pairs):
        difference, interval = pair.judgement.difference, pair.judgement.interval
        axes.plot([difference], [row], "D", color="k", markersize=5)
        if all(map(math.isfinite, interval)):
            axes.plot(interval, [row, row], "-", color="k", linewidth=1.5)
        else:
            text = "interval unbounded: too few runs"
            place = (difference, row)
            axes.annotate(text, place, (6, 4), "data", "offset points", fontsize="small")
    names = [f"{_short(pair.a.name)} − {_short(pair.b.name)}" for pair in pairs]
    axes.set_yticks(range(len(pairs)), names)
    label = f"difference of the means ({percent(1 - pairs[0].alpha)} interval)"
    axes.set(ylim=(len(pairs) - 0.5, -0.5), xlabel=label)


def _short(name: str) -> str:
    half = (LONGEST_TICK - 1) // 2
    return name if len(name) <= LONGEST_TICK else f"{name[:half]}…{name[-half:]}"


def main(words: Sequence[str]) -> int:
    """`python -m rl_training.views.plotting STUDY`: plot a study and print the picture's path."""
    try:
        print(plot_runs(find_groups([words[0]])).path)
    except RLTrainingError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

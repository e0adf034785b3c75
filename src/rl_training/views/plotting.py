"""Plots curves of runs: one run, many seeds, several settings; into a picture or a table."""

from __future__ import annotations

import csv
import io
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.errors import ConfigError, RLTrainingError
from rl_training.experiment.run_folder import safe_name
from rl_training.files import translate_write_errors
from rl_training.studies.groups import RunGroup, find_groups, group_runs
from rl_training.studies.study_folder import open_study
from rl_training.views.curves import RETURN, CurveSet, GroupCurves, XAxis, collect_curves, curve_of, seeds_text
from rl_training.views.figures import (
    TABLE,
    TABLE_START,
    check_default_target,
    check_target,
    new_figure,
    save_figure,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUN_PICTURE, STUDY_PICTURE = "learning_curve.png", "curves.png"
TRAINING_RETURN, RETURN_DEVIATION = "train_return_mean", "eval_return_std"
COLUMNS = (*TABLE_START.rstrip(",").split(","), "run", "seed", "x", "value", "low", "high")
TIME_UNITS = ((7200.0, 3600.0, "hours"), (600.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))
"""From how many seconds on, seconds of the unit, its name."""
FEW_POINTS = 30
LONGEST_NAME = 60
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
        """For `--json`: the file, its caption, and for each group its runs and the last point of its mean."""
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


def plot_learning_curve(run_dir: Path, out: Path | None = None) -> Path:
    """Plot training and evaluation return over steps into `learning_curve.png` of the run folder, or into `out`."""
    return plot_runs(group_runs([run_dir]), out=out).path


def plot_study(path: Path, out: Path | None = None, metric: str = RETURN) -> Path:
    """Plot the curves of a study into `curves.png` of its folder, or into `out`."""
    return plot_runs(find_groups([str(path)]), metric, out=out).path


def plot_runs(
    groups: Sequence[RunGroup], metric: str = RETURN, x_axis: XAxis = "steps", out: Path | None = None
) -> Plotted:
    """Plot a metric of groups of runs into a picture (PNG, SVG, PDF) or a table (CSV)."""
    target = out or default_target(groups, metric, x_axis)
    check_default_target(target) if out is None else check_target(target)
    is_picture = target.suffix.lower() != TABLE
    figure = new_figure() if is_picture else None
    curves = collect_curves(groups, _shown_metric(groups, metric), x_axis)
    if figure is None:
        return Plotted(write_table(curves, target), curves, curves.caption)
    run = _only_run(groups)
    caption = curves.caption
    if run is not None and metric == RETURN:
        caption = _draw_run(figure, groups[0], curves)
    else:
        _draw_groups(figure, curves, _title(groups))
    figure.supxlabel(textwrap.fill(caption, CAPTION_WIDTH), fontsize="small", color="0.35")
    return Plotted(save_figure(figure, target), curves, caption)


def draw_learning_curve(run_dir: Path, x_axis: XAxis = "steps") -> Figure:
    """Training and evaluation return of one run; a vertical line marks the start of online fine-tuning."""
    figure, groups = new_figure(), group_runs([run_dir])
    _draw_run(figure, groups[0], collect_curves(groups, _shown_metric(groups, RETURN), x_axis))
    return figure


def draw_groups(curves: CurveSet, title: str = "") -> Figure:
    """Thin lines for runs, and for each group the mean with a band."""
    figure = new_figure()
    _draw_groups(figure, curves, title)
    return figure


def default_target(groups: Sequence[RunGroup], metric: str, x_axis: XAxis) -> Path:
    """The picture of one run or of one whole study, in its folder; an error for anything else."""
    end = ("" if metric == RETURN else f"-{safe_name(metric)}") + ("" if x_axis == "steps" else f"-{x_axis}")
    run, studies = _only_run(groups), {group.study for group in groups}
    if run is not None:
        name, folder = RUN_PICTURE, run
    else:
        study = studies.pop() if len(studies) == 1 else None
        if study is None or len(groups) != len(open_study(study).plan.vary):
            raise ConfigError("runs that are not one whole study have no folder for their picture: add --out FILE")
        name, folder = STUDY_PICTURE, study
    return folder / f"{Path(name).stem}{end}{Path(name).suffix}"


def write_table(curves: CurveSet, target: Path) -> Path:
    """Write curves and means as rows of a CSV file; `kind` is `run` or `mean`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for group in curves.groups:
        start = (curves.metric, curves.x_axis, group.name)
        for curve in group.curves:
            name = (*start, "run", curve.run_dir.name, curve.seed)
            writer.writerows((*name, x, y, "", "") for x, y in zip(curve.x, curve.y, strict=True))
        empty = [None] * len(group.x)
        rows = zip(group.x, group.mean, group.low or empty, group.high or empty, strict=True)
        writer.writerows((*start, "mean", "", "", *row) for row in rows)
    with translate_write_errors(target, kind="the table "):
        target.write_text(text.getvalue(), encoding="utf-8")
    return target


def _group_values(group: GroupCurves) -> dict[str, Any]:
    last = None
    if group.x:
        low, high = (None if bound is None else bound[-1] for bound in (group.low, group.high))
        last = {"x": group.x[-1], "mean": group.mean[-1], "low": low, "high": high}
    runs = [str(curve.run_dir) for curve in group.curves]
    return {"name": group.name, "runs": runs, "online_from": group.online_from, "last": last}


def _only_run(groups: Sequence[RunGroup]) -> Path | None:
    """The folder of the only run, if no study was named."""
    runs = [run.run_dir for group in groups for run in group.runs if group.study is None]
    return runs[0] if len(runs) == 1 and len(groups) == 1 else None


def _shown_metric(groups: Sequence[RunGroup], metric: str) -> str:
    """The training return for a single run that was not evaluated."""
    if metric == RETURN and _only_run(groups) is not None and not groups[0].runs[0].curve(RETURN)[0]:
        return TRAINING_RETURN if groups[0].runs[0].curve(TRAINING_RETURN)[0] else RETURN
    return metric


def _title(groups: Sequence[RunGroup]) -> str:
    run = _only_run(groups)
    if run is not None:
        return run.resolve().name
    studies = {group.study for group in groups}
    study = studies.pop() if len(studies) == 1 else None
    return groups[0].name if len(groups) == 1 else "" if study is None else study.resolve().name


def _draw_run(figure: Figure, group: RunGroup, curves: CurveSet) -> str:
    """Training and evaluation return of a single run; returns the caption."""
    (run,) = group.runs
    axes = figure.add_subplot()
    unit, label = _unit(curves)
    for metric, text, style in (
        (TRAINING_RETURN, "training (mean of the last 100 episodes)", "-"),
        (RETURN, "evaluation (deterministic policy)", "o-"),
    ):
        curve = curve_of(run, metric, curves.x_axis)
        if curve.x:
            axes.plot([x / unit for x in curve.x], curve.y, style, label=text, markersize=4)
    returns, deviation = (curve_of(run, name, curves.x_axis) for name in (RETURN, RETURN_DEVIATION))
    known = dict(zip(deviation.x, deviation.y, strict=True))
    band = [(x / unit, y - known[x], y + known[x]) for x, y in zip(returns.x, returns.y, strict=True) if x in known]
    caption = f"1 run{f' ({seeds})' if (seeds := seeds_text([run.seed])) else ''}"
    if band:
        places, low, high = ([row[column] for row in band] for column in range(3))
        axes.fill_between(places, low, high, color=axes.lines[-1].get_color(), alpha=0.15, linewidth=0)
        caption += "; band: one standard deviation of the evaluation's episodes"
    _mark_online(axes, curves.groups, unit)
    axes.set(xlabel=label, ylabel="return", title=_title([group]))
    axes.grid(alpha=0.3)
    axes.legend(loc="best", frameon=False)
    return caption


def _draw_groups(figure: Figure, curves: CurveSet, title: str) -> None:
    axes = figure.add_subplot()
    unit, label = _unit(curves)
    for index, group in enumerate(curves.groups):
        _draw_group(axes, group, f"C{index % 10}", ("-", "--", ":", "-.")[index // 10 % 4], unit)
    _mark_online(axes, curves.groups, unit)
    axes.set(xlabel=label, ylabel=curves.metric, title=title)
    axes.grid(alpha=0.3)
    if len(axes.get_legend_handles_labels()[0]) > 1:
        axes.legend(loc="best", frameon=False, fontsize="small")


def _draw_group(axes: Any, group: GroupCurves, color: str, style: str, unit: float) -> None:
    """A thin line for each run if there are several, the mean, and its band."""
    count = len(group.curves)
    for curve in group.curves if count > 1 else ():
        axes.plot([x / unit for x in curve.x], curve.y, color=color, linewidth=0.7, alpha=0.45)
    grid = [x / unit for x in group.x]
    if group.low is not None and group.high is not None:
        axes.fill_between(grid, group.low, group.high, color=color, alpha=0.15, linewidth=0)
    marker = "o" if count == 1 and len(grid) <= FEW_POINTS else None
    name = group.name if len(group.name) <= LONGEST_NAME else f"{group.name[: LONGEST_NAME - 1]}…"
    text = f"{name} ({count} run{'' if count == 1 else 's'})"
    axes.plot(grid, group.mean, style, color=color, linewidth=2, marker=marker, markersize=4, label=text)


def _mark_online(axes: Any, groups: Sequence[GroupCurves], unit: float) -> None:
    """A vertical line where runs went online; groups that did so at different places have lines of their colors."""
    places = [(index, group.online_from) for index, group in enumerate(groups)]
    known = {place: f"C{index % 10}" for index, place in places if place is not None}
    for number, (place, color) in enumerate(known.items()):
        label = "online from here" if number == 0 else None
        axes.axvline(place / unit, color="0.5" if len(known) == 1 else color, linestyle="--", linewidth=1, label=label)


def _unit(curves: CurveSet) -> tuple[float, str]:
    """What x values are divided by, and the label of their axis."""
    if curves.x_axis != "time":
        return 1.0, curves.x_label
    longest = max((curve.x[-1] for group in curves.groups for curve in group.curves), default=0.0)
    return next((unit, f"wall time ({name})") for start, unit, name in TIME_UNITS if longest >= start)


def main(words: Sequence[str]) -> int:
    """`python -m rl_training.views.plotting STUDY`: plot a study and print the picture's path."""
    try:
        print(plot_study(Path(words[0])))
    except RLTrainingError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Plots the learning curves of a study: thin lines for runs, and for each setting the mean with a band."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_training.errors import RLTrainingError
from rl_training.studies.catalog import is_run_folder
from rl_training.studies.records import RunRecord
from rl_training.studies.statistics import t_quantile
from rl_training.studies.study_folder import open_study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURE = "curves.png"
Curve = tuple[Sequence[int], Sequence[float]]


def plot_study(path: Path, out: Path | None = None, metric: str = "eval_return_mean") -> Path:
    """Draw the curves of a study into `curves.png` of its folder, or into `out`."""
    figure = draw_study(path, metric)
    target = out or path / PICTURE
    if out is None and target.is_symlink():
        raise RLTrainingError(f"'{target}' is a link: remove it")
    try:
        figure.savefig(target)
    except (OSError, ValueError) as error:
        raise RLTrainingError(f"cannot write the picture '{target}': {error}") from None
    return target


def draw_study(path: Path, metric: str = "eval_return_mean") -> Figure:
    """All curves of a study; the mean and its 95 % interval where every run of a setting has a value."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise RLTrainingError('plotting needs matplotlib: pip install "rl-training[plot]"') from None
    curves: dict[str, list[Curve]] = {}
    for run in open_study(path).runs():
        if is_run_folder(run.run_dir):
            curve = RunRecord(run.run_dir).curve(metric)
            if curve[0]:
                curves.setdefault(run.setting, []).append(curve)
    if not curves:
        raise RLTrainingError(f"no run of study '{path}' has logged {metric} yet")
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for index, (setting, members) in enumerate(curves.items()):
        _draw_setting(axes, setting, members, f"C{index % 10}")
    count = sum(map(len, curves.values()))
    axes.set(xlabel="steps", ylabel=metric, title=f"{path.name}: {count} runs")
    axes.grid(alpha=0.3)
    axes.legend(loc="best", frameon=False, fontsize="small")
    return figure


def _draw_setting(axes: Any, setting: str, curves: Sequence[Curve], color: str) -> None:
    for steps, values in curves:
        axes.plot(steps, values, color=color, linewidth=0.7, alpha=0.45)
    common = sorted(set.intersection(*(set(steps) for steps, _ in curves)))
    label = f"{f'{setting}: ' if setting else ''}mean of {len(curves)} run{'' if len(curves) == 1 else 's'}"
    if not common:
        return
    table = np.array([[dict(zip(*curve, strict=True))[step] for step in common] for curve in curves])  # [runs, steps]
    mean = table.mean(0)
    if len(curves) > 1:
        half = t_quantile(len(curves) - 1) * table.std(0, ddof=1) / np.sqrt(len(curves))
        axes.fill_between(common, mean - half, mean + half, color=color, alpha=0.15, linewidth=0)
        label += ", 95 % interval"
    axes.plot(common, mean, color=color, linewidth=2, label=label)


def main(words: Sequence[str]) -> int:
    """`python -m rl_training.views.study_plot FOLDER`: draw a study and print the picture's path."""
    try:
        print(plot_study(Path(words[0])))
    except RLTrainingError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

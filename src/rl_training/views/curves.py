"""Curves of runs, for plots and tables: a metric over steps, time or updates, and the summary of each group of runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from rl_training.errors import ConfigError, RLTrainingError
from rl_training.experiment.logs import PHASES
from rl_training.studies.groups import RunGroup, RunRecord
from rl_training.studies.statistics.summaries import WORDS, Kind, summarize_points, summary_kind
from rl_training.studies.variation import format_seeds
from rl_training.validation import suggest
from rl_training.views.report.blocks import finite
from rl_training.views.report.data import FIRST_OFFLINE, OFFLINE, UNKNOWN, step_unit

RETURN = "eval_return_mean"
XAxis = Literal["steps", "time", "updates"]
X_KEYS: Mapping[XAxis, str] = {
    "steps": "global_step",
    "time": "wall_time",
    "updates": "gradient_steps",
}
X_LABELS: Mapping[XAxis, str] = {"time": "wall time (seconds)", "updates": "gradient steps"}
MIXED = "environment steps (offline runs: updates)"
MAX_POINTS = 512
"""Points of a summary whose runs have different x values."""


@dataclass(frozen=True)
class Curve:
    """A metric of one run."""

    run_dir: Path
    seed: int | None
    x: list[float]
    """Increasing."""
    y: list[float]
    online_from: float | None = None
    """The x at which the run, offline until then, began to act in its environment."""


@dataclass(frozen=True)
class GroupCurves:
    """The curves of a group of runs, and their summary where all of them have values."""

    name: str
    curves: tuple[Curve, ...]
    kind: Kind
    """What the summary is: median and range of up to three runs, else interquartile mean or mean, with its interval."""
    x: list[float]
    """Where the summary is: the x values of the runs if they share them, else a grid over the range that all have."""
    y: list[float]
    low: list[float]
    high: list[float]
    mean: list[float]

    @property
    def online_from(self) -> float | None:
        """The x at which the runs went online, averaged over those that did."""
        found = [curve.online_from for curve in self.curves if curve.online_from is not None]
        return statistics.fmean(found) if found else None


@dataclass(frozen=True)
class CurveSet:
    """Everything that one plot shows."""

    metric: str
    x_axis: XAxis
    x_label: str
    groups: tuple[GroupCurves, ...]
    messages: tuple[str, ...] = ()
    """What is not shown, and why: runs that are damaged, missing, or without the metric."""

    @property
    def num_runs(self) -> int:
        """Runs that are shown."""
        return sum(len(group.curves) for group in self.groups)

    @property
    def caption(self) -> str:
        """How many runs there are, and what the lines and the band are."""
        counts = {len(group.curves) for group in self.groups}
        texts = {seeds_text([curve.seed for curve in group.curves]) for group in self.groups}
        seeds = f" ({texts.pop()})" if len(texts) == 1 and "" not in texts else ""
        if len(self.groups) == 1:
            runs = f"{_count(self.num_runs, 'run')}{seeds}"
        elif len(counts) == 1:
            runs = f"{len(self.groups)} groups of {_count(min(counts), 'run')}{seeds or ' each'}"
        else:
            runs = f"{len(self.groups)} groups, {_count(self.num_runs, 'run')}{seeds}"
        kinds = {group.kind for group in self.groups} - {"run"}
        if not kinds:
            return f"{runs}; no band: one run says nothing about the spread"
        ordered = [WORDS[kind] for kind in ("iqm", "mean", "median") if kind in kinds]
        words = " or, below four runs, ".join(ordered)
        single = "; no band where there is one run" if 1 in counts else ""
        return f"{runs}; thin lines: runs; thick line and band: {words}{single}"


def collect_curves(
    groups: Sequence[RunGroup],
    metric: str = RETURN,
    x_axis: XAxis = "steps",
    *,
    use_mean: bool = False,
) -> CurveSet:
    """The curves of a metric; an error if no run has it. Four runs and more are summarized by their mean on request."""
    runs = [run for group in groups for run in group.runs]
    messages: list[str] = []
    found = []
    for group in groups:
        curves = [curve_of(run, metric, x_axis) for run in group.runs]
        messages += _messages(group, curves, metric, x_axis)
        shown = [curve for curve in curves if curve.x]
        if shown:
            found.append(join_curves(group.name, shown, use_mean=use_mean))
    if not found:
        _refuse(runs, metric, x_axis)
    messages += [
        f"the runs of '{group.name}' have no {x_axis} in common: there is no summary of them"
        for group in found
        if not group.x
    ]
    return CurveSet(metric, x_axis, _x_label(runs, x_axis), tuple(found), tuple(messages))


def curve_of(run: RunRecord, metric: str, x_axis: XAxis = "steps") -> Curve:
    """One run's curve, without values that are not finite; of two lines with the same x the later one counts."""
    key = X_KEYS[x_axis]
    points = {}
    for line in run.metrics:
        x, y = finite(line.get(key)), finite(line.get(metric))
        if x is not None and y is not None:
            points[float(x)] = float(y)
    ordered = sorted(points)
    return Curve(
        run.run_dir, run.seed, ordered, [points[x] for x in ordered], _online_from(run, key)
    )


def join_curves(name: str, curves: Sequence[Curve], *, use_mean: bool = False) -> GroupCurves:
    """The summary of curves over the x values that all of them have."""
    grid = _common_grid([curve.x for curve in curves])
    table = np.array([np.interp(grid, curve.x, curve.y) for curve in curves])  # [runs, points]
    y, low, high = (column.tolist() for column in summarize_points(table, use_mean=use_mean))
    mean = (table / len(curves)).sum(axis=0).tolist()
    kind = summary_kind(len(curves), use_mean=use_mean)
    return GroupCurves(name, tuple(curves), kind, grid, y, low, high, mean)


def seeds_text(seeds: Sequence[int | None]) -> str:
    """`seed 3`, or `seeds 0–4`; empty if a seed is not known."""
    known = sorted({seed for seed in seeds if seed is not None})
    if not known or None in seeds:
        return ""
    return f"seed{'' if len(known) == 1 else 's'} {format_seeds(known).replace('..', '–').replace(',', ', ')}"


def _common_grid(xs: Sequence[Sequence[float]]) -> list[float]:
    """The x values of curves from the last first to the first last; evenly spaced if they are too many."""
    first, last = max(x[0] for x in xs), min(x[-1] for x in xs)
    within = [{value for value in x if first <= value <= last} for x in xs]
    if first > last:
        return []
    grid = set().union(*within)
    if len(grid) > MAX_POINTS and any(values != grid for values in within):
        grid = set(np.linspace(first, last, MAX_POINTS).tolist())
    return sorted(grid)


def _messages(
    group: RunGroup, curves: Sequence[Curve], metric: str, x_axis: XAxis
) -> Iterator[str]:
    for run, curve in zip(group.runs, curves, strict=True):
        if run.damage is not None:
            yield f"{run.run_dir.name} is read up to its damage only: {run.damage}"
        if not run.metrics:
            yield f"{run.run_dir.name} is left out: it has logged nothing yet"
        elif not curve.x:
            lacking = X_KEYS[x_axis] if run.curve(metric)[0] else metric
            yield f"{run.run_dir.name} is left out: it has not logged {lacking}"
    if group.missing:
        listed = ", ".join(group.missing[:4]) + (", …" if len(group.missing) > 4 else "")
        yield f"{_count(len(group.missing), 'planned run')} of '{group.name}' not begun: {listed}"


def _refuse(runs: Sequence[RunRecord], metric: str, x_axis: XAxis) -> None:
    """Raise the error that says why there is no curve."""
    names = dict.fromkeys(name for run in runs for line in run.metrics for name in line)
    names.pop("global_step", None)
    if not names:
        reason = "no run has begun yet: nothing to plot"
        if len(runs) == 1:
            reason = f"'{runs[0].run_dir}' has logged nothing yet: nothing to plot"
        elif runs:
            reason = f"none of the {len(runs):,} runs has logged anything yet: nothing to plot"
        damages = [run.damage for run in runs if run.damage is not None]
        raise RLTrainingError(damages[0] if damages else reason)
    if metric not in names:
        shown = [name for name in names if name not in PHASES]
        raise ConfigError(f"no run has logged the metric '{metric}'{suggest(metric, shown)}")
    remedy = "use --x steps" if x_axis != "steps" else "the lines may be damaged"
    raise RLTrainingError(f"no run has logged {metric} together with {X_KEYS[x_axis]}: {remedy}")


def _x_label(runs: Iterable[RunRecord], x_axis: XAxis) -> str:
    """What the x axis counts; one text for runs of different kinds."""
    if x_axis != "steps":
        return X_LABELS[x_axis]
    kinds = {step_unit(run)[0] for run in runs if run.metrics}
    if kinds == {OFFLINE, FIRST_OFFLINE}:
        return FIRST_OFFLINE
    return kinds.pop() if len(kinds) == 1 else UNKNOWN if UNKNOWN in kinds or not kinds else MIXED


def _online_from(run: RunRecord, key: str) -> float | None:
    """The value of `key` at the last line before a run went online; None if it did not."""
    first = step_unit(run)[1]
    if first is None or key == "global_step":
        return first
    before = [line for line in run.metrics if (finite(line.get("global_step")) or 0) <= first]
    values = [finite(line.get(key)) for line in before]
    return max((value for value in values if value is not None), default=None)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

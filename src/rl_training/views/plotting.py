"""Plots the learning curve of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.errors import ConfigError, RLTrainingError
from rl_training.experiment.config import load_config_file
from rl_training.experiment.logging import read_metrics
from rl_training.experiment.registry import learns_offline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Metrics = Mapping[str, Any]
"""One line of metrics.jsonl."""


def plot_learning_curve(run_dir: Path, out: Path | None = None) -> Path:
    """Plot training and evaluation return over steps into `learning_curve.png` of the run folder, or into `out`."""
    figure = draw_learning_curve(run_dir)
    target = out or run_dir / "learning_curve.png"
    if out is None and target.is_symlink():
        raise RLTrainingError(f"'{target}' is a link: remove it, or write elsewhere with --out FILE")
    try:
        figure.savefig(target)
    except (OSError, ValueError) as error:
        raise RLTrainingError(f"cannot write the picture '{target}': {error}") from None
    return target


def draw_learning_curve(run_dir: Path) -> Figure:
    """Training and evaluation return over steps; a vertical line marks the start of online fine-tuning."""
    metrics_path = run_dir / "metrics.jsonl"
    if not metrics_path.is_file():
        raise RLTrainingError(f"'{run_dir}' is not a run folder: it has no metrics.jsonl")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise RLTrainingError('plotting needs matplotlib: pip install "rl-training[plot]"') from None
    lines = list(read_metrics(metrics_path))
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    _draw_returns(axes, lines)
    label, online_from = _unit_of_steps(run_dir, max((line.get("global_step") or 0 for line in lines), default=0))
    if online_from is not None:
        axes.axvline(online_from, color="0.5", linestyle="--", linewidth=1, label="online from here")
    axes.set(xlabel=label, ylabel="return", title=run_dir.name)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(loc="best", frameon=False)
    return figure


def _draw_returns(axes: Any, lines: Sequence[Metrics]) -> None:
    """Mean returns of training and evaluation, with a band of one standard deviation around the latter."""
    for name, label, style in (
        ("train_return_mean", "training (mean of the last 100 episodes)", "-"),
        ("eval_return_mean", "evaluation (deterministic policy)", "o-"),
    ):
        points = [(line["global_step"], line[name]) for line in lines if _has(line, "global_step", name)]
        if points:
            axes.plot(*zip(*points, strict=True), style, label=label, markersize=4)
    bands = [line for line in lines if _has(line, "global_step", "eval_return_mean", "eval_return_std")]
    steps = [line["global_step"] for line in bands]
    low = [line["eval_return_mean"] - line["eval_return_std"] for line in bands]
    high = [line["eval_return_mean"] + line["eval_return_std"] for line in bands]
    axes.fill_between(steps, low, high, color="C1", alpha=0.15, linewidth=0)


def _has(line: Metrics, *names: str) -> bool:
    return all(line.get(name) is not None for name in names)


def _unit_of_steps(run_dir: Path, last_step: int) -> tuple[str, int | None]:
    """The unit of `global_step`, and the step at which online fine-tuning started, if it has."""
    try:
        config = load_config_file(run_dir / "config.yaml")
    except ConfigError:
        return "steps", None
    if not learns_offline(str(config.get("algo"))):
        return "environment steps", None
    algo_kwargs = config.get("algo_kwargs")
    online = algo_kwargs.get("online") if isinstance(algo_kwargs, dict) else None
    first = online.get("after_updates") if isinstance(online, dict) else None
    if isinstance(first, int) and last_step > first:
        return "updates, then environment steps", first
    return "updates", None

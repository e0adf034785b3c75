"""Text of one run: how it ended, its scores, and where it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.terminal.tables import table_lines

if TYPE_CHECKING:
    from rl_training.experiment.config import TrainConfig
    from rl_training.runtime.trainer import TrainResult

LABEL_WIDTH = 7
Row = tuple[str, str]


def training_lines(
    result: TrainResult, config: TrainConfig, further: Sequence[Row] = ()
) -> list[str]:
    """How a training ended, its scores and its folder; then the rows of `further`."""
    steps, updates = int(result.metrics["global_step"]), int(result.metrics["gradient_steps"])
    end = "finished" if result.stop_reason is None else "stopped"
    title = f"{config.algo} on {config.env_id or 'a dataset'}, seed {config.seed}: {end} at step {steps:,}"
    rows = [] if result.stop_reason is None else [("reason", result.stop_reason)]
    rows += [
        *_score_rows(result.metrics),
        *_best_rows(result.run_dir),
        ("run", str(result.run_dir)),
        *further,
    ]
    lines = [f"{title} ({updates:,} gradient steps)", *_row_lines(rows)]
    if updates == 0:
        lines.append("WARNING: nothing was learned: this run took 0 gradient steps")
    return lines


def evaluation_lines(metrics: Mapping[str, float], place: Path) -> list[str]:
    """The score of a policy that was evaluated, from the run or checkpoint `place`."""
    return [f"step {int(metrics['global_step']):,} of {place}", *_row_lines(_score_rows(metrics))]


def _row_lines(rows: Sequence[Row]) -> list[str]:
    return table_lines([(f"{label:<{LABEL_WIDTH}}", text) for label, text in rows], "l", "  ")


def reduced(metrics: Mapping[str, float], *, keep_all: bool = False) -> dict[str, float | None]:
    """Steps, evaluation and best score, to six significant digits; all metrics are in metrics.jsonl and --json."""
    wanted = {"global_step", "gradient_steps", "best_eval_return_mean"}
    found: dict[str, float | None] = {}
    for name, value in metrics.items():
        if not (keep_all or name in wanted or name.startswith("eval_")):
            continue
        found[name] = value
        if isinstance(value, float):
            found[name] = float(f"{value:.6g}") if math.isfinite(value) else None
    return found


def _score_rows(metrics: Mapping[str, float]) -> list[Row]:
    if "eval_return_mean" not in metrics:
        return _estimate_rows(metrics) if "fqe_return_mean" in metrics else []
    count = int(metrics["eval_episodes"])
    score = f"{metrics['eval_return_mean']:.1f} ± {metrics['eval_return_std']:.1f}"
    meaning = f"mean ± standard deviation of {count:,} {'episode' if count == 1 else 'episodes'}"
    step = int(metrics.get("eval_step", metrics["global_step"]))
    if step == metrics["global_step"]:
        rows = [("score", f"{score} ({meaning})")]
    else:
        rows = [("score", f"{score} at step {step:,} (not evaluated since)"), ("", meaning)]
    if "eval_normalized_score" in metrics:
        rows.append(
            ("", f"{metrics['eval_normalized_score']:.1f} normalized (0: random, 100: expert)")
        )
    if "eval_success_rate" in metrics:
        rows.append(("", f"{metrics['eval_success_rate']:.0%} of the episodes successful"))
    return rows


def _estimate_rows(metrics: Mapping[str, float]) -> list[Row]:
    """The rows of fitted Q evaluation."""
    mean, low, high = (f"{metrics[f'fqe_return_{name}']:.4g}" for name in ("mean", "low", "high"))
    count, converged = int(metrics["held_out_episodes"]), "" if metrics["fqe_converged"] else "not "
    rows = [
        ("estimate", f"{mean} (95 % bootstrap interval {low} to {high})"),
        (
            "dataset",
            f"{metrics['behaviour_return_mean']:.4g} (mean of {count:,} held-out episodes)",
        ),
        ("", f"both are returns discounted by gamma {metrics['gamma']:g}"),
        (
            "drift",
            f"{metrics['fqe_drift']:.2g} in the last tenth of the updates: {converged}converged",
        ),
    ]
    if metrics["tail_weight"] > 0:
        rows.append(
            (
                "tail",
                f"{metrics['tail_weight']:.2g} weight of rewards after the recorded episode ends",
            )
        )
    return rows


def _best_rows(run_dir: Path) -> list[Row]:
    from rl_training.experiment.checkpoint_folder import CheckpointFolder

    best = CheckpointFolder(run_dir / "checkpoints").best
    if best is None:
        return []
    return [
        ("best", f"{best.score:.1f} at step {int(best.name.split('_')[1]):,} (checkpoints/best)")
    ]

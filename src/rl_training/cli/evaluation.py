"""The commands that look at a run: `eval` and `plot`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.data import load_source
from rl_training.cli.options import AsJson, CheckpointPath, Device, EvalEpisodes, Plugins, show
from rl_training.errors import RLTrainingError


def evaluate(
    checkpoint: CheckpointPath,
    eval_episodes: EvalEpisodes = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Judge by this file or Minari id instead of an environment.")
    ] = None,
    fqe_updates: Annotated[
        int | None, typer.Option("--fqe-updates", min=1, help="Updates of that estimate (default: 10000).")
    ] = None,
    device: Device = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a checkpoint, or a run's last one, on the run's evaluation seeds, or by recorded data alone."""
    from rl_training.runtime.workflows import evaluate_checkpoint, evaluate_checkpoint_offline

    if dataset is not None and eval_episodes is not None:
        raise RLTrainingError("--dataset judges without an environment, so --eval-episodes means nothing beside it")
    if dataset is None and fqe_updates is not None:
        raise RLTrainingError("--fqe-updates belongs to an estimate from data: name the data with --dataset")
    if dataset is None:
        metrics = evaluate_checkpoint(checkpoint, num_episodes=eval_episodes, device=device or "auto")
    else:
        data = load_source(dataset)
        updates = fqe_updates or 10_000
        metrics = evaluate_checkpoint_offline(checkpoint, data, num_updates=updates, device=device or "auto")
    show(metrics, [f"metrics={json.dumps(metrics)}"], as_json)


def plot(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path | None, typer.Option("--out", help="PNG to write (default: in the run folder).")] = None,
) -> None:
    """Draw a run's learning curve (needs the extra: pip install "rl-training[plot]")."""
    from rl_training.experiment.plotting import plot_learning_curve

    print(f"picture={plot_learning_curve(run, out)}")

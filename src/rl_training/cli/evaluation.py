"""The commands that look at a run: `eval` and `plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.arguments import find_run, find_run_folder, positive_number
from rl_training.cli.data import load_source
from rl_training.cli.options import (
    NUMBER,
    AllowedPaths,
    AsJson,
    CheckpointPath,
    CheckpointPlugins,
    Device,
    EvalEpisodes,
    Quiet,
    Run,
    put,
)
from rl_training.cli.report import report_evaluation
from rl_training.errors import RLTrainingError


def evaluate(
    run: Run = None,
    checkpoint: CheckpointPath = None,
    eval_episodes: EvalEpisodes = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            "--dataset",
            metavar="FILE|MINARI_ID",
            help="Estimate the return from this dataset (fitted Q evaluation).",
        ),
    ] = None,
    fqe_updates: Annotated[
        int | None,
        typer.Option(
            "--fqe-updates",
            help="Updates of that estimate (default: 10000).",
            metavar=NUMBER,
            parser=positive_number,
        ),
    ] = None,
    device: Device = None,
    plugin: CheckpointPlugins = None,
    allow_path: AllowedPaths = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run: `eval RUN`.

    The policy of its last checkpoint, or of the checkpoint named, plays episodes on the run's evaluation seeds. With
    --dataset its return is estimated from recorded transitions alone.
    """
    from rl_training.runtime.workflows import evaluate_checkpoint, evaluate_checkpoint_offline

    path = find_run(run, checkpoint)
    if dataset is not None and eval_episodes is not None:
        raise RLTrainingError("--dataset judges without an environment, so --eval-episodes means nothing beside it")
    if dataset is None and fqe_updates is not None:
        raise RLTrainingError("--fqe-updates belongs to an estimate from data: name the data with --dataset")
    if dataset is None:
        metrics = evaluate_checkpoint(path, num_episodes=eval_episodes, device=device or "auto")
    else:
        data = load_source(dataset)
        updates = fqe_updates or 10_000
        metrics = evaluate_checkpoint_offline(path, data, num_updates=updates, device=device or "auto")
    report_evaluation(path, metrics, as_json)


def plot(
    run: Run = None,
    checkpoint: CheckpointPath = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="PNG to write (default: in the run folder).")
    ] = None,
) -> None:
    """Draw a run's learning curve: `plot RUN`.

    Needs an extra: pip install "rl-training[plot]"
    """
    from rl_training.views.plotting import plot_learning_curve

    put(f"picture={plot_learning_curve(find_run_folder(run, checkpoint), out)}")

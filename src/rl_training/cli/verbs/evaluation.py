"""The verbs that read a run: `eval` and `plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.arguments import find_run, find_run_folder, positive_number
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
)
from rl_training.cli.output import put
from rl_training.cli.report import report_evaluation
from rl_training.cli.verbs.data import load_source
from rl_training.errors import ConfigError

Dataset = Annotated[
    str | None,
    typer.Option(
        "--dataset", metavar="FILE|MINARI_ID", help="Estimate the return from this dataset (fitted Q evaluation)."
    ),
]
FQEUpdates = Annotated[
    int | None,
    typer.Option(
        "--fqe-updates",
        metavar=NUMBER,
        parser=positive_number,
        help="Gradient updates of fitted Q evaluation (default: 10000).",
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="PNG file to write (default: in the run folder).")
]


def evaluate(
    run: Run = None,
    checkpoint: CheckpointPath = None,
    eval_episodes: EvalEpisodes = None,
    dataset: Dataset = None,
    fqe_updates: FQEUpdates = None,
    device: Device = None,
    plugin: CheckpointPlugins = None,
    allow_path: AllowedPaths = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run: `eval RUN`.

    Runs the deterministic policy of the last checkpoint, or of the checkpoint named, on the run's evaluation seeds.
    With --dataset no environment is needed: the return is estimated from recorded transitions.
    """
    from rl_training.runtime.workflows import evaluate_checkpoint, evaluate_checkpoint_offline

    path = find_run(run, checkpoint)
    if dataset is not None and eval_episodes is not None:
        raise ConfigError("--eval-episodes has no effect with --dataset, which runs no episodes: remove one of them")
    if dataset is None and fqe_updates is not None:
        raise ConfigError("--fqe-updates has no effect without --dataset: add --dataset FILE, or remove it")
    if dataset is None:
        metrics = evaluate_checkpoint(path, num_episodes=eval_episodes, device=device or "auto")
    else:
        data, updates = load_source(dataset), fqe_updates or 10_000
        metrics = evaluate_checkpoint_offline(path, data, num_updates=updates, device=device or "auto")
    report_evaluation(path, metrics, as_json)


def plot(run: Run = None, checkpoint: CheckpointPath = None, out: Out = None) -> None:
    """Plot a run's learning curve: `plot RUN`.

    Needs an extra: pip install "rl-training[plot]"
    """
    from rl_training.views.plotting import plot_learning_curve

    put(f"picture={plot_learning_curve(find_run_folder(run, checkpoint), out)}")

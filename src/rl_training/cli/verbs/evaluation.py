"""The verbs that read runs: `eval` and `plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.arguments import find_run, output_file, positive_number
from rl_training.cli.completion import complete_run
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
from rl_training.cli.output import say, show
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
Runs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN...",
        autocompletion=complete_run,
        help="Runs (folders, prefixes, @last), studies, STUDY:SETTING, folders of runs, quoted patterns. Needed unless"
        " --checkpoint is given.",
    ),
]
Metric = Annotated[str, typer.Option("--metric", metavar="NAME", help="Metric on the y axis.")]
XAxisOption = Annotated[
    str, typer.Option("--x", metavar="AXIS", help="The x axis: steps, time (wall time) or updates (gradient steps).")
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        parser=output_file,
        help="File to write: .png, .svg, .pdf, or .csv with the numbers (default: in the folder of the run or study).",
    ),
]


Mean = Annotated[
    bool, typer.Option("--mean", help="Draw the mean and its interval (Student's t) of four and more runs.")
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


def plot(
    runs: Runs = None,
    checkpoint: CheckpointPath = None,
    metric: Metric = "eval_return_mean",
    x: XAxisOption = "steps",
    mean: Mean = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Plot runs: `plot RUN`, `plot STUDY`, `plot 'runs/ppo*' --x time --out a.svg`.

    One run: training and evaluation return. Several: a thin line for each seed, and for each setting the median and
    range of up to three runs, or the interquartile mean of four and more and its 95 % interval.

    Needs an extra: pip install "rl-training[plot]"
    """
    from rl_training.studies.groups import find_groups
    from rl_training.views.curves import X_KEYS
    from rl_training.views.plotting import plot_runs

    words = [*(runs or []), *([] if checkpoint is None else [str(checkpoint)])]
    if not words:
        raise ConfigError("missing argument RUN: name a run folder, a study, or a folder of runs")
    axis = next((name for name in X_KEYS if name == x), None)
    if axis is None:
        raise ConfigError(f"bad value '{x}' for --x: use {', '.join(X_KEYS)}")
    plotted = plot_runs(find_groups(words), metric, axis, out, use_mean=mean)
    for message in plotted.curves.messages:
        say(message)
    kind = "table" if plotted.is_table else "picture"
    show(plotted.as_dict(), [f"{kind}={plotted.path}"], as_json)

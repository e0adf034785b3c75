"""The `data` commands: record, mix and examine data sets."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.arguments import StrictCommand, complete_run, find_run, positive_number
from rl_training.cli.options import (
    NUMBER,
    AllowedPaths,
    AsJson,
    CheckpointPath,
    CheckpointPlugins,
    Plugins,
    find_beside,
    put,
    say,
    show,
)
from rl_training.errors import ConfigError

if TYPE_CHECKING:
    from rl_training.data.offline_dataset import TransitionDataset

app = typer.Typer(rich_markup_mode=None)

Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="The .npz file to write.")]
Minari = Annotated[
    str | None, typer.Option("--minari", metavar="NAME", help="A new Minari data set to write instead: name-v0.")
]
Seed = Annotated[
    int, typer.Option("--seed", min=0, metavar=NUMBER, help="Seed of the environment and of the random actions.")
]
MixSeed = Annotated[int, typer.Option("--seed", min=0, metavar=NUMBER, help="Seed of the choice of episodes.")]

OptionalRun = Annotated[
    Path | None,
    typer.Argument(
        help="A run folder, or a checkpoint in it. Needed unless --checkpoint or --env is given.",
        metavar="[RUN]",
        autocompletion=complete_run,
    ),
]


@app.callback()
def _data() -> None:
    """Record, mix and examine data sets of transitions."""


@app.command(cls=StrictCommand)
def collect(
    steps: Annotated[int, typer.Option("--steps", help="Steps to record.", metavar=NUMBER, parser=positive_number)],
    run: OptionalRun = None,
    checkpoint: CheckpointPath = None,
    env: Annotated[
        str | None,
        typer.Option(
            "--env", metavar="ENV_ID", callback=find_beside, help="Instead of an agent: random actions in this one."
        ),
    ] = None,
    out: Out = None,
    minari: Minari = None,
    epsilon: Annotated[
        float, typer.Option("--epsilon", min=0, max=1, metavar=NUMBER, help="Probability of a random action.")
    ] = 0.0,
    noise: Annotated[
        float, typer.Option("--noise", min=0, metavar=NUMBER, help="Standard deviation of noise on actions.")
    ] = 0.0,
    seed: Seed = 0,
    plugin: CheckpointPlugins = None,
    allow_path: AllowedPaths = None,
) -> None:
    """Record what a trained agent, or random actions, do: `data collect RUN --steps 10000 --out a.npz`."""
    if (out is None) == (minari is None):
        raise ConfigError("say where to write: either --out FILE.npz or --minari name-v0")
    path = find_run(run, checkpoint) if run or checkpoint else None
    if (path is None) == (env is None):
        raise ConfigError("say who acts: either a RUN or --env ENV_ID (random actions)")
    if env is not None and (epsilon or noise):
        raise ConfigError("--epsilon and --noise disturb an agent: with --env all actions are random already")
    from rl_training.data.dataset_loaders import check_new_file, save_transition_dataset
    from rl_training.data.minari_datasets import check_new_id, write_minari
    from rl_training.runtime.recording import record_random
    from rl_training.runtime.workflows import record_checkpoint

    # Before the recording, which may take long.
    if out is not None:
        check_new_file(out)
    if minari is not None:
        check_new_id(minari)
    if path is not None:
        recording = record_checkpoint(path, steps, seed=seed, epsilon=epsilon, noise=noise)
    else:
        import numpy as np

        assert env is not None
        recording = record_random(env, {}, steps, np.random.SeedSequence(seed))
    if out is not None:
        put(f"file={save_transition_dataset(out, recording.dataset)}")
    if minari is not None:
        write_minari(minari, recording.dataset, recording.observation_space, recording.action_space)
        put(f"minari={minari}")
    _print_returns(recording.dataset)


@app.command(cls=StrictCommand)
def mix(
    words: Annotated[list[str], typer.Argument(help="Files to mix.", metavar="FILE...")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The .npz file to write.")],
    weights: Annotated[
        list[float] | None, typer.Option("--weights", metavar="NUMBER...", help="Share of each file.")
    ] = None,
    seed: MixSeed = 0,
) -> None:
    """Mix whole episodes of several files: `data mix a.npz b.npz --weights 0.5 0.5 --out mixed.npz`."""
    from rl_training.data.dataset_loaders import check_new_file, mix_datasets, save_transition_dataset

    check_new_file(out)
    # Words after the first number of --weights reach us as files; no file is called 0.5.
    files, shares = [], list(weights or [])
    for word in words:
        try:
            shares.append(float(word))
        except ValueError:
            files.append(word)
    shares = shares or [1.0] * len(files)
    dataset = mix_datasets([load_source(file) for file in files], shares, seed)
    put(f"file={save_transition_dataset(out, dataset)}")
    _print_returns(dataset)


@app.command(cls=StrictCommand)
def check(
    source: Annotated[
        str, typer.Argument(help="A .npz or .pt file, or the id of a Minari data set.", metavar="DATASET")
    ],
    env: Annotated[
        str | None,
        typer.Option("--env", metavar="ENV_ID", callback=find_beside, help="Check against this environment's spaces."),
    ] = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Examine a data set: what is wrong with it, what to do about it, and which algorithm fits. Errors exit 1."""
    from rl_training.data.dataset_checks import check_dataset
    from rl_training.spaces.spec import describe_spaces
    from rl_training.views.dataset_report import render_report

    spaces = describe_spaces(*_spaces_of(env)) if env is not None else None
    report = check_dataset(load_source(source, tell_notes=False), spaces)
    if as_json:
        show(report.to_dict(), [], as_json)
    else:
        from rich.console import Console

        Console().print(render_report(report))
    if report.errors:
        raise typer.Exit(1)


def load_source(source: str, *, tell_notes: bool = True) -> TransitionDataset:
    """The data set in a file, or the Minari data set of that id; what reading it brought up is told."""
    from rl_training.data.dataset_loaders import load_transition_dataset

    kind, path = Path(source).suffix.removeprefix("."), Path(source)
    if kind not in ("npz", "pt") and path.is_file():
        raise ConfigError(f"cannot tell what '{source}' is: the name of a file should end in .npz or .pt")
    where = {"dataset_path": path} if kind in ("npz", "pt") else {"dataset_id": source}
    dataset = load_transition_dataset(kind if "dataset_path" in where else "minari", **where)
    for note in dataset.notes if tell_notes else ():
        say(f"{source}: {note}")
    return dataset


def _spaces_of(env_id: str) -> tuple[Any, Any]:
    from rl_training.envs.factory import make_env

    with contextlib.closing(make_env(env_id)) as env:
        return env.observation_space, env.action_space


def _print_returns(dataset: TransitionDataset) -> None:
    returns: Any = dataset.episode_returns()
    put(f"transitions={len(dataset)} episodes={len(returns)} return_mean={returns.mean():.2f}")

"""The `data` verbs: record, mix and check datasets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.options import (
    NUMBER,
    AllowedPaths,
    AsJson,
    CheckpointPath,
    CheckpointPlugins,
    Plugins,
    find_in_working_directory,
    find_run,
    option,
    positive_number,
    run_argument,
)
from rl_training.cli.output import put, say, show
from rl_training.cli.parsing import verb
from rl_training.errors import ConfigError

if TYPE_CHECKING:
    from rl_training.data.offline_dataset import TransitionDataset
    from rl_training.runtime.recording import Recording


app = typer.Typer(rich_markup_mode=None)

Steps = Annotated[
    int, option("--steps", NUMBER, "Environment steps to record.", parser=positive_number)
]
OptionalRun = Annotated[
    Path | None,
    run_argument(
        "[RUN]",
        "A run folder, or a checkpoint in it. Needed unless --checkpoint or --env is given.",
    ),
]
RandomEnv = Annotated[
    str | None,
    option(
        "--env",
        "ENV_ID",
        "Record random actions in this environment, instead of a RUN.",
        callback=find_in_working_directory,
    ),
]
Out = Annotated[Path | None, option("--out", "FILE", "The .npz file to write.")]
Minari = Annotated[
    str | None,
    option("--minari", "NAME", "New Minari dataset to write instead of a file, such as pole-v0."),
]
Epsilon = Annotated[
    float, option("--epsilon", NUMBER, "Probability of a random action.", min=0, max=1)
]
Noise = Annotated[
    float,
    option("--noise", NUMBER, "Standard deviation of Gaussian noise on Box actions.", min=0),
]
Seed = Annotated[
    int, option("--seed", NUMBER, "Seed of the environment and of the random actions.", min=0)
]
MixedFiles = Annotated[
    list[str], typer.Argument(metavar="DATASET...", help="Files or Minari ids to mix.")
]
MixOut = Annotated[Path, option("--out", "FILE", "The .npz file to write.")]
Weights = Annotated[
    list[float] | None,
    option("--weights", "NUMBER...", "Proportion of each dataset in the mixture (default: equal)."),
]
MixSeed = Annotated[int, option("--seed", NUMBER, "Seed of the sampled episodes.", min=0)]
Source = Annotated[
    str,
    typer.Argument(metavar="DATASET", help="A .npz or .pt file, or the id of a Minari dataset."),
]
CheckedEnv = Annotated[
    str | None,
    option(
        "--env",
        "ENV_ID",
        "Check against this environment's spaces.",
        callback=find_in_working_directory,
    ),
]


@app.callback()
def _data() -> None:
    """Record, mix and check datasets of transitions."""


@verb(app)
def collect(
    steps: Steps,
    run: OptionalRun = None,
    checkpoint: CheckpointPath = None,
    env: RandomEnv = None,
    out: Out = None,
    minari: Minari = None,
    epsilon: Epsilon = 0.0,
    noise: Noise = 0.0,
    seed: Seed = 0,
    plugin: CheckpointPlugins = None,
    allow_path: AllowedPaths = None,
) -> None:
    """Record a trained policy, or random actions: `data collect RUN --steps 10000 --out a.npz`."""
    if (out is None) == (minari is None):
        raise ConfigError("give exactly one place to write to: --out FILE.npz or --minari name-v0")
    path = find_run(run, checkpoint) if run or checkpoint else None
    if (path is None) == (env is None):
        raise ConfigError(
            "give exactly one source of actions: RUN, or --env ENV_ID for random actions"
        )
    if env is not None and (epsilon or noise):
        raise ConfigError(
            "--epsilon and --noise have no effect with --env, whose actions are all random: remove them"
        )
    import numpy as np

    from rl_training.runtime.recording import record_random
    from rl_training.runtime.workflows import record_checkpoint

    _check_is_new(out, minari)
    if path is not None:
        recording = record_checkpoint(path, steps, seed=seed, epsilon=epsilon, noise=noise)
    else:
        recording = record_random(str(env), {}, steps, np.random.SeedSequence(seed))
    _save(recording, out, minari)
    _print_returns(recording.dataset)


def _check_is_new(out: Path | None, minari: str | None) -> None:
    """Raise if the dataset exists: before the recording, which may take long."""
    from rl_training.data.dataset_loaders import check_new_file
    from rl_training.data.minari_datasets import check_new_id

    if out is not None:
        check_new_file(out)
    if minari is not None:
        check_new_id(minari)


def _save(recording: Recording, out: Path | None, minari: str | None) -> None:
    from rl_training.data.dataset_loaders import save_transition_dataset
    from rl_training.data.minari_datasets import write_minari

    if out is not None:
        put(f"file={save_transition_dataset(out, recording.dataset)}")
    if minari is not None:
        write_minari(minari, recording.dataset, recording.observation_space, recording.action_space)
        if recording.dataset.masks is not None:
            say(
                "WARNING: a Minari dataset has no action masks: to keep this recording's, use --out"
            )
        put(f"minari={minari}")


@verb(app)
def mix(words: MixedFiles, out: MixOut, weights: Weights = None, seed: MixSeed = 0) -> None:
    """Mix whole episodes of several datasets: `data mix a.npz b.npz --weights 0.5 0.5 --out mixed.npz`."""
    from rl_training.data.dataset_loaders import (
        check_new_file,
        mix_datasets,
        save_transition_dataset,
    )

    check_new_file(out)
    # The parser gives --weights its first number only; the others arrive among the files. No file is named 0.5.
    files, proportions = [], list(weights or [])
    for word in words:
        try:
            proportions.append(float(word))
        except ValueError:
            files.append(word)
    proportions = proportions or [1.0] * len(files)
    dataset = mix_datasets([load_source(file) for file in files], proportions, seed)
    put(f"file={save_transition_dataset(out, dataset)}")
    _print_returns(dataset)


@verb(app)
def check(
    source: Source, env: CheckedEnv = None, plugin: Plugins = None, as_json: AsJson = False
) -> None:
    """Check a dataset: its faults and their remedies, and the algorithms that suit it.

    Exits with 1 if it has errors.
    """
    from rl_training.data.dataset_checks import check_dataset
    from rl_training.envs.factory import EnvSource
    from rl_training.views.findings import render_report

    spaces = EnvSource.parse(env).read_spaces() if env is not None else None
    report = check_dataset(load_source(source, tell_notes=False), spaces)
    if as_json:
        show(report.to_dict(), [], as_json)
    else:
        from rich.console import Console

        Console().print(render_report(report))
    if report.errors:
        raise typer.Exit(1)


def load_source(source: str, *, tell_notes: bool = True) -> TransitionDataset:
    """Load a .npz or .pt file, or a Minari dataset by its id; with `tell_notes`, print the loader's notes."""
    from rl_training.data.dataset_loaders import FILE_READERS, load_transition_dataset

    kind, path = Path(source).suffix.removeprefix("."), Path(source)
    if kind in FILE_READERS:
        dataset = load_transition_dataset(kind, dataset_path=path)
    elif path.is_file():
        raise ConfigError(
            f"unknown format of dataset '{source}': rename the file to end in .npz or .pt"
        )
    else:
        dataset = load_transition_dataset("minari", dataset_id=source)
    for note in dataset.notes if tell_notes else ():
        say(f"{source}: {note}")
    return dataset


def _print_returns(dataset: TransitionDataset) -> None:
    returns: Any = dataset.episode_returns()
    put(f"transitions={len(dataset)} episodes={len(returns)} return_mean={returns.mean():.2f}")

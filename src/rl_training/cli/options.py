"""Arguments and options that several verbs share. Imports here stay light: `--help` loads no torch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from rl_training.errors import ConfigError


def whole_number(text: str | int) -> int:
    """Parse 20000, 20_000, 1e6 or 1.0e6; a number with a fraction is refused."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
        if number == int(number):
            return int(number)
    except (ValueError, OverflowError):
        from rl_training.validation import spelled_out  # imports pydantic

        example = spelled_out(text) or "an integer, such as 20000 or 1e6"
        raise typer.BadParameter(f"'{text}' is not a whole number: write {example}") from None
    raise typer.BadParameter(
        f"{text} is not a whole number: write an integer, such as 20000 or 1e6"
    )


def positive_number(text: str | int) -> int:
    """Parse a whole number that is at least 1."""
    number = whole_number(text)
    if number < 1:
        raise typer.BadParameter(f"{text} should be at least 1")
    return number


def output_file(text: str | Path) -> Path:
    """Parse the path of a file to write; one that ends in a slash names a folder and is refused."""
    if str(text).endswith(("/", os.sep)):
        raise typer.BadParameter(
            f"'{text}' names a folder: give the path of a file, without a slash at its end"
        )
    return Path(text)


def find_run(run: Path | None, checkpoint: Path | None = None) -> Path:
    """The run folder or checkpoint that a command names, as RUN or as --checkpoint; exactly one must be given."""
    if run is not None and checkpoint is not None:
        raise ConfigError(
            f"the run is given twice, as RUN '{run}' and as --checkpoint '{checkpoint}': remove one"
        )
    found = run or checkpoint
    if found is None:
        raise ConfigError(
            "missing argument RUN (or --checkpoint): name a run folder or a checkpoint in it"
        )
    return named_run(found)


def named_run(name: Path | str) -> Path:
    """The run that `name` means: a path, the unique beginning of a run folder's name in `runs`, or `@last`."""
    with contextlib.suppress(OSError):  # a name longer than any file's
        if Path(name).exists():
            return Path(name)
    from rl_training.studies.catalog import find_run as find_in_catalog

    return find_in_catalog(str(name))


def complete_algorithm(incomplete: str) -> list[tuple[str, str]]:
    """Names of the algorithms, each with its summary."""
    from rl_training.experiment.registry import list_algorithm_specs

    return [
        (spec.name, spec.summary)
        for spec in list_algorithm_specs()
        if spec.name.startswith(incomplete)
    ]


def complete_words(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """ALGO, then the environments that have a preset for it."""
    words = [
        word for word in ctx.params.get("words") or [] if "=" not in word and word != incomplete
    ]
    if not words:
        return complete_algorithm(incomplete)
    if len(words) > 1:
        return []
    from rl_training.experiment.config import load_config_file
    from rl_training.experiment.presets import list_presets

    files = [path for path in list_presets() if path.parent.name == words[0]]
    found = {str(load_config_file(path).get("env_id")): path for path in files}
    return [
        (name, f"preset {path.parent.name}/{path.name}")
        for name, path in found.items()
        if name.startswith(incomplete)
    ]


def complete_run(incomplete: str) -> Iterator[str]:
    """Run folders whose path starts with `incomplete`, also one level below."""
    from rl_training.experiment.checkpoint_folder import is_run_folder

    if not incomplete.startswith(("/", "~")):
        for pattern in (f"{incomplete}*", f"{incomplete}*/*"):
            yield from map(str, filter(is_run_folder, sorted(Path().glob(pattern))))


NUMBER = "NUMBER"
RUN_HELP = (
    "A run: its folder or a checkpoint in it, the beginning of its name, or @last."
    " Needed unless --checkpoint is given."
)


def _import_plugins(plugins: Sequence[str] | None) -> Sequence[str]:
    if plugins:
        from rl_training.plugins.user_code import add_working_directory, load_code

        for plugin in plugins:
            add_working_directory(plugin)
            load_code(plugin)
    return plugins or []


def _allow_paths(paths: Sequence[str] | None) -> Sequence[str]:
    if paths:
        from rl_training.plugins.gate import allow_path

        for path in paths:
            allow_path(path)
    return paths or []


def find_in_working_directory(name: str | None) -> str | None:
    """Make `module:ClassName` importable from the working directory. Only for names that the user typed."""
    if name is not None and ":" in name:
        from rl_training.plugins.user_code import add_working_directory

        add_working_directory(name)
    return name


def _find_callbacks(names: Sequence[str] | None) -> Sequence[str]:
    for name in names or ():
        find_in_working_directory(name)
    return names or []


def option(name: str, metavar: str, text: str, **more: Any) -> Any:
    """An option that takes a value, shown as `metavar` in the help."""
    return typer.Option(name, metavar=metavar, help=text, **more)


def flag(name: str, text: str) -> Any:
    """An option without a value."""
    return typer.Option(name, help=text)


def _number(name: str, text: str) -> Any:
    return option(name, NUMBER, text, parser=whole_number)


def _plugins(text: str) -> Any:
    return option("--plugin", "MODULE|FILE.py", text, callback=_import_plugins)


def run_argument(metavar: str = "RUN", text: str = RUN_HELP) -> Any:
    """The positional argument that names a run."""
    return typer.Argument(metavar=metavar, autocompletion=complete_run, help=text)


Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ALGO ENV_ID] [KEY=VALUE]...",
        autocompletion=complete_words,
        help="Algorithm, environment id, and settings such as seed=3 or learning_rate=1e-3.",
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        autocompletion=complete_words,
        help="Settings to change from here on, such as learning_rate=1e-4.",
    ),
]
Run = Annotated[Path | None, run_argument()]
CheckpointPath = Annotated[
    Path | None, option("--checkpoint", "RUN", "Same as RUN.", autocompletion=complete_run)
]
ConfigFile = Annotated[
    Path | None,
    option(
        "--config", "FILE", "YAML file of settings. If it sets algo or env_id, no preset applies."
    ),
]
NoPreset = Annotated[bool, flag("--no-preset", "Do not use the preset of ALGO and ENV_ID.")]
OutputDir = Annotated[
    Path | None, option("--output-dir", "FOLDER", "Parent of the run folder (default: runs).")
]
ResumeOutputDir = Annotated[
    Path | None,
    option(
        "--output-dir",
        "FOLDER",
        "Resume as a new run in this folder and leave the old one unchanged (default: resume in place).",
    ),
]
TotalTimesteps = Annotated[
    int | None, _number("--total-timesteps", "Total environment steps (offline: updates).")
]
ResumeTotalTimesteps = Annotated[
    int | None,
    _number(
        "--total-timesteps",
        "Total environment steps, including those before the resume (offline: updates).",
    ),
]
DemoTimesteps = Annotated[
    int | None, _number("--total-timesteps", "Total environment steps (default: the preset's).")
]
NumEnvs = Annotated[
    int | None, _number("--num-envs", "Number of environments stepped in parallel.")
]
EvalEpisodes = Annotated[int | None, _number("--eval-episodes", "Episodes per evaluation.")]
Seed = Annotated[int | None, _number("--seed", "Seed of all random number generators.")]
Device = Annotated[
    str | None, option("--device", "NAME", "Torch device: auto, cpu, cuda, cuda:1 or mps.")
]
RunSuffix = Annotated[
    str | None,
    option("--run-suffix", "NAME", "End of the run folder's name (default: date and time)."),
]
ResumeOrStart = Annotated[
    bool,
    flag(
        "--resume-or-start",
        "Resume the run of this --run-suffix if it exists, else start it: for jobs that are requeued.",
    ),
]
Schedules = Annotated[
    str | None,
    option(
        "--schedules",
        "MODE",
        "Schedules of an extended run: stretch (the rest over the remaining steps; default), restart or hold.",
    ),
]
Rewind = Annotated[
    bool,
    flag("--rewind", "Resume an older checkpoint and discard the later checkpoints and metrics."),
]
FallBack = Annotated[
    bool, flag("--fall-back", "If the checkpoint is damaged, resume the newest intact one.")
]
AsJson = Annotated[bool, flag("--json", "Print the result as one line of JSON.")]
Plugins = Annotated[
    list[str] | None,
    _plugins("Code to import first; it registers algorithms or environments. Repeatable."),
]
CheckpointPlugins = Annotated[
    list[str] | None,
    _plugins(
        "Code to import first; it registers or defines the run's algorithm or environment. FILE.py:FUNCTION allows"
        " the checkpoint to make its environment with that function. Repeatable."
    ),
]
AllowedPaths = Annotated[
    list[str] | None,
    option(
        "--allow-path",
        "PATH",
        "File or folder that the environment of a checkpoint may open. Repeatable.",
        callback=_allow_paths,
    ),
]
Callbacks = Annotated[
    list[str] | None,
    option(
        "--callback",
        "FILE.py:NAME",
        "Callback to add: a class, an object or a factory function, in a file or a module. Repeatable.",
        callback=_find_callbacks,
    ),
]


Seeds = Annotated[
    str | None,
    option("--seeds", "SEEDS", "Train a run for each seed: 0..9 (both ends), or 0,3,7."),
]
Jobs = Annotated[
    int | None,
    option(
        "--jobs",
        NUMBER,
        "Runs trained at once (default: as many as processors, or as the cluster has room for).",
        parser=positive_number,
    ),
]
Backend = Annotated[
    str, option("--backend", "local|ray", "Who starts the runs: this machine, or a Ray cluster.")
]
Address = Annotated[
    str | None,
    option("--address", "auto|local|HOST:PORT", "Ray cluster to join (default: local, a new one)."),
]
CpusPerRun = Annotated[
    float | None, option("--cpus-per-run", NUMBER, "Processors that Ray reserves for a run.")
]
GpusPerRun = Annotated[
    float | None, option("--gpus-per-run", NUMBER, "GPUs that Ray reserves for a run.")
]
LikeNodes = Annotated[
    bool,
    flag(
        "--like-nodes",
        "Keep a run among Ray nodes of like processor and versions, so it stays exact.",
    ),
]


@dataclass(frozen=True)
class LaunchOptions:
    """Where and how many runs are trained at once."""

    jobs: Jobs = None
    backend: Backend = "local"
    address: Address = None
    cpus_per_run: CpusPerRun = None
    gpus_per_run: GpusPerRun = None
    like_nodes: LikeNodes = False


@dataclass(frozen=True)
class SeedOptions(LaunchOptions):
    """The options of `train` for several seeds."""

    seeds: Seeds = None


@dataclass(frozen=True)
class TrainOptions:
    """The options of `train`; `config` takes the same."""

    words: Words = None
    config: ConfigFile = None
    no_preset: NoPreset = False
    output_dir: OutputDir = None
    total_timesteps: TotalTimesteps = None
    num_envs: NumEnvs = None
    eval_episodes: EvalEpisodes = None
    seed: Seed = None
    device: Device = None
    run_suffix: RunSuffix = None
    resume_or_start: ResumeOrStart = False
    plugin: Plugins = None
    callback: Callbacks = None
    as_json: AsJson = False


@dataclass(frozen=True)
class ResumeOptions:
    """The options of `resume`."""

    run: Run = None
    words: Changes = None
    checkpoint: CheckpointPath = None
    total_timesteps: ResumeTotalTimesteps = None
    output_dir: ResumeOutputDir = None
    run_suffix: RunSuffix = None
    eval_episodes: EvalEpisodes = None
    device: Device = None
    schedules: Schedules = None
    rewind: Rewind = False
    fall_back: FallBack = False
    plugin: CheckpointPlugins = None
    allow_path: AllowedPaths = None
    callback: Callbacks = None
    as_json: AsJson = False


def words_of(options: Any, without: Collection[str]) -> list[str]:
    """The options of a data class that were given, as words of a command."""
    words = []
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name in without or value == field.default:
            continue
        option = "--" + field.name.replace("_", "-")
        for item in value if isinstance(value, (list, tuple)) else [value]:
            words += [option] if item is True else [option, str(item)]
    return words

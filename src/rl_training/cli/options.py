"""What the commands share: their options, and how these become a configuration. Imports here stay light."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.arguments import complete_run, complete_words, find_run, whole_number
from rl_training.errors import RLTrainingError
from rl_training.terminal.streams import printable, quieted, results_stream, tell

if TYPE_CHECKING:
    from rl_training.experiment.config import ResolvedConfig

WORDS_HELP = "ALGO, ENV_ID and any number of key=value settings (algo_kwargs.learning_rate=1e-3 seed=3)."
NUMBER = "NUMBER"
FLAGS = ("output_dir", "total_timesteps", "num_envs", "eval_episodes", "seed", "device")
"""The options that set the key of a configuration that has their name."""


def _import_plugins(plugins: Sequence[str] | None) -> Sequence[str]:
    if plugins:
        from rl_training.plugins.user_code import add_working_directory, load_code

        for plugin in plugins:
            add_working_directory(plugin)
            load_code(plugin)
    return plugins or []


def _allow_paths(paths: Sequence[str] | None) -> Sequence[str]:
    if paths:
        from rl_training.envs.foreign_paths import allow_path

        for path in paths:
            allow_path(path)
    return paths or []


def _be_quiet(ctx: typer.Context, value: bool) -> bool:
    if value:
        ctx.with_resource(quieted())
    return value


def find_beside(env_id: str | None) -> str | None:
    """Let `module:ClassName` name a module in the working directory. Only for ids that the user wrote."""
    if env_id is not None and ":" in env_id:
        from rl_training.plugins.user_code import add_working_directory

        add_working_directory(env_id)
    return env_id


def _find_callbacks_beside(names: Sequence[str] | None) -> Sequence[str]:
    for name in names or ():
        find_beside(name)
    return names or []


Words = Annotated[
    list[str] | None,
    typer.Argument(help=WORDS_HELP, metavar="[ALGO ENV_ID] [KEY=VALUE]...", autocompletion=complete_words),
]
Run = Annotated[
    Path | None,
    typer.Argument(
        help="A run folder, or a checkpoint in it. Needed unless --checkpoint is given.",
        metavar="RUN",
        autocompletion=complete_run,
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Argument(
        help="Settings to change from here on (algo_kwargs.learning_rate=1e-4 eval_episodes=20).",
        metavar="[KEY=VALUE]...",
        autocompletion=complete_words,
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="YAML file of settings; one that names algo or env_id uses no preset."
    ),
]
NoPreset = Annotated[bool, typer.Option("--no-preset", help="Do not use the preset of the pair ALGO ENV_ID.")]
OutputDir = Annotated[
    Path | None, typer.Option("--output-dir", metavar="FOLDER", help="Folder that holds the run folders.")
]
ResumeOutputDir = Annotated[
    Path | None,
    typer.Option(
        "--output-dir",
        metavar="FOLDER",
        help="Resume as a new run in this folder, and leave the old one as it is (default: in its own folder).",
    ),
]


def _total_timesteps(text: str) -> Any:
    return typer.Option("--total-timesteps", help=text, metavar=NUMBER, parser=whole_number)


TotalTimesteps = Annotated[int | None, _total_timesteps("Total environment steps (offline: updates).")]
ResumeTotalTimesteps = Annotated[
    int | None,
    _total_timesteps("Total environment steps, those before the resume included (offline: updates)."),
]
DemoTimesteps = Annotated[int | None, _total_timesteps("Environment steps to train for (default: the preset's).")]
NumEnvs = Annotated[
    int | None,
    typer.Option("--num-envs", help="Environments stepped together.", metavar=NUMBER, parser=whole_number),
]
EvalEpisodes = Annotated[
    int | None,
    typer.Option("--eval-episodes", help="Episodes of one evaluation.", metavar=NUMBER, parser=whole_number),
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", help="Seed of every random number.", metavar=NUMBER, parser=whole_number),
]
Device = Annotated[str | None, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda, cuda:1, mps.")]
RunSuffix = Annotated[
    str | None, typer.Option("--run-suffix", metavar="NAME", help="End of the run folder's name (default: time).")
]
ResumeOrStart = Annotated[
    bool,
    typer.Option(
        "--resume-or-start",
        help="Resume the run of this --run-suffix if its folder exists, for jobs that are queued again.",
    ),
]
Quiet = Annotated[
    bool,
    typer.Option("-q", "--quiet", help="Print results and errors only.", callback=_be_quiet, is_eager=True),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")]
CheckpointPath = Annotated[
    Path | None, typer.Option("--checkpoint", metavar="RUN", help="The same as RUN.", autocompletion=complete_run)
]


def _plugins(text: str) -> Any:
    return typer.Option("--plugin", metavar="MODULE|FILE.py", callback=_import_plugins, help=text)


Plugins = Annotated[
    list[str] | None, _plugins("Code to import first, which registers algorithms or environments. Repeatable.")
]
CheckpointPlugins = Annotated[
    list[str] | None,
    _plugins(
        "Code to import first, which registers the algorithm or environment of the run, or holds its environment"
        " (FILE.py:function allows a checkpoint to call that function). Repeatable."
    ),
]
AllowedPaths = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-path",
        metavar="PATH",
        callback=_allow_paths,
        help="File, or folder of files, that the environment of a checkpoint may be told to open. Repeatable.",
    ),
]
Callbacks = Annotated[
    list[str] | None,
    typer.Option(
        "--callback",
        metavar="FILE.py:NAME",
        callback=_find_callbacks_beside,
        help="Callback to run with: a class, an object or a function that makes it, in a file or module. Repeatable.",
    ),
]


def say(text: str) -> None:
    """Tell the person, where it does not mix with the results."""
    tell(text)


def show(value: Any, lines: Iterable[str], as_json: bool) -> None:
    """Print a result as one JSON object, or as lines."""
    try:
        print(json_text(value) if as_json else printable("\n".join(lines)), file=results_stream(), flush=True)
    except OSError as error:
        raise RLTrainingError(f"cannot write the result to standard output: {error.strerror}") from None


def put(text: str) -> None:
    """Print a line of a result."""
    show(None, [text], as_json=False)


def json_text(value: Any) -> str:
    """A value in one line of JSON; of env_kwargs, which may hold more than JSON does, what comes closest."""
    return json.dumps(_to_json(value))


def _to_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_to_json(item) for item in value]
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def resolve(options: Mapping[str, Any]) -> ResolvedConfig:
    """Merge defaults < preset < file < command line. A file that names `algo` or `env_id` leaves the preset out."""
    from rl_training.errors import ConfigError
    from rl_training.experiment.config import load_config_file, parse_overrides, resolve_config
    from rl_training.experiment.registry import learns_offline

    words, file = options.get("words") or [], options.get("config")
    flags = {name: options[name] for name in FLAGS if options.get(name) is not None}
    plain_words = [word for word in words if "=" not in word]
    overrides = parse_overrides([word for word in words if "=" in word], plain_words[0] if plain_words else None)
    if len(plain_words) > 2:
        raise ConfigError(f"expected ALGO ENV_ID and key=value settings, not {' '.join(words)!r}")
    names = dict(zip(("algo", "env_id"), plain_words, strict=False))
    twice = overrides.keys() & (names.keys() | flags.keys())
    if twice:
        raise ConfigError(f"'{min(twice)}' is given twice on the command line")
    given = {**names, **flags, **overrides}
    layers: list[tuple[str, Mapping[str, Any]]] = []
    if file is not None:
        layers.append((f"file {Path(file)}", load_config_file(Path(file))))
        _refuse_contradiction(names, layers[0][1], Path(file))
    elif not ("algo" in given and ("env_id" in given or learns_offline(str(given["algo"])))):
        raise ConfigError("say what to train: ALGO ENV_ID (train ppo CartPole-v1) or --config FILE")
    is_complete = any(key in values for _, values in layers for key in ("algo", "env_id"))
    if not is_complete and not options.get("no_preset"):
        layers = [*_preset_for(given), *layers]
    resolved = resolve_config([*layers, ("command line", given)])
    find_beside(resolved.config.env_id)
    return resolved


def _refuse_contradiction(names: Mapping[str, str], values: Mapping[str, Any], file: Path) -> None:
    """Words that name another algorithm or environment than the file are a mistake; key=value replaces its values."""
    from rl_training.errors import ConfigError

    for key, name in names.items():
        stated = str(values.get(key, name))
        if (stated.lower() != name.lower()) if key == "algo" else (stated != name):
            remedy = f"leave it out, or replace the file's value with {key}={name}"
            raise ConfigError(f"'{name}' contradicts {key}: {stated} in file '{file}': {remedy}")


def _preset_for(given: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The preset of the pair, however it was named, as a layer of the configuration; it is announced."""
    from rl_training.experiment.config import load_config_file
    from rl_training.experiment.presets import find_preset
    from rl_training.experiment.registry import get_algorithm_spec

    if "algo" not in given or "env_id" not in given:
        return []
    preset = find_preset(get_algorithm_spec(str(given["algo"])).name, str(given["env_id"]))
    if preset is None:
        return []
    name = f"preset {preset.parent.name}/{preset.name}"
    say(f"using {name}")
    return [(name, load_config_file(preset))]


def read_resume(
    run: Path | None, checkpoint: Path | None, words: Sequence[str] | None, options: Mapping[str, Any]
) -> tuple[Path, dict[str, Any]]:
    """The run or checkpoint to resume, and the settings to change, as `plan_resume` takes them."""
    from rl_training.errors import ConfigError
    from rl_training.experiment.config import parse_overrides

    if run is not None and checkpoint is not None and "=" in str(run):  # RUN was given as --checkpoint
        run, words = None, [str(run), *(words or [])]
    changes = parse_overrides(words or [])
    flags = {name: options[name] for name in FLAGS if options.get(name) is not None}
    twice = changes.keys() & flags.keys()
    if twice:
        raise ConfigError(f"'{min(twice)}' is given twice on the command line")
    return find_run(run, checkpoint), {**flags, "changes": changes}

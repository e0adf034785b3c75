"""From command-line options to a configuration: defaults < preset < file < command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.cli.arguments import find_run
from rl_training.cli.options import ResumeOptions, TrainOptions, find_in_working_directory
from rl_training.errors import ConfigError
from rl_training.terminal.streams import tell

if TYPE_CHECKING:
    from rl_training.experiment.config import ResolvedConfig, TrainConfig

FLAGS = ("output_dir", "total_timesteps", "num_envs", "eval_episodes", "seed", "device")
"""Options that set the configuration key of the same name."""
TRAIN_USAGE = "give ALGO ENV_ID (train ppo CartPole-v1) or --config FILE"
Layer = tuple[str, Mapping[str, Any]]
"""A source of settings: its name and its values."""


def resolve(options: TrainOptions, usage: str = TRAIN_USAGE) -> ResolvedConfig:
    """Merge the sources of settings. A file that sets `algo` or `env_id` replaces the preset, unless it takes it.

    `usage` says what to give if arguments are missing.
    """
    from rl_training.experiment.config import load_config_file, resolve_config
    from rl_training.experiment.registry import learns_offline

    names, given = _read_words(options)
    layers: list[Layer] = []
    wanted = None
    if options.config is not None:
        values = load_config_file(options.config)
        wanted = values.pop("preset", None)
        _refuse_contradiction(names, values, options.config)
        layers.append((f"file {options.config}", values))
    elif not ("algo" in given and ("env_id" in given or learns_offline(str(given["algo"])))):
        raise ConfigError(f"missing arguments: {usage}")
    preset, hint = ([], None) if options.no_preset else _preset_layers(layers, given, wanted)
    resolved = resolve_config([*preset, *layers, ("command line", given)])
    if hint is not None:
        tell(hint)
    network = resolved.config.algo_kwargs.get("network")
    for name in (resolved.config.env_id, network if isinstance(network, str) else None):
        find_in_working_directory(name)
    if "wrappers" in resolved.config.env_kwargs:
        from rl_training.envs.wrapping.trust import find_wrappers_here

        find_wrappers_here(resolved.config.env_kwargs)
    return resolved


def load_config(path: str | Path) -> TrainConfig:
    """The configuration that `train --config PATH` trains: the file's values, over a preset only if it names no run."""
    return resolve(TrainOptions(config=Path(path))).config


def read_resume(options: ResumeOptions) -> tuple[Path, dict[str, Any]]:
    """The run or checkpoint to resume, and the keyword arguments of `plan_resume`."""
    from rl_training.experiment.config import parse_overrides

    run, words = options.run, options.words or []
    if run is not None and options.checkpoint is not None and "=" in str(run):
        run, words = None, [str(run), *words]  # with --checkpoint the first KEY=VALUE stands at RUN's position
    changes, flags = parse_overrides(words), _flags_of(options)
    _refuse_twice(changes, flags)
    path = find_run(run, options.checkpoint)
    return path, {
        **flags,
        "changes": changes,
        "rewind": options.rewind,
        "schedules": options.schedules,
        "run_suffix": options.run_suffix,
    }


def _read_words(options: TrainOptions) -> tuple[dict[str, str], dict[str, Any]]:
    """`algo` and `env_id` where they are given by position, and all settings of the command line."""
    from rl_training.experiment.config import parse_overrides

    words = options.words or []
    positional = [word for word in words if "=" not in word]
    overrides = parse_overrides([word for word in words if "=" in word], positional[0] if positional else None)
    if len(positional) > 2:
        raise ConfigError(f"too many arguments {' '.join(words)!r}: give ALGO ENV_ID and KEY=VALUE settings")
    names = dict(zip(("algo", "env_id"), positional, strict=False))
    flags = _flags_of(options)
    _refuse_twice(overrides, [*names, *flags])
    return names, {**names, **flags, **overrides}


def _flags_of(options: TrainOptions | ResumeOptions) -> dict[str, Any]:
    return {name: value for name, value in vars(options).items() if name in FLAGS and value is not None}


def _refuse_twice(overrides: Mapping[str, Any], others: Sequence[str] | Mapping[str, Any]) -> None:
    twice = overrides.keys() & set(others)
    if twice:
        raise ConfigError(f"'{min(twice)}' is given twice on the command line: remove one")


def _refuse_contradiction(names: Mapping[str, str], values: Mapping[str, Any], file: Path) -> None:
    """Raise if ALGO or ENV_ID differs from the file's; only KEY=VALUE replaces a value of the file."""
    for key, name in names.items():
        stated = str(values.get(key, name))
        if (stated.lower() != name.lower()) if key == "algo" else (stated != name):
            remedy = f"leave it out, or replace the file's value with {key}={name}"
            raise ConfigError(f"'{name}' contradicts {key}: {stated} in file '{file}': {remedy}")


def _preset_layers(
    layers: Sequence[Layer], given: Mapping[str, Any], wanted: Any
) -> tuple[Sequence[Layer], str | None]:
    """The preset of the algorithm and environment, if there is one, and a text about one that is not used.

    A file that names the algorithm or the environment is complete unless it says `preset: true` (`wanted`).
    """
    from rl_training.experiment.config import merge_layers
    from rl_training.experiment.presets import preset_layers, preset_of
    from rl_training.experiment.registry import get_algorithm_spec

    known, _ = merge_layers([*layers, ("command line", given)])
    is_complete = any(key in values for _, values in layers for key in ("algo", "env_id"))
    if is_complete or wanted is not None:
        preset, hint = preset_of(known, wanted, layers[0][0])
        if preset is None:
            return [], hint
    if not {"algo", "env_id"} <= known.keys():
        return [], None
    return preset_layers(get_algorithm_spec(str(known["algo"])).name, str(known["env_id"])), None

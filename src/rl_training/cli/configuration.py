"""From command-line options to a configuration (defaults < preset < file < command line), and settings as text."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.cli.options import ResumeOptions, TrainOptions, find_in_working_directory, find_run
from rl_training.cli.output import json_text
from rl_training.errors import ConfigError
from rl_training.terminal.streams import tell
from rl_training.terminal.tables import table_lines

if TYPE_CHECKING:
    from rl_training.algorithms.tune import Tune
    from rl_training.experiment.config import ResolvedConfig, TrainConfig
    from rl_training.validation import FrozenConfig


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
        from rl_training.envs.wrapping.wrapper_list import find_wrappers_here

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
        run, words = (
            None,
            [str(run), *words],
        )  # with --checkpoint the first KEY=VALUE stands at RUN's position
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
    overrides = parse_overrides(
        [word for word in words if "=" in word], positional[0] if positional else None
    )
    if len(positional) > 2:
        raise ConfigError(
            f"too many arguments {' '.join(words)!r}: give ALGO ENV_ID and KEY=VALUE settings"
        )
    _refuse_swapped(positional)
    names = dict(zip(("algo", "env_id"), positional, strict=False))
    flags = _flags_of(options)
    _refuse_twice(overrides, [*names, *flags])
    return names, {**names, **flags, **overrides}


def _refuse_swapped(positional: Sequence[str]) -> None:
    """Raise if the environment is named first."""
    from rl_training.experiment.registry import list_algorithm_specs

    known = {spec.name for spec in list_algorithm_specs()}
    if (
        len(positional) == 2
        and positional[0].lower() not in known
        and positional[1].lower() in known
    ):
        raise ConfigError(
            f"'{positional[0]}' is no algorithm: name the algorithm first, `{positional[1]} {positional[0]}`"
        )


def _flags_of(options: TrainOptions | ResumeOptions) -> dict[str, Any]:
    return {
        name: value for name, value in vars(options).items() if name in FLAGS and value is not None
    }


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


ConfigRow = tuple[str, Any, str]
MAPPINGS = ("algo_kwargs", "env_kwargs")
LONGEST_VALUE = 24


def configuration_rows(resolved: ResolvedConfig, *, is_flat: bool = False) -> list[ConfigRow]:
    """Every key with its value and source, including the algorithm's defaults; if flat, nested keys get own rows."""
    from rl_training.envs.factory import split_env_kwargs
    from rl_training.experiment.config import leaves, serialize_train_config
    from rl_training.experiment.registry import get_algorithm_spec

    config = resolved.config
    split_env_kwargs(config.env_kwargs)  # validates them
    values = serialize_train_config(config)
    given = {path for path, _ in leaves({key: values[key] for key in MAPPINGS})}
    values["algo_kwargs"] = (
        get_algorithm_spec(config.algo).parse_kwargs(config.algo_kwargs).model_dump(mode="json")
    )
    rows: list[ConfigRow] = []
    for key, value in values.items():
        if key not in MAPPINGS:
            pairs = [(key, value)]
        elif is_flat:
            pairs = list(leaves(value, f"{key}."))
        else:
            pairs = [(f"{key}.{name}", item) for name, item in value.items()]
        rows += [(path, item, _source(path, resolved.sources, given)) for path, item in pairs]
    return rows


def row_lines(rows: list[ConfigRow]) -> list[str]:
    """The rows as aligned lines; the preset's file name is left out, since a message names it."""
    cells = []
    for key, value, source in rows:
        origin = "preset" if source.startswith("preset ") else source
        cells.append((key, f"{json_text(value):<{LONGEST_VALUE}}  # {origin}"))
    return table_lines(cells, "l")


def _source(path: str, sources: Mapping[str, str], given: set[str]) -> str:
    """The source of a key: of the key itself, of a key inside it, or of the mapping around it; else `default`."""
    within = next(
        (source for known, source in sources.items() if f"{known}.".startswith(f"{path}.")), None
    )
    if within is not None:
        return within
    around = [known for known in sources if path.startswith(f"{known}.")]
    return sources[max(around, key=len)] if around and path in given else "default"


SCHEDULE = "Schedule"
TYPES = {
    "number": "number",
    "integer": "integer",
    "string": "text",
    "boolean": "true | false",
    "null": "null",
}
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
MAPPING = "mapping:"
VALUES_COLUMN = 34


@dataclass(frozen=True)
class Setting:
    """One setting; keys of a nested mapping have dots in their names."""

    key: str
    default: Any
    is_required: bool
    values: str
    meaning: str
    has_keys: bool
    tune: Tune | None = None
    """Its search space; None: it has none."""

    def lines(self, width: int) -> list[str]:
        """The setting as lines of at most `width` columns."""
        indent = "  " * self.key.count(".")
        start = f"{indent}{self.key}"
        if not self.is_required and not (self.has_keys and self.default is not None):
            start += f" = {json.dumps(self.default)}"
        lines = [f"{start:<{VALUES_COLUMN}}  {self.values}"]
        if len(lines[0]) > width:
            lines = [start, f"{' ' * VALUES_COLUMN}  {self.values}"]
        indent += "    "
        lines += textwrap.wrap(self.meaning, width, initial_indent=indent, subsequent_indent=indent)
        if self.tune is not None:
            text = f"tune: {self.tune.text}"
            if self.tune.by_name:
                text += " (only if named: --tune KEY)"
            lines += textwrap.wrap(text, width, initial_indent="    ", subsequent_indent="      ")
        return lines


def list_settings(config_class: type[FrozenConfig]) -> list[Setting]:
    """Every key of a config class, including nested ones; the keys of schedules are left out (`schedule_line`)."""
    from rl_training.studies.tuning.ranges import spaces_of

    schema, spaces = config_class.model_json_schema(), spaces_of(config_class)
    found = _settings(schema, schema.get("$defs", {}), "")
    return [replace(setting, tune=spaces.get(setting.key)) for setting in found]


def schedule_line(config_class: type[FrozenConfig]) -> str | None:
    """The keys of a schedule, if a setting of the class can be one."""
    definitions = config_class.model_json_schema().get("$defs", {})
    if SCHEDULE not in definitions:
        return None
    keys = definitions[SCHEDULE]["properties"]
    return f"a schedule: {{{', '.join(f'{key}: {_values(value, {})}' for key, value in keys.items())}}} over the run"


def _settings(
    schema: Mapping[str, Any],
    definitions: Mapping[str, Any],
    prefix: str,
    given: Mapping[str, Any] | None = None,
) -> Iterator[Setting]:
    """The keys of a mapping; `given` are its values where it stands, if these differ from its own defaults."""
    for name, field in schema["properties"].items():
        nested = _nested(field, definitions)
        meaning = " ".join(field.get("description", "").split())
        is_required = name in schema.get("required", ())
        values = _values(field, definitions)
        default = (given or {}).get(name, field.get("default"))
        yield Setting(f"{prefix}{name}", default, is_required, values, meaning, nested is not None)
        if nested is not None:
            yield from _settings(nested, definitions, f"{prefix}{name}.", default)


def _nested(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The schema of the mapping that a field may hold, except a schedule; None if it holds none."""
    for member in field.get("anyOf", [field]):
        name = member.get("$ref", "").rpartition("/")[2]
        if name in definitions and name != SCHEDULE and "properties" in definitions[name]:
            nested: Mapping[str, Any] = definitions[name]
            return nested
    return None


def _values(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """The allowed values of a field."""
    if "anyOf" in field:
        members = dict.fromkeys(_values(member, definitions) for member in field["anyOf"])
        return f"null | {MAPPING}" if MAPPING in members else " | ".join(members)
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        definition = definitions.get(name, {})
        if name == SCHEDULE:
            return "a schedule"
        return MAPPING if "properties" in definition else _values(definition, {})
    if "enum" in field or "const" in field:
        return " | ".join(map(str, field.get("enum", [field.get("const")])))
    if field.get("type") == "array":
        return f"list of {_values(field.get('items', {}), definitions)}"
    kind = TYPES.get(field.get("type", ""), field.get("format", "any"))
    if "minimum" in field and "maximum" in field:
        return f"{kind} from {field['minimum']:g} to {field['maximum']:g}"
    bounds = [f"{sign} {field[key]:g}" for key, sign in BOUNDS.items() if key in field]
    return " ".join([kind, " and ".join(bounds)]).strip()

"""The configuration of a run, and how defaults, preset, file and command line are merged into it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, StringConstraints

from rl_training.errors import ConfigError
from rl_training.experiment.loggers import DEFAULT_LOGGERS, PlainLoggers, plain_loggers
from rl_training.experiment.registry import get_algorithm_spec, learns_offline, list_algorithm_specs
from rl_training.experiment.yaml_text import MAX_BYTES, is_unedited, parse_yaml
from rl_training.validation import FrozenConfig, nearest, suggest

MAX_THREADS = 1024
MAX_DEPTH, MAX_VALUES, MAX_BITS = 20, 20_000, 1024
CHARACTERS_PER_VALUE = 64
"""A text counts as one more value for each this many characters."""
OTHER_OBJECTS = (
    "use numbers, text, true or false, None, and lists and dictionaries of these; for another object pass a name or"
    " path from which the environment creates it"
)
NO_KEY = "`rl-training algos NAME` lists the settings of an algorithm"


class TrainConfig(FrozenConfig):
    """Settings of one run: algorithm, environment, length, hardware, files."""

    algo: Annotated[str, StringConstraints(to_lower=True)]
    """Name of the algorithm; `rl-training algos` lists them."""
    env_id: str | None = None
    """Gymnasium id, module:ClassName or path/to/file.py:ClassName (or :function); optional offline. In Python also a
    class, a function, an environment or a vector environment, which become an id."""
    seed: NonNegativeInt = 0
    """Seed of all random number generators of the run."""
    total_timesteps: PositiveInt = 100_000
    """Total environment steps over all environments (offline: updates)."""
    output_dir: Path = Path("runs")
    """Folder that holds the run folders."""
    device: str = "auto"
    """Device of the networks: auto, cpu, cuda, cuda:1, mps."""
    num_envs: Annotated[int, Field(gt=0, le=1_000_000)] = 1
    """Number of environments stepped in parallel."""
    eval_episodes: Annotated[int, Field(gt=0, le=1_000_000)] = 5
    """Episodes per evaluation."""
    log_interval: PositiveInt | None = None
    """Steps between two log lines; null: a hundredth of total_timesteps."""
    checkpoint_interval: PositiveInt | None = None
    """Steps between two checkpoints; null: a tenth of total_timesteps."""
    keep: PositiveInt | Literal["all"] = 2
    """Number of newest checkpoints to keep besides the best, or `all`."""
    tags: tuple[str, ...] = ()
    """Labels stored in the run's config.yaml."""
    loggers: PlainLoggers = DEFAULT_LOGGERS
    """Where metrics go besides metrics.jsonl: tensorboard, wandb, mlflow, each a name or {name: {key: value}}."""
    num_threads: Annotated[int, Field(gt=0, le=MAX_THREADS)] | Literal["auto"] = "auto"
    """PyTorch threads; `auto`: one, or with large networks and batches up to four of the processors allowed."""
    compile: bool | Literal["auto"] = "auto"
    """Compile updates with torch.compile; `auto` compiles if the run is long enough to save time."""
    init_from: Path | None = None
    """Run folder, checkpoint or saved policy whose network weights a new run starts with; null: random weights."""
    init_parts: Literal["all", "policy"] = "all"
    """Networks that `init_from` copies: `all` whose shapes fit, or the `policy` alone."""
    algo_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Settings of the algorithm; `rl-training algos NAME` lists them."""
    env_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment, and backend, wrappers, max_episode_steps."""

    def __init__(self, /, **values: Any) -> None:
        env = values.get("env_id")
        if callable(env) or hasattr(
            env, "reset"
        ):  # a class, a function or an environment, as a Python script has it
            from rl_training.envs.given.objects import env_settings

            values |= env_settings(env, values.get("num_envs"))
        if isinstance(values.get("env_kwargs"), dict):
            values["env_kwargs"] = json_copy(values["env_kwargs"], "env_kwargs")
        if isinstance(values.get("algo_kwargs"), FrozenConfig):
            values["algo_kwargs"] = config_values(values["algo_kwargs"], str(values.get("algo")))
        elif isinstance(values.get("algo_kwargs"), Mapping):
            values["algo_kwargs"] = _with_names(values["algo_kwargs"])
        if "loggers" in values:
            values["loggers"] = plain_loggers(values["loggers"])
        super().__init__(**values)
        if self.env_id is None and not learns_offline(self.algo):
            raise ConfigError("missing key 'env_id' for the configuration")

    @classmethod
    def _title(cls) -> str:
        return "the configuration"

    @classmethod
    def _suggest_key(cls, key: str, values: Mapping[str, Any]) -> str:
        near = nearest_algorithm_key(key, values.get("algo"))
        if near is not None:
            return f": did you mean algo_kwargs.{near} (in a file algo_kwargs: {{{near}: …}})?"
        return suggest(key, cls.model_fields)

    @property
    def required_env_id(self) -> str:
        """`env_id`; a `ConfigError` if it is not set."""
        if self.env_id is None:
            raise ConfigError(
                "missing key 'env_id' for the configuration: set it, since this needs an environment"
            )
        return self.env_id

    @property
    def log_every_steps(self) -> int:
        """`log_interval`, or its default."""
        return self.log_interval or max(1, self.total_timesteps // 100)

    @property
    def checkpoint_every_steps(self) -> int:
        """`checkpoint_interval`, or its default."""
        return self.checkpoint_interval or max(1, self.total_timesteps // 10)

    def replace(self, **changes: Any) -> TrainConfig:
        """A new, validated configuration with some values changed."""
        return TrainConfig(**{**self.model_dump(), **changes})


def config_values(settings: FrozenConfig, algo: str) -> dict[str, Any]:
    """The values that were set in a config object of the algorithm, such as `PPOConfig(gamma=0.9)`."""
    expected = get_algorithm_spec(algo).config_class()
    if not isinstance(settings, expected):
        raise ConfigError(
            f"algo_kwargs is a {type(settings).__name__}, but {algo} has {expected.__name__}: use that"
        )
    return settings.model_dump(exclude_unset=True)


def _with_names(algo_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an algorithm with `network` as a name, also where the class itself is given."""
    if not isinstance(algo_kwargs.get("network"), type):
        return dict(algo_kwargs)
    from rl_training.plugins.user_code import (
        name_of_class,
    )  # imports Gymnasium, which readers of runs do not need

    return {**algo_kwargs, "network": name_of_class(algo_kwargs["network"])}


def serialize_train_config(config: TrainConfig) -> dict[str, Any]:
    """The configuration as a JSON-compatible dictionary with derived defaults filled in."""
    values = config.model_dump(mode="json", exclude={"env_kwargs"})
    values["env_kwargs"] = json_copy(
        config.env_kwargs, "env_kwargs"
    )  # pydantic would write infinity as null
    values["log_interval"] = config.log_every_steps
    values["checkpoint_interval"] = config.checkpoint_every_steps
    return values


def json_copy(value: Any, place: str) -> Any:
    """A deep copy of a setting that has what JSON has; a `ConfigError` names the first other value and the remedy."""
    num_values = 0

    def copy(item: Any, place: str, depth: int) -> Any:
        nonlocal num_values
        num_values += 1 + (len(item) // CHARACTERS_PER_VALUE if isinstance(item, str) else 0)
        if num_values > MAX_VALUES or depth > MAX_DEPTH:
            limit = (
                f"has more than {MAX_VALUES:,} values"
                if depth <= MAX_DEPTH
                else f"is nested deeper than {MAX_DEPTH} levels"
            )
            raise ConfigError(
                f"'{place:.100}' of the configuration {limit}: put it in a file and pass its path"
            )
        kind = type(item)
        if kind is dict:
            for key in (key for key in item if type(key) is not str):
                raise ConfigError(
                    f"key {key!r:.40} of '{place}' is not text: write it in quotes, or pass a list of pairs"
                )
            return {
                key: copy(inner, f"{place}.{key:.40}", depth + 1) for key, inner in item.items()
            }
        if kind is list:
            return [copy(inner, f"{place}.{index}", depth + 1) for index, inner in enumerate(item)]
        if kind in (str, bool, float, type(None)) or (
            kind is int and item.bit_length() <= MAX_BITS
        ):
            return item
        fault = (
            f"is an integer of more than {MAX_BITS} bits"
            if kind is int
            else f"has type {_type_name(kind)}"
        )
        remedy = "write a list" if kind in (tuple, set, frozenset) else OTHER_OBJECTS
        raise ConfigError(
            f"'{place}' of the configuration {fault}, which JSON does not have: {remedy}"
        )

    return copy(value, place, 0)


def _type_name(kind: type) -> str:
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


@dataclass(frozen=True)
class ResolvedConfig:
    """A configuration, and the source of each dotted key that was set."""

    config: TrainConfig
    sources: dict[str, str] = field(default_factory=dict)


def resolve_config(layers: Sequence[tuple[str, Mapping[str, Any]]]) -> ResolvedConfig:
    """Merge named layers into one configuration; later layers override earlier ones."""
    merged, sources = merge_layers(layers)
    return ResolvedConfig(TrainConfig(**merged), sources)


def merge_layers(
    layers: Sequence[tuple[str, Mapping[str, Any]]],
) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of named layers, of which later ones override earlier ones, and the layer of each dotted key."""
    merged: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, values in layers:
        _merge(merged, values, name, sources, "")
    return merged, sources


def _merge(
    into: dict[str, Any], values: Mapping[str, Any], name: str, sources: dict[str, str], prefix: str
) -> None:
    for key, value in values.items():
        if (
            not isinstance(key, str) and prefix.count(".") < 2
        ):  # deeper keys are arguments of the environment
            raise ConfigError(f"key {key!r} of {name} is not a string")
        path = f"{prefix}{key}"
        # A schedule is replaced, not merged: its start and end belong together.
        is_schedule = (
            prefix.startswith("algo_kwargs.") and isinstance(value, Mapping) and "kind" in value
        )
        if (
            isinstance(value, Mapping)
            and not is_schedule
            and (not prefix or isinstance(into.get(key), dict))
        ):
            nested = into.get(key)
            into[key] = dict(nested) if isinstance(nested, dict) else {}
            _merge(into[key], value, name, sources, f"{path}.")
        else:
            for stale in [known for known in sources if known.startswith(f"{path}.")]:
                del sources[stale]
            into[key] = value
            sources[path] = name


def leaves(
    values: Mapping[str, Any], prefix: str = "", value_key: str | None = None
) -> Iterator[tuple[str, Any]]:
    """Dotted key and value of every entry of nested mappings that is no mapping.

    A mapping is a value if it is empty, or has the key `value_key`, as `kind` of a schedule.
    """
    for key, value in values.items():
        if isinstance(value, Mapping) and value and value_key not in value:
            yield from leaves(value, f"{prefix}{key}.", value_key)
        else:
            yield f"{prefix}{key}", value


def parse_overrides(items: Sequence[str], algo: str | None = None) -> dict[str, Any]:
    """Parse items such as `seed=3`, `tau=0.01` and `algo_kwargs.tau=0.01` into nested values."""
    values: dict[str, Any] = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals or not key:
            raise ConfigError(f"'{item}' is not of the form key=value")
        parts = full_key(key, "the configuration", algo).split(".")
        target = values
        for part in parts[:-1]:
            target = target.setdefault(part, {})
            if not isinstance(target, dict):
                raise ConfigError(f"'{item}' sets a key within one that already has a value")
        if parts[-1] in target:
            raise ConfigError(f"'{key}' is given twice on the command line: remove one")
        target[parts[-1]] = parse_yaml(text, f"the value of '{key}'")
    return values


def full_key(key: str, owner: str, algo: str | None = None) -> str:
    """The dotted key of a setting, where `algo_kwargs.` may be left out: `gamma` becomes `algo_kwargs.gamma`.

    No key of the configuration has the name of an algorithm's. `algo`, if it is known, selects the nearest name in the
    error about an unknown one.
    """
    first = key.partition(".")[0]
    if first in TrainConfig.model_fields:
        return key
    if any(first in spec.config_class().model_fields for spec in list_algorithm_specs()):
        return f"algo_kwargs.{key}"
    near = nearest_algorithm_key(first, algo)
    hint = f": did you mean {near}?" if near else suggest(first, TrainConfig.model_fields, NO_KEY)
    raise ConfigError(f"unknown key '{key}' for {owner}{hint}")


def nearest_algorithm_key(key: str, algo: Any) -> str | None:
    """The key of the algorithm (of every algorithm if it is unknown) that is most similar to `key`.

    None if a key of the configuration itself is more similar, or none is similar.
    """
    names = [spec.name for spec in list_algorithm_specs()]
    algos = [algo.lower()] if isinstance(algo, str) and algo.lower() in names else names
    own = {
        name for found in algos for name in get_algorithm_spec(found).config_class().model_fields
    }
    near = nearest(key, [*own, *TrainConfig.model_fields])
    return near if near in own else None


def load_config_file(path: Path) -> dict[str, Any]:
    """Read a YAML config file; a `ConfigError` if it is missing or is not a mapping."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(
            f"config file '{path}' does not exist (looked from {Path.cwd()})"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file '{path}' cannot be read: {error}") from None
    values = parse_yaml(text, f"config file '{path}'")
    if not isinstance(values, dict):
        raise ConfigError(
            f"config file '{path}' must be a mapping of keys to values, not {type(values).__name__}"
        )
    return values


def load_signed_file(path: Path, what: str, instead: str) -> dict[str, Any]:
    """Read a stored plan; a `ConfigError` if the file was edited. `what` and `instead` complete its message."""
    values = load_config_file(path)
    if not is_unedited(path.read_text(encoding="utf-8")):
        raise ConfigError(
            f"'{path}' was edited, and the plan of {what} does not change after it began: restore the file, or"
            f" {instead}"
        )
    return values

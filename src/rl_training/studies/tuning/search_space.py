"""The search space of a tuning: which keys vary, in which values; resolved and checked in a worker process."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rl_training.algorithms.tune import Tune
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, merge_layers
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.yaml_text import dump_yaml, parse_yaml
from rl_training.studies.tuning.ranges import search_spaces
from rl_training.studies.variation import CHOSEN_BY_TUNING, Setting, identity, nested
from rl_training.validation import check_key, suggest

Asked = dict[str, dict[str, Any] | None]
"""Keys to tune, each with its own search space, or None for its field's; none: every field that has one."""
FORM = "write LOW..HIGH, LOW..HIGH:log, or values separated by commas"
NOT_TUNED = {
    **CHOSEN_BY_TUNING,
    "algo": "a tuning has one algorithm",
    "env_id": "a tuning has one environment",
    "total_timesteps": "every trial has the same budget",
}
"""Keys of a run's configuration that a tuning decides by itself."""
ALGO = "algo_kwargs."
SIGNIFICANT_DIGITS = 4


@dataclass(frozen=True)
class TunedKey:
    """One key of the configuration that varies between trials."""

    key: str
    space: Tune
    default: Any
    """Its value in trial 0; of a schedule, its start."""
    schedule: dict[str, Any] | None = None
    """Kind and end of the schedule whose start is tuned; None: the value is no schedule."""

    @property
    def name(self) -> str:
        """The key as people write it."""
        return self.key.removeprefix(ALGO)

    def as_dict(self) -> dict[str, Any]:
        """The key as stored; `from_dict` is the inverse."""
        schedule = {} if self.schedule is None else {"schedule": self.schedule}
        return {**self.space.as_dict(), "default": self.default, **schedule}

    @classmethod
    def from_dict(cls, key: str, values: Mapping[str, Any]) -> TunedKey:
        """A key as it was stored."""
        space = {
            name: value for name, value in values.items() if name not in ("default", "schedule")
        }
        return cls(key, Tune.from_dict(space), values["default"], values.get("schedule"))

    def distribution(self) -> Any:
        """The values as a distribution of Optuna."""
        from rl_training.studies.tuning.journal import quiet_optuna

        space = self.space
        low, high = space.low, space.high
        with quiet_optuna() as optuna:
            if space.choices:
                return optuna.distributions.CategoricalDistribution(
                    [encode(choice) for choice in space.choices]
                )
            if space.has_integers:
                return optuna.distributions.IntDistribution(
                    low, high, log=space.log, step=space.step or 1
                )
            return optuna.distributions.FloatDistribution(low, high, log=space.log, step=space.step)

    def rounded(self, value: Any) -> Any:
        """A sampled value with few digits, within the range: it is read by people and written in names."""
        if (
            self.space.choices
            or isinstance(value, int)
            or self.space.low is None
            or self.space.high is None
        ):
            return value
        if self.space.step is not None:
            return round(value, 12)
        return min(max(float(f"{value:.{SIGNIFICANT_DIGITS}g}"), self.space.low), self.space.high)

    def setting(self, param: Any) -> Any:
        """The value of the configuration for a parameter of Optuna."""
        value = decode(param, self.space)
        return value if self.schedule is None else {**self.schedule, "start": value}


def setting_of(keys: Sequence[TunedKey], params: Mapping[str, Any]) -> Setting:
    """The values of the configuration for the parameters of a trial."""
    return {key.key: key.setting(params[key.name]) for key in keys}


def encode(value: Any) -> Any:
    """A choice as Optuna stores it: lists and mappings as JSON text."""
    return (
        value
        if value is None or isinstance(value, (bool, int, float, str))
        else json.dumps(value, default=str)
    )


def decode(param: Any, space: Tune) -> Any:
    """The inverse of `encode`, for a value of a search space."""
    found = [choice for choice in space.choices if identity(encode(choice)) == identity(param)]
    value = found[0] if found else param
    return list(value) if isinstance(value, tuple) else value


def full_key(name: str) -> str:
    """The key of the configuration that `name` means: without a section it is one of the algorithm's."""
    first = name.partition(".")[0]
    key = name if first in TrainConfig.model_fields else f"{ALGO}{name}"
    if not name.strip() or key.endswith("."):
        raise ConfigError(
            f"empty key {name!r} to tune: write a setting of the algorithm, such as learning_rate"
        )
    if first in NOT_TUNED:
        raise ConfigError(f"'{first}' cannot be tuned: {NOT_TUNED[first]}")
    return key


def parse_asked(texts: Sequence[str]) -> Asked:
    """The keys of `--tune KEY` and `--tune KEY=SPACE`."""
    asked: Asked = {}
    for text in texts:
        name, equals, space = text.partition("=")
        key = full_key(name)
        if key in asked:
            raise ConfigError(f"'{name}' is given twice to --tune: remove one")
        asked[key] = parse_space(space, name) if equals else None
    return asked


def read_asked(value: Any) -> Asked:
    """The keys of `space` in the tune block of a study file: a list of keys, or search spaces by key."""
    if isinstance(value, (list, tuple)):
        return parse_asked([str(item) for item in value])
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"bad value {value!r:.80} for 'space': give a list of keys, or search spaces by key"
        )
    asked: Asked = {}
    for name, space in value.items():
        key = full_key(str(name))
        if key in asked:
            raise ConfigError(f"'{name}' of 'space' is given twice: remove one")
        if isinstance(space, str):
            asked[key] = parse_space(space, str(name))
        elif space is None or isinstance(space, (Mapping, list)):
            given = {"choices": space} if isinstance(space, list) else space
            asked[key] = None if given is None else Tune.from_dict(given).as_dict()
        else:
            raise ConfigError(
                f"bad value {space!r} for 'space.{name}': {FORM}, or {{low: …, high: …}}"
            )
    return asked


def parse_space(text: str, name: str) -> dict[str, Any]:
    """The search space of `1e-5..1e-2:log` or `32,64,128`, as plain values."""
    number = r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
    match = re.fullmatch(rf"\s*({number})\.\.({number})(:log)?\s*", text)
    values: dict[str, Any]
    if match is not None:
        low, high = (parse_yaml(part, f"the range of '{name}'") for part in match.groups()[:2])
        values = {"low": low, "high": high} | ({"log": True} if match[3] else {})
    else:
        choices = parse_yaml(f"[{text}]", f"the values of '{name}' ({FORM})")
        if len(choices) < 2 or any(
            isinstance(choice, str) and ".." in choice for choice in choices
        ):
            raise ConfigError(f"bad value '{text}' for --tune {name}: {FORM}")
        values = {"choices": choices}
    try:
        return Tune.from_dict(values).as_dict()
    except ConfigError as error:
        raise ConfigError(f"--tune {name}: {error}") from None


def resolve_space(
    asked: Asked,
    config: TrainConfig,
    values: Mapping[str, Any],
    spaces: Mapping[str, Any],
    fixed: Collection[str],
) -> tuple[TunedKey, ...]:
    """The keys to tune with their spaces and defaults.

    `values` are the settings of the algorithm's config class, `spaces` its search spaces by field.
    """
    known = {f"{ALGO}{name}": Tune.from_dict(space) for name, space in spaces.items()}
    if not asked:
        asked = {
            key: None for key, space in known.items() if not space.by_name and key not in fixed
        }
    twice = [key for key in asked if key in fixed]
    if twice:
        raise ConfigError(f"'{twice[0]}' is given to --tune and to --fix: remove one")
    if not asked:
        raise ConfigError(
            f"{config.algo} has no search space left: add keys, such as --tune learning_rate=1e-5..1e-2"
        )
    found = []
    for key, own in asked.items():
        default = _default(key, config, values)
        if own is None and key not in known:
            name = key.removeprefix(ALGO)
            raise ConfigError(
                f"'{key}' has no search space of its own: give one, --tune {name}=SPACE ({FORM})"
            )
        found.append(_tuned(key, known[key] if own is None else Tune.from_dict(own), default))
    return tuple(found)


def _default(key: str, config: TrainConfig, values: Mapping[str, Any]) -> Any:
    """The value of a key with the base configuration."""
    section, _, rest = key.partition(".")
    inside: Any = (
        values
        if section == "algo_kwargs"
        else config.env_kwargs
        if section == "env_kwargs"
        else None
    )
    if inside is None:
        return config.model_dump(mode="json")[section]
    for part in rest.split("."):
        if not isinstance(inside, Mapping) or part not in inside:
            if section == "algo_kwargs":
                names = inside if isinstance(inside, Mapping) else values
                raise ConfigError(
                    f"unknown key '{rest}' to tune for {config.algo}{suggest(part, names)}"
                )
            raise ConfigError(
                f"'{key}' has no default, which is trial 0: set one, such as {key}=VALUE"
            )
        inside = inside[part]
    return inside


def _tuned(key: str, space: Tune, default: Any) -> TunedKey:
    """A key whose search space includes its default."""
    space, schedule = replace(space, by_name=False), None
    has_mappings = any(
        isinstance(choice, Mapping) for choice in space.choices
    )  # whole schedules, not their start
    if isinstance(default, Mapping) and {"kind", "start"} <= default.keys() and not has_mappings:
        schedule = {name: value for name, value in default.items() if name != "start"}
        default = default["start"]
    try:
        return TunedKey(key, _widened(space, default), default, schedule)
    except ConfigError as error:
        name = key.removeprefix(ALGO)
        raise ConfigError(f"the default {json.dumps(default, default=str)} of '{key}', which is trial 0, does not fit"
                          f" its search space {space.text}: {error}; set another ({key}=VALUE), or give --tune"
                          f" {name}=SPACE") from None  # fmt: skip


def _widened(space: Tune, default: Any) -> Tune:
    if space.choices:
        texts = [identity(decode(encode(choice), space)) for choice in space.choices]
        is_known = (
            any(_is_same(choice, default) for choice in space.choices) or identity(default) in texts
        )
        return space if is_known else replace(space, choices=(default, *space.choices))
    if (
        isinstance(default, bool)
        or not isinstance(default, (int, float))
        or not math.isfinite(default)
    ):
        raise ConfigError("it is not a number")
    assert space.low is not None
    assert space.high is not None
    low, high = min(space.low, default), max(space.high, default)
    if space.step is not None:
        count = (default - space.low) / space.step
        if abs(count - round(count)) > 1e-9:
            raise ConfigError("it is between two steps")
    if not space.has_integers:
        low, high = float(low), float(high)
    return replace(space, low=low, high=high)


def _is_same(choice: Any, default: Any) -> bool:
    """Whether two values are the same setting: 1 and 1.0 are, 1 and true are not."""
    if isinstance(choice, (list, tuple)) and isinstance(default, (list, tuple)):
        return list(choice) == list(default)
    return bool(choice == default) and isinstance(choice, bool) == isinstance(default, bool)


RESOLVER = f"{__name__}:resolve_asked"
"""What a worker process calls, by name."""
INSIDE = 0.618
"""Where in a range a further value is checked: a setting of whole numbers may have valid ends and refuse what is
between them."""


def write_asked(asked: Asked, fixed: Sequence[str]) -> str:
    """What a worker needs to resolve a search space, as text."""
    return dump_yaml({"asked": asked, "fixed": list(fixed)})


def resolve_asked(text: str, config: TrainConfig) -> str:
    """The resolved search space as text, for `read_resolved`; a `ConfigError` names a value that is never valid.

    Called in a worker process, with the default configuration.
    """
    values = parse_yaml(text, "the search space")
    algo_config = get_algorithm_spec(config.algo).parse_kwargs(config.algo_kwargs)
    spaces = search_spaces(algo_config, config.total_timesteps, config.num_envs)
    defaults = algo_config.model_dump(mode="json")
    known = {name: space.as_dict() for name, space in spaces.items()}
    keys = resolve_space(values["asked"], config, defaults, known, values["fixed"])
    for key in keys:
        check_values(key, config)
    space = {key.key: key.as_dict() for key in keys}
    return dump_yaml({"space": space, "eval_interval": defaults.get("eval_interval")})


def read_resolved(text: str) -> tuple[tuple[TunedKey, ...], int | None]:
    """The search space, and the steps between two evaluations if they are set."""
    values = parse_yaml(text, "the search space")
    return tuple(TunedKey.from_dict(key, item) for key, item in values["space"].items()), values[
        "eval_interval"
    ]


def check_values(key: TunedKey, config: TrainConfig) -> None:
    """Refuse a search space with a value that the setting never accepts; arguments of environments are not known."""
    section, *path = key.key.split(".")
    if section == "env_kwargs":
        return
    spec = get_algorithm_spec(config.algo)
    for value in _checked_values(key):
        setting = nested({key.key: key.setting(encode(value))})
        merged, _ = merge_layers([("the base", config.model_dump()), ("the search space", setting)])
        try:
            if section == "algo_kwargs":
                check_key(spec.config_class(), merged["algo_kwargs"], tuple(path), spec.name)
            else:
                TrainConfig(**merged)
        except ConfigError as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"the search space of '{key.name}' has an invalid value: {reason}"
            ) from None


def _checked_values(key: TunedKey) -> list[Any]:
    space: Tune = key.space
    if space.low is None or space.high is None:
        return list(space.choices)
    ends = [space.low, space.high]
    if space.step is not None:
        return [*ends, space.low + space.step]
    return (
        ends
        if space.has_integers
        else [*ends, key.rounded(space.low + INSIDE * (space.high - space.low))]
    )

"""The search space of a tuning: which keys vary, in which values; resolved and checked in a worker process."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rl_training.algorithms.tune import Tune
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, merge_layers
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.yaml_text import parse_yaml
from rl_training.studies.tuning.journal import quiet_optuna
from rl_training.studies.tuning.ranges import search_spaces
from rl_training.studies.variation import CHOSEN_BY_TUNING, Setting, identity, nested
from rl_training.validation import check_key, suggest

Asked = dict[str, Tune | None]
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
INSIDE = 0.618
"""Where in a range a further value is checked: a setting of whole numbers may have valid ends and refuse what is
between them."""


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
        space = dict(values)
        default, schedule = space.pop("default"), space.pop("schedule", None)
        return cls(key, Tune.from_dict(space), default, schedule)

    def distribution(self) -> Any:
        """The values as a distribution of Optuna."""
        space = self.space
        with quiet_optuna() as optuna:
            kinds = optuna.distributions
            if space.choices:
                return kinds.CategoricalDistribution([encode(choice) for choice in space.choices])
            low, high = space.ends
            if space.has_integers:
                return kinds.IntDistribution(low, high, log=space.log, step=space.step or 1)
            return kinds.FloatDistribution(low, high, log=space.log, step=space.step)

    def rounded(self, value: Any) -> Any:
        """A sampled value with few digits, within the range: it is read by people and written in names."""
        if self.space.choices or isinstance(value, int):
            return value
        if self.space.step is not None:
            return round(value, 12)
        low, high = self.space.ends
        return min(max(float(f"{value:.{SIGNIFICANT_DIGITS}g}"), low), high)

    def setting(self, param: Any) -> Any:
        """The value of the configuration for a parameter of Optuna."""
        choices = {identity(encode(choice)): choice for choice in self.space.choices}
        value = choices.get(identity(param), param)
        return value if self.schedule is None else {**self.schedule, "start": value}


def setting_of(keys: Sequence[TunedKey], params: Mapping[str, Any]) -> Setting:
    """The values of the configuration for the parameters of a trial."""
    return {key.key: key.setting(params[key.name]) for key in keys}


def encode(choice: Any) -> Any:
    """A choice as Optuna stores it: lists and mappings as JSON text."""
    is_plain = choice is None or isinstance(choice, (bool, int, float, str))
    return choice if is_plain else json.dumps(choice, default=str)


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
    parts = [text.partition("=") for text in texts]
    return _by_key(((name, space if equals else None) for name, equals, space in parts), "--tune")


def read_asked(value: Any) -> Asked:
    """The keys of `space` in the tune block of a study file: a list of keys, or search spaces by key."""
    if isinstance(value, (list, tuple)):
        return parse_asked([str(item) for item in value])
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"bad value {value!r:.80} for 'space': give a list of keys, or search spaces by key"
        )
    return _by_key(value.items(), "'space'")


def _by_key(spaces: Iterable[tuple[Any, Any]], where: str) -> Asked:
    asked: Asked = {}
    for name, space in spaces:
        key = full_key(str(name))
        if key in asked:
            raise ConfigError(f"'{name}' is given twice to {where}: remove one")
        asked[key] = _read_space(space, name)
    return asked


def _read_space(value: Any, name: Any) -> Tune | None:
    if value is None:
        return None
    if isinstance(value, str):
        return parse_space(value, str(name))
    given = {"choices": value} if isinstance(value, list) else value
    space = Tune.from_dict(given) if isinstance(given, Mapping) else Tune()
    if space.is_empty:
        raise ConfigError(f"bad value {value!r} for 'space.{name}': {FORM}, or {{low: …, high: …}}")
    return space


def parse_space(text: str, name: str) -> Tune:
    """The search space that `1e-5..1e-2:log` or `32,64,128` means."""
    number = r"[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
    match = re.fullmatch(rf"\s*({number})\.\.({number})(:log)?\s*", text)
    values: dict[str, Any]
    if match is not None:
        low, high = (parse_yaml(part, f"the range of '{name}'") for part in match.groups()[:2])
        values = {"low": low, "high": high, "log": match[3] is not None}
    else:
        choices = parse_yaml(f"[{text}]", f"the values of '{name}' ({FORM})")
        has_range = any(isinstance(choice, str) and ".." in choice for choice in choices)
        if len(choices) < 2 or has_range:
            raise ConfigError(f"bad value '{text}' for --tune {name}: {FORM}")
        values = {"choices": choices}
    try:
        return Tune.from_dict(values)
    except ConfigError as error:
        raise ConfigError(f"--tune {name}: {error}") from None


def resolve_space(
    asked: Asked, config: TrainConfig, fixed: Collection[str] = ()
) -> tuple[TunedKey, ...]:
    """The keys to tune with their spaces and defaults; without `asked` every field that has a space.

    A `ConfigError` names a value that its setting never accepts.
    """
    algo_config = get_algorithm_spec(config.algo).parse_kwargs(config.algo_kwargs)
    spaces = search_spaces(algo_config, config.total_timesteps, config.num_envs)
    known = {f"{ALGO}{name}": space for name, space in spaces.items()}
    if not asked:
        asked = {
            key: None for key, space in known.items() if not space.by_name and key not in fixed
        }
    if not asked:
        raise ConfigError(
            f"{config.algo} has no search space left: add keys, such as --tune learning_rate=1e-5..1e-2"
        )
    values = config.model_dump(mode="json")
    values["algo_kwargs"] = algo_config.model_dump(mode="json")
    found = []
    for key, own in asked.items():
        if key in fixed:
            raise ConfigError(f"'{key}' is given to --tune and to --fix: remove one")
        default, space = _default(key, values), own or known.get(key)
        if space is None:
            name = key.removeprefix(ALGO)
            raise ConfigError(
                f"'{key}' has no search space of its own: give one, --tune {name}=SPACE ({FORM})"
            )
        tuned = _tuned(key, space, default)
        _check_values(tuned, config)
        found.append(tuned)
    return tuple(found)


def _default(key: str, values: Mapping[str, Any]) -> Any:
    """The value of a key of the complete default configuration."""
    inside: Any = values
    for part in key.split("."):
        if isinstance(inside, Mapping) and part in inside:
            inside = inside[part]
        elif key.startswith(ALGO):
            names = inside if isinstance(inside, Mapping) else values["algo_kwargs"]
            name, hint = key.removeprefix(ALGO), suggest(part, names)
            raise ConfigError(f"unknown key '{name}' to tune for {values['algo']}{hint}")
        else:
            raise ConfigError(
                f"'{key}' has no default, which is trial 0: set one, such as {key}=VALUE"
            )
    return inside


def _tuned(key: str, space: Tune, default: Any) -> TunedKey:
    """A key whose search space includes its default."""
    space, schedule = Tune.from_dict({**space.as_dict(), "by_name": False}), None
    has_schedules = any(isinstance(choice, Mapping) for choice in space.choices)
    if isinstance(default, Mapping) and {"kind", "start"} <= default.keys() and not has_schedules:
        schedule = {name: value for name, value in default.items() if name != "start"}
        default = default["start"]
    try:
        widened = _with_choice(space, default) if space.choices else _with_number(space, default)
    except ConfigError as error:
        name = key.removeprefix(ALGO)
        raise ConfigError(f"the default {json.dumps(default, default=str)} of '{key}', which is trial 0, does not fit"
                          f" its search space {space.text}: {error}; set another ({key}=VALUE), or give --tune"
                          f" {name}=SPACE") from None  # fmt: skip
    return TunedKey(key, widened, default, schedule)


def _with_choice(space: Tune, default: Any) -> Tune:
    """The choices, and the default if it is none of them: 1.0 is the same as 1, true is not."""
    for choice in space.choices:
        if choice == default and isinstance(choice, bool) == isinstance(default, bool):
            return space
    return replace(space, choices=(default, *space.choices))


def _with_number(space: Tune, default: Any) -> Tune:
    """The range, widened to the default if it is outside."""
    is_number = isinstance(default, (int, float)) and not isinstance(default, bool)
    if not is_number or not math.isfinite(default):
        raise ConfigError("it is not a number")
    low, high = space.ends
    if space.step is not None:
        count = (default - low) / space.step
        if abs(count - round(count)) > 1e-9:
            raise ConfigError("it is between two steps")
    low, high = min(low, default), max(high, default)
    if not space.has_integers:
        low, high = float(low), float(high)
    return replace(space, low=low, high=high)


def _check_values(key: TunedKey, config: TrainConfig) -> None:
    """Refuse a search space with a value that the setting never accepts; arguments of environments are not known."""
    section, *path = key.key.split(".")
    if section == "env_kwargs":
        return
    spec, base = get_algorithm_spec(config.algo), ("the base", config.model_dump())
    for value in _checked_values(key):
        setting = nested({key.key: key.setting(value)})
        merged, _ = merge_layers([base, ("the search space", setting)])
        try:
            if section == "algo_kwargs":
                check_key(spec.config_class(), merged["algo_kwargs"], tuple(path), spec.name)
            else:
                TrainConfig(**merged)
        except ConfigError as error:
            start = f"the search space of '{key.name}' has an invalid value"
            raise ConfigError(f"{start}: {str(error).splitlines()[0]}") from None


def _checked_values(key: TunedKey) -> Sequence[Any]:
    space = key.space
    if space.choices:
        return space.choices
    low, high = space.ends
    if space.step is not None:
        return low, high, low + space.step
    if space.has_integers:
        return low, high
    return low, high, key.rounded(low + INSIDE * (high - low))

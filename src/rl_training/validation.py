"""Base class of every config, and the translation of Pydantic's errors into one `ConfigError`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from rl_training.errors import ConfigError

LARGEST = 2**128
"""Integers of a configuration are smaller: longer ones fit neither floats nor file names."""


class FrozenConfig(BaseModel):
    """Base of the config classes: keyword-only, frozen, unknown keys refused, a docstring under each field."""

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_bool_and_huge_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool) and "bool" not in str(
            cls.model_fields[info.field_name or ""].annotation
        ):
            raise ValueError("should not be true or false")
        if isinstance(value, int) and abs(value) >= LARGEST:
            raise ValueError(f"should be less than {LARGEST:,}")
        return value

    spelling: ClassVar[str | None] = None
    """YAML form of an object of this class, for error messages about a setting that is a number or such an object."""
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        validate_default=True,
        ser_json_inf_nan="constants",
    )

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise config_error(type(self), error, self._title(), values) from None

    # Lets Pydantic build a nested config without this `__init__`: only the outermost class, which has the full path of
    # a key, raises the ConfigError.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def __setattr__(self, name: str, value: Any) -> None:
        raise ConfigError(
            f"cannot set '{name}' of {self._title()}: it is frozen; create a new one with the other value"
        )

    @classmethod
    def _title(cls) -> str:
        """Name of an object in error messages if it was constructed directly."""
        return cls.__name__

    @classmethod
    def _suggest_key(cls, key: str, values: Mapping[str, Any]) -> str:
        """End of the error message for an unknown key; `values` are all that were given."""
        return suggest(key, cls.model_fields)


PLAIN_REASONS = {
    "int_from_float": "should be a whole number",
    "tuple_type": "should be a list",
    "model_type": "should be a mapping of keys to values",
    "model_attributes_type": "should be a mapping of keys to values",
    "dict_type": "should be a mapping of keys to values",
}
"""Reasons in the words of a configuration file, by Pydantic's error types."""
NEITHER = ("float_parsing", "float_type", "model_type", "model_attributes_type")
"""Pydantic's error types for a value that is neither a number nor a mapping."""
SHORT_NAME = 4
"""Names of at most this many letters are matched less strictly: `ppp` is near `ppo`."""
LONG_VALUE = 400
"""Characters, or bits of a number, above which a message shows a part of a value."""
ConfigT = TypeVar("ConfigT", bound=FrozenConfig)


def suggest(name: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """Return `: did you mean 'x'?` for the nearest known name; if none is near, `otherwise` or all known names."""
    known = list(known)
    found = nearest(name, known)
    if found is not None:
        return f": did you mean '{found}'?"
    return f" ({otherwise or 'known: ' + (', '.join(sorted(known)) or 'none')})"


OTHER_NAMES = {
    "lr": "learning_rate",
    "anneal_lr": "learning_rate",
    "n_steps": "num_steps n_step",
    "n_epochs": "update_epochs",
    "n_envs": "num_envs",
    "clip_range": "clip_coef",
    "ent_coef": "alpha",
    "net_arch": "hidden_sizes",
    "policy_kwargs": "hidden_sizes",
    "activation_fn": "activation",
    "features_extractor_class": "network",
    "batch_size": "minibatch_size",
    "num_minibatches": "minibatch_size",
    "buffer_size": "buffer_capacity",
    "train_freq": "train_frequency",
    "exploration_initial_eps": "epsilon_start",
    "start_e": "epsilon_start",
    "exploration_final_eps": "epsilon_end",
    "end_e": "epsilon_end",
    "action_noise": "exploration_noise",
    "target_policy_noise": "policy_noise",
    "target_noise_clip": "noise_clip",
    "n_critics": "num_critics",
    "n_quantiles": "num_quantiles",
    "top_quantiles_to_drop_per_net": "quantiles_to_drop",
    "weight_temp": "beta",
    "max_weight": "max_advantage_weight",
    "conservative_weight": "cql_alpha",
    "n_action_samples": "num_cql_samples",
    "timesteps": "total_timesteps",
    "n_timesteps": "total_timesteps",
    "env": "env_id",
    "tensorboard_log": "loggers",
}
"""Names of settings in Stable-Baselines3, CleanRL and d3rlpy, and ours; of several, the one that the algorithm has."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name for what others call `name`, or the most similar one, ignoring case; None if none is similar."""
    by_lower = {key.lower(): key for key in known}
    ours = [key for key in OTHER_NAMES.get(name.lower(), "").split() if key in by_lower]
    if ours:
        return by_lower[ours[0]]
    cutoff = 0.6 if len(name) <= SHORT_NAME else 0.75
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[found[0]] if found else None


def parse_config(cls: type[ConfigT], values: Mapping[str, Any], owner: str) -> ConfigT:
    """Validate `values` as `cls`; a `ConfigError` names `owner` as the keys' owner."""
    try:
        return cls.model_validate(dict(values))
    except ValidationError as error:
        raise config_error(cls, error, owner, values) from None


def check_key(
    cls: type[FrozenConfig], values: Mapping[str, Any], key: tuple[str, ...], owner: str
) -> None:
    """Validate the value of one key, a path into `values`; whether it fits the other keys is not checked."""
    try:
        cls.model_validate(dict(values))
    except ValidationError as error:
        if any(_location(detail)[: len(key)] == key for detail in error.errors()):
            raise config_error(cls, error, owner, values, key) from None


def config_error(
    cls: type[FrozenConfig],
    error: ValidationError,
    owner: str,
    values: Mapping[str, Any],
    within: tuple[str, ...] = (),
) -> ConfigError:
    """A `ConfigError` with one line per invalid key of `owner`; only of keys `within` a path, if it is given."""
    details = [(_location(detail), detail) for detail in error.errors()]
    details = [
        (location, detail) for location, detail in details if location[: len(within)] == within
    ]
    # Of a union's members, report the one whose error lies deepest in the value; equally deep ones are alternatives.
    furthest = [
        (location, detail)
        for location, detail in details
        if not any(
            len(other) > len(location) and other[: len(location)] == location
            for other, _ in details
        )
    ]
    lines: dict[str, list[str]] = {}
    for location, detail in furthest:
        start, reason = _explain(cls, location, detail, owner, values)
        lines.setdefault(start, []).append(reason)
    return ConfigError(
        "\n".join(start + " or ".join(dict.fromkeys(reasons)) for start, reasons in lines.items())
    )


def _location(detail: Any) -> tuple[Any, ...]:
    """Path of the value as users write it, without the union members that Pydantic adds to it."""
    location = detail["loc"]
    if detail["type"] in ("extra_forbidden", "missing"):
        return (*(part for part in location[:-1] if not _is_union_tag(part)), location[-1])
    return tuple(part for part in location if not _is_union_tag(part))


def _explain(
    cls: type[FrozenConfig],
    location: tuple[Any, ...],
    detail: Any,
    owner: str,
    values: Mapping[str, Any],
) -> tuple[str, str]:
    """Start of the message, shared by alternatives, and the reason."""
    key = ".".join(str(part) for part in location)
    if detail["type"] == "extra_forbidden":
        is_nested = len(location) > 1
        hint = suggest(str(location[-1]), _nested_fields(cls, location[:-1])) if is_nested else None
        return f"unknown key '{key}' for {owner}{hint or cls._suggest_key(key, values)}", ""
    if detail["type"] == "missing":
        return f"missing key '{key}' for {owner}", ""
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    message = PLAIN_REASONS.get(detail["type"], message)
    if detail["type"] in ("int_parsing", "float_parsing") and (
        number := spelled_out(detail["input"])
    ):
        message = f"should be a number: write {number}"
    if detail["type"] in NEITHER and len(location) == 1:
        for alternative in _config_classes(cls, key):
            if alternative.spelling is not None:
                message = f"should be a number, or {alternative.spelling}"
    if not key:
        return f"{owner}: ", message
    return f"bad value {brief(detail['input'])} for '{key}' of {owner}: ", message


def spelled_out(text: object) -> str | None:
    """The number that `100k` or `1.5M` means, in digits; None if it is something else."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([kKmM])", text) if isinstance(text, str) else None
    return (
        None
        if found is None
        else f"{float(found[1]) * {'k': 1e3, 'm': 1e6}[found[2].lower()]:.15g}"
    )


def brief(value: object) -> str:
    """The value as Python writes it; of a long one the beginning and the length."""
    if (
        isinstance(value, int) and value.bit_length() > LONG_VALUE
    ):  # Python refuses to write some of them
        return f"of {value.bit_length():,} bits"
    text = repr(value)
    return (
        text
        if len(text) <= LONG_VALUE
        else f"{text[: LONG_VALUE // 2]}… ({len(text):,} characters)"
    )


def _config_classes(cls: type[FrozenConfig], key: Any) -> list[type[FrozenConfig]]:
    """The config classes whose objects a setting accepts."""
    annotation = cls.model_fields[key].annotation if key in cls.model_fields else None
    members = [annotation, *getattr(annotation, "__args__", ())]
    return [
        member
        for member in members
        if isinstance(member, type) and issubclass(member, FrozenConfig)
    ]


def _is_union_tag(part: Any) -> bool:
    """Whether a part of Pydantic's location names a union member, not a key."""
    return isinstance(part, str) and (
        "[" in part
        or "constrained-" in part
        or part in {"float", "int", "str", "bool", "none"}
        or part[:1].isupper()
    )


def _nested_fields(cls: type[FrozenConfig], location: Sequence[Any]) -> list[str]:
    """Keys of the mappings on the way to `location`."""
    fields: set[str] = set()
    for part in location:
        for member in _config_classes(cls, part):
            fields.update(member.model_fields)
            cls = member
    return sorted(fields)

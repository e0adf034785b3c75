"""The base of every config class, and the translation of its errors into one clear message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from rl_training.errors import ConfigError


class FrozenConfig(BaseModel):
    """Settings: keyword-only, frozen, unknown keys refused, a line of meaning under each field."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False, validate_default=True
    )


ConfigT = TypeVar("ConfigT", bound=FrozenConfig)


def suggest(name: str, known: Iterable[str]) -> str:
    """Return `: did you mean 'x'?` for the nearest known name, or the list of what is known."""
    names = sorted(known)
    nearest = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    return f": did you mean '{nearest[0]}'?" if nearest else f" (known: {', '.join(names)})"


def parse_config(cls: type[ConfigT], values: Mapping[str, Any], owner: str) -> ConfigT:
    """Build `cls` from plain values, or raise a `ConfigError` that speaks of `owner`'s keys."""
    try:
        return cls(**values)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(cls, detail, owner) for detail in error.errors())) from None


def _explain(cls: type[FrozenConfig], detail: Any, owner: str) -> str:
    location = [part for part in detail["loc"] if not _is_union_tag(part)]
    key = ".".join(str(part) for part in location)
    if detail["type"] == "extra_forbidden":
        known = cls.model_fields if len(location) == 1 else _nested_fields(cls, location[:-1])
        return f"unknown key '{key}' for {owner}{suggest(str(location[-1]), known)}"
    if detail["type"] == "missing":
        return f"missing key '{key}' for {owner}"
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if not key:
        return f"{owner}: {message}"
    return f"bad value {detail['input']!r} for '{key}' of {owner}: {message}"


def _is_union_tag(part: Any) -> bool:
    """Pydantic names the tried member of a union in the location; users do not write that name."""
    return isinstance(part, str) and (
        "[" in part or part in {"float", "int", "str", "bool", "none"} or part[:1].isupper()
    )


def _nested_fields(cls: type[FrozenConfig], location: list[Any]) -> list[str]:
    fields: set[str] = set()
    for part in location:
        annotation = cls.model_fields[part].annotation if part in cls.model_fields else None
        members = [annotation, *getattr(annotation, "__args__", ())]
        for member in members:
            if isinstance(member, type) and issubclass(member, FrozenConfig):
                fields.update(member.model_fields)
                cls = member
    return sorted(fields)

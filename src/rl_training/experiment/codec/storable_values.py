"""The types that `env_kwargs` may contain: those that `config.yaml` and a checkpoint restore exactly."""

from __future__ import annotations

import datetime
from typing import Any

from rl_training.errors import ConfigError

MAX_DEPTH = 20
MAX_VALUES = 20_000
CHARACTERS_PER_VALUE = 64
"""A string counts as one more value for each this many characters."""
MAX_BITS = 1024
REMEDY = (
    "use numbers, text, bytes, true or false, None, dates, and lists, tuples, sets and dictionaries of these;"
    " for other objects pass a name or path from which the environment creates them"
)
LEAVES = (type(None), bool, float, str, bytes, datetime.date)


def storable_copy(value: Any, key: str) -> Any:
    """A deep copy of `value`, the setting `key`; a `ConfigError` names the first value that cannot be stored."""
    return _Copier(key).copy(value, key, 0)


class _Copier:
    """One pass over a setting; counts its values."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._num_values = 0

    def copy(self, value: Any, place: str, depth: int) -> Any:
        """Copy the value at `place`, recursively."""
        kind = type(value)
        self._num_values += 1 + (len(value) // CHARACTERS_PER_VALUE if kind in (str, bytes) else 0)
        if self._num_values > MAX_VALUES:
            raise ConfigError(
                f"{self._key} holds more than {MAX_VALUES:,} values: put them in a file and pass its path"
            )
        if depth > MAX_DEPTH:
            raise ConfigError(f"{self._key} is nested deeper than {MAX_DEPTH} levels at '{place:.100}'")
        if kind is dict:
            items = value.items()
            return {
                self.copy(key, f"{place}.{key!s:.40}", depth + 1): self.copy(item, f"{place}.{key!s:.40}", depth + 1)
                for key, item in items
            }
        if kind in (list, tuple):
            return kind(self.copy(item, f"{place}.{index}", depth + 1) for index, item in enumerate(value))
        if kind in (set, frozenset):
            return kind(self.copy(item, place, depth + 1) for item in value)
        if kind in LEAVES or _is_storable(value):
            return value
        name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
        fault = f"is an integer of more than {MAX_BITS} bits" if kind is int else f"has type {name}"
        raise ConfigError(f"'{place}' of the configuration {fault}, which config.yaml cannot store: {REMEDY}")


def _is_storable(value: Any) -> bool:
    """Whether `value` is an integer of at most `MAX_BITS` bits, or a datetime with a UTC offset in minutes or none."""
    if type(value) is int:
        return value.bit_length() <= MAX_BITS
    if type(value) is not datetime.datetime or type(value.tzinfo) not in (type(None), datetime.timezone):
        return False
    offset = value.utcoffset()
    return value.fold == 0 and (offset is None or offset.total_seconds() % 60 == 0)

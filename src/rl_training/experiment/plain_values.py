"""The values that `env_kwargs` may hold: those that `config.yaml` and a checkpoint give back as they were."""

from __future__ import annotations

import datetime
from typing import Any

from rl_training.errors import ConfigError

MAX_DEPTH = 20
MAX_VALUES = 20_000
CHARACTERS_PER_VALUE = 64
"""A text counts as one value more for each so many characters."""
MAX_BITS = 1024
REMEDY = (
    "use numbers, text, bytes, true or false, None, dates, and lists, tuples, sets and dictionaries of these;"
    " for anything else pass a name or a path that the environment makes it from"
)
LEAVES = (type(None), bool, float, str, bytes, datetime.date)


def plain_copy(value: Any, key: str) -> Any:
    """A copy of `value`, the setting `key`; a `ConfigError` names what in it cannot be kept."""
    return _Copier(key).copy(value, key, 0)


class _Copier:
    """One pass over a setting, which counts what it has seen."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._num_values = 0

    def copy(self, value: Any, place: str, depth: int) -> Any:
        """The value at `place`, and all that it holds."""
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
        if kind in LEAVES or _is_kept(value):
            return value
        name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
        fault = "is an integer of more than 1024 bits" if kind is int else f"has type {name}"
        raise ConfigError(f"'{place}' of the configuration {fault}, which config.yaml cannot give back: {REMEDY}")


def _is_kept(value: Any) -> bool:
    """Whether an integer is of a usual size, and a point in time has an offset in whole minutes or none."""
    if type(value) is int:
        return value.bit_length() <= MAX_BITS
    if type(value) is not datetime.datetime or type(value.tzinfo) not in (type(None), datetime.timezone):
        return False
    offset = value.utcoffset()
    return value.fold == 0 and (offset is None or offset.total_seconds() % 60 == 0)

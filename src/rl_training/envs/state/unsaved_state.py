"""Detects state that checkpoints cannot save: of one environment, and shared between environments."""

from __future__ import annotations

import contextlib
import enum
import itertools
import random
import sys
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import gymnasium as gym
import numpy as np

from rl_training.envs.state.attributes import SKIPPED

MAX_VALUES = 20_000
MAX_ARRAY_BYTES = 1 << 24
NUMBERS = (bool, int, float, complex, type(None), enum.Enum, np.generic, itertools.count)
OTHERS = {"gymnasium", "builtins", "typing", "abc", "rl_training"}
"""Packages whose classes have no unknown state."""
SAME_IN_EACH = {"spec", "_cached_spec", "metadata", "_metadata", "render_mode", "_np_random_seed"}
"""Attributes that describe the construction of an object, not its state."""


def unsaved_state(env: Any, saved: Iterable[str]) -> dict[str, int]:
    """A checksum of each unsaved attribute of an environment or wrapper."""
    names = vars(env).keys() - SKIPPED - set(saved)
    packages = {_package(kind) for kind in type(env).__mro__} - OTHERS
    found = {name: checksum(vars(env)[name], packages) for name in sorted(names)}
    return {name: value for name, value in found.items() if value is not None}


def shared_state(env_class: type, *, with_tables: bool = False) -> dict[str, int]:
    """A checksum of each class attribute and module variable that an environment's class may change.

    Dictionaries, often lookup tables that are filled once, are included only with `with_tables`.
    """
    kinds = (*NUMBERS, np.ndarray, *GENERATORS, list, deque, *((dict,) if with_tables else ()))
    found: dict[str, int | None] = {}
    for kind in env_class.__mro__:
        module = sys.modules.get(kind.__module__)
        if _package(kind) in OTHERS or module is None:
            continue
        for owner, values in (
            ("class attribute", vars(kind)),
            ("variable of its module", vars(module)),
        ):
            for name, value in values.items():
                if isinstance(value, kinds) and not name.startswith("__") and name not in SKIPPED:
                    found[f"{owner} '{name}'"] = checksum(value)
    return {name: value for name, value in found.items() if value is not None}


GENERATORS = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random)


def checksum(value: Any, packages: Set[str] = frozenset()) -> int | None:
    """A checksum of all numbers, arrays and generators reachable from a value; None if there is none.

    Only objects of classes of `packages` are searched. Others are simulators and windows, restored by the replay.
    """
    walk = _Walk(packages)
    walk.visit(value)
    return walk.sum if walk.num_found else None


class _Walk:
    """Traverses attributes and containers; skips text, which often differs between processes (file names)."""

    def __init__(self, packages: Set[str]) -> None:
        self._packages = packages
        self.sum = 0
        self.num_found = 0
        self._num_visited = 0
        self._array_bytes = 0
        self._seen: dict[int, Any] = {}

    def visit(self, value: Any) -> None:
        """Add a value to the checksum."""
        self._num_visited += 1
        if self._num_visited > MAX_VALUES:
            return
        if isinstance(value, NUMBERS):
            self._add(repr(value).encode())
        elif isinstance(value, np.ndarray):
            self._visit_array(value)
        elif (
            isinstance(value, (str, bytes, type, ModuleType, gym.Space)) or id(value) in self._seen
        ):
            return
        else:
            self._seen[id(value)] = value  # referenced, so that no other object gets its id
            self._visit_parts(value)

    def _visit_array(self, array: np.ndarray[Any, Any]) -> None:
        if array.dtype.kind not in "biufc" or self._array_bytes + array.nbytes > MAX_ARRAY_BYTES:
            return
        self._array_bytes += array.nbytes
        self._add(f"{array.dtype}{array.shape}".encode() + array.tobytes())

    def _visit_parts(self, value: Any) -> None:
        if isinstance(value, (list, tuple, deque)):
            self._add_length(value)
            for item in value:
                self.visit(item)
        elif isinstance(value, (set, frozenset)):
            self._add_length(value)
        elif isinstance(value, Mapping):
            self._add_length(value)
            for item in list(value.values()):
                self.visit(item)
        elif isinstance(value, GENERATORS):
            self._add(repr(_generator_state(value)).encode())
        elif _package(type(value)) in self._packages:
            for name in _attribute_names(value):
                if name not in SAME_IN_EACH:
                    self.visit(getattr(value, name, None))

    def _add_length(self, value: Any) -> None:
        self.sum = zlib.crc32(str(len(value)).encode(), self.sum)

    def _add(self, data: bytes) -> None:
        self.num_found += 1
        self.sum = zlib.crc32(data, self.sum)


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _generator_state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        generator = generator._bit_generator
    state = (
        generator.bit_generator if isinstance(generator, np.random.Generator) else generator
    ).state
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in _flat(state)
    }


def _flat(state: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for name, value in state.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            yield name, value


def _attribute_names(value: Any) -> list[str]:
    slots = [
        name
        for kind in type(value).__mro__
        for name in getattr(kind, "__slots__", ())
        if isinstance(name, str)
    ]
    attributes = getattr(value, "__dict__", {})
    return [*(attributes if isinstance(attributes, Mapping) else ()), *slots]


MAX_WATCHED = 1024
"""Of this many first calls, those with numbers 0, 1, 2, 4, 8, ... are checked, since a check takes time. The
construction of the first environment is not checked: its class is unknown then, and it may fill lookup tables."""
MAX_NAME = 200
env_classes: WeakValueDictionary[str, type] = WeakValueDictionary()
"""Environment class by environment id; an id has none before its first environment is made."""
_num_calls: WeakKeyDictionary[type, dict[str, int]] = WeakKeyDictionary()
_changes: WeakKeyDictionary[type, set[str]] = WeakKeyDictionary()


@contextlib.contextmanager
def watch_call(kind: type | None, call: str) -> Iterator[None]:
    """Record changes of class attributes and module variables of an environment's class within the block."""
    if kind is None:
        yield
        return
    counts = _num_calls.setdefault(kind, {})
    counts[call] = counts.get(call, -1) + 1
    before = shared_state(kind) if is_watched(counts[call]) else {}
    try:
        yield
    finally:
        if before:
            changed = changed_names(before, shared_state(kind))
            _changes.setdefault(kind, set()).update(changed)


def changed_names(before: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """Names of the checksums that have changed."""
    return [name for name in before if now.get(name) != before[name]]


def shared_changes(kind: type) -> list[str]:
    """Names of the class attributes and module variables that changed."""
    return sorted(_changes.get(kind, ()))


def change_of_shared(name: str) -> str:
    """Reason for an inexact resume, for a name of `shared_changes`; cut, since names may come from a file."""
    return f"it changes the {name[:MAX_NAME]}, which is not saved: use attributes of self"


def is_watched(number: int) -> bool:
    """Whether the call with this number is checked."""
    return number <= MAX_WATCHED and number & (number - 1) == 0

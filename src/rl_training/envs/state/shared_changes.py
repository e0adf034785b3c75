"""Records changes of class attributes and module variables while environments are made, evaluated and closed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from weakref import WeakKeyDictionary, WeakValueDictionary

from rl_training.envs.state.unsaved_state import shared_state

MAX_WATCHED = 1024
"""Of this many first calls, those with numbers 0, 1, 2, 4, 8, ... are checked, since a check takes time. The
construction of the first environment is not checked: its class is unknown then, and it may fill lookup tables."""
MAX_NAME = 200
_classes: WeakValueDictionary[str, type] = WeakValueDictionary()
"""Environment class by environment id."""
_num_calls: WeakKeyDictionary[type, dict[str, int]] = WeakKeyDictionary()
_changes: WeakKeyDictionary[type, set[str]] = WeakKeyDictionary()


def known_class(env_id: str) -> type | None:
    """The class of an environment id; None before its first environment is made."""
    return _classes.get(env_id)


def remember_class(env_id: str, kind: type) -> None:
    """Record the class of an environment id."""
    _classes[env_id] = kind


@contextlib.contextmanager
def watch_call(kind: type | None, call: str) -> Iterator[None]:
    """Record changes of class attributes and module variables of an environment's class within the block."""
    before = {} if kind is None or not _is_watched(kind, call) else shared_state(kind)
    try:
        yield
    finally:
        if kind is not None and before:
            now = shared_state(kind)
            changed = {name for name in before if now.get(name) != before[name]}
            _changes.setdefault(kind, set()).update(changed)


def shared_changes(kind: type) -> list[str]:
    """Names of the class attributes and module variables that changed."""
    return sorted(_changes.get(kind, ()))


def change_of_shared(name: str) -> str:
    """Reason for an inexact resume, for a name of `shared_changes`; cut, since names may come from a file."""
    return f"it changes the {name[:MAX_NAME]}, which is not saved: use attributes of self"


def _is_watched(kind: type, call: str) -> bool:
    counts = _num_calls.setdefault(kind, {})
    number = counts[call] = counts.get(call, -1) + 1
    return number <= MAX_WATCHED and number & (number - 1) == 0

"""What environments change in their classes and modules when they are made, evaluated and closed in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from weakref import WeakKeyDictionary, WeakValueDictionary

from rl_training.envs.state.unsaved_state import shared_state

MAX_WATCHED = 1024
"""The first, second, third, fifth, ninth, ... of so many calls are watched: to look takes time. What makes the first
environment is not among them: its class is not known yet, and it may fill tables that are then only read."""
MAX_NAME = 200
_classes: WeakValueDictionary[str, type] = WeakValueDictionary()
"""The class that each environment id was seen to make."""
_num_calls: WeakKeyDictionary[type, dict[str, int]] = WeakKeyDictionary()
_changes: WeakKeyDictionary[type, set[str]] = WeakKeyDictionary()


def known_class(env_id: str) -> type | None:
    """The class of the environments of this id, if one was made before."""
    return _classes.get(env_id)


def remember_class(env_id: str, kind: type) -> None:
    """Note which class an environment id makes."""
    _classes[env_id] = kind


@contextlib.contextmanager
def watch_call(kind: type | None, call: str) -> Iterator[None]:
    """Note which class attributes and module variables of an environment's class change within the block."""
    before = {} if kind is None or not _is_watched(kind, call) else shared_state(kind)
    try:
        yield
    finally:
        if kind is not None and before:
            now = shared_state(kind)
            changed = {name for name in before if now.get(name) != before[name]}
            _changes.setdefault(kind, set()).update(changed)


def shared_changes(kind: type) -> list[str]:
    """What was seen to change."""
    return sorted(_changes.get(kind, ()))


def change_of_shared(name: str) -> str:
    """Why a resumed run differs, for a name of `shared_changes`, which may come from a file."""
    return f"it changes the {name[:MAX_NAME]}, which is not saved: use attributes of self"


def _is_watched(kind: type, call: str) -> bool:
    counts = _num_calls.setdefault(kind, {})
    number = counts[call] = counts.get(call, -1) + 1
    return number <= MAX_WATCHED and number & (number - 1) == 0

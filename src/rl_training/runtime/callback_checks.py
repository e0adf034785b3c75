"""Checks of a callback before the run begins: it has events, they can be called, and its state can be saved."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable
from typing import Any

from rl_training.errors import ConfigError
from rl_training.experiment.tree_packing import UnsavableStateError, pack
from rl_training.validation import nearest

EVENTS: dict[str, tuple[str, ...]] = {
    "on_train_start": ("trainer",),
    "on_collect_end": ("trainer", "result"),
    "on_update_end": ("trainer", "result"),
    "on_eval_end": ("trainer", "metrics"),
    "on_log": ("trainer", "metrics"),
    "on_train_end": ("trainer", "result"),
}
"""Every event, and the arguments it is called with."""
STATE_METHODS: dict[str, tuple[str, ...]] = {"state_dict": (), "load_state_dict": ("state",)}


def check_callback(callback: object, title: str) -> None:
    """Raise a `ConfigError` about `title` unless it is an object with events that can be called."""
    if inspect.isclass(callback):
        raise ConfigError(f"{title} is a class: pass an instance, such as {callback.__name__}()")
    _refuse_misspelt_events(callback, title)
    methods = {name: arguments for name, arguments in (EVENTS | STATE_METHODS).items() if hasattr(callback, name)}
    for name, arguments in methods.items():
        _check_method(getattr(callback, name), name, arguments, title)
    if not methods.keys() & EVENTS.keys():
        raise ConfigError(f"{title} has no event: define at least one of {', '.join(EVENTS)}")
    missing = STATE_METHODS.keys() - methods.keys()
    if len(missing) == 1:
        (present,) = STATE_METHODS.keys() & methods.keys()
        raise ConfigError(f"{title} has {present} but no {missing.pop()}: define both, or its state is lost on resume")
    if not missing:
        _try_state(callback, title)


def savable_state(callback: Any, title: str) -> dict[str, Any]:
    """What `state_dict` of a callback returns, or a `ConfigError` if a checkpoint cannot hold it."""
    if not hasattr(callback, "state_dict"):
        return {}
    state = callback.state_dict()
    if not isinstance(state, dict):
        raise ConfigError(f"state_dict of {title} returned {type(state).__name__}: return a dict")
    try:
        pack(state, {})
    except UnsavableStateError as error:
        raise ConfigError(f"the state of {title} cannot be saved: {error}") from None
    return state


def _refuse_misspelt_events(callback: object, title: str) -> None:
    for name in dir(callback):
        event = nearest(name, EVENTS) if re.match("on[_A-Z]", name) and name not in EVENTS else None
        if event is None:
            continue
        with contextlib.suppress(Exception):  # a property may raise; it is no method then
            if callable(getattr(callback, name)):
                break
    else:
        return
    raise ConfigError(
        f"unknown event '{name}' of {title}: did you mean '{event}'? (events: {', '.join(EVENTS)};"
        " rename the method if it is something else)"
    )


def _check_method(method: Callable[..., Any], name: str, arguments: tuple[str, ...], title: str) -> None:
    if not callable(method):
        raise ConfigError(f"{name} of {title} is {method!r:.80}, not a method")
    wanted = f"{name}({', '.join(arguments)})"
    if inspect.iscoroutinefunction(method) or inspect.isgeneratorfunction(method):
        raise ConfigError(f"{name} of {title} is async or yields, so calling it runs nothing: make it a plain method")
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        return  # some methods written in C have no signature to look at
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise ConfigError(f"{name} of {title} cannot be called as {wanted}: {error}; it takes {signature}") from None


def _try_state(callback: object, title: str) -> None:
    """Find state that cannot be saved. If `state_dict` only works after `on_train_start`, the run asks again then."""
    try:
        savable_state(callback, title)
    except ConfigError:
        raise
    except Exception:
        return

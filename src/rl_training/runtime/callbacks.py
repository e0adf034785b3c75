"""Callbacks: the events of a run at which user code is called; checking them, and loading those of `--callback`."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from rl_training.algorithms.base import UpdateResult
from rl_training.errors import CheckpointError, ConfigError, RLTrainingError, failure_note
from rl_training.experiment.codec import UnsavableStateError, pack
from rl_training.plugins.user_code import frames_of_user, load_code, split_source
from rl_training.runtime.trainer import CollectResult, TrainerState, TrainResult
from rl_training.validation import nearest, suggest

EVENTS: dict[str, tuple[str, ...]] = {
    "on_train_start": ("trainer",),
    "on_collect_end": ("trainer", "result"),
    "on_update_end": ("trainer", "result"),
    "on_eval_end": ("trainer", "metrics"),
    "on_log": ("trainer", "metrics"),
    "on_train_end": ("trainer", "result"),
}
"""Arguments of each event."""
STATE_METHODS: dict[str, tuple[str, ...]] = {"state_dict": (), "load_state_dict": ("state",)}
AnyCallback = object
"""Any object with at least one event method of `Callback`; no base class is needed. `CallbackList` checks it."""


class Callback:
    """Base class with empty event methods. `trainer.request_stop(reason)` ends the run at the next step boundary."""

    def on_train_start(self, trainer: TrainerState) -> None:
        """Called once before the loop, also on resume (after `load_state_dict`)."""

    def on_collect_end(self, trainer: TrainerState, result: CollectResult) -> None:
        """Called when new environment steps are stored; offline once, at the start of a new run, for the dataset."""

    def on_update_end(self, trainer: TrainerState, result: UpdateResult) -> None:
        """Called after each `Algorithm.update`."""

    def on_eval_end(self, trainer: TrainerState, metrics: Mapping[str, float]) -> None:
        """Called after each evaluation."""

    def on_log(self, trainer: TrainerState, metrics: Mapping[str, float]) -> None:
        """Called after each line of metrics is written; at the same step, after `on_eval_end`."""

    def on_train_end(self, trainer: TrainerState, result: TrainResult) -> None:
        """Called once after the last checkpoint, also if the run was stopped early; not if it failed."""

    def state_dict(self) -> dict[str, Any]:
        """Called for each checkpoint: returns the state to restore on resume. Empty by default."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Called on resume, before `on_train_start`, with the saved `state_dict`."""


def _to_each(event: str) -> Any:
    """Make the method that calls `event` of every callback that defines it."""

    def call_each(self: CallbackList, *values: Any) -> None:
        for callback in self.callbacks:
            method = getattr(callback, event, None)
            if method is None:
                continue
            with _naming_callback(callback, event):
                method(*values)

    return call_each


@contextlib.contextmanager
def _naming_callback(callback: object, method: str) -> Iterator[None]:
    """Attach callback and method names to an exception raised by user code."""
    try:
        yield
    except RLTrainingError:
        raise
    except Exception as error:
        note = failure_note(error)
        note.callback, note.trace = (
            f"callback {type(callback).__name__} in {method}",
            frames_of_user(error),
        )
        raise


def _check(callback: object, title: str) -> None:
    """`check_callback`; what a property of the callback raises becomes a `ConfigError`, too."""
    try:
        check_callback(callback, title)
    except RLTrainingError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{title} cannot be used: it raised {type(error).__name__}: {error}"
        ) from error


class CallbackList(Callback):
    """Calls every event of each callback, in order. An exception in a callback ends the run."""

    def __init__(
        self, callbacks: Iterable[AnyCallback] | None = None, titles: Sequence[str] | None = None
    ) -> None:
        """Check each callback that another `CallbackList` has not checked. `titles` name them in errors."""
        try:
            self.callbacks = list(callbacks or [])
        except TypeError:
            name = type(callbacks).__name__
            raise ConfigError(
                f"callbacks must be a list, not one {name}: write callbacks=[...]"
            ) from None
        if not isinstance(callbacks, CallbackList):
            for index, callback in enumerate(self.callbacks):
                _check(callback, titles[index] if titles else self._title(index))
        self.unclaimed: list[str] = []
        """Class names of callbacks with saved state but without a counterpart in this list."""

    def __iter__(self) -> Iterator[AnyCallback]:
        return iter(self.callbacks)

    def after(self, first: Sequence[AnyCallback]) -> CallbackList:
        """The same callbacks, called after `first`."""
        joined = CallbackList(self)
        joined.callbacks = [*first, *joined.callbacks]
        return joined

    def listens_to(self, event: str) -> bool:
        """Whether any callback has this event, other than the empty one of `Callback`."""
        empty = getattr(Callback, event)
        return any(
            hasattr(item, event) and getattr(type(item), event, None) is not empty
            for item in self.callbacks
        )

    on_train_start = _to_each("on_train_start")
    on_collect_end = _to_each("on_collect_end")
    on_update_end = _to_each("on_update_end")
    on_eval_end = _to_each("on_eval_end")
    on_log = _to_each("on_log")
    on_train_end = _to_each("on_train_end")

    def state_dict(self) -> dict[str, Any]:
        """Non-empty states of the callbacks, keyed by index and class name."""
        states = {
            self._key(i): savable_state(c, self._title(i)) for i, c in enumerate(self.callbacks)
        }
        return {key: state for key, state in states.items() if state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore each callback by index and class name, else by the next saved state of its class."""
        remaining = dict(state)
        restorable = [
            index
            for index, callback in enumerate(self.callbacks)
            if hasattr(callback, "load_state_dict")
        ]
        for index in (index for index in restorable if self._key(index) in state):
            self._restore(index, remaining.pop(self._key(index)))
        for index in (index for index in restorable if self._key(index) not in state):
            name = type(self.callbacks[index]).__name__
            key = next((key for key in remaining if key.partition(":")[2] == name), None)
            if key is not None:
                self._restore(index, remaining.pop(key))
        self.unclaimed = [key.partition(":")[2] for key in remaining]

    def _restore(self, index: int, state: Any) -> None:
        callback: Any = self.callbacks[index]
        try:
            callback.load_state_dict(state)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise CheckpointError(
                f"{self._title(index)} cannot load its state from the checkpoint: {reason}"
            ) from error

    def _key(self, index: int) -> str:
        return f"{index}:{type(self.callbacks[index]).__name__}"

    def _title(self, index: int) -> str:
        callback = self.callbacks[index]
        name = callback.__name__ if isinstance(callback, type) else type(callback).__name__
        return f"callback {index + 1} ({name})"


def check_callback(callback: object, title: str) -> None:
    """Raise a `ConfigError` that names `title` unless the callback is an instance with callable event methods."""
    if inspect.isclass(callback):
        raise ConfigError(f"{title} is a class: pass an instance, such as {callback.__name__}()")
    _refuse_misspelt_events(callback, title)
    methods = {
        name: arguments
        for name, arguments in (EVENTS | STATE_METHODS).items()
        if hasattr(callback, name)
    }
    for name, arguments in methods.items():
        _check_method(getattr(callback, name), name, arguments, title)
    if not methods.keys() & EVENTS.keys():
        raise ConfigError(f"{title} has no event: define at least one of {', '.join(EVENTS)}")
    missing = STATE_METHODS.keys() - methods.keys()
    if len(missing) == 1:
        (present,) = STATE_METHODS.keys() & methods.keys()
        raise ConfigError(
            f"{title} has {present} but no {missing.pop()}: define both, or its state is lost on resume"
        )
    if not missing:
        _try_state(callback, title)


def savable_state(callback: Any, title: str) -> dict[str, Any]:
    """The `state_dict()` of a callback; raises a `ConfigError` if a checkpoint cannot store it."""
    if not hasattr(callback, "state_dict"):
        return {}
    with _naming_callback(callback, "state_dict"):
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
        with contextlib.suppress(Exception):  # a property that raises is not an event method
            if callable(getattr(callback, name)):
                break
    else:
        return
    raise ConfigError(
        f"unknown event '{name}' of {title}: did you mean '{event}'? (events: {', '.join(EVENTS)};"
        " rename the method if it is not an event)"
    )


def _check_method(
    method: Callable[..., Any], name: str, arguments: tuple[str, ...], title: str
) -> None:
    if not callable(method):
        raise ConfigError(
            f"{name} of {title} is {method!r:.80}, not a method: define it as a method"
        )
    wanted = f"{name}({', '.join(arguments)})"
    if inspect.iscoroutinefunction(method) or inspect.isgeneratorfunction(method):
        raise ConfigError(
            f"{name} of {title} is async or a generator, so a call would not run it: make it a regular method"
        )
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        return  # some methods written in C have no signature
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise ConfigError(
            f"{name} of {title} cannot be called as {wanted}: {error}; it takes {signature}"
        ) from None


def _try_state(callback: object, title: str) -> None:
    """Raise if `state_dict()` cannot be saved. Other exceptions pass: it is called again after `on_train_start`."""
    try:
        savable_state(callback, title)
    except ConfigError:
        raise
    except Exception:
        return


def load_callbacks(names: Sequence[str] | None) -> CallbackList:
    """The callbacks of these names, FILE.py:NAME or MODULE:NAME, in order.

    NAME is a class or a factory function, called without arguments, or an object with callback methods.
    """
    names = names or ()
    return CallbackList(
        [_load_callback(name) for name in names], [f"callback '{name}'" for name in names]
    )


def _load_callback(name: str) -> object:
    place, attribute = split_source(name)
    if not attribute:
        raise ConfigError(f"--callback '{name}' names no object: write FILE.py:NAME or MODULE:NAME")
    module = load_code(place)
    if not hasattr(module, attribute):
        raise ConfigError(
            f"'{place}' has no '{attribute}'{suggest(attribute, _candidates(vars(module)))}"
        )
    try:
        found = getattr(module, attribute)
        is_made = not inspect.isclass(found) and any(hasattr(found, event) for event in EVENTS)
        return found if is_made or not callable(found) else _make(found, name)
    except RLTrainingError:
        raise
    except Exception as error:
        raise ConfigError(
            f"callback '{name}' cannot be used: it raised {type(error).__name__}: {error}"
        ) from error


def _make(maker: Callable[[], object], name: str) -> object:
    """What the class or factory function makes."""
    try:
        inspect.signature(maker).bind()
    except TypeError as error:
        raise ConfigError(
            f"callback '{name}' cannot be called without arguments: {error}; name a factory function without arguments"
        ) from None
    except ValueError:
        pass  # some classes written in C have no signature
    return maker()


def _candidates(names: dict[str, Any]) -> list[str]:
    """Names in a module that --callback could refer to."""
    return [
        name
        for name, value in names.items()
        if not name.startswith("_") and not inspect.ismodule(value)
    ]

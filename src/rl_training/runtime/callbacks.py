"""Callbacks: the events of a run at which a user's code is called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rl_training.algorithms.base import UpdateResult
from rl_training.errors import CheckpointError, ConfigError, RLTrainingError, failure_note
from rl_training.plugins.user_code import frames_of_user
from rl_training.runtime.callback_checks import check_callback, savable_state
from rl_training.runtime.trainer import CollectResult, TrainerState, TrainResult

AnyCallback = object
"""Any object with at least one of the events of `Callback`; no base class is needed. `CallbackList` checks it."""


class Callback:
    """Base class with every event empty. `trainer.request_stop(reason)` ends the run at the next step boundary."""

    def on_train_start(self, trainer: TrainerState) -> None:
        """Called once before the loop, also on resume (after `load_state_dict`)."""

    def on_collect_end(self, trainer: TrainerState, result: CollectResult) -> None:
        """Called when new environment steps are stored; offline once, at the start of a new run, with the dataset."""

    def on_update_end(self, trainer: TrainerState, result: UpdateResult) -> None:
        """Called after each `Algorithm.update`."""

    def on_eval_end(self, trainer: TrainerState, metrics: Mapping[str, float]) -> None:
        """Called after each evaluation."""

    def on_log(self, trainer: TrainerState, metrics: Mapping[str, float]) -> None:
        """Called after each line of metrics is written; at the same step, after `on_eval_end`."""

    def on_train_end(self, trainer: TrainerState, result: TrainResult) -> None:
        """Called once when the run has ended and is saved, also if it was stopped; not if it failed."""

    def state_dict(self) -> dict[str, Any]:
        """Called for each checkpoint: what a resumed run must restore. Empty by default."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Called on resume, before `on_train_start`, with what `state_dict` returned."""


def _to_each(event: str) -> Any:
    """A method that passes an event on to each callback that has it."""

    def pass_on(self: CallbackList, *values: Any) -> None:
        for callback in self.callbacks:
            method = getattr(callback, event, None)
            if method is None:
                continue
            try:
                method(*values)
            except RLTrainingError:
                raise
            except Exception as error:
                note = failure_note(error)
                note.callback, note.trace = f"callback {type(callback).__name__} in {event}", frames_of_user(error)
                raise

    return pass_on


class CallbackList(Callback):
    """Passes every event to each callback in order; an exception in one ends the run."""

    def __init__(self, callbacks: Iterable[AnyCallback] | None = None) -> None:
        """Check each callback; another `CallbackList` is copied."""
        if isinstance(callbacks, CallbackList):
            callbacks = callbacks.callbacks
        try:
            self.callbacks = list(callbacks or [])
        except TypeError:
            name = type(callbacks).__name__
            raise ConfigError(f"callbacks must be a list, not one {name}: write callbacks=[...]") from None
        for index, callback in enumerate(self.callbacks):
            check_callback(callback, self._title(index))
        self.unclaimed: list[str] = []
        """Class names of callbacks whose saved state no callback of this list took over."""

    on_train_start = _to_each("on_train_start")
    on_collect_end = _to_each("on_collect_end")
    on_update_end = _to_each("on_update_end")
    on_eval_end = _to_each("on_eval_end")
    on_log = _to_each("on_log")
    on_train_end = _to_each("on_train_end")

    def state_dict(self) -> dict[str, Any]:
        """The states of the callbacks that have one, by place and class name."""
        states = {self._key(i): savable_state(c, self._title(i)) for i, c in enumerate(self.callbacks)}
        return {key: state for key, state in states.items() if state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Give each callback the state saved at its place, or, where the list has changed, the next of its class."""
        left = dict(state)
        restorable = [index for index, callback in enumerate(self.callbacks) if hasattr(callback, "load_state_dict")]
        for index in (index for index in restorable if self._key(index) in state):
            self._restore(index, left.pop(self._key(index)))
        for index in (index for index in restorable if self._key(index) not in state):
            name = type(self.callbacks[index]).__name__
            key = next((key for key in left if key.partition(":")[2] == name), None)
            if key is not None:
                self._restore(index, left.pop(key))
        self.unclaimed = [key.partition(":")[2] for key in left]

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

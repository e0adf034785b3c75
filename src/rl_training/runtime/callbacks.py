"""Callbacks: five moments of a run at which a user's code is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl_training.algorithms.base import UpdateResult
from rl_training.runtime.trainer import CollectResult, TrainerState, TrainResult


class Callback:
    """Override what you need. `trainer.request_stop(reason)` ends the run at the next step boundary."""

    def on_train_start(self, trainer: TrainerState) -> None:
        """Everything is set up; no step has been taken."""

    def on_collect_end(self, trainer: TrainerState, result: CollectResult) -> None:
        """New steps have been stored."""

    def on_update_end(self, trainer: TrainerState, result: UpdateResult) -> None:
        """The algorithm has learned from a batch."""

    def on_eval_end(self, trainer: TrainerState, metrics: Mapping[str, float]) -> None:
        """The policy has been evaluated."""

    def on_train_end(self, trainer: TrainerState, result: TrainResult) -> None:
        """The run is over and saved."""

    def state_dict(self) -> dict[str, Any]:
        """What must survive a stop and a resume; nothing by default."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""


def _to_each(event: str) -> Any:
    """A method that passes an event on to each callback."""

    def pass_on(self: CallbackList, *values: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(*values)

    return pass_on


class CallbackList(Callback):
    """Passes every event to each callback in order; an exception in one ends the run."""

    def __init__(self, callbacks: Sequence[Callback] | None = None) -> None:
        self.callbacks = list(callbacks or [])

    on_train_start = _to_each("on_train_start")
    on_collect_end = _to_each("on_collect_end")
    on_update_end = _to_each("on_update_end")
    on_eval_end = _to_each("on_eval_end")
    on_train_end = _to_each("on_train_end")

    def state_dict(self) -> dict[str, Any]:
        """The states of the callbacks that have one, by place and class name."""
        return {self._key(i): state for i, c in enumerate(self.callbacks) if (state := c.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Give each callback its state, if the same callback stands in the same place again."""
        for index, callback in enumerate(self.callbacks):
            if self._key(index) in state:
                callback.load_state_dict(state[self._key(index)])

    def _key(self, index: int) -> str:
        return f"{index}:{type(self.callbacks[index]).__name__}"

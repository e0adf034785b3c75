"""Controls of a run: early stopping, intervals between events, the course of the schedules, and signals."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal

from rl_training.algorithms.config import EarlyStoppingConfig
from rl_training.errors import ConfigError
from rl_training.evaluation.evaluator import SUCCESS_RATE
from rl_training.experiment.run_folder import INTERRUPTED
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.trainer import TrainerState
from rl_training.terminal.streams import tell
from rl_training.validation import suggest

__all__ = [
    "EarlyStoppingCallback",
    "EarlyStoppingConfig",
    "Interval",
    "Schedules",
    "TrainingProgress",
    "stop_on_signals",
]

Schedules = Literal["stretch", "restart", "hold"]
"""Schedules of a resumed run: `stretch` the rest of each over the steps left (if `total_timesteps` changed), `restart`
each over the steps left, or `hold` each at its current value."""


class EarlyStoppingCallback(Callback):
    """Stops the run when the evaluation metric stops improving, or reaches a target."""

    def __init__(self, config: EarlyStoppingConfig) -> None:
        self.config = config
        self.best: float | None = None
        self.evaluations_without_gain = 0
        self.stop_reason: str | None = None

    def on_eval_end(self, trainer: TrainerState, metrics: Mapping[str, float]) -> None:
        """Compare the metric with its best value; request a stop at the target or when patience runs out."""
        config = self.config
        if config.metric not in metrics and config.metric != SUCCESS_RATE:
            raise ConfigError(
                f"unknown metric '{config.metric}' for early_stopping.metric{suggest(config.metric, metrics)}"
            )
        # Many environments report only successes, so a missing success rate is 0.
        value = metrics.get(config.metric, 0.0)
        sign = 1.0 if config.mode == "max" else -1.0
        if self.best is None or sign * (value - self.best) > config.min_delta:
            self.best = value
            self.evaluations_without_gain = 0
        else:
            self.evaluations_without_gain += 1
        if trainer.global_step < config.min_steps:
            return
        if config.target_value is not None and sign * (value - config.target_value) >= 0:
            self.stop_reason = (
                f"{config.metric} {value:g} reached the target {config.target_value:g}"
            )
        elif self.evaluations_without_gain >= config.patience:
            count = f"{config.patience} evaluation{'' if config.patience == 1 else 's'}"
            self.stop_reason = f"{config.metric} has not improved on {self.best:g} for {count}"
        if self.stop_reason is not None:
            trainer.request_stop(self.stop_reason)

    def state_dict(self) -> dict[str, Any]:
        """The metric and mode, the best value, the evaluations without gain, and the reason of the stop."""
        return {
            "metric": self.config.metric,
            "mode": self.config.mode,
            "best": self.best,
            "evaluations_without_gain": self.evaluations_without_gain,
            "stop_reason": self.stop_reason,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the best value and the count.

        The count restarts at 0 if early stopping ended the run; another metric or mode restores nothing.
        """
        watched = self.config.metric, self.config.mode
        if (state.get("metric", watched[0]), state.get("mode", watched[1])) != watched:
            return
        self.best = state["best"]
        if state.get("stop_reason") is None:
            self.evaluations_without_gain = state["evaluations_without_gain"]


def saved_early_stop(session_state: dict[str, Any]) -> str | None:
    """Why early stopping ended the run with this session state; None if it did not."""
    for key, state in session_state.get("callbacks", {}).items():
        if key.partition(":")[2] == EarlyStoppingCallback.__name__ and isinstance(state, dict):
            reason = state.get("stop_reason")
            return reason if isinstance(reason, str) else None
    return None


class Interval:
    """Detects crossed multiples of `every`, for any number of steps at once."""

    def __init__(self, every: int) -> None:
        self.every = every
        self._passed = 0

    def is_due(self, step: int) -> bool:
        """Whether `step` has crossed a multiple since the last call (several count as one)."""
        passed = step // self.every
        is_due = passed > self._passed
        self._passed = max(passed, self._passed)
        return is_due

    def steps_left(self, step: int) -> int:
        """Steps until the next multiple."""
        return self.every - step % self.every

    def state_dict(self) -> dict[str, Any]:
        """`every`, and the number of its multiples passed."""
        return {"every": self.every, "passed": self._passed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the saved step, also with another `every`."""
        self._passed = state["every"] * state["passed"] // self.every


@dataclass
class TrainingProgress:
    """The last step of the run, and the fraction of each schedule done at a step.

    From `from_step` to `total`, the fraction rises linearly from `from_progress` to `to_progress`.
    """

    total: int
    from_step: int = 0
    from_progress: float = 0.0
    to_progress: float = 1.0

    def progress(self, step: int) -> float:
        """Fraction of each schedule done at `step`, 0 to 1."""
        left = self.total - self.from_step
        fraction = (step - self.from_step) / left if left > 0 else 0.0
        return min(
            self.to_progress,
            self.from_progress + (self.to_progress - self.from_progress) * fraction,
        )

    def extended(self, step: int, total: int, schedules: Schedules = "stretch") -> TrainingProgress:
        """Progress of a run resumed at `step` that now ends at `total`; no schedule jumps, unless it restarts."""
        if schedules == "restart":
            return TrainingProgress(total, step)
        if schedules == "hold":
            return TrainingProgress(total, step, self.progress(step), self.progress(step))
        return self if total == self.total else TrainingProgress(total, step, self.progress(step))

    def state_dict(self) -> dict[str, Any]:
        """All fields."""
        return vars(self).copy()


@contextlib.contextmanager
def stop_on_signals(
    state: TrainerState, on_request: Callable[[], None] | None = None
) -> Iterator[None]:
    """Turn signals into `state.request_stop` inside the block. Does nothing outside the main thread.

    The first signal calls `on_request`, which must not print: the signal may have interrupted a print.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    seen: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)
        state.request_stop(INTERRUPTED + signal.Signals(number).name)
        if on_request is not None:
            on_request()

    before = {number: signal.signal(number, handle) for number in _signals_to_handle()}
    try:
        yield
    except KeyboardInterrupt:
        # Printed here: in the handler it would fail if the signal had interrupted a print.
        tell("interrupted again: exiting without saving")
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signals_to_handle() -> list[signal.Signals]:
    """Signals that stop a run. SIGHUP, sent when a terminal closes, is left alone if `nohup` ignores it."""
    hang_up: signal.Signals | None = getattr(signal, "SIGHUP", None)
    is_handled = hang_up is not None and signal.getsignal(hang_up) is not signal.SIG_IGN
    return [
        signal.SIGINT,
        signal.SIGTERM,
        *([hang_up] if hang_up is not None and is_handled else []),
    ]

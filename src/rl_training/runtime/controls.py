"""Controls of a run: early stopping, intervals between events, and the progress of schedules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rl_training.algorithms.config import AlgorithmConfig, EarlyStoppingConfig, value_at
from rl_training.errors import ConfigError
from rl_training.evaluation.evaluator import SUCCESS_RATE
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.trainer import TrainerState
from rl_training.validation import suggest

__all__ = ["EarlyStoppingCallback", "EarlyStoppingConfig", "Interval", "Schedules", "TrainingProgress"]


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
            self.stop_reason = f"{config.metric} {value:g} reached the target {config.target_value:g}"
        elif self.evaluations_without_gain >= config.patience:
            self.stop_reason = f"{config.metric} has not improved on {self.best:g} for {config.patience} evaluations"
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
        """Continue counting; from 0 if early stopping had ended the run, and from nothing for another metric."""
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


Schedules = Literal["stretch", "restart", "hold"]
"""Schedules of a resumed run: `stretch` the rest of each over the steps left (if `total_timesteps` changed), `restart`
each over the steps left, or `hold` each at its current value."""


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
        return min(self.to_progress, self.from_progress + (self.to_progress - self.from_progress) * fraction)

    def extended(self, step: int, total: int, schedules: Schedules = "stretch") -> TrainingProgress:
        """Progress of a run resumed at `step` that now ends at `total`; no schedule jumps, unless it restarts."""
        if schedules == "restart":
            return TrainingProgress(total, step)
        if schedules == "hold":
            return TrainingProgress(total, step, self.progress(step), self.progress(step))
        return self if total == self.total else TrainingProgress(total, step, self.progress(step))

    def describe(self, config: AlgorithmConfig) -> str:
        """Message on resume: the last step, the course of the schedules, and learning rates that stay at 0."""
        first, last, left = self.from_step, self.total, self.to_progress - self.from_progress
        schedules = f"the remaining {left:.0%} of each schedule is spread over the steps left"
        if self.from_progress == 0:
            schedules = "each schedule starts again and runs over the steps left"
        elif left == 0:
            schedules = f"each schedule stays at its {'final' if self.from_progress == 1 else 'current'} value"
        text = f"the run now ends at step {last:,}"
        if first >= last or not config.has_schedules():
            return text
        text += f": from step {first:,} on, {schedules}"
        rates = [name for name in type(config).model_fields if name.endswith("learning_rate")]
        ends = self.from_progress, self.to_progress
        zero = [name for name in rates if not any(value_at(getattr(config, name), end) for end in ends)]
        if zero:
            text += f"; {' and '.join(zero)} stays 0, so nothing more is learned: use --schedules restart"
        return text

    def state_dict(self) -> dict[str, Any]:
        """All fields."""
        return vars(self).copy()

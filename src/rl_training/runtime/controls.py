"""Controls: what ends a run early, and what counts steps between events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rl_training.algorithms.config import EarlyStoppingConfig
from rl_training.errors import ConfigError
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.trainer import TrainerState
from rl_training.validation import suggest

__all__ = ["EarlyStoppingCallback", "EarlyStoppingConfig", "Horizon", "Interval"]


class EarlyStoppingCallback(Callback):
    """Ends the run when evaluations stop improving, or reach a target."""

    def __init__(self, config: EarlyStoppingConfig) -> None:
        self.config = config
        self.best: float | None = None
        self.evaluations_without_gain = 0

    def on_eval_end(self, trainer: TrainerState, metrics: Mapping[str, float]) -> None:
        """Compare with the best so far."""
        config = self.config
        if config.metric not in metrics:
            raise ConfigError(
                f"early_stopping watches unknown metric '{config.metric}'{suggest(config.metric, metrics)}"
            )
        value = metrics[config.metric]
        sign = 1.0 if config.mode == "max" else -1.0
        if self.best is None or sign * (value - self.best) > config.min_delta:
            self.best = value
            self.evaluations_without_gain = 0
        else:
            self.evaluations_without_gain += 1
        if trainer.global_step < config.min_steps:
            return
        if config.target_value is not None and sign * (value - config.target_value) >= 0:
            trainer.request_stop(f"{config.metric} {value:g} reached the target {config.target_value:g}")
        elif self.evaluations_without_gain >= config.patience:
            trainer.request_stop(f"{config.metric} has not improved on {self.best:g} for {config.patience} evaluations")

    def state_dict(self) -> dict[str, Any]:
        """The best value and the count."""
        return {"best": self.best, "evaluations_without_gain": self.evaluations_without_gain}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting."""
        self.best = state["best"]
        self.evaluations_without_gain = state["evaluations_without_gain"]


class Interval:
    """Tells when a multiple of `every` has been passed, however many steps are taken at once."""

    def __init__(self, every: int) -> None:
        self.every = every
        self._passed = 0

    def is_due(self, step: int) -> bool:
        """True once for each crossing (several crossings at once count as one)."""
        passed = step // self.every
        is_due = passed > self._passed
        self._passed = max(passed, self._passed)
        return is_due

    def steps_left(self, step: int) -> int:
        """Steps until the next multiple."""
        return self.every - step % self.every

    def state_dict(self) -> dict[str, Any]:
        """How many multiples have been passed, and of what."""
        return {"every": self.every, "passed": self._passed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting; a new `every` counts from the same step."""
        self._passed = state["every"] * state["passed"] // self.every


@dataclass
class Horizon:
    """The way to the last step, and how much of it is done.

    When a run is extended, what is done stays done: from the step where it was resumed, the rest of each schedule is
    stretched over the steps that remain.
    """

    total: int
    from_step: int = 0
    from_progress: float = 0.0

    def progress(self, step: int) -> float:
        """The share of the run, 0 to 1, that is done at `step`."""
        left = self.total - self.from_step
        share = (step - self.from_step) / left if left > 0 else 1.0
        return min(1.0, self.from_progress + (1.0 - self.from_progress) * share)

    def extended(self, step: int, total: int) -> Horizon:
        """The horizon of a run resumed at `step` that now ends at `total`."""
        return self if total == self.total else Horizon(total, step, self.progress(step))

    def state_dict(self) -> dict[str, Any]:
        """The three numbers."""
        return {"total": self.total, "from_step": self.from_step, "from_progress": self.from_progress}

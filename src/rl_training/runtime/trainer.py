"""What a run is made of, as callbacks and callers see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rl_training.algorithms.base import Algorithm
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig


@dataclass
class TrainerState:
    """Where a run is. Callbacks read it, and may ask the run to stop."""

    algorithm: Algorithm[Any]
    run_dir: Path
    global_step: int = 0
    """Environment steps taken over all environments (offline: updates)."""
    epoch: int = 0
    """Rounds of collecting and updating that are done."""
    update_count: int = 0
    """Gradient steps taken."""
    should_stop: bool = False
    """Whether the run ends at the next step boundary."""
    stop_reason: str | None = None
    """Why, if a reason was given."""
    env_restarts: int = 0
    """Environments that failed and were made anew."""
    config: TrainConfig = None  # type: ignore[assignment]  # a run always sets it; a state made by hand need not
    """Configuration of the run."""

    def request_stop(self, reason: str) -> None:
        """End the run at the next step boundary; the first reason stays."""
        if not isinstance(reason, str) or not reason.strip():
            raise ConfigError(f"bad reason {reason!r} for request_stop: give a few words, which metadata.json keeps")
        self.should_stop = True
        if self.stop_reason is None:
            self.stop_reason = reason


@dataclass(frozen=True)
class CollectResult:
    """What one round of collecting brought in."""

    steps: int
    """Environment steps taken over all environments."""
    episode_returns: list[float] = field(default_factory=list)
    """Raw returns of the episodes that ended."""
    episode_lengths: list[int] = field(default_factory=list)
    env_restarts: int = 0
    """Environments that failed and were made anew, since the run began."""

    @property
    def num_env_steps(self) -> int:
        """The same as `steps`; offline the number of transitions in the dataset."""
        return self.steps


@dataclass(frozen=True)
class TrainResult:
    """What a run left behind."""

    run_dir: Path
    checkpoint_path: Path
    metrics: dict[str, float]
    stop_reason: str | None = None
    """Why the run ended before its last step; None if it did not."""


class Trainer(Protocol):
    """A run that is ready to start."""

    def train(self) -> TrainResult:
        """Run it to its end."""

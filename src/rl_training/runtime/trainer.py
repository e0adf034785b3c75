"""What a run is made of, as callbacks and callers see it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rl_training.algorithms.base import Algorithm


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
    env_restarts: int = 0
    """Environments that failed and were made anew."""
    should_stop: bool = False
    stop_reason: str | None = None

    def request_stop(self, reason: str) -> None:
        """End the run at the next step boundary; the first reason stays."""
        if not self.should_stop:
            self.should_stop = True
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

"""The state and the results of a run, as callbacks and callers see them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rl_training.algorithms.base import Algorithm
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.run_folder import is_interruption


@dataclass
class TrainerState:
    """Counters of a run. Callbacks read it, and may request a stop."""

    algorithm: Algorithm[Any]
    run_dir: Path
    global_step: int = 0
    """Environment steps taken over all environments (offline: updates)."""
    epoch: int = 0
    """Iterations (collect and update) done."""
    update_count: int = 0
    """Gradient steps taken."""
    should_stop: bool = False
    """Whether the run stops at the next step boundary."""
    stop_reason: str | None = None
    """Reason of the stop, if one was given."""
    env_restarts: int = 0
    """Environments that failed and were recreated."""
    config: TrainConfig = None  # type: ignore[assignment]  # a run always sets it; a state made by hand need not
    """Configuration of the run."""
    update_calls: int = 0
    """Calls of `Algorithm.update`, each of which takes one or more gradient steps."""
    warm_start_step: int | None = None
    """Step at which the run began with a trained policy (0 with `init_from`), up to which `update_calls` counts one a
    step; None: it began with random weights."""

    def request_stop(self, reason: str) -> None:
        """Stop the run at the next step boundary; the first reason is kept."""
        if not isinstance(reason, str) or not reason.strip():
            raise ConfigError(
                f"bad reason {reason!r} for request_stop: give a few words, which metadata.json keeps"
            )
        self.should_stop = True
        if self.stop_reason is None:
            self.stop_reason = reason


@dataclass(frozen=True)
class CollectResult:
    """Result of one collection of environment steps."""

    steps: int
    """Environment steps taken over all environments."""
    episode_returns: list[float] = field(default_factory=list)
    """Raw returns of the episodes that ended."""
    episode_lengths: list[int] = field(default_factory=list)
    env_restarts: int = 0
    """Environments that failed and were recreated since the run began."""

    @property
    def num_env_steps(self) -> int:
        """The same as `steps`; offline the number of transitions in the dataset."""
        return self.steps


@dataclass(frozen=True)
class TrainResult:
    """Result of a run."""

    run_dir: Path
    checkpoint_path: Path
    metrics: dict[str, float]
    stop_reason: str | None = None
    """Why the run ended before its last step; None: it did not."""

    @property
    def was_interrupted(self) -> bool:
        """Whether Ctrl-C or another signal ended the run, which was saved and can be resumed."""
        return is_interruption(self.stop_reason)


class Trainer(Protocol):
    """A run that is ready to start."""

    def train(self) -> TrainResult:
        """Run it to its end."""

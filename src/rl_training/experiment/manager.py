"""What an experiment manager does: make trainers from configurations and from checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rl_training.experiment.config import TrainConfig

if TYPE_CHECKING:
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.trainer import Trainer


class ExperimentManager(Protocol):
    """Makes runs that are ready to start."""

    def setup(self, config: TrainConfig, *, callbacks: Sequence[Callback] | None = None) -> Trainer:
        """A new run."""

    def resume(
        self,
        checkpoint_path: str | Path,
        *,
        total_timesteps: int | None = None,
        output_dir: str | Path | None = None,
        eval_episodes: int | None = None,
        callbacks: Sequence[Callback] | None = None,
    ) -> Trainer:
        """A run that goes on from a checkpoint."""

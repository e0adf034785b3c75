"""Train IQL."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.experiment.checkpointing import CheckpointState
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.trainer import TrainResult
from rl_training.runtime.training import train_algorithm


def train_iql(
    config: TrainConfig,
    *,
    run_suffix: str | None = None,
    checkpoint_state: CheckpointState | None = None,
    callbacks: Sequence[Callback] | None = None,
) -> TrainResult:
    """Train IQL as `config` says, from the start or from `checkpoint_state`."""
    return train_algorithm("iql", config, run_suffix=run_suffix, checkpoint_state=checkpoint_state, callbacks=callbacks)

"""The manager that trains through this package's runtime: the one file of `experiment` that may call it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.trainer import Trainer, TrainResult
from rl_training.runtime.training import run_training
from rl_training.runtime.workflows import ResumePlan, plan_resume, run_plan


@dataclass(frozen=True)
class NewRunTrainer:
    """A run that starts from nothing."""

    config: TrainConfig
    callbacks: Sequence[Callback] | None = None
    run_suffix: str | None = None

    def train(self) -> TrainResult:
        """Run it."""
        return run_training(self.config, run_suffix=self.run_suffix, callbacks=self.callbacks)


@dataclass(frozen=True)
class ResumedRunTrainer:
    """A run that goes on."""

    plan: ResumePlan
    callbacks: Sequence[Callback] | None = None

    def train(self) -> TrainResult:
        """Run the rest of it."""
        return run_plan(self.plan, callbacks=self.callbacks)


class DefaultExperimentManager:
    """Trains any registered algorithm."""

    def setup(
        self,
        config: TrainConfig,
        *,
        callbacks: Sequence[Callback] | None = None,
        run_suffix: str | None = None,
    ) -> Trainer:
        """A new run; the algorithm's name and settings are checked now."""
        get_algorithm_spec(config.algo).parse_kwargs(config.algo_kwargs)
        return NewRunTrainer(config, callbacks, run_suffix)

    def resume(
        self,
        checkpoint_path: str | Path,
        *,
        total_timesteps: int | None = None,
        output_dir: str | Path | None = None,
        eval_episodes: int | None = None,
        callbacks: Sequence[Callback] | None = None,
    ) -> Trainer:
        """A run that goes on from a checkpoint or a run folder, in its own folder unless `output_dir` is given."""
        plan = plan_resume(
            checkpoint_path,
            total_timesteps=total_timesteps,
            output_dir=output_dir,
            eval_episodes=eval_episodes,
        )
        return ResumedRunTrainer(plan, callbacks)

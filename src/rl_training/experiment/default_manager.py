"""The experiment manager: starts and resumes runs. The one file of `experiment` that may import `runtime`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.callbacks import AnyCallback, CallbackList
from rl_training.runtime.controls import Schedules
from rl_training.runtime.resuming.plan import plan_restart, plan_resume
from rl_training.runtime.run import run_plan, run_training
from rl_training.runtime.trainer import Trainer, TrainResult


@dataclass(frozen=True)
class PreparedRun:
    """A new or resumed run whose settings have been validated."""

    start: Callable[[], TrainResult]

    def train(self) -> TrainResult:
        """Train until the run ends."""
        return self.start()


class DefaultExperimentManager:
    """Starts and resumes runs of any registered algorithm."""

    def setup(
        self,
        config: TrainConfig,
        *,
        callbacks: Iterable[AnyCallback] | None = None,
        run_suffix: str | None = None,
        is_restart: bool = False,
    ) -> Trainer:
        """Prepare a new run; the algorithm's name and settings, and the callbacks, are validated now.

        With `is_restart`, the folder of a run that was killed before its first checkpoint is used again.
        """
        callbacks = CallbackList(callbacks)
        get_algorithm_spec(config.algo).parse_kwargs(config.algo_kwargs)
        start = partial(
            run_training, config, run_suffix=run_suffix, callbacks=callbacks, is_restart=is_restart
        )
        return PreparedRun(start)

    def resume_or_start(
        self,
        config: TrainConfig,
        *,
        run_suffix: str,
        callbacks: Iterable[AnyCallback] | None = None,
        fall_back: bool = False,
    ) -> Trainer:
        """Prepare the run with this suffix: resumed if its folder exists, else new.

        With `fall_back`, the newest intact checkpoint replaces a damaged one.
        """
        plan = plan_restart(config, run_suffix, fall_back=fall_back)
        if plan is None:
            return self.setup(config, callbacks=callbacks, run_suffix=run_suffix, is_restart=True)
        return PreparedRun(partial(run_plan, plan, callbacks=CallbackList(callbacks)))

    def resume(
        self,
        checkpoint_path: str | Path,
        *,
        total_timesteps: int | None = None,
        output_dir: str | Path | None = None,
        eval_episodes: int | None = None,
        callbacks: Iterable[AnyCallback] | None = None,
        rewind: bool = False,
        schedules: Schedules | None = None,
        changes: Mapping[str, Any] | None = None,
        env: Any = None,
        eval_env: Any = None,
    ) -> Trainer:
        """Prepare to resume from a checkpoint or run folder, in the run's own folder unless `output_dir` is given.

        `rewind` allows discarding the checkpoints after an older one, `schedules` selects how the schedules of an
        extended run continue, and `changes` are further new values of its configuration. `env` (and `eval_env`) give
        an environment again whose id begins with `python:`.
        """
        callbacks = CallbackList(callbacks)
        plan = plan_resume(
            checkpoint_path,
            rewind=rewind,
            schedules=schedules,
            changes=changes,
            env=env,
            eval_env=eval_env,
            total_timesteps=total_timesteps,
            output_dir=output_dir,
            eval_episodes=eval_episodes,
        )
        return PreparedRun(partial(run_plan, plan, callbacks=callbacks))

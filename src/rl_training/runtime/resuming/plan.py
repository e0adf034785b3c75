"""Resuming a run: plan it from its checkpoint and folder, refuse what would lose work, carry it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

from rl_training.envs.given.objects import EnvLike, give_again
from rl_training.errors import ConfigError, RunChangedError
from rl_training.experiment.checkpoint_folder import CheckpointFolder
from rl_training.experiment.checkpointing import CheckpointState
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.logging import latest_metrics
from rl_training.experiment.owner import refuse_owned
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.run_folder import (
    TrainingRun,
    check_suffix,
    has_checkpoint,
    refuse_other_files,
    run_name,
)
from rl_training.experiment.tracking.trust import allow_trackers
from rl_training.runtime.callbacks import AnyCallback, CallbackList
from rl_training.runtime.controls import Schedules, saved_early_stop
from rl_training.runtime.resuming.changes import Change, config_differences, find_changes, refuse_fixed
from rl_training.runtime.resuming.checkpoint_config import read_config, read_spaces
from rl_training.runtime.resuming.restore import Resumption
from rl_training.runtime.resuming.resumed_config import (
    merge_config,
    read_last_config,
    read_schedules,
    refuse_passed_end,
    refuse_single_env,
    refuse_untrusted,
)
from rl_training.runtime.resuming.saved_state import check_network_size, check_trainer_state, translate_state_errors
from rl_training.runtime.resuming.source import ResumeSource, read_source, refuse_to_discard
from rl_training.runtime.run import run_training
from rl_training.runtime.trainer import TrainResult


@dataclass(frozen=True)
class ResumePlan:
    """A run that can be resumed: its new configuration, its saved state, and its folder and changes."""

    config: TrainConfig
    state: CheckpointState
    resumption: Resumption
    again: Callable[[], ResumePlan]
    """Makes the same plan again, from what the run folder holds then."""
    run_suffix: str | None = None
    """End of the name of a new folder; None: date and time."""

    @property
    def checkpoint_path(self) -> Path:
        """The checkpoint to resume from."""
        return self.resumption.checkpoint_path

    @property
    def run(self) -> TrainingRun | None:
        """The run folder to continue in; None: a new one."""
        return self.resumption.run

    @property
    def is_finished(self) -> bool:
        """Whether no work is left: no step, no update, and no evaluation pending from a killed process."""
        if self.run is not None and self.run.was_cut_short:
            return False
        if any(change.key == "total_timesteps" for change in self.resumption.changes):
            return False  # a run shortened to its current step still needs its closing evaluation
        is_open = self.state.trainer_state["session"]["is_within_iteration"]
        return self.global_step >= self.config.total_timesteps and not is_open

    @property
    def early_stop(self) -> str | None:
        """Why early stopping ended the run; None if it did not, or if `total_timesteps` or `early_stopping` changed."""
        if self.run is not None and self.run.was_cut_short:
            return None
        changed = {change.key for change in self.resumption.changes}
        if changed & {"total_timesteps", "algo_kwargs.early_stopping"}:
            return None
        return saved_early_stop(self.state.trainer_state["session"])

    @property
    def is_over(self) -> bool:
        """Whether resuming would only report how the run ended."""
        return self.is_finished or self.early_stop is not None

    @property
    def global_step(self) -> int:
        """The step at which the run resumes."""
        with translate_state_errors():
            return int(self.state.trainer_state["session"]["global_step"])


def plan_resume(
    path: str | Path,
    *,
    fall_back: bool = False,
    rewind: bool = False,
    schedules: Schedules | None = None,
    changes: Mapping[str, Any] | None = None,
    trusted: TrainConfig | None = None,
    env: EnvLike | None = None,
    eval_env: EnvLike | None = None,
    run_suffix: str | None = None,
    **flags: Any,
) -> ResumePlan:
    """Read a checkpoint and plan how its run resumes: in its own folder, unless `output_dir` is given.

    `changes` and `flags` are new values of the configuration; a flag that is None keeps the run's value. With
    `fall_back`, the newest intact checkpoint of the run replaces a damaged one; with `rewind`, checkpoints and metrics
    newer than this checkpoint are discarded. Code and paths that `trusted`, the user's own configuration, names need
    no further permission. `env` (and `eval_env`) give an environment again whose id begins with `python:`.
    `run_suffix` ends the name of the new folder in `output_dir`.
    """
    _check_schedules(schedules)
    again = partial(
        plan_resume, path, fall_back=fall_back, rewind=rewind, schedules=schedules, changes=changes, trusted=trusted
    )
    again = partial(again, run_suffix=run_suffix)
    if flags.get("output_dir") is None and "output_dir" not in (changes or {}):  # a fork only reads the run
        refuse_owned(run_folder_of(Path(path)))
    pointer = TrainingRun(run_folder_of(Path(path))).read_pointer()
    source = read_source(path, fall_back=fall_back)
    saved = read_config(source.state)
    values = {**(changes or {}), **{key: value for key, value in flags.items() if value is not None}}
    run = _open_run_folder(source, values)
    _check_suffix(run_suffix, run)
    base = saved if run is None else read_last_config(run, saved, values)
    if run is not None and not (rewind or source.is_fallback):
        refuse_to_discard(run, source.checkpoint_path)
    refuse_fixed(saved, values)
    config = merge_config(base, values)
    if env is not None:
        give_again(config.env_id, env, eval_env)
    if "loggers" in values:
        allow_trackers(config.loggers)
    refuse_untrusted(config, trusted, source.state.metadata)
    found = _check_state(source.state, saved, config)
    schedules = schedules or read_schedules(run, source.state.trainer_state["session"]["global_step"])
    resumption = Resumption(source.checkpoint_path, run, schedules, found, pointer)
    plan = ResumePlan(config, source.state, resumption, partial(again, **flags), run_suffix)
    _refuse_unused(plan, is_fork=source.run_dir is not None and run is None)
    return plan


def run_folder_of(path: Path) -> Path:
    """The run folder that `path` names: itself, or the folder that holds this checkpoint or pointer."""
    return path.parent.parent if path.parent.name == "checkpoints" else path


def _check_schedules(schedules: Schedules | None) -> None:
    if schedules is not None and schedules not in get_args(Schedules):
        raise ConfigError(f"bad value {schedules!r} for schedules: should be {', '.join(get_args(Schedules))}")


def _check_suffix(run_suffix: str | None, run: TrainingRun | None) -> None:
    check_suffix(run_suffix)
    if run_suffix is not None and run is not None:
        raise ConfigError(
            f"run_suffix '{run_suffix}' names a new run folder, and '{run.run_dir}' is resumed in place: add"
            " --output-dir FOLDER (in Python: output_dir=...), or leave it out"
        )


def _open_run_folder(source: ResumeSource, values: dict[str, Any]) -> TrainingRun | None:
    """The run folder to continue in; None: a new one, in `output_dir` of `values`."""
    if source.run_dir is None:
        values.setdefault("output_dir", Path("runs"))  # a checkpoint must not choose where files are written
    if source.run_dir is None or "output_dir" in values:
        return None
    run = TrainingRun(source.run_dir)
    run.refuse_links()
    return run


def _check_state(state: CheckpointState, saved: TrainConfig, config: TrainConfig) -> list[Change]:
    """Check the saved state against the new configuration; returns the keys that change."""
    algo_config = get_algorithm_spec(config.algo).parse_kwargs(config.algo_kwargs)
    check_trainer_state(state.trainer_state, saved.num_envs)
    refuse_single_env(config, state.trainer_state)
    step = state.trainer_state["session"]["global_step"]
    refuse_passed_end(config, saved, step)
    changes = find_changes(saved, config, step)
    check_network_size(algo_config, read_spaces(state.algorithm_state), state.algorithm_state)
    return changes


def _refuse_unused(plan: ResumePlan, *, is_fork: bool) -> None:
    """Raise if the run is over and settings are changed, or a fork is wanted: that would have no effect."""
    keys = [change.key for change in plan.resumption.changes if change.key != "output_dir"]
    keys += ["output_dir"] if is_fork else []
    if not (plan.is_over and keys):
        return
    end = "is finished" if plan.is_finished else f"was stopped ({plan.early_stop})"
    raise ConfigError(
        f"the run {end} at step {plan.global_step:,}, so {' and '.join(keys)} would have no effect: a changed setting"
        " takes effect only with a larger --total-timesteps (in Python: total_timesteps=...)"
    )


def resume_training(
    path: str | Path,
    *,
    total_timesteps: int | None = None,
    output_dir: str | Path | None = None,
    eval_episodes: int | None = None,
    device: str | None = None,
    fall_back: bool = False,
    rewind: bool = False,
    schedules: Schedules | None = None,
    changes: Mapping[str, Any] | None = None,
    callbacks: Sequence[AnyCallback] | None = None,
    env: EnvLike | None = None,
    eval_env: EnvLike | None = None,
    run_suffix: str | None = None,
) -> TrainResult:
    """Resume training from a checkpoint or a run folder. A run that is over is returned as it ended.

    `changes` are further values of the configuration, such as {"algo_kwargs": {"learning_rate": 1e-4}}. `env` (and
    `eval_env`) give an environment again whose id begins with `python:`. `plan_resume` documents the other arguments.
    """
    flags: dict[str, Any] = {"total_timesteps": total_timesteps, "output_dir": output_dir, "device": device}
    plan = plan_resume(
        path,
        fall_back=fall_back,
        rewind=rewind,
        schedules=schedules,
        changes=changes,
        eval_episodes=eval_episodes,
        env=env,
        eval_env=eval_env,
        run_suffix=run_suffix,
        **flags,
    )
    return run_plan(plan, callbacks=callbacks)


def run_plan(plan: ResumePlan, *, callbacks: Sequence[AnyCallback] | None = None) -> TrainResult:
    """Resume as planned. A run that is over is returned as it ended."""
    callbacks = CallbackList(callbacks).callbacks  # checked even if no step is left
    if plan.is_over:
        return _ended_result(plan)
    try:
        return run_training(
            plan.config,
            run_suffix=plan.run_suffix,
            checkpoint_state=plan.state,
            callbacks=callbacks,
            resumption=plan.resumption,
        )
    except RunChangedError:  # between reading the checkpoint and becoming the owner
        return run_plan(plan.again(), callbacks=callbacks)


def _ended_result(plan: ResumePlan) -> TrainResult:
    """The result of a run that is over, from its checkpoint and its logged metrics."""
    run_dir, session = plan.checkpoint_path.parent.parent, plan.state.trainer_state["session"]
    counts: dict[str, float] = {"global_step": plan.global_step, "gradient_steps": session["update_count"]}
    evaluated = {**session["last_eval"], "eval_step": session["last_eval_step"]} if session["last_eval"] else {}
    metrics = {**counts, **evaluated, **latest_metrics(run_dir / "metrics.jsonl"), **counts}
    best = CheckpointFolder(plan.checkpoint_path.parent).best
    if best is not None:
        metrics["best_eval_return_mean"] = best.score
    return TrainResult(run_dir, plan.checkpoint_path, metrics, None if plan.is_finished else plan.early_stop)


def plan_restart(config: TrainConfig, run_suffix: str, *, fall_back: bool = False) -> ResumePlan | None:
    """Plan for a command that is repeated until its run is finished: resume the run of that name; None: start it.

    The configuration must be the run's. A run that was killed before its first checkpoint is started again. With
    `fall_back`, the newest intact checkpoint replaces a damaged one.
    """
    check_suffix(run_suffix)
    run = TrainingRun(config.output_dir / run_name(config, run_suffix))
    if not run.run_dir.exists():
        return None
    refuse_owned(run.run_dir)
    if not has_checkpoint(run.run_dir):
        refuse_other_files(run.run_dir)
        return None
    plan = plan_resume(run.run_dir, trusted=config, fall_back=fall_back)
    differences = config_differences(plan.config, config)
    differences.pop("output_dir", None)
    if differences:
        listed = ", ".join(f"{key} is {old} there and {new} here" for key, (old, new) in differences.items())
        raise ConfigError(
            f"run '{run.run_dir}' has a different configuration: {listed}. Use another --run-suffix, or change that run"
            " with `rl-training resume`"
        )
    return plan

"""How a run is resumed: planned from its checkpoint and folder, refused where something would be lost, carried out."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from rl_training.envs.foreign_paths import refuse_unknown_paths
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpoint_folder import (
    CHECKPOINT_NAME,
    CheckpointFolder,
    checkpoint_order,
    list_checkpoints,
)
from rl_training.experiment.checkpointing import (
    CheckpointState,
    load_checkpoint,
    resolve_checkpoint,
    verify_checkpoint,
)
from rl_training.experiment.config import TrainConfig, resolve_config
from rl_training.experiment.logging import latest_metrics
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.run_folder import TrainingRun, run_name
from rl_training.experiment.run_log import LOG_NAME
from rl_training.runtime.callbacks import AnyCallback, CallbackList
from rl_training.runtime.controls import Schedules, saved_early_stop
from rl_training.runtime.resuming.changes import config_differences, find_changes, refuse_fixed
from rl_training.runtime.resuming.checkpoint_config import (
    read_config,
    read_spaces,
    refuse_unknown_code,
)
from rl_training.runtime.resuming.restore import Resumption
from rl_training.runtime.resuming.saved_state import check_network_size, check_trainer_state, translate_state_errors
from rl_training.runtime.run import run_training
from rl_training.runtime.trainer import TrainResult

RUN_FILES = {
    *("config.yaml", "metadata.json", "metrics.jsonl", "evaluations.jsonl", LOG_NAME),
    *("tensorboard", "checkpoints"),
}


@dataclass(frozen=True)
class ResumePlan:
    """A run that can be resumed: its new configuration, its state, and where and how it goes on."""

    config: TrainConfig
    state: CheckpointState
    resumption: Resumption

    @property
    def checkpoint_path(self) -> Path:
        """The checkpoint it resumes from."""
        return self.resumption.checkpoint_path

    @property
    def run(self) -> TrainingRun | None:
        """The folder it continues in; None: a new one."""
        return self.resumption.run

    @property
    def is_finished(self) -> bool:
        """Whether there is nothing left to do: no step, no update, and no evaluation that a killed process owes."""
        if self.run is not None and self.run.was_cut_short:
            return False
        if any(change.key == "total_timesteps" for change in self.resumption.changes):
            return False  # a run that is shortened to the step it has reached still has to be closed there
        is_open = self.state.trainer_state["session"].get("is_within_iteration", False)
        return self.global_step >= self.config.total_timesteps and not is_open

    @property
    def early_stop(self) -> str | None:
        """Why early stopping has ended the run; None if it has not, or if it was extended or is stopped otherwise."""
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
        """The step at which the run goes on."""
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
    **flags: Any,
) -> ResumePlan:
    """Read a checkpoint and say how its run would resume: in its own folder, unless `output_dir` is given.

    `changes` and `flags` are new values of the configuration; a flag that is None leaves the run's own. With
    `fall_back`, a damaged checkpoint is passed over for the newest intact one of the run; with `rewind`, what came
    after an older checkpoint may be discarded. Code and paths that `trusted`, the user's own configuration, names
    need no further permission.
    """
    if schedules is not None and schedules not in get_args(Schedules):
        raise ConfigError(f"bad value {schedules!r} for schedules: should be {', '.join(get_args(Schedules))}")
    checkpoint_path, state, has_fallen_back = _load(path, fall_back)
    values = {**(changes or {}), **{key: value for key, value in flags.items() if value is not None}}
    run_dir = _run_folder_of(checkpoint_path)
    run = TrainingRun(run_dir) if run_dir is not None and "output_dir" not in values else None
    saved = read_config(state)
    base = saved
    if run is not None:
        run.refuse_links()
        base = _config_to_resume(run, saved, values)
        if not (rewind or has_fallen_back):
            _refuse_to_go_back(run, checkpoint_path)
    elif run_dir is None:
        values.setdefault("output_dir", Path("runs"))  # where to write is not for a file to say
    refuse_fixed(saved, values)
    config = _merged(base, values)
    is_trusted = trusted is not None and (trusted.env_id, trusted.env_kwargs) == (config.env_id, config.env_kwargs)
    if config.env_id is not None and not is_trusted:
        refuse_unknown_code(config.env_id, state.metadata)
        refuse_unknown_paths(config.env_kwargs)
    algo_config = get_algorithm_spec(config.algo).parse_kwargs(config.algo_kwargs)
    check_trainer_state(state.trainer_state, saved.num_envs)
    step = state.trainer_state["session"]["global_step"]
    if config.total_timesteps < step and config.total_timesteps != saved.total_timesteps:
        raise ConfigError(
            f"total_timesteps {config.total_timesteps:,} is too small: the run is at step {step:,} already;"
            " --total-timesteps counts from its beginning"
        )
    found = find_changes(saved, config, step)
    check_network_size(algo_config, read_spaces(state.algorithm_state), state.algorithm_state)
    schedules = schedules or _pending_schedules(run, step)
    plan = ResumePlan(config, state, Resumption(checkpoint_path, run, schedules, found))
    _refuse_unused(plan)
    return plan


def _refuse_unused(plan: ResumePlan) -> None:
    """Raise if settings are changed of a run that is over: nothing would be done with them."""
    keys = [change.key for change in plan.resumption.changes if change.key != "output_dir"]
    if not (plan.is_over and keys):
        return
    end = "is finished" if plan.is_finished else f"was stopped ({plan.early_stop})"
    raise ConfigError(
        f"the run {end} at step {plan.global_step:,}, so {' and '.join(keys)} would have no effect: a changed setting"
        " takes effect only with a larger --total-timesteps (in Python: total_timesteps=...)"
    )


def _load(path: str | Path, fall_back: bool) -> tuple[Path, CheckpointState, bool]:
    """The checkpoint that `path` means, its state, and whether it is another one because that one is damaged."""
    has_fallen_back = False
    try:
        checkpoint_path = resolve_checkpoint(path)
        state = load_checkpoint(checkpoint_path)
    except CheckpointError as error:
        if error.fallback is None or not fall_back:
            raise
        checkpoint_path, has_fallen_back = error.fallback, True
        state = load_checkpoint(checkpoint_path)
    if state.buffer_state is None:
        raise CheckpointError(f"'{checkpoint_path}' holds a policy only: to go on training, use a run's own checkpoint")
    return checkpoint_path, state, has_fallen_back


def _run_folder_of(checkpoint_path: Path) -> Path | None:
    """The run folder that a checkpoint lies in, as the user wrote it where that is the same folder."""
    real = checkpoint_path.resolve()
    run_dir = real.parent.parent
    if real.parent.name != "checkpoints" or CHECKPOINT_NAME.fullmatch(real.name) is None:
        return None
    if not any((run_dir / name).is_file() for name in ("config.yaml", "metadata.json")):
        return None
    written = checkpoint_path.parent.parent
    return written if written.resolve() == run_dir else run_dir


def _config_to_resume(run: TrainingRun, saved: TrainConfig, given: Mapping[str, Any]) -> TrainConfig:
    """The configuration of the run's last process, which its checkpoints do not know if it was killed soon.

    `config.yaml` says it. A file that someone has edited since is refused where neither the checkpoint nor the values
    that are `given` agree with it.
    """
    path = run.run_dir / "config.yaml"
    remedy = f"restore '{path}', or delete it to have it written again"
    try:
        values, is_ours = run.read_config()
        if values is None or (is_ours and not run.was_cut_short):
            return saved
        edited = TrainConfig(**values)
        differences = config_differences(saved, edited)
    except ConfigError as error:
        raise ConfigError(f"{error}; {remedy}") from None
    differences.pop("output_dir", None)  # the folder may have been moved
    if is_ours or (run.was_cut_short and differences.keys() <= {"total_timesteps"}):
        return edited.replace(output_dir=saved.output_dir)
    open_keys = config_differences(_merged(saved, given), edited).keys() & differences.keys()
    if open_keys:
        pairs = {key: [json.dumps(value) for value in differences[key]] for key in sorted(open_keys)}
        listed = ", ".join(f"{key} is {new} there and {old} in the checkpoint" for key, (old, new) in pairs.items())
        words = shlex.join(f"{key}={new}" for key, (_, new) in pairs.items())
        raise ConfigError(
            f"config.yaml was edited, and a resume does not take its settings from it: {listed}. To change them, add"
            f" {words} to the command; else {remedy}"
        )
    return saved


def _merged(base: TrainConfig, given: Mapping[str, Any]) -> TrainConfig:
    return resolve_config([("the run", base.model_dump()), ("the resume", given)]).config


def _refuse_to_go_back(run: TrainingRun, checkpoint_path: Path) -> None:
    """Raise if a run that is resumed from this checkpoint would discard a later one."""
    try:
        newest = resolve_checkpoint(run.run_dir)
        if newest.name != checkpoint_path.resolve().name:
            verify_checkpoint(newest)
    except CheckpointError as error:
        if error.fallback is None:
            return
        newest = error.fallback
    step, last_step = (checkpoint_order(name)[0] for name in (checkpoint_path.resolve().name, newest.name))
    if checkpoint_order(newest.name) > checkpoint_order(checkpoint_path.resolve().name):
        raise CheckpointError(
            f"'{checkpoint_path}' is step {step:,} of a run that went on to step {last_step:,}, whose later checkpoints"
            " and metrics would be discarded: give --output-dir DIR to continue in a new run folder that records its"
            " parent, or --rewind to discard them (in Python: output_dir=..., rewind=True)"
        )


def _pending_schedules(run: TrainingRun | None, step: int) -> Schedules:
    """What the last process of the run was told of its schedules, if it was killed before its first checkpoint."""
    if run is not None and run.was_cut_short:
        match run.metadata().get("resumed"):
            case {"from_step": int(from_step), "schedules": ("stretch" | "restart" | "hold") as schedules}:
                return schedules if from_step == step else "stretch"
    return "stretch"


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
) -> TrainResult:
    """Resume training from a checkpoint or a run folder. A run that is over is returned as it is.

    `changes` are further values of the configuration: {"algo_kwargs": {"learning_rate": 1e-4}}.
    """
    flags: dict[str, Any] = {"total_timesteps": total_timesteps, "output_dir": output_dir, "device": device}
    plan = plan_resume(
        path,
        fall_back=fall_back,
        rewind=rewind,
        schedules=schedules,
        changes=changes,
        eval_episodes=eval_episodes,
        **flags,
    )
    return run_plan(plan, callbacks=callbacks)


def run_plan(plan: ResumePlan, *, callbacks: Sequence[AnyCallback] | None = None) -> TrainResult:
    """Carry out a resume."""
    callbacks = CallbackList(callbacks).callbacks  # refused also where no step is left
    if plan.is_over:
        return _as_it_ended(plan)
    return run_training(plan.config, checkpoint_state=plan.state, callbacks=callbacks, resumption=plan.resumption)


def _as_it_ended(plan: ResumePlan) -> TrainResult:
    """What the run reported when it ended, from the lines that it logged."""
    run_dir, session = plan.checkpoint_path.parent.parent, plan.state.trainer_state["session"]
    counts: dict[str, float] = {"global_step": plan.global_step, "gradient_steps": session["update_count"]}
    evaluated = {**session["last_eval"], "eval_step": session["last_eval_step"]} if session["last_eval"] else {}
    metrics = {**counts, **evaluated, **latest_metrics(run_dir / "metrics.jsonl"), **counts}
    best = CheckpointFolder(plan.checkpoint_path.parent).best
    if best is not None:
        metrics["best_eval_return_mean"] = best.score
    return TrainResult(run_dir, plan.checkpoint_path, metrics, None if plan.is_finished else plan.early_stop)


def plan_restart(config: TrainConfig, run_suffix: str) -> ResumePlan | None:
    """For a command that is given again and again: the run of that name, to be resumed; None if it is to be started.

    Its configuration must be the same. A run that was killed before its first checkpoint is cleared away.
    """
    run = TrainingRun(config.output_dir / run_name(config, run_suffix))
    if not run.run_dir.exists():
        return None
    if (run.checkpoints_dir / "last").exists() or any(list_checkpoints(run.checkpoints_dir)):
        plan = plan_resume(run.run_dir, trusted=config)
        differences = config_differences(plan.config, config)
        differences.pop("output_dir", None)
        if differences:
            listed = ", ".join(f"{key} is {old} there and {new} here" for key, (old, new) in differences.items())
            raise ConfigError(
                f"run '{run.run_dir}' has another configuration: {listed}. Use another --run-suffix, or change that run"
                " with `rl-training resume`"
            )
        return plan
    others = sorted(path.name for path in run.run_dir.iterdir() if path.name not in RUN_FILES and path.name[0] != ".")
    if others:
        raise ConfigError(f"'{run.run_dir}' has no checkpoint and holds '{others[0]}', which no run writes: move it")
    shutil.rmtree(run.run_dir)
    return None

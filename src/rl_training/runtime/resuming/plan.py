"""The plan of a resume: a checkpoint, the configuration to go on with, and the folder; refuses what would lose work."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from rl_training.envs.given.objects import EnvLike, give_again
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpoint_folder import CHECKPOINT_NAME, checkpoint_order
from rl_training.experiment.checkpointing import (
    CheckpointState,
    load_checkpoint,
    resolve_checkpoint,
    verify_checkpoint,
)
from rl_training.experiment.config import TrainConfig, resolve_config
from rl_training.experiment.ownership import refuse_owned
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.run_folder import (
    TrainingRun,
    check_suffix,
    has_checkpoint,
    refuse_other_files,
    run_name,
)
from rl_training.plugins.gate import Kind, allow
from rl_training.plugins.given import find_vector, has_given, is_given_id
from rl_training.runtime.controls import Schedules, saved_early_stop
from rl_training.runtime.resuming.changes import (
    Change,
    config_differences,
    find_changes,
    refuse_fixed,
)
from rl_training.runtime.resuming.saved_state import (
    check_network_size,
    check_trainer_state,
    translate_state_errors,
)
from rl_training.runtime.resuming.trust import needs_of, read_config, read_spaces, refuse_untrusted


@dataclass(frozen=True)
class ResumePlan:
    """A run that goes on from a saved state."""

    config: TrainConfig
    """The configuration to go on with."""
    state: CheckpointState
    checkpoint: Path | None = None
    """Place of the checkpoint; None: the state was handed in."""
    run: TrainingRun | None = None
    """The run folder to continue in; None: a new one (a fork)."""
    schedules: Schedules = "stretch"
    changes: Sequence[Change] = ()
    pointer: bytes | None = None
    """Content of the run's `last` file when the checkpoint was read."""
    again: Callable[[], ResumePlan] | None = None
    """Makes the same plan again, from what the run folder holds then."""
    run_suffix: str | None = None
    """End of the name of a new folder; None: date and time."""

    @property
    def checkpoint_path(self) -> Path:
        """The checkpoint to resume from."""
        if self.checkpoint is None:
            raise CheckpointError("this state was handed in, so it has no checkpoint folder")
        return self.checkpoint

    @property
    def global_step(self) -> int:
        """The step at which the run resumes."""
        with translate_state_errors():
            return int(self.state.trainer_state["session"]["global_step"])

    @property
    def is_outdated(self) -> bool:
        """Whether another process has written a checkpoint since this one was read."""
        return self.run is not None and self.run.read_pointer() != self.pointer

    @property
    def is_finished(self) -> bool:
        """Whether no work is left: no step, no update, and no evaluation pending from a killed process."""
        if self.run is not None and self.run.was_cut_short:
            return False
        if any(change.key == "total_timesteps" for change in self.changes):
            return False  # a run shortened to its current step still needs its closing evaluation
        is_open = self.state.trainer_state["session"]["is_within_iteration"]
        return self.global_step >= self.config.total_timesteps and not is_open

    @property
    def early_stop(self) -> str | None:
        """Why early stopping ended the run; None if it did not, or if `total_timesteps` or `early_stopping` changed."""
        if self.run is not None and self.run.was_cut_short:
            return None
        if {change.key for change in self.changes} & {
            "total_timesteps",
            "algo_kwargs.early_stopping",
        }:
            return None
        return saved_early_stop(self.state.trainer_state["session"])

    @property
    def is_over(self) -> bool:
        """Whether resuming would only report how the run ended."""
        return self.is_finished or self.early_stop is not None

    def metadata(self) -> dict[str, Any]:
        """Entries for `metadata.json` of the resumed run, which keep the changes of earlier resumes."""
        if self.checkpoint is None:
            return {}
        source = self.run or TrainingRun(self.checkpoint.resolve().parent.parent)
        known = source.metadata().get("changes", [])
        changes = [change.as_dict() for change in self.changes]
        values: dict[str, Any] = {
            "resumed": {"from_step": self.global_step, "schedules": self.schedules}
        }
        if self.run is None:
            values["parent"] = {
                "checkpoint": str(self.checkpoint.resolve()),
                "global_step": self.global_step,
            }
        if known or changes:
            values["changes"] = [*known, *(change for change in changes if change not in known)]
        return values


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
    if schedules is not None and schedules not in get_args(Schedules):
        raise ConfigError(
            f"bad value {schedules!r} for schedules: should be {', '.join(get_args(Schedules))}"
        )
    options: dict[str, Any] = {
        "fall_back": fall_back,
        "rewind": rewind,
        "schedules": schedules,
        "run_suffix": run_suffix,
    }
    again = partial(plan_resume, path, changes=changes, trusted=trusted, **options, **flags)
    given = {**(changes or {}), **{key: value for key, value in flags.items() if value is not None}}
    saved, is_fallback = _read_saved(path, given, fall_back=fall_back)
    _check_suffix(run_suffix, saved.run)
    config = _next_config(saved.config, saved.run, given)
    if saved.run is not None and not (rewind or is_fallback):
        _refuse_to_discard(saved.run, saved.checkpoint_path)
    if env is not None:
        give_again(config.env_id, env, eval_env)
    if "loggers" in given:
        allow(need for need in needs_of(config) if need.kind is Kind.SERVER)
    refuse_untrusted(config, trusted, saved.state.metadata)
    found = _check_state(saved.state, saved.config, config)
    schedules = schedules or _last_schedules(saved.run, saved.global_step)
    plan = replace(
        saved, config=config, schedules=schedules, changes=found, again=again, run_suffix=run_suffix
    )
    _refuse_without_effect(plan)
    return plan


def plan_restart(
    config: TrainConfig, run_suffix: str, *, fall_back: bool = False
) -> ResumePlan | None:
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
        listed = ", ".join(
            f"{key} is {old} there and {new} here" for key, (old, new) in differences.items()
        )
        raise ConfigError(
            f"run '{run.run_dir}' has a different configuration: {listed}. Use another --run-suffix, or change that run"
            " with `rl-training resume`"
        )
    return plan


def run_folder_of(path: Path) -> Path:
    """The run folder that `path` names: itself, or the folder that holds this checkpoint or pointer."""
    return path.parent.parent if path.parent.name == "checkpoints" else path


def find_run_folder(checkpoint_path: Path) -> Path | None:
    """The run folder that holds a checkpoint, in the user's spelling where links do not lead elsewhere."""
    real = checkpoint_path.resolve()
    run_dir = real.parent.parent
    if real.parent.name != "checkpoints" or CHECKPOINT_NAME.fullmatch(real.name) is None:
        return None
    if not any((run_dir / name).is_file() for name in ("config.yaml", "metadata.json")):
        return None
    written = checkpoint_path.parent.parent
    return written if written.resolve() == run_dir else run_dir


def _read_saved(
    path: str | Path, given: dict[str, Any], *, fall_back: bool
) -> tuple[ResumePlan, bool]:
    """A checkpoint, or the last one of a run folder, as it was saved; whether it replaces a damaged one."""
    if "output_dir" not in given:  # a fork only reads the run
        refuse_owned(run_folder_of(Path(path)))
    pointer = TrainingRun(
        run_folder_of(Path(path))
    ).read_pointer()  # before the checkpoint: `is_outdated` compares it
    is_fallback = False
    try:
        checkpoint = resolve_checkpoint(path)
        state = load_checkpoint(checkpoint)
    except CheckpointError as error:
        if error.fallback is None or not fall_back:
            raise
        checkpoint, is_fallback = error.fallback, True
        state = load_checkpoint(checkpoint)
    if state.buffer_state is None:
        raise CheckpointError(
            f"'{checkpoint}' holds a policy only: to resume, use a checkpoint of a run folder"
        )
    run_dir = find_run_folder(checkpoint)
    if run_dir is None:
        given.setdefault(
            "output_dir", Path("runs")
        )  # a checkpoint must not choose where files are written
    run = None if run_dir is None or "output_dir" in given else TrainingRun(run_dir)
    return ResumePlan(read_config(state), state, checkpoint, run, pointer=pointer), is_fallback


def _check_suffix(run_suffix: str | None, run: TrainingRun | None) -> None:
    check_suffix(run_suffix)
    if run_suffix is not None and run is not None:
        raise ConfigError(
            f"run_suffix '{run_suffix}' names a new run folder, and '{run.run_dir}' is resumed in place: add"
            " --output-dir FOLDER (in Python: output_dir=...), or leave it out"
        )


def _next_config(
    saved: TrainConfig, run: TrainingRun | None, given: Mapping[str, Any]
) -> TrainConfig:
    """The configuration of the run's last process, with the values given now."""
    base = saved
    if run is not None:
        run.refuse_links()
        base = _last_config(run, saved, given)
    refuse_fixed(saved, given)  # first, because other keys are parsed by the value of `algo`
    return _merged(base, given)


def _merged(base: TrainConfig, given: Mapping[str, Any]) -> TrainConfig:
    return resolve_config([("the run", base.model_dump()), ("the resume", given)]).config


def _last_config(run: TrainingRun, saved: TrainConfig, given: Mapping[str, Any]) -> TrainConfig:
    """The configuration of the run's last process, from `config.yaml`.

    It differs from `saved`, the checkpoint's, if that process changed it and was killed before its first checkpoint.
    Raise a `ConfigError` if the file was edited and agrees neither with the checkpoint nor with the `given` values.
    """
    path = run.run_dir / "config.yaml"
    remedy = f"restore '{path}', or delete it to have it written again"
    try:
        values, is_ours = run.read_config()
        if values is None or (is_ours and not run.was_cut_short):
            return saved
        found = TrainConfig(**values)
        differences = config_differences(saved, found)
    except ConfigError as error:
        raise ConfigError(f"{error}; {remedy}") from None
    differences.pop("output_dir", None)  # the folder may have been moved
    if is_ours or (run.was_cut_short and differences.keys() <= {"total_timesteps"}):
        return found.replace(output_dir=saved.output_dir)
    edited = config_differences(_merged(saved, given), found).keys() & differences.keys()
    if edited:
        raise _edited_error({key: differences[key] for key in sorted(edited)}, remedy)
    return saved


def _edited_error(differences: Mapping[str, tuple[Any, Any]], remedy: str) -> ConfigError:
    pairs = {key: [json.dumps(value) for value in values] for key, values in differences.items()}
    listed = ", ".join(
        f"{key} is {new} there and {old} in the checkpoint" for key, (old, new) in pairs.items()
    )
    words = shlex.join(f"{key}={new}" for key, (_, new) in pairs.items())
    return ConfigError(
        f"config.yaml was edited, and a resume does not read settings from it: {listed}. To change them, add"
        f" {words} to the command; else {remedy}"
    )


def _last_schedules(run: TrainingRun | None, step: int) -> Schedules:
    """The schedules option of the run's last process if it resumed at `step` and was killed there, else `stretch`."""
    if run is not None and run.was_cut_short:
        match run.metadata().get("resumed"):
            case {
                "from_step": int(from_step),
                "schedules": ("stretch" | "restart" | "hold") as schedules,
            }:
                return schedules if from_step == step else "stretch"
    return "stretch"


def _check_state(state: CheckpointState, saved: TrainConfig, config: TrainConfig) -> list[Change]:
    """Check the saved state against the new configuration; returns the keys that change."""
    check_trainer_state(state.trainer_state, saved.num_envs)
    _refuse_single_env(config, state.trainer_state)
    step = state.trainer_state["session"]["global_step"]
    if config.total_timesteps < step and config.total_timesteps != saved.total_timesteps:
        raise ConfigError(
            f"total_timesteps {config.total_timesteps:,} is too small: the run is at step {step:,} already;"
            " --total-timesteps counts from the start of the run"
        )
    changes = find_changes(saved, config, step)
    algo_config = get_algorithm_spec(config.algo).parse_kwargs(config.algo_kwargs)
    check_network_size(algo_config, read_spaces(state.algorithm_state), state.algorithm_state)
    return changes


def _refuse_to_discard(run: TrainingRun, checkpoint_path: Path) -> None:
    """Raise if the run has an intact checkpoint newer than `checkpoint_path`, which resuming would discard."""
    try:
        newest = resolve_checkpoint(run.run_dir)
        if newest.name != checkpoint_path.resolve().name:
            verify_checkpoint(newest)
    except CheckpointError as error:
        if error.fallback is None:
            return
        newest = error.fallback
    order, newest_order = (
        checkpoint_order(checkpoint_path.resolve().name),
        checkpoint_order(newest.name),
    )
    if newest_order > order:
        raise CheckpointError(
            f"'{checkpoint_path}' is step {order[0]:,} of a run that continued to step {newest_order[0]:,}, whose later"
            " checkpoints and metrics would be discarded: give --output-dir DIR to continue in a new run folder that"
            " records its parent, or --rewind to discard them (in Python: output_dir=..., rewind=True)"
        )


def _refuse_single_env(config: TrainConfig, trainer_state: Mapping[str, Any]) -> None:
    """Raise if a run that trained in a vector environment was given a single environment to go on with."""
    collector, env_id = trainer_state["collector"], config.env_id
    is_single = (
        env_id is not None
        and is_given_id(env_id)
        and has_given(env_id)
        and find_vector(env_id) is None
    )
    if collector is not None and "vector" in collector["envs"] and is_single:
        raise ConfigError(
            "the run trained in a vector environment, and was given a single one: pass the vector environment as env=,"
            " and the single one as eval_env="
        )


def _refuse_without_effect(plan: ResumePlan) -> None:
    """Raise if the run is over and settings are changed, or a fork is wanted."""
    keys = [change.key for change in plan.changes if change.key != "output_dir"]
    is_fork = plan.run is None and find_run_folder(plan.checkpoint_path) is not None
    keys += ["output_dir"] if is_fork else []
    if not (plan.is_over and keys):
        return
    end = "is finished" if plan.is_finished else f"was stopped ({plan.early_stop})"
    raise ConfigError(
        f"the run {end} at step {plan.global_step:,}, so {' and '.join(keys)} would have no effect: a changed setting"
        " takes effect only with a larger --total-timesteps (in Python: total_timesteps=...)"
    )

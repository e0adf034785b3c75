"""The configuration a run resumes with: its last process's, with the values given on resume."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from rl_training.envs.foreign_paths import refuse_unknown_paths
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, resolve_config
from rl_training.experiment.run_folder import TrainingRun
from rl_training.experiment.tracking.trust import refuse_unknown_trackers
from rl_training.plugins.given import find_vector, has_given, is_given_id
from rl_training.runtime.controls import Schedules
from rl_training.runtime.resuming.changes import config_differences
from rl_training.runtime.resuming.checkpoint_config import refuse_unknown_code, refuse_unknown_network


def merge_config(base: TrainConfig, given: Mapping[str, Any]) -> TrainConfig:
    """The configuration `base` with the values given on resume."""
    return resolve_config([("the run", base.model_dump()), ("the resume", given)]).config


def read_last_config(run: TrainingRun, saved: TrainConfig, given: Mapping[str, Any]) -> TrainConfig:
    """The configuration of the run's last process, from `config.yaml`.

    It differs from `saved`, the checkpoint's, if that process changed it and was killed before its first checkpoint.
    An edited file is refused where it agrees neither with the checkpoint nor with the `given` values.
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
    edited = config_differences(merge_config(saved, given), found).keys() & differences.keys()
    if edited:
        raise _edited_error({key: differences[key] for key in sorted(edited)}, remedy)
    return saved


def _edited_error(differences: Mapping[str, tuple[Any, Any]], remedy: str) -> ConfigError:
    pairs = {key: [json.dumps(value) for value in values] for key, values in differences.items()}
    listed = ", ".join(f"{key} is {new} there and {old} in the checkpoint" for key, (old, new) in pairs.items())
    words = shlex.join(f"{key}={new}" for key, (_, new) in pairs.items())
    return ConfigError(
        f"config.yaml was edited, and a resume does not read settings from it: {listed}. To change them, add"
        f" {words} to the command; else {remedy}"
    )


def refuse_untrusted(config: TrainConfig, trusted: TrainConfig | None, metadata: Mapping[str, Any]) -> None:
    """Raise if environment, network or loggers need code, paths or servers that the user has not allowed.

    What `trusted`, the user's own configuration, names needs no further permission.
    """
    is_trusted = trusted is not None and (trusted.env_id, trusted.env_kwargs) == (config.env_id, config.env_kwargs)
    if config.env_id is not None and not is_trusted:
        refuse_unknown_code(config.env_id, config.env_kwargs, metadata)
        refuse_unknown_paths(config.env_kwargs)
    if trusted is None or trusted.loggers != config.loggers:
        refuse_unknown_trackers(config.loggers)
    if trusted is None or trusted.algo_kwargs.get("network") != config.algo_kwargs.get("network"):
        refuse_unknown_network(config, metadata)


def refuse_single_env(config: TrainConfig, trainer_state: Mapping[str, Any]) -> None:
    """Raise if a run that trained in a vector environment was given a single environment to go on with."""
    collector, env_id = trainer_state["collector"], config.env_id
    is_single = env_id is not None and is_given_id(env_id) and has_given(env_id) and find_vector(env_id) is None
    if collector is not None and "vector" in collector["envs"] and is_single:
        raise ConfigError(
            "the run trained in a vector environment, and was given a single one: pass the vector environment as env=,"
            " and the single one as eval_env="
        )


def refuse_passed_end(config: TrainConfig, saved: TrainConfig, step: int) -> None:
    """Raise if `total_timesteps` was changed to a step that the run has already passed."""
    if config.total_timesteps < step and config.total_timesteps != saved.total_timesteps:
        raise ConfigError(
            f"total_timesteps {config.total_timesteps:,} is too small: the run is at step {step:,} already;"
            " --total-timesteps counts from the start of the run"
        )


def read_schedules(run: TrainingRun | None, step: int) -> Schedules:
    """The schedules option of the run's last process if it resumed at `step` and was killed there, else `stretch`."""
    if run is not None and run.was_cut_short:
        match run.metadata().get("resumed"):
            case {"from_step": int(from_step), "schedules": ("stretch" | "restart" | "hold") as schedules}:
                return schedules if from_step == step else "stretch"
    return "stretch"

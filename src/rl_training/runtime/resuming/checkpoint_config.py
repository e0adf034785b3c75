"""The configuration and spaces stored in a checkpoint, read without running any code that it names."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from rl_training.envs.factory import unknown_code
from rl_training.envs.wrapping.trust import listed_wrappers, unknown_wrapper
from rl_training.errors import ConfigError, EnvError
from rl_training.experiment.checkpointing import CheckpointState
from rl_training.experiment.config import TrainConfig
from rl_training.plugins.user_classes import is_of_program
from rl_training.runtime.resuming.recorded_plugins import check_registered, find_algorithm, find_recorded_plugin
from rl_training.runtime.resuming.saved_state import translate_state_errors
from rl_training.spaces.spec import Spaces


def read_config(state: CheckpointState, **changes: Any) -> TrainConfig:
    """The configuration in a checkpoint, with `changes` applied."""
    if isinstance(state.config.get("algo"), str):
        find_algorithm(state.config["algo"], state.metadata)
    return TrainConfig(**{**state.config, **changes})


def read_spaces(algorithm_state: dict[str, Any]) -> Spaces:
    """The observation and action spaces of a checkpoint's networks."""
    with translate_state_errors():
        return Spaces.from_state_dict(algorithm_state["spaces"])


def refuse_unknown_network(config: TrainConfig, metadata: Mapping[str, Any]) -> None:
    """Raise if `network` would import code that the user has not allowed; a checkpoint cannot allow it."""
    name = config.algo_kwargs.get("network")
    if not isinstance(name, str) or is_of_program(name):  # nothing is imported for a class of the running program
        return
    code = unknown_code(name)
    if code is not None:
        place = find_recorded_plugin(name, metadata) or code
        raise ConfigError(
            f"network '{name}' would import '{place}'; checkpoints never run code: review it, then"
            f" pass --plugin {shlex.quote(place)} (in Python: rl_training.envs.factory.load_code({place!r}), or the"
            " class itself: load(path, network=...))"
        )


def refuse_unknown_code(env_id: str, env_kwargs: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Raise if the environment or a wrapper would import code that the user has not allowed.

    A checkpoint cannot allow it.
    """
    check_registered(env_id, metadata)
    _refuse_import(f"environment '{env_id}'", env_id, unknown_code(env_id), metadata)
    for call in listed_wrappers(env_kwargs):
        _refuse_import(f"wrapper '{call.name}'", call.name, unknown_wrapper(call.name), metadata)


def _refuse_import(what: str, name: str, code: str | None, metadata: Mapping[str, Any]) -> None:
    if code is not None:
        place = find_recorded_plugin(name, metadata) or code
        raise EnvError(
            f"{what} would import '{place}'; checkpoints never run code: review it, then"
            f" pass --plugin {shlex.quote(place)} (in Python: rl_training.envs.factory.load_code({place!r}))"
        )

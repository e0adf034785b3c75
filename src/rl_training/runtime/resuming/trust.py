"""What a checkpoint names, read without running it: its configuration and spaces, and the gate for foreign code."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym

from rl_training.envs.factory import unknown_code
from rl_training.envs.foreign_paths import refuse_unknown_paths
from rl_training.envs.single.construction import is_registered
from rl_training.envs.wrapping.trust import listed_wrappers, unknown_wrapper
from rl_training.errors import ConfigError, EnvError
from rl_training.experiment.checkpointing import CheckpointState
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.loggers import refuse_unknown_trackers
from rl_training.experiment.registry import AlgorithmSpec, get_algorithm_spec
from rl_training.plugins.extras import missing_for_unknown
from rl_training.plugins.user_classes import is_of_program
from rl_training.plugins.user_code import split_source
from rl_training.runtime.resuming.saved_state import translate_state_errors
from rl_training.spaces.spec import Spaces
from rl_training.validation import suggest

MAX_SHOWN = 5
"""Plugins named in one message."""


def read_config(state: CheckpointState, **changes: Any) -> TrainConfig:
    """The configuration in a checkpoint, with `changes` applied."""
    if isinstance(state.config.get("algo"), str):
        find_algorithm(state.config["algo"], state.metadata)
    return TrainConfig(**{**state.config, **changes})


def read_spaces(algorithm_state: dict[str, Any]) -> Spaces:
    """The observation and action spaces of a checkpoint's networks."""
    with translate_state_errors():
        return Spaces.from_state_dict(algorithm_state["spaces"])


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


def recorded_plugins(metadata: Mapping[str, Any]) -> list[str]:
    """Modules and files that a checkpoint's metadata names. For messages only: never import them."""
    found = metadata.get("plugins")
    texts = [text for text in found if isinstance(text, str)] if isinstance(found, list) else []
    return [text for text in texts if text.isprintable() and 0 < len(text) < 1000][:MAX_SHOWN]


def plugin_remedy(metadata: Mapping[str, Any]) -> str:
    """The remedy in a message about an unknown name: the run's `--plugin` options; empty if none is recorded."""
    words = " ".join(f"--plugin {shlex.quote(place)}" for place in recorded_plugins(metadata))
    return f"This run was started with {words}: review that code, then pass it again" if words else ""


def find_recorded_plugin(env_id: str, metadata: Mapping[str, Any]) -> str | None:
    """The recorded plugin that provides `env_id`: the same module or file (by name if it was moved) and function."""
    place, name = split_source(env_id)
    path = Path(place)
    for known in recorded_plugins(metadata):
        known_place, function = split_source(known)
        is_moved = path.suffix == ".py" and not path.is_file() and Path(known_place).name == path.name
        is_same = known_place in (place, str(path.absolute())) or is_moved
        if is_same and function in ("", name):
            return known
    return None


def find_algorithm(name: str, metadata: Mapping[str, Any]) -> AlgorithmSpec:
    """The algorithm of a checkpoint; the error for an unknown name lists the run's plugins."""
    try:
        return get_algorithm_spec(name)
    except ConfigError as error:
        raise ConfigError(_join(str(error), plugin_remedy(metadata))) from None


def check_registered(env_id: str, metadata: Mapping[str, Any]) -> None:
    """Raise if a checkpoint's environment id is not registered and one of the run's plugins may have registered it."""
    words = plugin_remedy(metadata)
    if words and ":" not in env_id and not is_registered(env_id) and missing_for_unknown(env_id) is None:
        hint = suggest(env_id, gym.registry, "it is not registered")
        raise EnvError(_join(f"unknown environment '{env_id}'{hint}", words))


def _join(first: str, second: str) -> str:
    """Join two sentences; the first may be a question."""
    if not second:
        return first
    return f"{first}{'' if first.endswith('?') else '.'} {second}"

"""What a checkpoint names, read without running it: its configuration and spaces, and what it needs of the user."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from rl_training.envs.needs import env_needs
from rl_training.envs.single.construction import is_registered
from rl_training.errors import ConfigError, EnvError
from rl_training.experiment.checkpointing import CheckpointState
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.loggers import MlflowSettings, parse_loggers
from rl_training.experiment.registry import AlgorithmSpec, get_algorithm_spec
from rl_training.plugins.extras import missing_for_unknown
from rl_training.plugins.gate import Kind, Need, network_needs, recorded_plugins, refuse_unknown
from rl_training.runtime.resuming.saved_state import translate_state_errors
from rl_training.spaces.spec import Spaces
from rl_training.validation import suggest


def read_config(state: CheckpointState, **changes: Any) -> TrainConfig:
    """The configuration in a checkpoint, with `changes` applied."""
    if isinstance(state.config.get("algo"), str):
        find_algorithm(state.config["algo"], state.metadata)
    return TrainConfig(**{**state.config, **changes})


def read_spaces(algorithm_state: dict[str, Any]) -> Spaces:
    """The observation and action spaces of a checkpoint's networks."""
    with translate_state_errors():
        return Spaces.from_state_dict(algorithm_state["spaces"])


def needs_of(config: TrainConfig) -> list[Need]:
    """The code, paths and servers that a configuration names."""
    needs = env_needs(config.env_id, config.env_kwargs) + network_needs(
        config.algo_kwargs.get("network")
    )
    for logger in parse_loggers(config.loggers):
        # MLflow sends its user's credentials to a server, and a database is a file that is written.
        place = logger.tracking_uri if isinstance(logger, MlflowSettings) else None
        if place is not None:
            remedy = f"set the environment variable MLFLOW_TRACKING_URI={place}, or give loggers=[…] again"
            needs.append(Need(Kind.SERVER, "tracking_uri of logger mlflow", place, remedy))
    return needs


def refuse_untrusted(
    config: TrainConfig, trusted: TrainConfig | None, metadata: Mapping[str, Any]
) -> None:
    """Raise if the configuration of a checkpoint needs code, paths or servers that the user has not allowed.

    What `trusted`, the user's own configuration, names needs no further permission.
    """
    allowed = [] if trusted is None else needs_of(trusted)
    if trusted is None or trusted.env_id != config.env_id:
        check_registered(config.env_id, metadata)
    refuse_unknown([need for need in needs_of(config) if need not in allowed], metadata)


def refuse_untrusted_env(config: TrainConfig, metadata: Mapping[str, Any]) -> None:
    """The same for the environment alone."""
    check_registered(config.env_id, metadata)
    refuse_unknown(env_needs(config.env_id, config.env_kwargs), metadata)


def plugin_remedy(metadata: Mapping[str, Any]) -> str:
    """The remedy in a message about an unknown name: the run's `--plugin` options; empty if none is recorded."""
    words = " ".join(f"--plugin {shlex.quote(place)}" for place in recorded_plugins(metadata))
    return (
        f"This run was started with {words}: review that code, then pass it again" if words else ""
    )


def find_algorithm(name: str, metadata: Mapping[str, Any]) -> AlgorithmSpec:
    """The algorithm of a checkpoint; the error for an unknown name lists the run's plugins."""
    try:
        return get_algorithm_spec(name)
    except ConfigError as error:
        raise ConfigError(_join(str(error), plugin_remedy(metadata))) from None


def check_registered(env_id: str | None, metadata: Mapping[str, Any]) -> None:
    """Raise if a checkpoint's environment id is not registered and one of the run's plugins may have registered it."""
    words = plugin_remedy(metadata)
    if env_id is None or ":" in env_id or not words:
        return
    if not is_registered(env_id) and missing_for_unknown(env_id) is None:
        hint = suggest(env_id, gym.registry, "it is not registered")
        raise EnvError(_join(f"unknown environment '{env_id}'{hint}", words))


def _join(first: str, second: str) -> str:
    """Join two sentences; the first may be a question."""
    if not second:
        return first
    return f"{first}{'' if first.endswith('?') else '.'} {second}"

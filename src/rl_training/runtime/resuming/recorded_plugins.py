"""Plugins recorded in a checkpoint's metadata, for error messages about environments and algorithms they register."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym

from rl_training.envs.single.construction import is_registered
from rl_training.errors import ConfigError, EnvError
from rl_training.experiment.registry import AlgorithmSpec, get_algorithm_spec
from rl_training.plugins.extras import missing_for_unknown
from rl_training.plugins.user_code import split_source
from rl_training.validation import suggest

MAX_SHOWN = 5
"""Plugins named in one message."""


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

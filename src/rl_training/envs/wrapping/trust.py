"""Which code and arguments of a wrapper list a checkpoint may use without the user's permission."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_training.envs.wrapping.wrapper_list import GYMNASIUM, WrapperCall, read_wrappers
from rl_training.plugins.user_code import add_working_directory, is_allowed, plugin_of, split_source, unknown_code

WRITE_FILES = ("RecordVideo",)
"""Wrappers of Gymnasium that a checkpoint may not name without permission: a file must not choose where to write."""


def listed_wrappers(env_kwargs: Mapping[str, Any]) -> tuple[WrapperCall, ...]:
    """The wrapper list of `env_kwargs`; empty if there is none, or it is not valid and will be refused elsewhere."""
    wrappers = env_kwargs.get("wrappers")
    items = wrappers.get("list") if isinstance(wrappers, Mapping) else None
    try:
        found: tuple[WrapperCall, ...] = read_wrappers(items) if items is not None else ()
    except ValueError:
        return ()
    return found


def unknown_wrapper(name: str) -> str | None:
    """Code that a wrapper would run without the user's permission, as a --plugin argument; else None.

    Code that is already imported is allowed where it is a class: only subclasses of `gymnasium.Wrapper` are used.
    """
    source, attribute = split_source(name)
    if attribute in WRITE_FILES:
        return None if is_allowed(name) else name
    if source == GYMNASIUM:
        return None
    return unknown_code(name)


def find_wrappers_here(env_kwargs: Mapping[str, Any]) -> None:
    """Make modules of the working directory that name wrappers importable. Only for settings of the user's own."""
    for call in listed_wrappers(env_kwargs):
        add_working_directory(call.name)


def wrapper_plugins(env_kwargs: Mapping[str, Any]) -> list[str]:
    """The --plugin arguments that let a checkpoint use the wrappers of `env_kwargs`."""
    names = [call.name for call in listed_wrappers(env_kwargs) if split_source(call.name)[0] != GYMNASIUM]
    return [plugin for name in names if (plugin := plugin_of(name)) is not None]

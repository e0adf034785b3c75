"""The wrappers of `env_kwargs.wrappers.list`: how they are written, found and applied."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym

from rl_training.envs.single.signatures import check_arguments
from rl_training.envs.state.aliases import Env
from rl_training.errors import ConfigError, EnvError
from rl_training.plugins.gate import GYMNASIUM
from rl_training.plugins.user_code import (
    add_working_directory,
    frames_of_user,
    load_code,
    split_source,
)
from rl_training.validation import nearest, suggest

Wrap = Callable[..., Env]
SPELLING = "write module:Name or path/to/file.py:Name, and with arguments {'module:Name': {argument: value}}"


@dataclass(frozen=True)
class WrapperCall:
    """One wrapper of the list: `module:Name`, and the arguments after the environment."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


def read_wrappers(items: Any) -> Any:
    """Parse the items of the list; raises a `ValueError` for any other form."""
    if isinstance(items, (str, Mapping)) or not isinstance(items, Sequence):
        raise ValueError(f"should be a list of wrappers: {SPELLING}")
    return tuple(item if isinstance(item, WrapperCall) else _read_item(item) for item in items)


def listed_wrappers(env_kwargs: Mapping[str, Any]) -> tuple[WrapperCall, ...]:
    """The wrapper list of `env_kwargs`; empty if there is none, or it is not valid and will be refused elsewhere."""
    wrappers = env_kwargs.get("wrappers")
    items = wrappers.get("list") if isinstance(wrappers, Mapping) else None
    try:
        found: tuple[WrapperCall, ...] = read_wrappers(items) if items is not None else ()
    except ValueError:
        return ()
    return found


def find_wrappers_here(env_kwargs: Mapping[str, Any]) -> None:
    """Make modules of the working directory that name wrappers importable. Only for the user's own settings."""
    for call in listed_wrappers(env_kwargs):
        add_working_directory(call.name)


def _read_item(item: Any) -> WrapperCall:
    name: Any = item
    arguments: Any = {}
    if isinstance(item, Mapping) and len(item) == 1:
        ((name, arguments),) = item.items()
        arguments = {} if arguments is None else arguments
    if (
        not isinstance(name, str)
        or not isinstance(arguments, Mapping)
        or not all(isinstance(key, str) for key in arguments)
    ):
        raise ValueError(f"{item!r:.100} is no wrapper: {SPELLING}")
    source, attribute = split_source(name)
    if not source or not attribute:
        near = nearest(name, _names_in(gym.wrappers))
        hint = SPELLING if near is None else f"did you mean '{GYMNASIUM}:{near}'?"
        raise ValueError(f"'{name}' does not say where the wrapper is: {hint}")
    return WrapperCall(name, dict(arguments))


def find_wrappers(calls: Sequence[WrapperCall]) -> list[Wrap]:
    """The classes and functions of a list, with their arguments checked; their code is imported."""
    found = []
    for call in calls:
        wrap = find_wrapper(call.name)
        check_arguments(
            wrap, call.arguments, f"wrapper '{call.name}'", _spelling_with(call.name), num_given=1
        )
        found.append(wrap)
    return found


def _spelling_with(name: str) -> Callable[[list[str]], str]:
    """How to write a wrapper with values for its missing arguments."""
    return lambda missing: f"write {{'{name}': {{{': …, '.join(missing)}: …}}}}"


def apply_wrappers(env: Env, calls: Sequence[WrapperCall], wraps: Sequence[Wrap]) -> Env:
    """Wrap an environment in the order of the list: the first is the innermost."""
    for call, wrap in zip(calls, wraps, strict=True):
        try:
            wrapped = wrap(env, **call.arguments)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            given = (
                f" refuses its arguments {dict(call.arguments)}"
                if call.arguments
                else " cannot be applied"
            )
            detail = f"{type(error).__name__}: {error}{frames_of_user(error)}"
            raise ConfigError(f"wrapper '{call.name}'{given}: {detail}") from error
        if not isinstance(wrapped, gym.Env):
            what = "None" if wrapped is None else f"a {type(wrapped).__name__}"
            raise EnvError(
                f"wrapper '{call.name}' returned {what}, not a gymnasium.Env: let it return the environment"
            )
        env = wrapped
    return env


def find_wrapper(name: str) -> Wrap:
    """The wrapper class or function that `source:name` names; its code is imported."""
    source, attribute = split_source(name)
    if "/" in source and not source.endswith(".py"):
        raise EnvError(
            f"'{source}' is neither a module nor a file: write package.module or path/to/file.py"
        )
    module = load_code(source)
    try:
        candidate: Any = getattr(module, attribute, None)
    except ImportError as error:  # Gymnasium imports some wrappers when they are first used
        raise EnvError(
            f"wrapper '{name}' needs a package that is not installed: {error}"
        ) from error
    if inspect.isclass(candidate) and issubclass(candidate, gym.Wrapper):
        return candidate
    if inspect.isclass(candidate):
        raise EnvError(
            f"'{source}' has no wrapper '{attribute}': let the class inherit from gymnasium.Wrapper"
        )
    if candidate is None or not callable(candidate):
        known = _names_in(module)
        longer = [other for other in known if other.lower().startswith(attribute.lower())]
        hint = f": did you mean '{longer[0]}'?" if longer else suggest(attribute, known)
        raise EnvError(f"'{source}' has no wrapper '{attribute}'{hint}")
    load_code(name)
    wrap: Wrap = candidate
    return wrap


def _names_in(module: Any) -> list[str]:
    """Names of the wrapper classes and functions in a module, for suggestions."""

    def is_candidate(value: Any) -> bool:
        if inspect.isclass(value):
            return issubclass(value, gym.Wrapper) and value is not gym.Wrapper
        return inspect.isfunction(value) and value.__module__ == module.__name__

    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and is_candidate(value)
    ]

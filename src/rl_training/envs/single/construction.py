"""Makes one environment from an id, class or factory function; each failure names its cause and remedy."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import (
    find_highest_version,
    get_env_id,
    load_env_creator,
    parse_env_id,
)
from gymnasium.error import DependencyNotInstalled
from gymnasium.error import Error as GymnasiumError

from rl_training.envs.single.signatures import check_arguments
from rl_training.envs.state.aliases import Env
from rl_training.envs.state.unsaved_state import env_classes, watch_call
from rl_training.errors import ConfigError, EnvError, RLTrainingError
from rl_training.plugins.extras import (
    import_known_packages,
    missing_for_registered,
    missing_for_unknown,
)
from rl_training.plugins.user_code import Maker, find_maker, frames_of_user
from rl_training.validation import suggest

REFUSALS = (TypeError, ValueError, KeyError, AssertionError)
"""Exceptions of a constructor that indicate a wrong argument."""


def construct(env_id: str, env_arguments: Mapping[str, Any], max_episode_steps: int | None) -> Env:
    """Make the environment; `max_episode_steps` replaces its own time limit."""
    maker = find_maker(env_id)
    import_known_packages(env_id)
    with (
        translate_construction_errors(env_id, env_arguments),
        watch_call(env_classes.get(env_id), "make"),
    ):
        newest = newer_version(env_id) if maker is None else None
        if newest and parse_env_id(env_id)[2] is None and env_id not in gym.registry:
            raise EnvError(f"environment id '{env_id}' lacks its version: write '{newest}'")
        _check_arguments(env_id, maker, env_arguments)
        env: Env
        if maker is not None:
            env = maker(**env_arguments)
        else:
            with warnings.catch_warnings():
                if newest:  # reported once, before the run, not for each environment
                    warnings.filterwarnings("ignore", message=".*is out of date")
                env = gym.make(
                    env_id,
                    max_episode_steps=max_episode_steps,
                    disable_env_checker=True,
                    **env_arguments,
                )
    _check_is_env(env_id, env)
    env_classes[env_id] = type(env.unwrapped)
    if maker is None or max_episode_steps is None:
        return env
    return gym.wrappers.TimeLimit(env, max_episode_steps)


def newer_version(env_id: str) -> str | None:
    """The newest version of a Gymnasium id whose version is older or missing; else None."""
    try:
        namespace, name, version = parse_env_id(env_id)
    except GymnasiumError:  # not an id
        return None
    highest = find_highest_version(namespace, name)
    is_newer = highest is not None and (version is None or version < highest)
    return get_env_id(namespace, name, highest) if is_newer else None


def is_registered(env_id: str) -> bool:
    """Whether Gymnasium or an installed known package registers this id."""
    import_known_packages(env_id)
    return env_id in gym.registry or any(known.startswith(f"{env_id}-v") for known in gym.registry)


@contextlib.contextmanager
def translate_construction_errors(env_id: str, env_arguments: Mapping[str, Any]) -> Iterator[None]:
    """Turn exceptions of the construction into errors that name the environment, the cause and the remedy."""
    try:
        yield
    except RLTrainingError:
        raise
    except (DependencyNotInstalled, ImportError) as error:
        raise EnvError(missing_for_registered(env_id, error)) from error
    except GymnasiumError as error:
        raise EnvError(_explain_refused_id(env_id, error)) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # Gymnasium raises a TypeError again with a longer text.
        first = error.__cause__ if isinstance(error, TypeError) and error.__cause__ else error
        detail = f"{type(error).__name__}: {first}{frames_of_user(error)}"
        if env_arguments and isinstance(error, REFUSALS):
            refused = (
                f"environment '{env_id}' refuses its env_kwargs {dict(env_arguments)}: {detail}"
            )
            raise ConfigError(refused) from error
        raise EnvError(
            f"environment '{env_id}' cannot be made: its constructor raised {detail}"
        ) from error


def _check_arguments(env_id: str, maker: Maker | None, env_arguments: Mapping[str, Any]) -> None:
    """Compare the arguments with the signature of what makes the environment."""
    function: Any = maker
    registered: Mapping[str, Any] = {}
    if maker is None:
        spec = gym.registry.get(env_id.rpartition(":")[2])
        if spec is None or spec.entry_point is None:
            return  # gym.make reports it
        point: Any = spec.entry_point
        function = load_env_creator(point) if isinstance(point, str) else point
        registered = spec.kwargs
    check_arguments(
        function,
        env_arguments,
        f"environment '{env_id}'",
        lambda missing: "set " + " ".join(f"env_kwargs.{name}=…" for name in missing),
        refusal=f" refuses its env_kwargs {dict(env_arguments)}: it",
        registered=registered,
    )


def _check_is_env(env_id: str, made: Any) -> None:
    if isinstance(made, gym.vector.VectorEnv):
        raise EnvError(
            f"'{env_id}' returned a vector environment: return a single one and set num_envs"
        )
    if not isinstance(made, gym.Env):
        what = "None" if made is None else f"a {type(made).__module__}.{type(made).__qualname__}"
        raise EnvError(
            f"'{env_id}' returned {what}, not a gymnasium.Env: let the function return the environment"
        )


def _explain_refused_id(env_id: str, error: GymnasiumError) -> str:
    if env_id in gym.registry:
        return f"environment '{env_id}' cannot be made: {error}"
    if env_id.endswith(".py"):
        return f"'{env_id}' is a file: name the class or function in it, {env_id}:ClassName"
    remedy = "use a Gymnasium id, module:ClassName or path/to/file.py:ClassName"
    return (
        missing_for_unknown(env_id)
        or f"unknown environment '{env_id}'{suggest(env_id, gym.registry, remedy)}"
    )

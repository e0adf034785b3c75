"""From an environment given as a Python object to the settings of a run: an id, and the number of environments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from rl_training.envs.given.makers import Maker, maker_from_vector, maker_of, plain_name
from rl_training.envs.given.vector_env import check_vector
from rl_training.envs.parallel.pools import close_example
from rl_training.errors import ConfigError, EnvError
from rl_training.plugins.given import GivenEnv, is_given_id, new_id, put_given
from rl_training.plugins.user_code import load_code

EnvLike = str | Callable[..., Any] | gym.Env[Any, Any] | VectorEnv[Any, Any, Any]
"""What the classes of the algorithms take: an id, a class or function, an instance, or a vector environment."""


def register_env(env_id: str, env: EnvLike, *, eval_env: EnvLike | None = None) -> str:
    """Register an environment of this process under an id such as `python:MyEnv`, for `env_id`; returns the id.

    `env` is a class, a function that returns an environment, an instance or a vector environment. A vector environment
    without a `spec` needs `eval_env`, of which the single environments of evaluation are made. An object that had the
    id before is replaced.
    """
    put_given(env_id, _given(env, eval_env))
    return env_id


def env_settings(env: Any, num_envs: int | None = None, eval_env: Any = None) -> dict[str, Any]:
    """The settings that an environment determines: `env_id`, and `num_envs` of a vector environment."""
    is_vector = isinstance(env, VectorEnv)
    if eval_env is not None and not is_vector:
        raise ConfigError("eval_env is for a vector environment: leave it out, since evaluation makes the same env")
    env_id = env if isinstance(env, str) else plain_name(env)
    if env_id is None:
        given = _given(env, eval_env)
        env_id = new_id(_name_of(env), env)
        put_given(env_id, given)
    if not is_vector:
        return {"env_id": env_id}
    if num_envs not in (None, env.num_envs):
        raise ConfigError(f"num_envs={num_envs} is given beside a vector environment of {env.num_envs}: leave it out")
    return {"env_id": env_id, "num_envs": env.num_envs}


def give_again(env_id: str | None, env: EnvLike, eval_env: EnvLike | None = None) -> None:
    """Give the environment of a saved run again; its id then stands for this object in the whole process."""
    if env_id is not None and is_given_id(env_id):
        register_env(env_id, env, eval_env=eval_env)
        return
    name = env if isinstance(env, str) else plain_name(env)
    if env_id is None or name != env_id or eval_env is not None:
        raise ConfigError(
            f"the environment of the run is {env_id!r}, and cannot be replaced: leave env= out (it gives an object"
            " again whose id begins with 'python:')"
        )
    if ":" in env_id:
        load_code(env_id)


def _given(env: Any, eval_env: Any) -> GivenEnv:
    if not isinstance(env, VectorEnv):
        return GivenEnv(maker_of(env, "the environment"), source=env)
    check_vector(env)
    return GivenEnv(_evaluation_maker(env, eval_env), env, env)


def _evaluation_maker(env: VectorEnv[Any, Any, Any], eval_env: Any) -> Maker:
    """A function that makes single environments with the spaces of a vector environment."""
    make = maker_of(eval_env, "eval_env") if eval_env is not None else maker_from_vector(env)
    if make is None:
        raise ConfigError(
            f"this {type(env).__name__} has no spec from which single environments for evaluation could be made: pass"
            " eval_env=... (an id, a class or a function that returns a single environment)"
        )
    example: Any = make()
    if not isinstance(example, gym.Env):
        raise EnvError(f"eval_env returned a {type(example).__name__}, not a gymnasium.Env")
    close_example(example)
    pairs = [(example.observation_space, env.single_observation_space), (example.action_space, env.single_action_space)]
    for single, ours in pairs:
        if single != ours:
            raise EnvError(f"the evaluation environment has the space {single}, the vector environment {ours}")
    return make


def _name_of(env: Any) -> str:
    if isinstance(env, (gym.Env, VectorEnv)):
        spec = env.unwrapped.spec
        return type(env.unwrapped).__name__ if spec is None else spec.id
    while isinstance(env, functools.partial):
        env = env.func
    return str(getattr(env, "__name__", type(env).__name__))

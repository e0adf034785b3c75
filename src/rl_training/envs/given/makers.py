"""Names of environments given as objects, and functions that make single ones of them."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from rl_training.envs.parallel.pools import close_example, describe_error
from rl_training.envs.single.construction import construct
from rl_training.envs.single.masks import find_mask_source
from rl_training.envs.state.attributes import is_same
from rl_training.envs.state.global_generators import seeded_global_generators
from rl_training.envs.wrapping.valid_actions import make_valid
from rl_training.errors import ConfigError, EnvError
from rl_training.plugins.user_code import FILE_MODULE

Env = gym.Env[Any, Any]
Maker = Callable[..., Env]
STEPS_COMPARED = 30
INSTEAD = "pass a function that returns a new one, such as lambda: MyEnv()"
VECTOR_KEYS = ("num_envs", "vectorization_mode", "vector_kwargs", "wrappers")
"""Arguments of `gymnasium.make_vec` in the specification of what it made; single environments do not have them."""


@dataclass(frozen=True)
class FromId:
    """Makes environments of an id."""

    env_id: str

    def __call__(self, render_mode: str | None = None) -> Env:
        """Make one."""
        return construct(self.env_id, {} if render_mode is None else {"render_mode": render_mode}, None)


@dataclass(frozen=True)
class FromSpec:
    """Makes environments of a Gymnasium specification, with the wrappers that it records."""

    spec: EnvSpec
    wrappers: tuple[Callable[[Env], Env], ...] = ()

    def __call__(self, render_mode: str | None = None) -> Env:
        """Make one."""
        chosen: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
        env: Env = gym.make(self.spec, disable_env_checker=True, **chosen)
        for wrapper in self.wrappers:
            env = wrapper(env)
        return env


@dataclass(frozen=True)
class Copies:
    """Makes copies of an environment that is never used itself."""

    original: Env = field(repr=False)

    def __call__(self) -> Env:
        """Make one."""
        return copy.deepcopy(self.original)


def plain_name(env: Any) -> str | None:
    """The id that stands for an object in every process: `module:Name`, `file.py:Name` or a Gymnasium id; else None."""
    if isinstance(env, gym.Env):
        spec = env.spec
        return spec.id if spec is not None and gym.registry.get(spec.id) == spec else None
    module, name = getattr(env, "__module__", None), getattr(env, "__qualname__", "")
    is_env_class = inspect.isclass(env) and issubclass(env, gym.Env)
    if not (is_env_class or inspect.isfunction(env)) or module in (None, "__main__", "__mp_main__"):
        return None
    home = sys.modules.get(str(module))
    if home is None or getattr(home, name, None) is not env:  # within a function or class, or replaced
        return None
    return f"{Path(str(home.__file__))}:{name}" if str(module).startswith(FILE_MODULE) else f"{module}:{name}"


def maker_of(env: Any, argument: str) -> Maker:
    """A function that makes what `env` stands for; `argument` is its name in error messages."""
    if isinstance(env, str):
        return FromId(env)
    if isinstance(env, gym.Env):
        return maker_of_instance(env)
    is_vector = isinstance(env, VectorEnv) or (inspect.isclass(env) and issubclass(env, VectorEnv))
    is_other_class = inspect.isclass(env) and not issubclass(env, gym.Env)
    if is_vector or is_other_class or not callable(env):
        what = env.__name__ if inspect.isclass(env) else f"a {type(env).__name__}"
        raise ConfigError(
            f"{argument} cannot be {what}: give an environment id, a subclass of gymnasium.Env, a function that returns"
            " an environment, or an instance"
        )
    maker: Maker = env
    return maker


def maker_of_instance(env: Env) -> Maker:
    """A function that makes environments like this instance, which is neither stepped nor closed."""
    if env.spec is not None:
        maker = FromSpec(env.spec)
        with contextlib.suppress(Exception):  # a wrapper that does not record its arguments
            close_example(maker())
            return maker
    name = type(env.unwrapped).__name__
    try:
        copies = Copies(copy.deepcopy(env))
        is_alike = _behave_alike(copies)
    except Exception as error:
        raise EnvError(
            f"this {name} cannot be copied, and a run needs several environments: {describe_error(error)}; {INSTEAD}"
        ) from error
    if not is_alike:
        raise EnvError(f"two copies of this {name} do not behave alike, and a run needs several: {INSTEAD}")
    return copies


def maker_from_vector(env: VectorEnv[Any, Any, Any]) -> Maker | None:
    """A function that makes the single environments of a vector environment, by its specification; else None."""
    spec = env.unwrapped.spec
    if spec is None or env is not env.unwrapped:  # a wrapper of it may change observations or rewards
        return None
    wrappers = tuple(spec.kwargs.get("wrappers", ()))
    kwargs = {key: value for key, value in spec.kwargs.items() if key not in VECTOR_KEYS}
    limit = kwargs.pop("max_episode_steps", spec.max_episode_steps)
    return FromSpec(replace(spec, kwargs=kwargs, max_episode_steps=limit), wrappers)


def _behave_alike(make: Maker) -> bool:
    """Whether a copy behaves the same alone and beside another copy that takes other actions."""
    example = make()
    masks = find_mask_source(example, make)
    if masks is not None:
        make = functools.partial(make_valid, make, masks)
    close_example(example)
    alone, first, second = make(), make(), make()
    space = copy.deepcopy(alone.action_space)
    space.seed(0)
    actions = [space.sample() for _ in range(2 * STEPS_COMPARED)]
    with seeded_global_generators(0):  # so that those of the process keep their state
        expected = [_answer(alone, None), *(_answer(alone, action) for action in actions[::2])]
        _answer(second, None)
        found = [_answer(first, None)]
        for action, other in zip(actions[::2], actions[1::2], strict=True):
            found.append(_answer(first, action))
            _answer(second, other)
    for env in (alone, first, second):
        close_example(env)
    return is_same(found, expected)


def _answer(env: Env, action: Any) -> list[Any]:
    """The result of a reset (without an action) or a step; an ended episode is reset."""
    if action is None:
        return [copy.deepcopy(env.reset(seed=0)[0])]
    obs, reward, terminated, truncated, _ = env.step(copy.deepcopy(action))
    answer = [copy.deepcopy(obs), float(reward), bool(terminated), bool(truncated)]
    if terminated or truncated:
        env.reset(seed=0)
    return answer

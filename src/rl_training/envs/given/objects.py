"""Environments given as objects: their makers and ids, and what worker processes load."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.reduction import ForkingPickler
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from rl_training.envs.given.vector_env import check_vector
from rl_training.envs.parallel.pools import close_example, describe_error
from rl_training.envs.single.construction import construct
from rl_training.envs.single.masks import find_mask_source, make_valid
from rl_training.envs.state.aliases import Env, Vector
from rl_training.envs.state.attributes import is_same
from rl_training.envs.state.generators import seeded_global_generators
from rl_training.errors import ConfigError, EnvError
from rl_training.plugins.given import (
    GivenEnv,
    find_given,
    has_given,
    is_given_id,
    new_id,
    put_given,
)
from rl_training.plugins.user_code import FILE_MODULE, code_for, find_maker, load_code

Maker = Callable[..., Env]
STEPS_COMPARED = 30
INSTEAD = "pass a function that returns a new one, such as lambda: MyEnv()"
VECTOR_KEYS = ("num_envs", "vectorization_mode", "vector_kwargs", "wrappers")
"""Arguments of `gymnasium.make_vec` in the specification of what it made; single environments do not have them."""


def make_by_id(env_id: str, render_mode: str | None = None) -> Env:
    """Make an environment of an id."""
    return construct(env_id, _render_argument(render_mode), None)


def make_from_spec(
    spec: EnvSpec, wrappers: Sequence[Callable[[Env], Env]], render_mode: str | None = None
) -> Env:
    """Make an environment of a Gymnasium specification, with the wrappers that it records, and others around it."""
    env: Env = gym.make(spec, disable_env_checker=True, **_render_argument(render_mode))
    for wrapper in wrappers:
        env = wrapper(env)
    return env


def _render_argument(render_mode: str | None) -> dict[str, Any]:
    return {} if render_mode is None else {"render_mode": render_mode}


def copy_of(original: Env) -> Env:
    """Make a copy of an environment that is never used itself."""
    return copy.deepcopy(original)


def plain_name(env: Any) -> str | None:
    """The id of an object that every process finds: `module:Name`, `file.py:Name` or a Gymnasium id; else None."""
    if isinstance(env, gym.Env):
        spec = env.spec
        return spec.id if spec is not None and gym.registry.get(spec.id) == spec else None
    module, name = getattr(env, "__module__", None), getattr(env, "__qualname__", "")
    is_env_class = inspect.isclass(env) and issubclass(env, gym.Env)
    if not (is_env_class or inspect.isfunction(env)) or module in (None, "__main__", "__mp_main__"):
        return None
    home = sys.modules.get(module)
    if getattr(home, name, None) is not env:  # within a function or class, or replaced
        return None
    source = home.__file__ if home and module.startswith(FILE_MODULE) else module
    return f"{source}:{name}"


def maker_of(env: Any, argument: str) -> Maker:
    """Factory for `env` (id, class, function or instance); `argument` is its name in error messages."""
    if isinstance(env, str):
        return functools.partial(make_by_id, env)
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
        maker = functools.partial(make_from_spec, env.spec, ())
        with contextlib.suppress(Exception):  # a wrapper that does not record its arguments
            close_example(maker())
            return maker
    name = type(env.unwrapped).__name__
    try:
        copies = functools.partial(copy_of, copy.deepcopy(env))
        is_alike = _behave_alike(copies)
    except Exception as error:
        raise EnvError(
            f"this {name} cannot be copied, and a run needs several environments: {describe_error(error)}; {INSTEAD}"
        ) from error
    if not is_alike:
        raise EnvError(
            f"two copies of this {name} do not behave alike, and a run needs several: {INSTEAD}"
        )
    return copies


def maker_from_vector(env: Vector) -> Maker | None:
    """A function that makes the single environments of a vector environment, by its specification; else None."""
    spec = env.unwrapped.spec
    if (
        spec is None or env is not env.unwrapped
    ):  # a wrapper of it may change observations or rewards
        return None
    wrappers = tuple(spec.kwargs.get("wrappers", ()))
    kwargs = {key: value for key, value in spec.kwargs.items() if key not in VECTOR_KEYS}
    limit = kwargs.pop("max_episode_steps", spec.max_episode_steps)
    single = replace(spec, kwargs=kwargs, max_episode_steps=limit)
    return functools.partial(make_from_spec, single, wrappers)


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
    actions = [None, *(space.sample() for _ in range(STEPS_COMPARED))]
    others = [None, *(space.sample() for _ in range(STEPS_COMPARED))]
    with seeded_global_generators(0):  # so that the process's generators keep their state
        expected = [_answer(alone, action) for action in actions]
        found = []
        for action, other in zip(actions, others, strict=True):
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


REMEDY = "define its class or function at the top level of a module or of the script, not in a notebook or a function"


@dataclass(frozen=True)
class WorkerCode:
    """Code of one environment and of its wrappers; sent to worker processes."""

    env_id: str
    code: str | None
    """The module or file that defines or registers the environment."""
    others: tuple[str, ...]
    """Files of the wrappers."""
    given: Maker | str | None = None
    """What makes a `python:` environment, or where a worker process finds it."""

    @classmethod
    def of(cls, env_id: str, wrappers: Sequence[str], *, is_sent: bool) -> WorkerCode:
        """What this process has imported and was given for an environment; with `is_sent`, it must be picklable."""
        others = tuple(code for name in wrappers if (code := code_for(name)) is not None)
        if not is_given_id(env_id):
            return cls(env_id, code_for(env_id), others)
        make = find_given(env_id).make
        if not is_sent:
            return cls(env_id, None, others)
        given = plain_name(make)
        if given is None:
            _check_can_be_sent(env_id, make)
        return cls(env_id, None, others, given or make)

    def load(self) -> None:
        """Import the code in a worker process; where it is imported already, this does nothing."""
        for place in self.others:
            load_code(place)
        if is_given_id(self.env_id):
            make = find_maker(self.given) if isinstance(self.given, str) else self.given
            if make is not None and not has_given(self.env_id):
                put_given(self.env_id, GivenEnv(make))
        elif self.code is not None and self.env_id not in gym.registry:
            load_code(self.code)
            if ":" not in self.env_id and self.env_id not in gym.registry:
                raise EnvError(
                    f"environment '{self.env_id}' is registered in the main process, but not where '{self.code}' is"
                    " imported, as worker processes do: register it in that module, or above"
                    " `if __name__ == '__main__':`"
                )


def _check_can_be_sent(env_id: str, make: Maker) -> None:
    """Raise an `EnvError` if worker processes cannot receive a maker."""
    try:
        is_of_script = b"__main__" in bytes(ForkingPickler.dumps(make))
        if not is_of_script or hasattr(sys.modules["__main__"], "__file__"):
            return
        fault = "it is defined in no file"
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
    raise EnvError(
        f"environment '{env_id}' cannot be sent to the worker processes of backend: async ({fault}): {REMEDY}, or"
        " use backend: sync"
    )


EnvLike = str | Callable[..., Any] | Env | Vector
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
        raise ConfigError(
            "eval_env is for a vector environment: leave it out, since evaluation makes the same env"
        )
    env_id = env if isinstance(env, str) else plain_name(env)
    if env_id is None:
        given = _given(env, eval_env)
        env_id = new_id(_name_of(env), env)
        put_given(env_id, given)
    if not is_vector:
        return {"env_id": env_id}
    if num_envs not in (None, env.num_envs):
        raise ConfigError(
            f"num_envs={num_envs} is given beside a vector environment of {env.num_envs}: leave it out"
        )
    return {"env_id": env_id, "num_envs": env.num_envs}


def give_again(env_id: str | None, env: EnvLike, eval_env: EnvLike | None = None) -> None:
    """Give the environment of a saved run again; its id then names this object in the whole process."""
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


def _evaluation_maker(env: Vector, eval_env: Any) -> Maker:
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
    for single, ours in (
        (example.observation_space, env.single_observation_space),
        (example.action_space, env.single_action_space),
    ):
        if single != ours:
            raise EnvError(
                f"the evaluation environment has the space {single}, the vector environment {ours}"
            )
    return make


def _name_of(env: Any) -> str:
    if isinstance(env, (gym.Env, VectorEnv)):
        spec = env.unwrapped.spec
        return type(env.unwrapped).__name__ if spec is None else spec.id
    while isinstance(env, functools.partial):
        env = env.func
    return str(getattr(env, "__name__", type(env).__name__))

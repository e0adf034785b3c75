"""Simulators of several environments: Gymnasium's vectorized implementations and EnvPool."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from rl_training.envs.parallel.batch import Batch, derived_seeds
from rl_training.envs.state.aliases import Array, Env, State, Vector
from rl_training.envs.state.attributes import (
    capture_attributes,
    generator_state,
    is_same,
    restore_attributes,
)
from rl_training.errors import EnvError, install_extra
from rl_training.validation import suggest

NO_LIMIT = 2**31 - 1
INSTEAD = "use sync or async"


def name_of(num_envs: int) -> str:
    """What error messages call the environments of one simulator."""
    return f"the {num_envs} environments of one simulator"


class GymnasiumBatch(Batch):
    """A vectorized environment of Gymnasium whose state is in its attributes.

    It cannot reset some of its environments: `end_episodes` resets all, then restores the arrays of the others.
    """

    def __init__(self, env: Vector, axes: dict[str, int]) -> None:
        self.name = name_of(env.num_envs)
        self.env = env
        self._core: Any = env.unwrapped
        self._axes = axes
        """The axis of environments in each array attribute."""

    def reset_all(self, seeds: Sequence[int | None], num_resumes: int = 0) -> Array:
        """Reset every environment; one generator serves all."""
        seed = int(derived_seeds(seeds, num_resumes)[0])
        return np.array(self.env.reset(seed=seed)[0])

    def step(self, actions: Array) -> list[Any]:
        """Take one step in every environment."""
        *arrays, infos = self.env.step(actions)
        return [*map(np.array, arrays), infos]

    def end_episodes(self, obs: Array, ended: Array, infos: Any) -> tuple[Array, Array]:
        """Reset the ended environments, and keep the others."""
        before = self._arrays()
        first = np.array(self.env.reset()[0])
        for name, axis in self._axes.items():
            others = (slice(None),) * axis + (~ended,)
            getattr(self._core, name)[others] = before[name][others]
        first[~ended] = obs[~ended]
        return obs, first

    def state(self) -> State:
        """Arrays, other attributes and the generator."""
        attributes = capture_attributes(self._core)
        for name in self._axes:
            attributes.pop(name, None)
        generator = generator_state(self._core)
        arrays = self._arrays()
        return {"batch": {"arrays": arrays, "attributes": attributes, "generator": generator}}

    def restore(self, state: State) -> list[str]:
        """Restore a result of `state`."""
        saved = state["batch"]
        restore_attributes(self._core, saved["attributes"])
        for name, current in self._arrays().items():
            array = saved["arrays"][name]
            if (array.shape, array.dtype) != (current.shape, current.dtype):
                raise ValueError(
                    f"'{name}' of the environments was saved as {array.dtype}{list(array.shape)}"
                )
            setattr(self._core, name, array.copy())
        self.set_generator(state)
        return []

    def set_generator(self, state: State) -> None:
        """Restore only the generator."""
        self._core.np_random.bit_generator.state = state["batch"]["generator"]

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _arrays(self) -> dict[str, Array]:
        return {name: getattr(self._core, name).copy() for name in self._axes}


def make_gymnasium_batch(
    env_id: str, env_arguments: Mapping[str, Any], example: Env, num_envs: int
) -> GymnasiumBatch:
    """Make Gymnasium's vectorized implementation, after a test that it can be partly reset and restored."""
    limit = example.spec.max_episode_steps if example.spec else None
    limits: dict[str, Any] = (
        {} if gym.spec(env_id).max_episode_steps is None else {"max_episode_steps": limit}
    )
    make = functools.partial(
        gym.make_vec, env_id, vectorization_mode="vector_entry_point", **limits, **env_arguments
    )
    small, larger = make(num_envs=3), make(num_envs=4)
    if small.metadata.get("autoreset_mode") is AutoresetMode.SAME_STEP:
        raise EnvError(
            f"'{env_id}' resets within the step, which backend: vector does not support: {INSTEAD}"
        )
    small.reset(seed=0)
    larger.reset(seed=0)
    axes = {}
    for name, array in vars(small.unwrapped).items():
        if isinstance(array, np.ndarray) and array.dtype.kind in "biuf":
            sizes = list(zip(array.shape, vars(larger.unwrapped)[name].shape, strict=True))
            if (3, 4) in sizes:
                axes[name] = sizes.index((3, 4))
    if not _holds_everything(GymnasiumBatch(small, axes)):
        raise EnvError(
            f"'{env_id}' does not support backend: vector: its state is not all in NumPy arrays and np_random, so it"
            f" can be neither partly reset nor restored: {INSTEAD}"
        )
    return GymnasiumBatch(make(num_envs=num_envs), axes)


def _holds_everything(batch: GymnasiumBatch) -> bool:
    """Whether a restored batch continues identically, and resetting one environment leaves the others unchanged."""
    batch.env.action_space.seed(0)
    actions = batch.env.action_space.sample()
    everyone = np.ones(3, np.bool_)

    def step_and_reset() -> tuple[Any, ...]:
        step = batch.step(actions)[:4]
        return step, batch.end_episodes(step[0], everyone, {})

    batch.reset_all([0, 0, 0])
    obs, _, terminated, truncated, _ = batch.step(actions)
    if (terminated | truncated).any():
        batch.end_episodes(obs, terminated | truncated, {})
    saved = batch.state()
    expected = step_and_reset()
    batch.restore(saved)
    if not is_same(step_and_reset(), expected):
        return False
    batch.restore(saved)
    batch.end_episodes(obs, np.arange(3) == 0, {})
    batch.set_generator(saved)
    step = batch.step(actions)[:4]
    return is_same([part[1:] for part in step], [part[1:] for part in expected[0]])


class EnvPoolBatch(Batch):
    """An EnvPool; its environments reset one step after an episode end, so they are reset explicitly before."""

    is_savable = False
    new_episodes = "EnvPool cannot save its state: a resumed run starts new episodes"

    def __init__(
        self, env_id: str, env_arguments: Mapping[str, Any], example: Env, num_envs: int
    ) -> None:
        self.name = name_of(num_envs)
        spec = _import_envpool().make_spec(env_id, **env_arguments)
        for theirs, ours in (
            (spec.observation_space, example.observation_space),
            (spec.action_space, example.action_space),
        ):
            if not _are_alike(theirs, ours):
                raise EnvError(
                    f"EnvPool's '{env_id}' has the space {theirs}, Gymnasium's, used in evaluation, {ours}: {INSTEAD}"
                )
        # EnvPool's own time limit would report truncation only, also where the same step terminated.
        self._make = functools.partial(
            _import_envpool().make,
            env_id,
            "gymnasium",
            num_envs=num_envs,
            max_episode_steps=NO_LIMIT,
            **env_arguments,
        )
        self._pool: Any = None

    def reset_all(self, seeds: Sequence[int | None], num_resumes: int) -> Any:
        """Make the pool and reset it: its seeds (31 bits) are arguments of the constructor."""
        self._pool = self._make(seed=(derived_seeds(seeds, num_resumes) >> 1).tolist())
        return self._pool.reset()[0]

    def step(self, actions: Array) -> Sequence[Any]:
        """Take one step in every environment."""
        step: Sequence[Any] = self._pool.step(actions)
        return step

    def end_episodes(self, obs: Array, ended: Array, infos: Any) -> tuple[Array, Array]:
        """Reset the ended environments."""
        first = obs.copy()
        first[ended] = self._pool.reset(np.flatnonzero(ended))[0]
        return obs, first

    def close(self) -> None:
        """Release the pool and its threads."""
        self._pool = None


def check_has_batch(env_id: str, backend: str) -> None:
    """Raise unless the backend has the environment, and Gymnasium has it too, for evaluation."""
    if backend == "envpool":
        known = _import_envpool().list_all_envs()
        if env_id not in known:
            raise EnvError(
                f"EnvPool has no '{env_id}'{suggest(env_id, known, 'see envpool.list_all_envs()')}"
            )
        if env_id not in gym.registry:
            raise EnvError(
                f"EnvPool has '{env_id}', but Gymnasium, used in evaluation, does not: choose another id"
            )
        return
    known = [key for key, spec in gym.registry.items() if spec.vector_entry_point is not None]
    if env_id in gym.registry and env_id not in known:
        names = ", ".join(sorted(known))
        raise EnvError(
            f"'{env_id}' has no vectorized implementation: {INSTEAD}; these have one: {names}"
        )


def _import_envpool() -> Any:
    try:
        import envpool

        return envpool
    except ImportError as error:
        remedy = f"{install_extra('envpool')}, on Python 3.11 or newer"
        raise EnvError(f"backend: envpool needs the package envpool ({error}): {remedy}") from None


def _are_alike(one: gym.Space[Any], other: gym.Space[Any]) -> bool:
    """Whether two spaces are equal up to the precision of their numbers."""
    if not (
        isinstance(one, gym.spaces.Box)
        and isinstance(other, gym.spaces.Box)
        and one.shape == other.shape
    ):
        return one == other
    is_same_kind = one.dtype.kind == other.dtype.kind
    return is_same_kind and np.allclose(one.low, other.low) and np.allclose(one.high, other.high)

"""Training environments stepped together by one simulator: Gymnasium's vectorized environments and EnvPool."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv

from rl_training.envs.parallel.pools import describe_error
from rl_training.envs.parallel.vector import TrainingEnv
from rl_training.envs.state.attributes import capture_attributes, is_same, restore_attributes
from rl_training.errors import EnvError, install_extra
from rl_training.plugins.user_code import trace_from_user
from rl_training.spaces.rewards import RewardTransformConfig, transform_rewards
from rl_training.validation import suggest

Array = npt.NDArray[Any]
Env = gym.Env[Any, Any]
NO_LIMIT = 2**31 - 1
INSTEAD = "use sync or async"


class NativeTrainingEnv(TrainingEnv):
    """A vectorized simulator with episode limits, episode returns and resets within the step."""

    def __init__(
        self,
        batch: GymnasiumNativeEnv | EnvPoolNativeEnv,
        example: Env,
        num_envs: int,
        reward: RewardTransformConfig | None,
    ) -> None:
        super().__init__(example, num_envs)
        self._batch = batch
        self.inexact_reasons = batch.inexact_reasons
        self._limit = (example.spec and example.spec.max_episode_steps) or math.inf
        self._reward = reward
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, np.int64)
        self._obs: Any = None
        self._num_resumes = 0

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take one step in every environment, and reset those whose episode ended."""
        self._obs, rewards, terminated, truncated = self._attempt("step", self._batch.step, actions)
        self._returns += rewards
        self._lengths += 1
        truncated = truncated | (self._lengths >= self._limit)
        ended = terminated | truncated
        info: dict[str, Any] = {}
        if ended.any():
            episodes = zip(
                self._returns[ended].tolist(), self._lengths[ended].tolist(), strict=True
            )
            info = {"final_obs": self._obs, "_final_obs": ended, "episodes": list(episodes)}
            self._obs = self._obs.copy()
            self._obs[ended] = self._attempt("reset", self._batch.reset_ended, ended)
            self._returns[ended], self._lengths[ended] = 0.0, 0
        return (
            self._obs,
            transform_rewards(rewards.astype(np.float64), self._reward),
            terminated,
            truncated,
            info,
        )

    def state(self) -> dict[str, Any]:
        """The state of the simulator, and the return and length of each episode in progress."""
        episodes = zip(self._returns.tolist(), self._lengths.tolist(), strict=True)
        return {
            "seeds": list(self._seeds),
            "num_restarts": 0,
            "num_resumes": self._num_resumes,
            "environments": [{"return": total, "length": length} for total, length in episodes],
            "obs": self._obs.copy(),
            "batch": self._batch.state() if isinstance(self._batch, GymnasiumNativeEnv) else None,
        }

    def restore(self, state: dict[str, Any]) -> tuple[Any, list[str]]:
        """Restore a saved state; EnvPool, which cannot be saved, starts new episodes."""
        self._seeds = list(state["seeds"])
        if not isinstance(self._batch, GymnasiumNativeEnv):
            self._num_resumes = state["num_resumes"] + 1
            return self._reset_all(), list(self.inexact_reasons)
        self._batch.restore(state["batch"])
        for index, saved in enumerate(state["environments"]):
            self._returns[index], self._lengths[index] = saved["return"], saved["length"]
        self._obs = np.array(state["obs"])
        return self._obs, []

    def close_extras(self, **kwargs: Any) -> None:
        """Close the simulator."""
        self._batch.close()

    def _reset_all(self) -> Any:
        # The number of resumes is part of the seed, so that a resumed run does not repeat its first episodes.
        entropy = (
            None
            if None in self._seeds
            else [seed or 0 for seed in (*self._seeds, self._num_resumes)]
        )
        seeds = np.random.SeedSequence(entropy).generate_state(self.num_envs)
        self._returns[:], self._lengths[:] = 0.0, 0
        self._obs = self._attempt("reset", self._batch.reset_all, seeds)
        return self._obs

    def _attempt(self, what: str, call: Callable[[Any], Any], value: Any) -> Any:
        try:
            return call(value)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            actions = f"\ntheir last actions: {np.asarray(value)}" if what == "step" else ""
            raise EnvError(
                f"the {self.num_envs} environments of one simulator failed in {what}: {describe_error(error)}\n"
                f"their seeds: {self._seeds}{actions}\ntheir own traceback:\n{trace_from_user(error).rstrip()}"
            ) from error


class GymnasiumNativeEnv:
    """A vectorized environment of Gymnasium whose state is in its attributes.

    It cannot reset some of its environments: `reset_ended` resets all, then restores the arrays of the others.
    """

    inexact_reasons: Sequence[str] = ()

    def __init__(self, env: VectorEnv[Any, Any, Any], axes: dict[str, int]) -> None:
        self.env = env
        self._core: Any = env.unwrapped
        self._axes = axes
        """The axis of environments in each array attribute."""

    def reset_all(self, seeds: Array) -> Array:
        """Reset every environment; one generator serves all."""
        return np.array(self.env.reset(seed=int(seeds[0]))[0])

    def step(self, actions: Array) -> list[Array]:
        """Observations, rewards, terminated, truncated; copied, since some simulators reuse their arrays."""
        return [np.array(part) for part in self.env.step(actions)[:4]]

    def reset_ended(self, ended: Array) -> Array:
        """Reset the ended environments; returns only their observations."""
        before = self._arrays()
        obs, _ = self.env.reset()
        for name, axis in self._axes.items():
            others = (slice(None),) * axis + (~ended,)
            getattr(self._core, name)[others] = before[name][others]
        return np.asarray(obs)[ended]

    def state(self) -> dict[str, Any]:
        """Arrays, other attributes and the generator."""
        return {
            "arrays": self._arrays(),
            "attributes": {
                name: code
                for name, code in capture_attributes(self._core).items()
                if name not in self._axes
            },
            "generator": copy.deepcopy(dict(self._core.np_random.bit_generator.state)),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a result of `state`."""
        self.env.reset(seed=0)  # creates the arrays and the generator
        restore_attributes(self._core, state["attributes"])
        for name, current in self._arrays().items():
            saved = state["arrays"][name]
            if (saved.shape, saved.dtype) != (current.shape, current.dtype):
                raise ValueError(
                    f"'{name}' of the environments was saved as {saved.dtype}{list(saved.shape)}"
                )
            setattr(self._core, name, saved.copy())
        self.set_generator(state)

    def set_generator(self, state: dict[str, Any]) -> None:
        """Restore only the generator."""
        self._core.np_random.bit_generator.state = state["generator"]

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _arrays(self) -> dict[str, Array]:
        return {name: getattr(self._core, name).copy() for name in self._axes}


def make_gymnasium_batch(
    env_id: str, env_arguments: Mapping[str, Any], example: Env, num_envs: int
) -> GymnasiumNativeEnv:
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
    if not _holds_everything(GymnasiumNativeEnv(small, axes)):
        raise EnvError(
            f"'{env_id}' does not support backend: vector: its state is not all in NumPy arrays and np_random, so it"
            f" can be neither partly reset nor restored: {INSTEAD}"
        )
    return GymnasiumNativeEnv(make(num_envs=num_envs), axes)


def _holds_everything(batch: GymnasiumNativeEnv) -> bool:
    """Whether a restored batch continues identically, and resetting one environment leaves the others unchanged."""
    batch.env.action_space.seed(0)
    actions = batch.env.action_space.sample()
    batch.reset_all(np.zeros(1))
    _, _, terminated, truncated = batch.step(actions)
    if (terminated | truncated).any():
        batch.reset_ended(terminated | truncated)
    saved = batch.state()
    step, first_obs = batch.step(actions), batch.reset_ended(np.ones(3, bool))
    batch.restore(saved)
    if not is_same([step, first_obs], [batch.step(actions), batch.reset_ended(np.ones(3, bool))]):
        return False
    batch.restore(saved)
    batch.reset_ended(np.arange(3) == 0)
    batch.set_generator(saved)
    return all(
        is_same(part[1:], again[1:]) for part, again in zip(step, batch.step(actions), strict=True)
    )


class EnvPoolNativeEnv:
    """An EnvPool; its environments reset one step after an episode end, so they are reset explicitly before."""

    inexact_reasons: Sequence[str] = (
        "EnvPool cannot save its state: a resumed run starts new episodes",
    )

    def __init__(
        self, env_id: str, env_arguments: Mapping[str, Any], example: Env, num_envs: int
    ) -> None:
        spec = _import_envpool().make_spec(env_id, **env_arguments)
        for theirs, ours in zip(
            (spec.observation_space, spec.action_space),
            (example.observation_space, example.action_space),
            strict=True,
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

    def reset_all(self, seeds: Array) -> Any:
        """Make the pool and reset it: its seeds (31 bits) are arguments of the constructor."""
        self._pool = self._make(seed=(seeds >> 1).tolist())
        return self._pool.reset()[0]

    def step(self, actions: Array) -> Any:
        """Observations, rewards, terminated, truncated."""
        return self._pool.step(actions)[:4]

    def reset_ended(self, ended: Array) -> Any:
        """Reset the ended environments; returns only their observations."""
        return self._pool.reset(np.flatnonzero(ended))[0]

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

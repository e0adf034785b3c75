"""Training environments that a simulator steps all at once: Gymnasium's own vectorized ones, and EnvPool's."""

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

from rl_training.envs.pools import describe_error
from rl_training.envs.state.attributes import capture_attributes, is_same, restore_attributes
from rl_training.envs.vector import TrainingEnv
from rl_training.errors import EnvError, install_extra
from rl_training.plugins.user_code import trace_from_user
from rl_training.spaces.rewards import RewardTransformConfig, transform_rewards
from rl_training.validation import suggest

Array = npt.NDArray[Any]
Env = gym.Env[Any, Any]
NO_LIMIT = 2**31 - 1
INSTEAD = "use sync or async"


class NativeTrainingEnv(TrainingEnv):
    """A simulator of several environments as training needs it: its episodes are limited, counted and renewed."""

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
        """Take one step in every environment, and begin new episodes where some ended."""
        self._obs, rewards, terminated, truncated = self._attempt("step", self._batch.step, actions)
        self._returns += rewards
        self._lengths += 1
        truncated = truncated | (self._lengths >= self._limit)
        ended = terminated | truncated
        info: dict[str, Any] = {}
        if ended.any():
            episodes = zip(self._returns[ended].tolist(), self._lengths[ended].tolist(), strict=True)
            info = {"final_obs": self._obs, "_final_obs": ended, "episodes": list(episodes)}
            self._obs = self._obs.copy()
            self._obs[ended] = self._attempt("reset", self._batch.renew, ended)
            self._returns[ended], self._lengths[ended] = 0.0, 0
        return self._obs, transform_rewards(rewards.astype(np.float64), self._reward), terminated, truncated, info

    def state(self) -> dict[str, Any]:
        """The state of the simulator, and how far each episode is."""
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
        """Bring the environments back, or begin new episodes where that cannot be done."""
        self._seeds = list(state["seeds"])
        if not isinstance(self._batch, GymnasiumNativeEnv):
            self._num_resumes = state["num_resumes"] + 1
            return self._begin(), list(self.inexact_reasons)
        self._batch.restore(state["batch"])
        for index, saved in enumerate(state["environments"]):
            self._returns[index], self._lengths[index] = saved["return"], saved["length"]
        self._obs = np.array(state["obs"])
        return self._obs, []

    def close_extras(self, **kwargs: Any) -> None:
        """Close the simulator."""
        self._batch.close()

    def _begin(self) -> Any:
        # The number of resumes is there so that a resumed run does not begin with the first episodes again.
        entropy = None if None in self._seeds else [seed or 0 for seed in (*self._seeds, self._num_resumes)]
        seeds = np.random.SeedSequence(entropy).generate_state(self.num_envs)
        self._returns[:], self._lengths[:] = 0.0, 0
        self._obs = self._attempt("reset", self._batch.begin, seeds)
        return self._obs

    def _attempt(self, what: str, call: Callable[[Any], Any], value: Any) -> Any:
        try:
            return call(value)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            actions = f"\ntheir last actions: {np.asarray(value)}" if what == "step" else ""
            raise EnvError(
                f"the {self.num_envs} environments, stepped as one, failed in {what}: {describe_error(error)}\n"
                f"their seeds: {self._seeds}{actions}\ntheir own traceback:\n{trace_from_user(error).rstrip()}"
            ) from error


class GymnasiumNativeEnv:
    """A vectorized environment of Gymnasium, whose state is in its attributes.

    It has no way to reset a part of itself, so all are reset and the arrays of those that had not ended are put back.
    """

    inexact_reasons: Sequence[str] = ()

    def __init__(self, env: VectorEnv[Any, Any, Any], axes: dict[str, int]) -> None:
        self.env = env
        self._core: Any = env.unwrapped
        self._axes = axes
        """Which axis of which attribute counts the environments."""

    def begin(self, seeds: Array) -> Array:
        """Begin an episode in every environment; one generator serves all."""
        return np.array(self.env.reset(seed=int(seeds[0]))[0])

    def step(self, actions: Array) -> list[Array]:
        """Observations, rewards, terminated, truncated: copies, for some write the next ones into the same arrays."""
        return [np.array(part) for part in self.env.step(actions)[:4]]

    def renew(self, ended: Array) -> Array:
        """Begin an episode in the ended environments; returns their observations alone."""
        before = self._arrays()
        obs, _ = self.env.reset()
        for name, axis in self._axes.items():
            others = (slice(None),) * axis + (~ended,)
            getattr(self._core, name)[others] = before[name][others]
        return np.asarray(obs)[ended]

    def state(self) -> dict[str, Any]:
        """Its arrays, which may be large, its other plain attributes and its generator."""
        return {
            "arrays": self._arrays(),
            "attributes": {
                name: code for name, code in capture_attributes(self._core).items() if name not in self._axes
            },
            "generator": copy.deepcopy(dict(self._core.np_random.bit_generator.state)),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Put back what `state` returned."""
        self.env.reset(seed=0)  # makes the arrays and the generator
        restore_attributes(self._core, state["attributes"])
        for name, current in self._arrays().items():
            saved = state["arrays"][name]
            if (saved.shape, saved.dtype) != (current.shape, current.dtype):
                raise ValueError(f"'{name}' of the environments was saved as {saved.dtype}{list(saved.shape)}")
            setattr(self._core, name, saved.copy())
        self.set_generator(state)

    def set_generator(self, state: dict[str, Any]) -> None:
        """Put back the generator alone."""
        self._core.np_random.bit_generator.state = state["generator"]

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _arrays(self) -> dict[str, Array]:
        return {name: getattr(self._core, name).copy() for name in self._axes}


def make_gymnasium_batch(env_id: str, own: Mapping[str, Any], example: Env, num_envs: int) -> GymnasiumNativeEnv:
    """Make Gymnasium's vectorized form of an environment, if it stands a trial."""
    limit = example.spec.max_episode_steps if example.spec else None
    limits: dict[str, Any] = {} if gym.spec(env_id).max_episode_steps is None else {"max_episode_steps": limit}
    make = functools.partial(gym.make_vec, env_id, vectorization_mode="vector_entry_point", **limits, **own)
    small, larger = make(num_envs=3), make(num_envs=4)
    if small.metadata.get("autoreset_mode") is AutoresetMode.SAME_STEP:
        raise EnvError(f"'{env_id}' resets itself within the step: backend: vector cannot yet use such ({INSTEAD})")
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
            f"'{env_id}' cannot be used with backend: vector: its state is not all in NumPy arrays and np_random,"
            f" so a part of it can be neither reset nor restored ({INSTEAD})"
        )
    return GymnasiumNativeEnv(make(num_envs=num_envs), axes)


def _holds_everything(batch: GymnasiumNativeEnv) -> bool:
    """Whether a restored one goes on as before, and resetting one environment leaves the others where they are."""
    batch.env.action_space.seed(0)
    actions = batch.env.action_space.sample()
    batch.begin(np.zeros(1))
    _, _, terminated, truncated = batch.step(actions)
    if (terminated | truncated).any():
        batch.renew(terminated | truncated)
    saved = batch.state()
    step, beginning = batch.step(actions), batch.renew(np.ones(3, bool))
    batch.restore(saved)
    if not is_same([step, beginning], [batch.step(actions), batch.renew(np.ones(3, bool))]):
        return False
    batch.restore(saved)
    batch.renew(np.arange(3) == 0)
    batch.set_generator(saved)
    return all(is_same(part[1:], again[1:]) for part, again in zip(step, batch.step(actions), strict=True))


class EnvPoolNativeEnv:
    """An EnvPool. Its environments reset themselves one step after an ending, so they are told to at once."""

    inexact_reasons: Sequence[str] = ("EnvPool does not give its state away: a resumed run begins new episodes",)

    def __init__(self, env_id: str, own: Mapping[str, Any], example: Env, num_envs: int) -> None:
        spec = _import_envpool().make_spec(env_id, **own)
        for theirs, ours in zip(
            (spec.observation_space, spec.action_space), (example.observation_space, example.action_space), strict=True
        ):
            if not _are_alike(theirs, ours):
                raise EnvError(f"EnvPool's '{env_id}' is not Gymnasium's, which evaluates: {theirs}, not {ours}")
        # Its own time limit would hide that an episode terminated at that very step.
        self._make = functools.partial(
            _import_envpool().make, env_id, "gymnasium", num_envs=num_envs, max_episode_steps=NO_LIMIT, **own
        )
        self._pool: Any = None

    def begin(self, seeds: Array) -> Any:
        """Make the pool, for seeds (of 31 bits) are given to it only then."""
        self._pool = self._make(seed=(seeds >> 1).tolist())
        return self._pool.reset()[0]

    def step(self, actions: Array) -> Any:
        """Observations, rewards, terminated, truncated."""
        return self._pool.step(actions)[:4]

    def renew(self, ended: Array) -> Any:
        """Begin an episode in the ended environments; returns their observations alone."""
        return self._pool.reset(np.flatnonzero(ended))[0]

    def close(self) -> None:
        """Let the pool and its threads go."""
        self._pool = None


def check_has_batch(env_id: str, backend: str) -> None:
    """Raise unless there is such a batch, and Gymnasium has the environment alone, too, for evaluation."""
    if backend == "envpool":
        known = _import_envpool().list_all_envs()
        if env_id not in known:
            raise EnvError(f"EnvPool has no '{env_id}'{suggest(env_id, known, 'see envpool.list_all_envs()')}")
        if env_id not in gym.registry:
            raise EnvError(f"EnvPool has '{env_id}', but Gymnasium has nothing of that id to evaluate on")
        return
    known = [key for key, spec in gym.registry.items() if spec.vector_entry_point is not None]
    if env_id in gym.registry and env_id not in known:
        raise EnvError(f"'{env_id}' has no vectorized form ({INSTEAD}); these have: {', '.join(sorted(known))}")


def _import_envpool() -> Any:
    try:
        import envpool

        return envpool
    except ImportError as error:
        remedy = f"{install_extra('envpool')}, on Python 3.11 or newer"
        raise EnvError(f"backend: envpool needs a package that is not installed: {error} ({remedy})") from None


def _are_alike(one: gym.Space[Any], other: gym.Space[Any]) -> bool:
    """Whether two spaces differ in no more than the precision of their numbers."""
    if not (isinstance(one, gym.spaces.Box) and isinstance(other, gym.spaces.Box) and one.shape == other.shape):
        return one == other
    is_same_kind = one.dtype.kind == other.dtype.kind
    return is_same_kind and np.allclose(one.low, other.low) and np.allclose(one.high, other.high)

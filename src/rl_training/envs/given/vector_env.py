"""Vector environments given as objects: checked, stepped, saved and restored."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import iterate

from rl_training.envs.parallel.pools import Fault, Member, describe_error
from rl_training.envs.parallel.vector import (
    Array,
    PooledTrainingEnv,
    RewardTransform,
    SyncPool,
    TrainingEnv,
    batch_observations,
)
from rl_training.envs.single.answers import find_misfit
from rl_training.envs.single.masks import NOTHING, StepReading
from rl_training.envs.single.resumable import ResumableEnv
from rl_training.envs.state.attributes import (
    capture_attributes,
    is_same,
    restore_attributes,
    restore_generator,
)
from rl_training.envs.state.generators import drawn_from, global_generators
from rl_training.envs.state.unsaved_state import unsaved_state
from rl_training.errors import CheckpointError, ConfigError, EnvError
from rl_training.plugins.user_code import trace_from_user

REMEDY = (
    "let it reset within the step that ends an episode (AutoresetMode.SAME_STEP, the last observation in"
    " infos['final_obs']), or on request (AutoresetMode.DISABLED, reset(options={'reset_mask': mask}))"
)


def resets_within_step(env: VectorEnv[Any, Any, Any]) -> bool:
    """Whether ended episodes are reset within the step; False: on request, by `reset` with a `reset_mask`.

    Raises an `EnvError` for a vector environment that would return steps which only reset an environment.
    """
    name = type(env.unwrapped).__name__
    try:
        mode = AutoresetMode(env.metadata.get("autoreset_mode"))
    except ValueError:
        raise EnvError(
            f"metadata['autoreset_mode'] of {name} is not set to an AutoresetMode: {REMEDY}"
        ) from None
    if mode is not AutoresetMode.NEXT_STEP:
        return mode is AutoresetMode.SAME_STEP
    if not _takes_reset_mask(env.unwrapped):
        gymnasium = (
            "; for one of gymnasium.make_vec give vectorization_mode='sync'"
            if env.unwrapped.spec
            else ""
        )
        raise EnvError(
            f"{name} resets in the step after an episode's end, and that step would be stored: {REMEDY}{gymnasium}"
        )
    return False


def _takes_reset_mask(core: Any) -> bool:
    """Whether it is one of Gymnasium's own, which do not reset again after a `reset_mask`."""
    kinds: tuple[Any, ...] = (SyncVectorEnv, AsyncVectorEnv)
    kind = next((kind for kind in kinds if isinstance(core, kind)), None)
    if kind is None or (type(core).step, type(core).reset) != (kind.step, kind.reset):
        return False
    # Without shared memory, workers of Gymnasium 1.4 reset again in the next step all the same.
    return kind is SyncVectorEnv or (core.shared_memory and core.worker is None)


NO_STATE = (
    "the vector environment has no get_state and set_state: a resumed run starts new episodes"
)


def check_vector(env: VectorEnv[Any, Any, Any]) -> None:
    """Raise an `EnvError` if a vector environment lacks what training needs."""
    for name in ("num_envs", "single_observation_space", "single_action_space"):
        if getattr(env, name, None) is None:
            raise EnvError(
                f"the vector environment {type(env).__name__} has no {name}: set it in its constructor"
            )
    resets_within_step(env)


def make_given_vector(
    env: VectorEnv[Any, Any, Any],
    num_envs: int,
    unsupported: Sequence[str],
    transform_rewards: RewardTransform | None,
    reading: StepReading = NOTHING,
) -> TrainingEnv:
    """The training environments that a vector environment is; `unsupported` are keys of `env_kwargs` that were set."""
    if unsupported:
        keys = " and ".join(f"env_kwargs.{key}" for key in unsupported)
        raise ConfigError(
            f"{keys} not supported with a vector environment, which is used as it is: remove it"
        )
    if num_envs != env.num_envs:
        raise ConfigError(
            f"num_envs is {num_envs}, but the vector environment has {env.num_envs}: use that number"
        )
    if env.closed:
        raise EnvError("the vector environment is closed: make a new one")
    if type(env) is SyncVectorEnv and env.observation_mode == "same":
        members = _OwnMembers(env.envs, reading)
        return PooledTrainingEnv(
            members, env.envs[0], transform_rewards=transform_rewards, reading=reading
        )
    if reading.masks is not None:
        raise EnvError(
            f"action masks from {reading.masks.value} are not read from the vector environment {type(env).__name__}:"
            " pass a function that makes one environment, or set env_kwargs.action_masks=false"
        )
    if reading.info_keys:
        key = reading.info_keys[0]
        raise EnvError(
            f"the algorithm reads info[{key!r}], which is not read from a vector environment"
        )
    return GivenTrainingEnv(env, transform_rewards)


class _OwnMembers(SyncPool):
    """The environments of a `SyncVectorEnv`, each of which can be saved and restored; they stay open."""

    def __init__(self, envs: Sequence[gym.Env[Any, Any]], reading: StepReading) -> None:
        self.size = len(envs)
        self.members: list[Member] = [ResumableEnv(env, reading) for env in envs]

    def close(self) -> list[tuple[int, Fault]]:
        return []


class GivenTrainingEnv(TrainingEnv):
    """A vector environment whose episodes are counted, and reset within the step; it is not closed.

    With `get_state()` and `set_state(state)` it is restored exactly; without, a resumed run starts new episodes.
    """

    def __init__(
        self, env: VectorEnv[Any, Any, Any], transform_rewards: RewardTransform | None
    ) -> None:
        spaces = {
            "observation_space": env.single_observation_space,
            "action_space": env.single_action_space,
        }
        example: Any = SimpleNamespace(metadata=env.metadata, render_mode=env.render_mode, **spaces)
        super().__init__(example, env.num_envs)
        self._env = env
        self._core: Any = env.unwrapped
        self._transform_rewards = transform_rewards
        self._resets_within_step = resets_within_step(env)
        self._wrappers, self._owner = _find_owner(env)
        self.inexact_reasons = () if self._owner is not None else (NO_STATE,)
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, np.int64)
        self._obs: Any = None
        self._num_resumes = 0
        self._is_checked = False
        self._generators: dict[str, Any] = {}
        """States of the global generators, which are not saved, at the first reset."""
        self._unsaved_draws: set[str] = set()

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take one step in every environment, and reset those whose episode ended."""
        answer = self._attempt("step", lambda: self._env.step(np.array(actions)), actions)
        obs, rewards, terminated, truncated, infos = self._read_step(answer)
        self._returns += rewards
        self._lengths += 1
        ended = terminated | truncated
        info: dict[str, Any] = {}
        if ended.any():
            rows = list(iterate(self.observation_space, obs))
            episodes = zip(
                self._returns[ended].tolist(), self._lengths[ended].tolist(), strict=True
            )
            finals = self._final_obs(infos, rows, ended)
            info = {"episodes": list(episodes), "final_obs": finals, "_final_obs": ended}
            self._returns[ended], self._lengths[ended] = 0.0, 0
            if not self._resets_within_step:
                obs = self._reset_ended(obs, rows, ended)
        self._obs = obs
        shaped = rewards if self._transform_rewards is None else self._transform_rewards(rewards)
        return obs, shaped, terminated, truncated, info

    def state(self) -> dict[str, Any]:
        """The state of the vector environment, and the return and length of each episode in progress."""
        episodes = zip(self._returns.tolist(), self._lengths.tolist(), strict=True)
        self._unsaved_draws.update(drawn_from(self._generators))
        return {
            "seeds": list(self._seeds),
            "num_restarts": 0,
            "num_resumes": self._num_resumes,
            "environments": [{"return": total, "length": length} for total, length in episodes],
            "obs": copy.deepcopy(self._obs),
            "global_draws": sorted(self._unsaved_draws),
            "vector": self._vector_state(),
        }

    def restore(self, state: dict[str, Any]) -> tuple[Any, list[str]]:
        """Restore a saved state; without `get_state` and `set_state`, start new episodes."""
        if "vector" not in state:
            raise CheckpointError(
                "the run was trained in single environments: pass one of these, not a vector env"
            )
        self._seeds = list(state["seeds"])
        self._generators = global_generators()
        self._unsaved_draws = {str(name)[:100] for name in state["global_draws"]}
        if self._owner is None or state["vector"] is None:
            self._num_resumes = state["num_resumes"] + 1
            return self._reset_all(), [NO_STATE]
        self._num_resumes = state["num_resumes"]
        reasons = self._restore_vector(state["vector"])
        for index, saved in enumerate(state["environments"]):
            self._returns[index], self._lengths[index] = saved["return"], saved["length"]
        self._obs = copy.deepcopy(state["obs"])
        use = "which is not saved: use self.np_random"
        draws = [
            f"the vector environment draws from {name}'s global generator, {use}"
            for name in self._unsaved_draws
        ]
        return self._obs, [*reasons, *sorted(draws)]

    def close_extras(self, **kwargs: Any) -> None:
        """Leave the vector environment open: it is the user's, and the run may be continued in it."""

    def _vector_state(self) -> dict[str, Any] | None:
        if self._owner is None:
            return None
        made: Any = getattr(self._core, "_np_random", None)
        is_made = isinstance(made, np.random.Generator)
        attributes = [capture_attributes(wrapper) for wrapper in self._wrappers]
        return {
            "custom_state": copy.deepcopy(self._owner.get_state()),
            "generator": copy.deepcopy(dict(made.bit_generator.state)) if is_made else None,
            "wrappers": attributes,
            "unsaved": [
                unsaved_state(*pair) for pair in zip(self._wrappers, attributes, strict=True)
            ],
        }

    def _restore_vector(self, saved: dict[str, Any]) -> list[str]:
        """Restore the vector environment; returns why it may be in another state."""
        self._reset_all()  # creates what set_state may expect
        assert self._owner is not None
        self._owner.set_state(copy.deepcopy(saved["custom_state"]))
        reasons = []
        for wrapper, attributes, unsaved in zip(
            self._wrappers, saved["wrappers"], saved["unsaved"], strict=True
        ):
            lost = {*restore_attributes(wrapper, attributes)}
            now = unsaved_state(wrapper, attributes)
            lost |= {name for name in now if now[name] != unsaved.get(name)}
            reasons += [
                f"attribute '{name}' of {type(wrapper).__name__} is not saved"
                for name in sorted(lost)
            ]
        if saved["generator"] is not None:
            self._core._np_random = restore_generator(self._core.np_random, saved["generator"])
        if not is_same(self._owner.get_state(), saved["custom_state"]):
            reasons.append(
                "get_state of the vector environment after set_state returns something else"
            )
        return reasons

    def _reset_all(self) -> Any:
        self._generators = self._generators or global_generators()
        self._returns[:], self._lengths[:] = 0.0, 0
        seeds: Any = self._seeds
        if self._num_resumes or not hasattr(
            self._core, "env_fns"
        ):  # only Gymnasium's own take a seed for each
            entropy = None if None in seeds else [*seeds, self._num_resumes]
            seeds = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        answer = self._attempt("reset", lambda: self._env.reset(seed=seeds))
        self._obs = self._checked(copy.deepcopy(self._read_reset(answer)), "reset")
        return self._obs

    def _reset_ended(self, obs: Any, rows: Sequence[Any], ended: Array) -> Any:
        """Reset the ended environments; the observations of the others stay."""
        answer = self._attempt(
            "reset", lambda: self._env.reset(options={"reset_mask": ended.copy()})
        )
        first = copy.deepcopy(self._read_reset(answer))
        if (
            isinstance(obs, np.ndarray)
            and isinstance(first, np.ndarray)
            and obs.shape == first.shape
        ):
            obs = obs.copy()  # the rows of the last observations are views of it
            obs[ended] = first[ended]
            return obs
        new = list(iterate(self.observation_space, first))
        return batch_observations(
            self.single_observation_space,
            [new[i] if ended[i] else row for i, row in enumerate(rows)],
        )

    def _final_obs(self, infos: Any, rows: Sequence[Any], ended: Array) -> Array:
        """The last observation of each episode that ended, at its environment's index."""
        found: Any = rows
        if self._resets_within_step:
            found = infos.get("final_obs") if isinstance(infos, Mapping) else None
            if found is None:
                raise self._error(
                    "step", f"an episode ended, and its infos have no 'final_obs': {REMEDY}"
                )
            if isinstance(found, (dict, tuple)):
                found = list(iterate(self.observation_space, found))
        finals = np.empty(self.num_envs, object)
        for index in np.flatnonzero(ended).tolist():
            misfit = find_misfit(self.single_observation_space, found[index])
            if misfit is not None:
                raise self._error("step", f"final_obs of environment {index}: {misfit}")
            finals[index] = copy.deepcopy(found[index])
        return finals

    def _read_step(self, answer: Any) -> tuple[Any, Array, Array, Array, Any]:
        try:
            obs, rewards, terminated, truncated, infos = answer
        except (TypeError, ValueError):
            raise self._error(
                "step", "it should return obs, rewards, terminated, truncated, infos"
            ) from None
        rewards = np.array(rewards, np.float64)
        terminated, truncated = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        shapes = {
            "rewards": rewards.shape,
            "terminated": terminated.shape,
            "truncated": truncated.shape,
        }
        for name, shape in shapes.items():
            if shape != (self.num_envs,):
                raise self._error(
                    "step", f"{name} have the shape {list(shape)}, not [{self.num_envs}]"
                )
        obs = copy.deepcopy(obs)  # it may reuse the array
        if not self._is_checked:
            self._is_checked = True
            self._checked(obs, "step")
        return obs, rewards, terminated, truncated, infos

    def _read_reset(self, answer: Any) -> Any:
        if not (isinstance(answer, tuple) and len(answer) == 2):
            raise self._error("reset", "it should return obs, infos")
        return answer[0]

    def _checked(self, obs: Any, call: str) -> Any:
        try:
            rows = list(iterate(self.observation_space, obs))
        except Exception as error:
            raise self._error(
                call, f"its observations are no batch of its space: {describe_error(error)}"
            ) from error
        if len(rows) != self.num_envs:
            raise self._error(call, f"it returned {len(rows)} observations, not {self.num_envs}")
        for index, row in enumerate(rows):
            misfit = find_misfit(self.single_observation_space, row)
            if misfit is not None:
                raise self._error(call, f"observation {index}: {misfit}")
        return obs

    def _attempt(self, call: str, function: Callable[[], Any], actions: Any = None) -> Any:
        try:
            return function()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            last = "" if actions is None else f"\nits last actions: {np.asarray(actions).tolist()}"
            trace = f"\nits own traceback:\n{trace_from_user(error).rstrip()}"
            raise self._error(call, f"{describe_error(error)}{last}{trace}") from error

    def _error(self, call: str, what: str) -> EnvError:
        return EnvError(
            f"the vector environment {type(self._core).__name__} failed in {call}: {what}"
        )


def _find_owner(env: Any) -> tuple[list[Any], Any]:
    """The outermost of a chain of wrappers with `get_state()` and `set_state(state)`, and the wrappers around it."""
    wrappers: list[Any] = []
    while True:
        try:
            inspect.signature(env.get_state).bind()
            inspect.signature(env.set_state).bind(None)
            return wrappers, env
        except (AttributeError, TypeError, ValueError):
            pass
        if not isinstance(env, gym.vector.VectorWrapper):
            return wrappers, None
        wrappers.append(env)
        env = env.env

"""Vector environments given as objects: checked, stepped, saved and restored."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import iterate

from rl_training.envs.parallel.batch import (
    Batch,
    BatchTrainingEnv,
    derived_seeds,
    refuse_reading,
)
from rl_training.envs.parallel.pools import Fault, Member, describe_error
from rl_training.envs.parallel.vector import (
    PooledTrainingEnv,
    SyncPool,
    TrainingEnv,
)
from rl_training.envs.single.answers import find_misfit
from rl_training.envs.single.masks import NOTHING, StepReading
from rl_training.envs.single.resumable import ResumableEnv
from rl_training.envs.state.aliases import Array, Env, RewardTransform, State, Vector
from rl_training.envs.state.attributes import (
    capture_attributes,
    generator_state,
    has_custom_state,
    is_same,
    restore_attributes,
    restore_generator,
)
from rl_training.envs.state.generators import drawn_from, global_generators
from rl_training.envs.state.unsaved_state import unsaved_state
from rl_training.errors import CheckpointError, ConfigError, EnvError

REMEDY = (
    "let it reset within the step that ends an episode (AutoresetMode.SAME_STEP, the last observation in"
    " infos['final_obs']), or on request (AutoresetMode.DISABLED, reset(options={'reset_mask': mask}))"
)


def resets_within_step(env: Vector) -> bool:
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


def check_vector(env: Vector) -> None:
    """Raise an `EnvError` if a vector environment lacks what training needs."""
    for name in ("num_envs", "single_observation_space", "single_action_space"):
        if getattr(env, name, None) is None:
            raise EnvError(
                f"the vector environment {type(env).__name__} has no {name}: set it in its constructor"
            )
    resets_within_step(env)


def make_given_vector(
    env: Vector,
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
    kind = type(env).__name__
    refuse_reading(
        reading, f"the vector environment {kind}", "pass a function that makes one environment"
    )
    example: Any = SimpleNamespace(
        metadata=env.metadata,
        render_mode=env.render_mode,
        observation_space=env.single_observation_space,
        action_space=env.single_action_space,
    )
    return BatchTrainingEnv(GivenBatch(env), example, num_envs, transform_rewards)


class _OwnMembers(SyncPool):
    """The environments of a `SyncVectorEnv`, each of which can be saved and restored; they stay open."""

    def __init__(self, envs: Sequence[Env], reading: StepReading) -> None:
        self.size = len(envs)
        self.members: list[Member] = [ResumableEnv(env, reading) for env in envs]

    def close(self) -> list[tuple[int, Fault]]:
        return []


class GivenBatch(Batch):
    """A vector environment that is reset within the step; it is not closed.

    With `get_state()` and `set_state(state)` it is restored exactly; without, a resumed run starts new episodes.
    """

    new_episodes = (
        "the vector environment has no get_state and set_state: a resumed run starts new episodes"
    )

    def __init__(self, env: Vector) -> None:
        self._env = env
        self._core: Any = env.unwrapped
        self.name = f"the vector environment {type(self._core).__name__}"
        self._resets_within_step = resets_within_step(env)
        self._wrappers, self._owner = _find_owner(env)
        self.is_savable = self._owner is not None
        self._is_checked = False
        self._generators: dict[str, Any] = {}
        """States of the global generators, which are not saved, at the first reset."""
        self._unsaved_draws: set[str] = set()

    def reset_all(self, seeds: Sequence[int | None], num_resumes: int) -> Any:
        """Reset every environment, with its seed if it is one of Gymnasium's own, which take several."""
        self._generators = self._generators or global_generators()
        takes_seeds = hasattr(self._core, "env_fns") and not num_resumes
        seed: Any = list(seeds) if takes_seeds else int(derived_seeds(seeds, num_resumes)[0])
        obs = self._first_obs(self._env.reset(seed=seed))
        self._check(obs, "reset")
        return obs

    def step(self, actions: Any) -> Sequence[Any]:
        """Take one step in every environment."""
        answer = self._env.step(np.array(actions))
        try:
            obs, rewards, terminated, truncated, infos = answer
        except (TypeError, ValueError):
            raise self._error(
                "step", "it should return obs, rewards, terminated, truncated, infos"
            ) from None
        arrays = {
            "rewards": np.array(rewards, np.float64),
            "terminated": np.array(terminated, np.bool_),
            "truncated": np.array(truncated, np.bool_),
        }
        for name, array in arrays.items():
            if array.shape != (self._env.num_envs,):
                shapes = f"{list(array.shape)}, not [{self._env.num_envs}]"
                raise self._error("step", f"{name} have the shape {shapes}")
        obs = copy.deepcopy(obs)  # it may reuse the array
        if not self._is_checked:
            self._is_checked = True
            self._check(obs, "step")
        return obs, *arrays.values(), infos

    def end_episodes(self, obs: Any, ended: Array, infos: Any) -> tuple[Array, Any]:
        """Find the last observations, and reset the ended environments if they are not reset yet."""
        found: Any = obs
        if self._resets_within_step:
            found = infos.get("final_obs") if isinstance(infos, Mapping) else None
            if found is None:
                raise self._error(
                    "step", f"an episode ended, and its infos have no 'final_obs': {REMEDY}"
                )
        if not isinstance(found, np.ndarray):
            found = list(iterate(self._env.observation_space, found))
        final_obs = np.empty(len(ended), object)
        for index in np.flatnonzero(ended).tolist():
            misfit = find_misfit(self._env.single_observation_space, found[index])
            if misfit is not None:
                raise self._error("step", f"final_obs of environment {index}: {misfit}")
            final_obs[index] = copy.deepcopy(found[index])
        if self._resets_within_step:
            return final_obs, obs
        answer = self._env.reset(options={"reset_mask": ended.copy()})
        return final_obs, _with_rows(obs, self._first_obs(answer), ended)

    def state(self) -> State:
        """The state of the vector environment and its wrappers, and the global generators it drew from."""
        self._unsaved_draws.update(drawn_from(self._generators))
        state: State = {"global_draws": sorted(self._unsaved_draws), "vector": None}
        if self._owner is not None:
            attributes = [capture_attributes(wrapper) for wrapper in self._wrappers]
            state["vector"] = {
                "custom_state": copy.deepcopy(self._owner.get_state()),
                "generator": generator_state(self._core),
                "wrappers": attributes,
                "unsaved": list(map(unsaved_state, self._wrappers, attributes)),
            }
        return state

    def reads(self, state: State) -> bool:
        """Whether a saved state can be restored; also reads the draws from global generators."""
        if "vector" not in state:
            raise CheckpointError(
                "the run was trained in single environments: pass one of these, not a vector env"
            )
        self._unsaved_draws = {str(name)[:100] for name in state["global_draws"]}
        return self.is_savable and state["vector"] is not None

    def restore(self, state: State) -> list[str]:
        """Restore the vector environment; returns why it may be in another state."""
        saved = state["vector"]
        assert self._owner is not None
        self._owner.set_state(copy.deepcopy(saved["custom_state"]))
        reasons = []
        for wrapper, attributes, unsaved in zip(
            self._wrappers, saved["wrappers"], saved["unsaved"], strict=True
        ):
            lost = {*restore_attributes(wrapper, attributes)}
            now = unsaved_state(wrapper, attributes)
            lost |= {name for name in now if now[name] != unsaved.get(name)}
            kind = type(wrapper).__name__
            reasons += [f"attribute '{name}' of {kind} is not saved" for name in sorted(lost)]
        if saved["generator"] is not None:
            self._core._np_random = restore_generator(self._core.np_random, saved["generator"])
        if not is_same(self._owner.get_state(), saved["custom_state"]):
            reasons.append(
                "get_state of the vector environment after set_state returns something else"
            )
        use = "which is not saved: use self.np_random"
        return reasons + [
            f"the vector environment draws from {name}'s global generator, {use}"
            for name in sorted(self._unsaved_draws)
        ]

    def close(self) -> None:
        """Leave the vector environment open: it is the user's, and the run may be continued in it."""

    def _first_obs(self, answer: Any) -> Any:
        if not (isinstance(answer, tuple) and len(answer) == 2):
            raise self._error("reset", "it should return obs, infos")
        return copy.deepcopy(answer[0])

    def _check(self, obs: Any, call: str) -> None:
        try:
            rows = list(iterate(self._env.observation_space, obs))
        except Exception as error:
            raise self._error(
                call, f"its observations are no batch of its space: {describe_error(error)}"
            ) from error
        if len(rows) != self._env.num_envs:
            raise self._error(
                call, f"it returned {len(rows)} observations, not {self._env.num_envs}"
            )
        for index, row in enumerate(rows):
            misfit = find_misfit(self._env.single_observation_space, row)
            if misfit is not None:
                raise self._error(call, f"observation {index}: {misfit}")

    def _error(self, call: str, what: str) -> EnvError:
        return EnvError(f"{self.name} failed in {call}: {what}")


def _with_rows(obs: Any, first: Any, ended: Array) -> Any:
    """Observations with the rows of the ended environments replaced."""
    if isinstance(obs, Mapping):
        return {key: _with_rows(part, first[key], ended) for key, part in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_with_rows(*parts, ended) for parts in zip(obs, first, strict=True))
    rows = np.array(obs)
    rows[ended] = np.asarray(first)[ended]
    return rows


def _find_owner(env: Any) -> tuple[list[Any], Any]:
    """The outermost of a chain of wrappers with `get_state()` and `set_state(state)`, and the wrappers around it."""
    wrappers: list[Any] = []
    while not has_custom_state(env):
        if not isinstance(env, gym.vector.VectorWrapper):
            return wrappers, None
        wrappers.append(env)
        env = env.env
    return wrappers, env

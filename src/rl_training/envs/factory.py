"""Makes the environments of training and evaluation from `env_id` and `env_kwargs`."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import gymnasium as gym
import numpy as np
from pydantic import BeforeValidator, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from rl_training.envs.given.objects import WorkerCode
from rl_training.envs.given.vector_env import make_given_vector
from rl_training.envs.parallel.batch import BatchTrainingEnv, refuse_reading
from rl_training.envs.parallel.native_vector import (
    EnvPoolBatch,
    check_has_batch,
    make_gymnasium_batch,
)
from rl_training.envs.parallel.pools import Pool
from rl_training.envs.parallel.vector import (
    FindReading,
    SyncPool,
    TrainingEnv,
    make_async,
    make_sync,
)
from rl_training.envs.parallel.workers import AsyncPool
from rl_training.envs.rewards import apply_reward_wrappers
from rl_training.envs.single.construction import construct, translate_construction_errors
from rl_training.envs.single.episodes import EpisodeEnv
from rl_training.envs.single.masks import NOTHING, StepReading, find_mask_source
from rl_training.envs.state.aliases import Array, Env, MakeEnv, RewardTransform
from rl_training.envs.wrapping.atari import (
    GAME_KWARGS,
    AtariConfig,
    EpisodicLife,
    clip_rewards,
    preprocess,
)
from rl_training.envs.wrapping.wrapper_list import (
    WrapperCall,
    apply_wrappers,
    find_wrappers,
    read_wrappers,
)
from rl_training.errors import ConfigError, EnvError
from rl_training.plugins.extras import import_known_packages
from rl_training.plugins.gate import ship
from rl_training.plugins.given import find_vector
from rl_training.plugins.user_code import find_maker, load_code
from rl_training.spaces.rewards import RewardTransformConfig, transform_rewards
from rl_training.spaces.spec import Spaces, describe_spaces
from rl_training.validation import FrozenConfig, parse_config

__all__ = [
    "EnvSettings",
    "EnvSource",
    "WrapperConfig",
    "load_code",
    "make_env",
    "make_vector_env",
    "split_env_kwargs",
]
ship("rl_training.envs.goals", "rl_training.envs.toys")
Backend = Literal["sync", "async", "vector", "envpool"]


class WrapperConfig(FrozenConfig):
    """Wrappers; in evaluation, `reward` has no effect and `atari` changes neither rewards nor episode ends."""

    atari: AtariConfig | None = None
    """Atari preprocessing."""
    list: Annotated[tuple[WrapperCall, ...], BeforeValidator(read_wrappers)] = ()
    """Wrappers of the environment in training and evaluation, the innermost first: `module:Name`, or
    `{module:Name: {argument: value}}`."""
    reward: RewardTransformConfig | None = None
    """Transform of the training rewards: scale, shift, clip."""

    @property
    def clips_to_sign(self) -> bool:
        """Whether Atari rewards are replaced by their sign."""
        return self.atari is not None and self.atari.clip_reward

    @property
    def reward_transform(self) -> RewardTransform | None:
        """The transform of a batch of training rewards; None if they stay as they are."""
        return self._transform_rewards if self.clips_to_sign or self.reward is not None else None

    def _transform_rewards(self, rewards: Array) -> Array:
        return transform_rewards(np.sign(rewards) if self.clips_to_sign else rewards, self.reward)


class EnvSettings(FrozenConfig):
    """The reserved keys of `env_kwargs`; all others are arguments of the environment."""

    backend: Backend = "sync"
    """`sync`: one by one in this process; `async`: one worker process each; `vector`: Gymnasium's vectorized
    implementation; `envpool`: EnvPool's threads."""
    wrappers: WrapperConfig = WrapperConfig()
    """Wrappers of the training environment."""
    max_episode_steps: PositiveInt | None = None
    """Truncate episodes after this many steps; null: the environment's own limit."""
    max_restarts: NonNegativeInt = 0
    """How many failed environments a run may recreate; the step that failed is not stored."""
    action_masks: bool = True
    """Obey the action masks that the environment gives: from a method action_masks(), from the key action_mask of a
    Dict observation, or from info["action_mask"]."""
    worker_timeout: PositiveFloat = 120.0
    """Seconds without an answer after which a worker process counts as hung."""

    @property
    def steps_all_at_once(self) -> bool:
        """Whether one simulator steps all environments."""
        return self.backend in ("vector", "envpool")

    @property
    def unsupported_by_given(self) -> tuple[str, ...]:
        """Keys that were set and that a user-defined vector environment does not support."""
        keys = {"max_episode_steps", "max_restarts", "worker_timeout"}
        return (*self._set_among(keys), *(["backend"] if self.backend != "sync" else []))

    def _set_among(self, keys: Set[str]) -> list[str]:
        """Those of `keys` that were set, and the wrappers of single environments."""
        wrappers = [f"wrappers.{key}" for key in ("atari", "list") if getattr(self.wrappers, key)]
        return [*sorted(self.model_fields_set & keys), *wrappers]

    @model_validator(mode="after")
    def _refuse_unsupported_keys(self) -> EnvSettings:
        unsupported = self._set_among({"max_restarts", "worker_timeout"})
        if self.steps_all_at_once and unsupported:
            keys = " and ".join(unsupported)
            remedy = "remove them, or use sync or async"
            raise ValueError(f"{keys} not supported with backend: {self.backend}; {remedy}")
        return self


@dataclass(frozen=True)
class EnvSource:
    """An environment to make, once or many times: its id, the reserved settings, and its own arguments."""

    env_id: str
    settings: EnvSettings
    arguments: Mapping[str, Any]
    is_single: bool = False
    """Make single environments also where a vector environment was given to train in."""

    @classmethod
    def parse(cls, env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> EnvSource:
        """Separate the reserved keys of `env_kwargs` from the arguments of the environment."""
        settings, arguments = split_env_kwargs(env_kwargs or {})
        return cls(env_id, settings, arguments)

    def make(self, *, with_wrappers: bool = True) -> Env:
        """Make one environment; without `with_wrappers`, rewards and episode ends are its own, as in evaluation."""
        env = self._make_preprocessed()
        if not with_wrappers:
            return env
        env = self._with_life_ends(env)
        env = clip_rewards(env) if self.settings.wrappers.clips_to_sign else env
        return apply_reward_wrappers(env, self.settings.wrappers.reward)

    def make_vector(self, num_envs: int = 1, info_keys: Sequence[str] = ()) -> TrainingEnv:
        """Make the training environments; an environment is reset within the step that ends its episode.

        `info_keys` are the keys of the info of each step that the algorithm asks for.
        """
        settings, transform = self.settings, self.settings.wrappers.reward_transform
        find_reading = functools.partial(self.find_reading, info_keys=tuple(info_keys))
        vector = None if self.is_single else find_vector(self.env_id)
        if vector is not None:
            unsupported = [*self.arguments, *settings.unsupported_by_given]
            reading = self._read_example(find_reading)
            return make_given_vector(vector, num_envs, unsupported, transform, reading)
        if settings.steps_all_at_once:
            return self._make_native(num_envs, find_reading)
        make, max_restarts = self.training_maker(), settings.max_restarts
        if settings.backend == "sync":
            return make_sync(make, num_envs, max_restarts, transform, find_reading)
        return make_async(
            make, num_envs, max_restarts, settings.worker_timeout, transform, find_reading
        )

    def find_reading(self, env: Env, make: MakeEnv, info_keys: tuple[str, ...] = ()) -> StepReading:
        """What to read from the environment at each step beside its observation."""
        masks = find_mask_source(env, make) if self.settings.action_masks else None
        return NOTHING if masks is None and not info_keys else StepReading(masks, info_keys)

    def read_spaces(self) -> Spaces:
        """The spaces of the environment, and whether it gives masks."""
        with contextlib.closing(self._make_raw()) as env:
            has_masks = self.find_reading(env, self._make_raw).masks is not None
            return describe_spaces(env.observation_space, env.action_space, has_masks=has_masks)

    def _read_example(self, find_reading: FindReading) -> StepReading:
        with contextlib.closing(self._make_raw()) as example:
            return find_reading(example, self._make_raw)

    def _make_raw(self) -> Env:
        return self.make(with_wrappers=False)

    def make_episode_pool(self, size: int, reading: StepReading = NOTHING) -> Pool:
        """Make the pool that runs evaluation episodes; with `backend: async`, each member in its own process."""
        make = functools.partial(_make_evaluation_env, self, self._worker_code())
        is_async = self.settings.backend == "async"
        make_member = functools.partial(EpisodeEnv, make, reading, has_own_process=is_async)
        if is_async:
            return AsyncPool(make_member, size, self.settings.worker_timeout)
        return SyncPool(make_member, size)

    def training_maker(self) -> MakeEnv:
        """A picklable function that makes one training environment, with untransformed rewards."""
        return functools.partial(_make_training_env, self, self._worker_code())

    def without_training_wrappers(self) -> EnvSource:
        """The source for recording: in this process, with the environment's own rewards and episode ends."""
        atari = self.settings.wrappers.atari
        changes = {"terminal_on_life_loss": False, "clip_reward": False}
        own = None if atari is None else AtariConfig(**{**atari.model_dump(), **changes})
        names = ("max_episode_steps", "max_restarts", "worker_timeout", "action_masks")
        kept = {name: getattr(self.settings, name) for name in names}
        wrappers = WrapperConfig(atari=own, list=self.settings.wrappers.list)
        return replace(self, settings=EnvSettings(**kept, wrappers=wrappers), is_single=True)

    def without_masks(self) -> EnvSource:
        """The source for a policy that was trained without masks; an `action_masks` that is set stays."""
        if "action_masks" in self.settings.model_fields_set:
            return self
        return replace(self, settings=self.settings.model_copy(update={"action_masks": False}))

    def _make_preprocessed(self) -> Env:
        """The environment with the wrappers that training and evaluation share."""
        calls = self.settings.wrappers.list
        wraps = find_wrappers(calls)  # before the environment is made
        return apply_wrappers(self._make_unwrapped(), calls, wraps)

    def _make_unwrapped(self) -> Env:
        """The environment, with its Atari preprocessing and time limit."""
        atari, limit = self.settings.wrappers.atari, self.settings.max_episode_steps
        if atari is None:
            return construct(self.env_id, self.arguments, limit)
        for key in GAME_KWARGS.keys() & self.arguments.keys():
            raise ConfigError(f"env_kwargs.{key} is set by wrappers.atari: remove it")
        try:
            env = preprocess(construct(self.env_id, {**self.arguments, **GAME_KWARGS}, None), atari)
        except ConfigError as error:
            raise ConfigError(
                f"env_kwargs.wrappers.atari is for the games of ale-py: {error}"
            ) from error
        # The limit counts actions, not frames.
        return env if limit is None else gym.wrappers.TimeLimit(env, limit)

    def _worker_code(self) -> WorkerCode:
        wrappers = [call.name for call in self.settings.wrappers.list]
        return WorkerCode.of(self.env_id, wrappers, is_sent=self.settings.backend == "async")

    def _with_life_ends(self, env: Env) -> Env:
        atari = self.settings.wrappers.atari
        return EpisodicLife(env) if atari is not None and atari.terminal_on_life_loss else env

    def _make_native(self, num_envs: int, find_reading: FindReading) -> TrainingEnv:
        settings, arguments = self.settings, dict(self.arguments)
        if find_maker(self.env_id) is not None:
            raise EnvError(
                f"backend: {settings.backend} takes registered ids, not '{self.env_id}' (use sync or async)"
            )
        env_id = self.env_id.rpartition(":")[2]
        import_known_packages(env_id)
        check_has_batch(env_id, settings.backend)
        example = construct(env_id, arguments, settings.max_episode_steps)
        reading = find_reading(example, self._make_raw)
        refuse_reading(reading, f"backend: {settings.backend}", "use sync or async")
        make_batch = make_gymnasium_batch if settings.backend == "vector" else EnvPoolBatch
        limit = (example.spec and example.spec.max_episode_steps) or math.inf
        with translate_construction_errors(env_id, arguments):
            batch = make_batch(env_id, arguments, example, num_envs)
        transform = settings.wrappers.reward_transform
        return BatchTrainingEnv(batch, example, num_envs, transform, limit)


def split_env_kwargs(env_kwargs: Mapping[str, Any]) -> tuple[EnvSettings, dict[str, Any]]:
    """Separate the reserved keys from the arguments of the environment."""
    env_arguments = dict(env_kwargs)
    reserved = [key for key in env_kwargs if key in EnvSettings.model_fields]
    settings = {key: env_arguments.pop(key) for key in reserved}
    return parse_config(EnvSettings, settings, "env_kwargs"), env_arguments


def make_env(
    env_id: str, env_kwargs: Mapping[str, Any] | None = None, *, with_wrappers: bool = True
) -> Env:
    """Make one environment: a Gymnasium id, `module:ClassName` or `path/to/file.py:ClassName`.

    The name may also be a factory function. Both are called with the unreserved keys of `env_kwargs`. Without
    `with_wrappers`, rewards and episode ends are the environment's own, as in evaluation.
    """
    return EnvSource.parse(env_id, env_kwargs).make(with_wrappers=with_wrappers)


def make_vector_env(
    env_id: str, env_kwargs: Mapping[str, Any] | None = None, *, num_envs: int = 1
) -> TrainingEnv:
    """Make the training environments; an environment is reset within the step that ends its episode."""
    return EnvSource.parse(env_id, env_kwargs).make_vector(num_envs)


def _make_evaluation_env(source: EnvSource, code: WorkerCode) -> Env:
    code.load()
    return source.make(with_wrappers=False)


def _make_training_env(source: EnvSource, code: WorkerCode) -> Env:
    code.load()
    return source._with_life_ends(source._make_preprocessed())

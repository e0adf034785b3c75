"""Makes the environments of training and evaluation from `env_id` and `env_kwargs`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from rl_training.envs.atari_wrappers import GAME_KWARGS, AtariConfig, EpisodicLife, clip_rewards, preprocess
from rl_training.envs.construction import construct, translate_construction_errors
from rl_training.envs.episodes import EpisodeEnv
from rl_training.envs.native_vector import EnvPoolNativeEnv, NativeTrainingEnv, check_has_batch, make_gymnasium_batch
from rl_training.envs.pools import Pool
from rl_training.envs.rewards import apply_reward_wrappers
from rl_training.envs.vector import Array, MakeEnv, RewardTransform, SyncPool, TrainingEnv, make_async, make_sync
from rl_training.envs.workers import AsyncPool
from rl_training.errors import ConfigError, EnvError
from rl_training.plugins.extras import import_known_packages
from rl_training.plugins.user_code import code_for, find_maker, load_code, unknown_code
from rl_training.spaces.rewards import RewardTransformConfig, transform_rewards
from rl_training.validation import FrozenConfig, parse_config

__all__ = [
    "EnvSettings",
    "WrapperConfig",
    "load_code",
    "make_env",
    "make_episode_pool",
    "make_vector_env",
    "split_env_kwargs",
    "unknown_code",
    "without_training_wrappers",
]
Env = gym.Env[Any, Any]
Backend = Literal["sync", "async", "vector", "envpool"]


class WrapperConfig(FrozenConfig):
    """Wrappers of the training environment; in evaluation, none changes rewards or episode ends."""

    atari: AtariConfig | None = None
    """Atari preprocessing."""
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
    worker_timeout: PositiveFloat = 120.0
    """Seconds without an answer after which a worker process counts as hung."""

    @property
    def steps_all_at_once(self) -> bool:
        """Whether one simulator steps all environments."""
        return self.backend in ("vector", "envpool")

    @model_validator(mode="after")
    def _refuse_unsupported_keys(self) -> EnvSettings:
        unsupported = sorted(self.model_fields_set & {"max_restarts", "worker_timeout"})
        unsupported += ["wrappers.atari"] if self.wrappers.atari is not None else []
        if self.steps_all_at_once and unsupported:
            keys = " and ".join(unsupported)
            remedy = "remove them, or use sync or async"
            raise ValueError(f"{keys} not supported with backend: {self.backend}; {remedy}")
        return self


def split_env_kwargs(env_kwargs: Mapping[str, Any]) -> tuple[EnvSettings, dict[str, Any]]:
    """Separate the reserved keys from the arguments of the environment."""
    settings = {key: value for key, value in env_kwargs.items() if key in EnvSettings.model_fields}
    env_arguments = {key: value for key, value in env_kwargs.items() if key not in EnvSettings.model_fields}
    return parse_config(EnvSettings, settings, "env_kwargs"), env_arguments


def without_training_wrappers(env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """`env_kwargs` for evaluation: in this process, with the environment's own rewards and episode ends."""
    kept = {key: value for key, value in env_kwargs.items() if key not in ("backend", "wrappers")}
    atari = split_env_kwargs(env_kwargs)[0].wrappers.atari
    if atari is None:
        return kept
    changes = {"terminal_on_life_loss": False, "clip_reward": False}
    return {**kept, "wrappers": {"atari": {**atari.model_dump(), **changes}}}


def make_env(env_id: str, env_kwargs: Mapping[str, Any] | None = None, *, with_wrappers: bool = True) -> Env:
    """Make one environment: a Gymnasium id, `module:ClassName` or `path/to/file.py:ClassName`.

    The name may also be a factory function. Both are called with the unreserved keys of `env_kwargs`. Without
    `with_wrappers`, rewards and episode ends are the environment's own, as in evaluation.
    """
    settings, env_arguments = split_env_kwargs(env_kwargs or {})
    env = _make_preprocessed(env_id, env_arguments, settings)
    if not with_wrappers:
        return env
    env = _with_life_ends(env, settings.wrappers)
    env = clip_rewards(env) if settings.wrappers.clips_to_sign else env
    return apply_reward_wrappers(env, settings.wrappers.reward)


def make_vector_env(env_id: str, env_kwargs: Mapping[str, Any] | None = None, *, num_envs: int = 1) -> TrainingEnv:
    """Make the training environments; an environment is reset within the step that ends its episode."""
    settings, env_arguments = split_env_kwargs(env_kwargs or {})
    if settings.steps_all_at_once:
        return _make_native(env_id, settings, env_arguments, num_envs)
    make, transform = training_env_maker(env_id, env_kwargs), settings.wrappers.reward_transform
    if settings.backend == "sync":
        return make_sync(make, num_envs, settings.max_restarts, transform)
    return make_async(make, num_envs, settings.max_restarts, settings.worker_timeout, transform)


def make_episode_pool(env_id: str, env_kwargs: Mapping[str, Any], size: int) -> Pool:
    """Make the pool that runs evaluation episodes; with `backend: async`, each member in its own process."""
    settings, _ = split_env_kwargs(env_kwargs)
    make = functools.partial(_make_evaluation_env, env_id, dict(env_kwargs), code_for(env_id))
    has_own_process = settings.backend == "async"
    make_member = functools.partial(EpisodeEnv, make, has_own_process=has_own_process)
    return AsyncPool(make_member, size, settings.worker_timeout) if has_own_process else SyncPool(make_member, size)


def training_env_maker(env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> MakeEnv:
    """A picklable function that makes one training environment, with untransformed rewards."""
    return functools.partial(_make_training_env, env_id, dict(env_kwargs or {}), code_for(env_id))


def _make_evaluation_env(env_id: str, env_kwargs: Mapping[str, Any], code: str | None) -> Env:
    _load_code(env_id, code)
    return make_env(env_id, env_kwargs, with_wrappers=False)


def _make_training_env(env_id: str, env_kwargs: Mapping[str, Any], code: str | None) -> Env:
    _load_code(env_id, code)
    settings, env_arguments = split_env_kwargs(env_kwargs)
    return _with_life_ends(_make_preprocessed(env_id, env_arguments, settings), settings.wrappers)


def _load_code(env_id: str, code: str | None) -> None:
    """Import in a worker process the module or file that the main process imported for this environment."""
    if code is None or env_id in gym.registry:
        return
    load_code(code)
    if ":" not in env_id and env_id not in gym.registry:
        raise EnvError(
            f"environment '{env_id}' is registered in the main process, but not where '{code}' is imported, as worker"
            " processes do: register it in that module, or above `if __name__ == '__main__':`"
        )


def _make_preprocessed(env_id: str, env_arguments: Mapping[str, Any], settings: EnvSettings) -> Env:
    """The environment with the wrappers that training and evaluation share."""
    atari = settings.wrappers.atari
    if atari is None:
        return construct(env_id, env_arguments, settings.max_episode_steps)
    for key in GAME_KWARGS.keys() & env_arguments.keys():
        raise ConfigError(f"env_kwargs.{key} is set by wrappers.atari: remove it")
    try:
        env = preprocess(construct(env_id, {**env_arguments, **GAME_KWARGS}, None), atari)
    except ConfigError as error:
        raise ConfigError(f"env_kwargs.wrappers.atari is for the games of ale-py: {error}") from error
    limit = settings.max_episode_steps  # in actions, not in frames
    return env if limit is None else gym.wrappers.TimeLimit(env, limit)


def _with_life_ends(env: Env, wrappers: WrapperConfig) -> Env:
    return EpisodicLife(env) if wrappers.atari is not None and wrappers.atari.terminal_on_life_loss else env


def _make_native(env_id: str, settings: EnvSettings, env_arguments: dict[str, Any], num_envs: int) -> TrainingEnv:
    if find_maker(env_id) is not None:
        raise EnvError(f"backend: {settings.backend} takes registered ids, not '{env_id}' (use sync or async)")
    env_id = env_id.rpartition(":")[2]
    import_known_packages(env_id)
    check_has_batch(env_id, settings.backend)
    example = construct(env_id, env_arguments, settings.max_episode_steps)
    make_batch = make_gymnasium_batch if settings.backend == "vector" else EnvPoolNativeEnv
    with translate_construction_errors(env_id, env_arguments):
        batch = make_batch(env_id, env_arguments, example, num_envs)
        return NativeTrainingEnv(batch, example, num_envs, settings.wrappers.reward)

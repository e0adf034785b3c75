"""Making the environments of a run: one for evaluation, several for training, with our settings and wrappers."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal

import gymnasium as gym
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from rl_training.envs.atari_wrappers import GAME_KWARGS, AtariConfig, reward_for_training, show
from rl_training.envs.construction import construct, translate_construction_errors
from rl_training.envs.episodes import EpisodeEnv
from rl_training.envs.native_vector import EnvPoolNativeEnv, NativeTrainingEnv, check_has_batch, make_gymnasium_batch
from rl_training.envs.pools import Pool, SyncPool
from rl_training.envs.rewards import EpisodeReport, apply_reward_wrappers
from rl_training.envs.vector import MakeEnv, TrainingEnv, make_async, make_sync
from rl_training.envs.workers import AsyncPool
from rl_training.errors import ConfigError, EnvError
from rl_training.plugins.extras import import_known_packages
from rl_training.plugins.user_code import code_for, find_maker, load_code, unknown_code
from rl_training.spaces.rewards import RewardTransformConfig
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
    """Wrappers of the training environment; evaluation sees none that change rewards or endings."""

    atari: AtariConfig | None = None
    """How an Atari game is shown and played."""
    reward: RewardTransformConfig | None = None
    """What to do to each reward."""


class EnvSettings(FrozenConfig):
    """The keys of `env_kwargs` that are ours; all others go to the environment itself."""

    backend: Backend = "sync"
    """Step the environments one by one in this process, each in a process of its own, or all at once: as Gymnasium's
    vectorized environment, or in EnvPool's threads."""
    wrappers: WrapperConfig = WrapperConfig()
    """Wrappers of the training environment."""
    max_episode_steps: PositiveInt | None = None
    """Truncate episodes at this length, instead of the environment's own limit."""
    max_restarts: NonNegativeInt = 0
    """How often, in the whole run, an environment that failed is made anew; the step that failed is not stored."""
    worker_timeout: PositiveFloat = 120.0
    """Seconds after which a step in a worker process counts as hung."""

    @property
    def steps_all_at_once(self) -> bool:
        """Whether the environments are one simulator."""
        return self.backend in ("vector", "envpool")

    @model_validator(mode="after")
    def _refuse_what_means_nothing(self) -> EnvSettings:
        idle = sorted(self.model_fields_set & {"max_restarts", "worker_timeout"})
        idle += ["wrappers.atari"] if self.wrappers.atari is not None else []
        if self.steps_all_at_once and idle:
            raise ValueError(f"{' and '.join(idle)} mean nothing with backend: {self.backend} (use sync or async)")
        return self


def split_env_kwargs(env_kwargs: Mapping[str, Any]) -> tuple[EnvSettings, dict[str, Any]]:
    """Separate our settings from the environment's own arguments."""
    ours = {key: value for key, value in env_kwargs.items() if key in EnvSettings.model_fields}
    own = {key: value for key, value in env_kwargs.items() if key not in EnvSettings.model_fields}
    return parse_config(EnvSettings, ours, "env_kwargs"), own


def without_training_wrappers(env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The same environment in this process, with the rewards and endings that evaluation sees."""
    kept = {key: value for key, value in env_kwargs.items() if key not in ("backend", "wrappers")}
    atari = split_env_kwargs(env_kwargs)[0].wrappers.atari
    if atari is None:
        return kept
    changes = {"terminal_on_life_loss": False, "clip_reward": False}
    return {**kept, "wrappers": {"atari": {**atari.model_dump(), **changes}}}


def make_env(env_id: str, env_kwargs: Mapping[str, Any] | None = None, *, with_wrappers: bool = True) -> Env:
    """Make one environment: a Gymnasium id, `module:ClassName` or `path/to/file.py:ClassName`.

    Instead of a class, a factory function can be named; both are called with what is not ours of `env_kwargs`.
    Without `with_wrappers` the rewards stay as the environment gives them, as evaluation needs.
    """
    settings, own = split_env_kwargs(env_kwargs or {})
    env = _make_plain(env_id, own, settings)
    return _with_training_rewards(env, settings.wrappers) if with_wrappers else env


def make_vector_env(env_id: str, env_kwargs: Mapping[str, Any] | None = None, *, num_envs: int = 1) -> TrainingEnv:
    """Make the training environments; an ended episode is reset within the step that ended it."""
    settings, own = split_env_kwargs(env_kwargs or {})
    if settings.steps_all_at_once:
        return _make_batched(env_id, settings, own, num_envs)
    make = training_env_maker(env_id, env_kwargs)
    if settings.backend == "sync":
        return make_sync(make, num_envs, settings.max_restarts)
    return make_async(make, num_envs, settings.max_restarts, settings.worker_timeout)


def make_episode_pool(env_id: str, env_kwargs: Mapping[str, Any], size: int) -> Pool:
    """Make the places of evaluation episodes: with `backend: async`, each in a process of its own."""
    settings, _ = split_env_kwargs(env_kwargs)
    make = functools.partial(_make_evaluation_env, env_id, dict(env_kwargs), code_for(env_id))
    has_own_process = settings.backend == "async"
    make_place = functools.partial(EpisodeEnv, make, has_own_process=has_own_process)
    return AsyncPool(make_place, size, settings.worker_timeout) if has_own_process else SyncPool(make_place, size)


def training_env_maker(env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> MakeEnv:
    """A function that makes one training environment, and that other processes can be given."""
    return functools.partial(_make_training_env, env_id, dict(env_kwargs or {}), code_for(env_id))


def _make_evaluation_env(env_id: str, env_kwargs: Mapping[str, Any], code: str | None) -> Env:
    _load_code(env_id, code)
    return make_env(env_id, env_kwargs, with_wrappers=False)


def _make_training_env(env_id: str, env_kwargs: Mapping[str, Any], code: str | None) -> Env:
    _load_code(env_id, code)
    settings, own = split_env_kwargs(env_kwargs)
    return _with_training_rewards(EpisodeReport(_make_plain(env_id, own, settings)), settings.wrappers)


def _load_code(env_id: str, code: str | None) -> None:
    """Import, in a worker process, what the main one has imported for this environment."""
    if code is None or env_id in gym.registry:
        return
    load_code(code)
    if ":" not in env_id and env_id not in gym.registry:
        raise EnvError(
            f"environment '{env_id}' is registered in the main process, but not where '{code}' is imported, as worker"
            " processes do: register it in that module, or above `if __name__ == '__main__':`"
        )


def _make_plain(env_id: str, own: Mapping[str, Any], settings: EnvSettings) -> Env:
    """The environment as training and evaluation both see it."""
    atari = settings.wrappers.atari
    if atari is None:
        return construct(env_id, own, settings.max_episode_steps)
    for key in GAME_KWARGS.keys() & own.keys():
        raise ConfigError(f"env_kwargs.{key} is not yours to choose beside wrappers.atari: leave it out")
    try:
        env = show(construct(env_id, {**own, **GAME_KWARGS}, None), atari)
    except ConfigError as error:
        raise ConfigError(f"env_kwargs.wrappers.atari is for the games of ale-py: {error}") from error
    limit = settings.max_episode_steps  # in actions, not in frames
    return env if limit is None else gym.wrappers.TimeLimit(env, limit)


def _with_training_rewards(env: Env, wrappers: WrapperConfig) -> Env:
    if wrappers.atari is not None:
        env = reward_for_training(env, wrappers.atari)
    return apply_reward_wrappers(env, wrappers.reward)


def _make_batched(env_id: str, settings: EnvSettings, own: dict[str, Any], num_envs: int) -> TrainingEnv:
    if find_maker(env_id) is not None:
        raise EnvError(f"backend: {settings.backend} takes registered ids, not '{env_id}' (use sync or async)")
    env_id = env_id.rpartition(":")[2]
    import_known_packages(env_id)
    check_has_batch(env_id, settings.backend)
    example = construct(env_id, own, settings.max_episode_steps)
    make_batch = make_gymnasium_batch if settings.backend == "vector" else EnvPoolNativeEnv
    with translate_construction_errors(env_id, own):
        return NativeTrainingEnv(
            make_batch(env_id, own, example, num_envs), example, num_envs, settings.wrappers.reward
        )

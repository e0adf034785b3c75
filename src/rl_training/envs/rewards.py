"""Reward wrappers for training: scale, then shift, then clip."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium as gym
from pydantic import model_validator

from rl_training.errors import ConfigError
from rl_training.validation import FrozenConfig


class RewardTransformConfig(FrozenConfig):
    """What to do to each reward, in this order."""

    scale: float = 1.0
    """Factor."""
    shift: float = 0.0
    """Added after scaling."""
    clip_min: float | None = None
    """Lower bound, applied last."""
    clip_max: float | None = None
    """Upper bound, applied last."""

    @model_validator(mode="before")
    @classmethod
    def _read_clip_pair(cls, values: Any) -> Any:
        """Accept `clip: [low, high]` for the two bounds."""
        if not isinstance(values, dict) or "clip" not in values:
            return values
        values = dict(values)
        clip = values.pop("clip")
        if not isinstance(clip, (list, tuple)) or len(clip) != 2:
            raise ValueError(f"clip must be [low, high], not {clip!r}")
        if values.get("clip_min") is not None or values.get("clip_max") is not None:
            raise ValueError("give either clip or clip_min and clip_max, not both")
        values["clip_min"], values["clip_max"] = clip
        return values

    @model_validator(mode="after")
    def _check_bounds(self) -> RewardTransformConfig:
        _check_bounds(self.clip_min, self.clip_max)
        return self


class RewardScaleWrapper(gym.RewardWrapper[Any, Any]):
    """Multiply each reward by `scale`."""

    def __init__(self, env: gym.Env[Any, Any], *, scale: float) -> None:
        super().__init__(env)
        self.scale = scale

    def reward(self, reward: SupportsFloat) -> float:
        """The scaled reward."""
        return float(reward) * self.scale


class RewardShiftWrapper(gym.RewardWrapper[Any, Any]):
    """Add `shift` to each reward."""

    def __init__(self, env: gym.Env[Any, Any], *, shift: float) -> None:
        super().__init__(env)
        self.shift = shift

    def reward(self, reward: SupportsFloat) -> float:
        """The shifted reward."""
        return float(reward) + self.shift


class RewardClipWrapper(gym.RewardWrapper[Any, Any]):
    """Keep each reward between `clip_min` and `clip_max`; None leaves that side open."""

    def __init__(self, env: gym.Env[Any, Any], *, clip_min: float | None = None, clip_max: float | None = None) -> None:
        super().__init__(env)
        _check_bounds(clip_min, clip_max)
        self.clip_min = clip_min
        self.clip_max = clip_max

    def reward(self, reward: SupportsFloat) -> float:
        """The clipped reward."""
        value = float(reward)
        if self.clip_min is not None:
            value = max(value, self.clip_min)
        if self.clip_max is not None:
            value = min(value, self.clip_max)
        return value


def apply_reward_wrappers(env: gym.Env[Any, Any], config: RewardTransformConfig | None) -> gym.Env[Any, Any]:
    """Wrap `env` with the transforms that do something; without any, return it unchanged."""
    if config is None:
        return env
    if config.scale != 1.0:
        env = RewardScaleWrapper(env, scale=config.scale)
    if config.shift != 0.0:
        env = RewardShiftWrapper(env, shift=config.shift)
    if config.clip_min is not None or config.clip_max is not None:
        env = RewardClipWrapper(env, clip_min=config.clip_min, clip_max=config.clip_max)
    return env


def _check_bounds(low: float | None, high: float | None) -> None:
    if low is not None and high is not None and low > high:
        raise ConfigError(f"the lower clip bound {low} is above the upper one {high}")

"""Reward wrappers: scale, then shift, then clip."""

from __future__ import annotations

import math
from typing import Any

from gymnasium.wrappers import TransformReward

from rl_training.envs.state.aliases import Env
from rl_training.spaces.rewards import RewardTransformConfig, check_bounds

__all__ = [
    "RewardClipWrapper",
    "RewardScaleWrapper",
    "RewardShiftWrapper",
    "RewardTransformConfig",
    "apply_reward_wrappers",
]


class RewardScaleWrapper(TransformReward[Any, Any]):
    """Multiply each reward by `scale`."""

    def __init__(self, env: Env, *, scale: float) -> None:
        super().__init__(env, lambda reward: float(reward) * scale)


class RewardShiftWrapper(TransformReward[Any, Any]):
    """Add `shift` to each reward."""

    def __init__(self, env: Env, *, shift: float) -> None:
        super().__init__(env, lambda reward: float(reward) + shift)


class RewardClipWrapper(TransformReward[Any, Any]):
    """Clip each reward to [`clip_min`, `clip_max`]; None leaves that side unbounded."""

    def __init__(
        self,
        env: Env,
        *,
        clip_min: float | None = None,
        clip_max: float | None = None,
    ) -> None:
        check_bounds(clip_min, clip_max)
        low = -math.inf if clip_min is None else clip_min
        high = math.inf if clip_max is None else clip_max
        super().__init__(env, lambda reward: min(max(float(reward), low), high))


def apply_reward_wrappers(env: Env, config: RewardTransformConfig | None) -> Env:
    """Wrap `env` with the transforms that change rewards; without any, return it unchanged."""
    if config is None:
        return env
    if config.scale != 1.0:
        env = RewardScaleWrapper(env, scale=config.scale)
    if config.shift != 0.0:
        env = RewardShiftWrapper(env, shift=config.shift)
    if config.clip_min is not None or config.clip_max is not None:
        env = RewardClipWrapper(env, clip_min=config.clip_min, clip_max=config.clip_max)
    return env

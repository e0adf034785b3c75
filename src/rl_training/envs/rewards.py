"""The wrappers of a training environment: its raw returns are reported; rewards are scaled, shifted, then clipped."""

from __future__ import annotations

import math
from typing import Any, SupportsFloat

import gymnasium as gym
from gymnasium.wrappers import TransformReward

from rl_training.envs.answers import check, explain_reset, explain_step
from rl_training.spaces.rewards import RewardTransformConfig, check_bounds

__all__ = [
    "EpisodeReport",
    "RewardClipWrapper",
    "RewardScaleWrapper",
    "RewardShiftWrapper",
    "RewardTransformConfig",
    "apply_reward_wrappers",
]


class RewardScaleWrapper(TransformReward[Any, Any]):
    """Multiply each reward by `scale`."""

    def __init__(self, env: gym.Env[Any, Any], *, scale: float) -> None:
        super().__init__(env, lambda reward: float(reward) * scale)


class RewardShiftWrapper(TransformReward[Any, Any]):
    """Add `shift` to each reward."""

    def __init__(self, env: gym.Env[Any, Any], *, shift: float) -> None:
        super().__init__(env, lambda reward: float(reward) + shift)


class RewardClipWrapper(TransformReward[Any, Any]):
    """Keep each reward between `clip_min` and `clip_max`; None leaves that side open."""

    def __init__(self, env: gym.Env[Any, Any], *, clip_min: float | None = None, clip_max: float | None = None) -> None:
        check_bounds(clip_min, clip_max)
        low = -math.inf if clip_min is None else clip_min
        high = math.inf if clip_max is None else clip_max
        super().__init__(env, lambda reward: min(max(float(reward), low), high))


class EpisodeReport(gym.Wrapper[Any, Any, Any, Any]):
    """Replace the info of each step by nothing, and of each ending by the episode's raw return and length.

    It stands below the reward wrappers, so it counts the environment's own rewards. Dropping the rest of the info
    saves the vector environment the work of merging dictionaries that no one reads.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._return = 0.0
        self._length = 0
        self._is_checked = False

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Begin a new count."""
        answer = self.env.reset(**kwargs)
        check(explain_reset(answer))
        self._return = 0.0
        self._length = 0
        return answer[0], {}

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Count the step."""
        answer = self.env.step(action)
        if not self._is_checked:  # all of the first answer; later only what fails is looked at
            self._is_checked = True
            check(explain_step(answer))
        try:
            obs, reward, terminated, truncated, _ = answer
            self._return += float(reward)
            self._length += 1
            info = {"episode": (self._return, self._length)} if terminated or truncated else {}
        except (TypeError, ValueError):
            check(explain_step(answer))
            raise
        return obs, reward, terminated, truncated, info


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

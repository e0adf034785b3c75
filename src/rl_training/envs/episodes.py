"""The innermost wrapper of a training environment: it reports each finished episode's raw return."""

from __future__ import annotations

from typing import Any, SupportsFloat

import gymnasium as gym


class EpisodeReport(gym.Wrapper[Any, Any, Any, Any]):
    """Replace the info of each step by nothing, and of each ending by the episode's raw return and length.

    It stands below the reward wrappers, so it counts the environment's own rewards. Dropping the rest of the info
    saves the vector environment the work of merging dictionaries that no one reads.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._return = 0.0
        self._length = 0

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Begin a new count."""
        obs, _ = self.env.reset(**kwargs)
        self._return = 0.0
        self._length = 0
        return obs, {}

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Count the step."""
        obs, reward, terminated, truncated, _ = self.env.step(action)
        self._return += float(reward)
        self._length += 1
        if terminated or truncated:
            return obs, reward, terminated, truncated, {"episode": (self._return, self._length)}
        return obs, reward, terminated, truncated, {}

"""Classic control without velocities in the observation: a policy needs memory to estimate them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv
from gymnasium.spaces import Box

Obs = npt.NDArray[np.float32]


class _Positions(gym.ObservationWrapper[Obs, Any, Obs]):
    """Keeps some components of the observation."""

    def __init__(self, env: gym.Env[Obs, Any], kept: list[int], max_episode_steps: int) -> None:
        super().__init__(gym.wrappers.TimeLimit(env, max_episode_steps))
        space = env.observation_space
        assert isinstance(space, Box)
        self._kept = kept
        self.observation_space = Box(space.low[kept], space.high[kept], dtype=np.float32)

    def observation(self, observation: Obs) -> Obs:
        """The kept components."""
        return observation[self._kept]


class CartPoleNoVel(_Positions):
    """CartPole-v1 whose observation is the position of the cart and the angle of the pole."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(CartPoleEnv(render_mode=render_mode), [0, 2], max_episode_steps=500)


class PendulumNoVel(_Positions):
    """Pendulum-v1 whose observation is the cosine and the sine of the angle."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(PendulumEnv(render_mode=render_mode), [0, 1], max_episode_steps=200)

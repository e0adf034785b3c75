"""Small environments that need memory, action masks, or both: `rl_training.envs.toys:CartPoleNoVel`, ..."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv
from gymnasium.spaces import Box, Discrete

from rl_training.envs.state.aliases import Info, Obs, Result

__all__ = ["CartPoleNoVel", "HiddenTarget", "MostlyInvalid", "PendulumNoVel"]


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


class _Masked(gym.Env[Obs, np.int64]):
    """Episodes of `length` steps; the observation has `size` numbers, and the info the mask of the valid actions."""

    def __init__(self, size: int, num_actions: int, length: int) -> None:
        self.observation_space = Box(0.0, 1.0, (size,), np.float32)
        self.action_space = Discrete(num_actions)
        self._length, self._steps = length, 0
        self._mask = np.ones(num_actions, np.bool_)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        """Start an episode."""
        super().reset(seed=seed)
        self._steps = 0
        self._start()
        return self._observe(), self._info()

    def _start(self) -> None:
        """Place what the first observation shows."""

    def _observe(self) -> Obs:
        raise NotImplementedError

    def _info(self) -> Info:
        return {"action_mask": self._mask.copy()}


class MostlyInvalid(_Masked):
    """One action of `num_actions` is right at every step, and nine tenths of them are invalid.

    The observation is the one-hot number of the right action. The right action pays 1, another valid one nothing; an
    invalid one ends the episode with -1. `info["action_mask"]` marks the valid ones. An episode has 100 steps.
    """

    def __init__(self, num_actions: int = 60, length: int = 100) -> None:
        super().__init__(num_actions, num_actions, length)
        self._num_valid = max(2, num_actions // 10)
        self._right = 0

    def step(self, action: np.int64) -> Result:
        """Pay for the right action, and choose another one."""
        self._steps += 1
        is_valid, reward = bool(self._mask[action]), float(action == self._right)
        truncated = self._steps >= self._length
        return self._observe(), reward if is_valid else -1.0, not is_valid, truncated, self._info()

    def _observe(self) -> Obs:
        """Choose the right action, which the observation shows, and the valid ones."""
        valid = self.np_random.choice(len(self._mask), self._num_valid, replace=False)
        self._mask = np.zeros_like(self._mask)
        self._mask[valid] = True
        self._right = int(valid[0])
        obs = np.zeros(len(self._mask), np.float32)
        obs[self._right] = 1.0
        return obs


class HiddenTarget(_Masked):
    """Go to a target that is shown at the first step only, on a ring of `size` places: this needs memory.

    It needs masks too: `a % 3` selects stay, left or right, and of the `num_copies`
    actions for each move only one is valid at a time, given by `info["action_mask"]`. An invalid one ends the episode
    with -1. The observation is the own place, and at the first step the target, as one-hot vectors. A step that ends on
    the target pays 1. An episode has `length` steps; the best policy's mean return is about 11.3 of 12.
    """

    def __init__(self, size: int = 6, num_copies: int = 10, length: int = 12) -> None:
        super().__init__(2 * size, 3 * num_copies, length)
        self._size, self._num_copies = size, num_copies
        self._place = self._target = 0

    def step(self, action: np.int64) -> Result:
        """Move, and pay at the target."""
        self._steps += 1
        if not self._mask[action]:
            return self._observe(), -1.0, True, False, self._info()
        self._place = (self._place + (0, -1, 1)[int(action) % 3]) % self._size
        reward = float(self._place == self._target)
        return self._observe(), reward, False, self._steps >= self._length, self._info()

    def _start(self) -> None:
        self._place, self._target = map(int, self.np_random.integers(0, self._size, 2))

    def _observe(self) -> Obs:
        obs = np.zeros(2 * self._size, np.float32)
        obs[self._place] = 1.0
        if self._steps == 0:
            obs[self._size + self._target] = 1.0
        return obs

    def _info(self) -> Info:
        """Choose the valid copy of each move."""
        self._mask = np.zeros_like(self._mask)
        self._mask[np.arange(3) + 3 * self.np_random.integers(0, self._num_copies, 3)] = True
        return super()._info()

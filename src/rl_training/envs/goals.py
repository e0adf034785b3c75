"""Two small goal-conditioned environments for HER."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

from rl_training.envs.state.aliases import Array, Info, Result

Obs = dict[str, Any]


class _GoalEnv(gym.Env[Any, Any]):
    """A position and a goal of the same space; reward 0 and termination where they agree, else reward -1."""

    def __init__(self, positions: gym.Space[Any], actions: gym.Space[Any], max_steps: int) -> None:
        self.observation_space = Dict(
            observation=positions, achieved_goal=positions, desired_goal=positions
        )
        self.action_space = actions
        self.max_steps = max_steps
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        """Sample a position and a goal that it has not reached."""
        super().reset(seed=seed)
        self._steps = 0
        self._position: Array = self._sample()
        self._goal: Array = self._sample()
        while self._is_reached(self._position, self._goal):
            self._goal = self._sample()
        return self._obs(), {}

    def step(self, action: Any) -> Result:
        """Move; the info reports `is_success`."""
        self._steps += 1
        self._position = self._move(action)
        is_reached = bool(self._is_reached(self._position, self._goal))
        info = {"is_success": is_reached}
        return self._obs(), float(is_reached) - 1.0, is_reached, self._steps >= self.max_steps, info

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any = None) -> Any:
        """0 where the goal is reached, else -1; for one pair or a batch."""
        return self._is_reached(achieved_goal, desired_goal).astype(np.float32) - 1.0

    def compute_terminated(
        self, achieved_goal: Array, desired_goal: Array, info: Any = None
    ) -> Any:
        """Whether the goal is reached; for one pair or a batch."""
        return self._is_reached(achieved_goal, desired_goal)

    def _is_reached(self, achieved: Array, desired: Array) -> Any:
        raise NotImplementedError

    def _sample(self) -> Array:
        """Sample a position or a goal."""
        raise NotImplementedError

    def _move(self, action: Any) -> Array:
        """The position after an action."""
        raise NotImplementedError

    def _obs(self) -> Obs:
        return {
            "observation": self._position,
            "achieved_goal": self._position,
            "desired_goal": self._goal,
        }


class BitFlipEnv(_GoalEnv):
    """Each action flips one of `num_bits` bits; the goal is a bit pattern, to be reached within `num_bits` steps."""

    def __init__(self, num_bits: int = 10) -> None:
        super().__init__(MultiBinary(num_bits), Discrete(num_bits), num_bits)

    def _is_reached(self, achieved: Array, desired: Array) -> Any:
        """Whether all bits agree."""
        return (achieved == desired).all(-1)

    def _sample(self) -> Array:
        return self.np_random.integers(0, 2, self.max_steps).astype(np.int8)

    def _move(self, action: Any) -> Array:
        position = self._position.copy()
        position[action] ^= 1
        return position


class PointGoalEnv(_GoalEnv):
    """A point in [-1, 1]^2 moves by up to 0.1 in x and y, to come within 0.1 of a goal in 50 steps."""

    radius: ClassVar[float] = 0.1
    speed: ClassVar[float] = 0.1

    def __init__(self) -> None:
        super().__init__(Box(-1.0, 1.0, (2,), np.float32), Box(-1.0, 1.0, (2,), np.float32), 50)

    def _is_reached(self, achieved: Array, desired: Array) -> Any:
        """Whether the goal is within `radius`."""
        return np.linalg.norm(achieved - desired, axis=-1) < self.radius

    def _sample(self) -> Array:
        return self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)

    def _move(self, action: Any) -> Array:
        position: Array = np.clip(
            self._position + self.speed * np.asarray(action), -1.0, 1.0, dtype=np.float32
        )
        return position

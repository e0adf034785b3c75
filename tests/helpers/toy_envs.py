"""Environments whose right answers are known."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

from rl_training.envs.goals import PointGoalEnv


class CountingEnv(gym.Env):
    """Observations tell which episode and step they belong to: [episode, step]. Each episode has its own length."""

    def __init__(
        self, lengths: tuple[int, ...] = (3, 5, 2), ending: str = "both", continuous: bool = False
    ) -> None:
        self.observation_space = Box(0, np.inf, (2,), np.float32)
        self.action_space = Box(-1, 1, (1,), np.float32) if continuous else Discrete(2)
        self.lengths, self.ending = lengths, ending
        self.episode, self.step_count = -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.episode += 1
        self.step_count = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.step_count += 1
        ended = self.step_count >= self.lengths[self.episode % len(self.lengths)]
        terminates = self.ending == "terminate" or (self.ending == "both" and self.episode % 2 == 0)
        return (
            self._obs(),
            float(self.step_count),
            ended and terminates,
            ended and not terminates,
            {},
        )

    def _obs(self) -> np.ndarray:
        return np.array([self.episode, self.step_count], np.float32)


class ConstantRewardEnv(gym.Env):
    """Reward 1 for five steps; then the episode is truncated, or terminates.

    A truncated world looks the same at every step, since it goes on for ever. A terminating one shows the time.
    """

    def __init__(self, ending: str = "truncate", continuous: bool = False) -> None:
        self.observation_space = Box(0, 2, (1,), np.float32)
        self.action_space = Box(-1, 1, (1,), np.float32) if continuous else Discrete(2)
        self.ending = ending
        self.time = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.time = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.time += 1
        ended = self.time >= 5
        return (
            self._obs(),
            1.0,
            ended and self.ending == "terminate",
            ended and self.ending == "truncate",
            {},
        )

    def _obs(self) -> np.ndarray:
        return np.array([self.time / 5 if self.ending == "terminate" else 1.0], np.float32)


class NoisyEnv(gym.Env):
    """Random observations and rewards from the environment's own generator, for any action space."""

    def __init__(self, action: str = "discrete", length: int = 7) -> None:
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = {
            "discrete": Discrete(3, start=-1),
            "multi_discrete": MultiDiscrete([2, 3]),
            "box": Box(np.array([-2.0, 0.0]), np.array([2.0, 5.0]), dtype=np.float64),
            "unbounded": Box(-np.inf, np.inf, (2,), np.float32),
        }[action]
        self.length, self.time = length, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.time = 0
        return self.np_random.normal(size=3), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.time += 1
        terminated = bool(self.np_random.random() < 0.1)
        obs = self.np_random.normal(size=3)
        return (
            obs,
            float(self.np_random.normal()),
            terminated,
            self.time >= self.length,
            {"x": 1, "y": 2.0},
        )


class BrokenEnv(NoisyEnv):
    """Raises after a few steps."""

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self.time >= 3:
            raise ZeroDivisionError("the simulator exploded")
        return super().step(action)


class BrokenGoalEnv(PointGoalEnv):
    """Raises after a few steps."""

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict]:
        if self._steps >= 3:
            raise ZeroDivisionError("the simulator exploded")
        return super().step(action)


class SimulatorStopped(BaseException):
    """What some packages raise so that `except Exception` does not catch it."""


class FaultyEnv(NoisyEnv):
    """Fails in one of several ways at its `after`-th step; with `once` (a file that it makes) only the first time."""

    def __init__(
        self, fault: str, after: int = 5, action: str = "discrete", once: str | None = None
    ) -> None:
        super().__init__(action)
        self.fault, self.after, self.once, self.total = fault, after, once, 0

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.total += 1
        obs, reward, terminated, truncated, info = super().step(action)
        if self.total < self.after or not self.is_first():
            return obs, reward, terminated, truncated, info
        if self.fault == "raise":
            raise ZeroDivisionError("the simulator exploded")
        if self.fault == "raise in reset":
            return obs, reward, True, False, info
        if self.fault == "raise base":
            raise SimulatorStopped("the simulator stopped")
        if self.fault == "exit":
            os._exit(3)
        if self.fault == "sys.exit":
            sys.exit("enough")
        if self.fault == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.fault == "hang":
            self.wait_for_ever()
        bad = {"nan": np.nan, "inf": np.inf}[self.fault.partition(" ")[0]]
        if self.fault.endswith("observation"):
            obs = obs * bad
        if self.fault.endswith("reward"):
            reward = bad
        return obs, reward, terminated, truncated, info

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        if self.fault == "raise in reset" and self.total >= self.after:
            raise ZeroDivisionError("nothing to begin with")
        return super().reset(seed=seed, options=options)

    def is_first(self) -> bool:
        """Whether no environment that shares the file has failed yet."""
        try:
            if self.once:
                Path(self.once).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def wait_for_ever(self) -> None:
        while True:
            time.sleep(0.1)


class SlowEnv(NoisyEnv):
    """Takes its time for each step, and for ever for one of them."""

    def __init__(self, seconds: float, hangs_at: int = -1) -> None:
        super().__init__(length=1000)
        self.seconds, self.hangs = (
            seconds,
            lambda: self.time == hangs_at,
        )  # no attribute that a restore changes

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        obs, reward, _, truncated, info = super().step(action)
        time.sleep(1000.0 if self.hangs() else self.seconds)
        return obs, reward, False, truncated, info


class OnlyHereEnv(NoisyEnv):
    """Can be made in one process only."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        if os.getpid() != pid:
            raise RuntimeError("it fails only in a worker")


class NestedEnv(gym.Env):
    """Random observations of named and numbered parts, with categories among them."""

    def __init__(self, length: int = 7) -> None:
        self.observation_space = Dict(
            position=Box(-np.inf, np.inf, (2,), np.float64),
            mode=Discrete(3),
            parts=Tuple([Box(-np.inf, np.inf, (1, 2), np.float32), MultiDiscrete([2, 2])]),
        )
        self.action_space = Box(-2.0, 2.0, (1,), np.float32)
        self.length, self.time = length, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict]:
        super().reset(seed=seed)
        self.time = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict]:
        self.time += 1
        return self._obs(), float(self.np_random.normal()), False, self.time >= self.length, {}

    def _obs(self) -> dict[str, Any]:
        parts = (
            self.np_random.normal(size=(1, 2)).astype(np.float32),
            self.np_random.integers(0, 2, 2),
        )
        return {
            "position": self.np_random.normal(size=2),
            "mode": int(self.np_random.integers(3)),
            "parts": parts,
        }

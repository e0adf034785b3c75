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

Step = tuple[Any, float, bool, bool, dict]


def make_once(path: str) -> bool:
    """Make a file; whether it did not exist: of several processes, one only is the first."""
    try:
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Timed(gym.Env):
    """Counts the steps of each episode."""

    time = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.time = 0
        return self.observe(), self.info()

    def observe(self) -> Any:
        raise NotImplementedError

    def info(self) -> dict[str, Any]:
        return {}


class CountingEnv(Timed):
    """Observations tell which episode and step they belong to: [episode, step]. Each episode has its own length."""

    def __init__(
        self, lengths: tuple[int, ...] = (3, 5, 2), ending: str = "both", continuous: bool = False
    ) -> None:
        self.observation_space = Box(0, np.inf, (2,), np.float32)
        self.action_space = Box(-1, 1, (1,), np.float32) if continuous else Discrete(2)
        self.lengths, self.ending, self.episode = lengths, ending, -1

    def reset(self, **options: Any) -> tuple[Any, dict]:
        self.episode += 1
        return super().reset(**options)

    def step(self, action: Any) -> Step:
        self.time += 1
        ended = self.time >= self.lengths[self.episode % len(self.lengths)]
        terminates = self.ending == "terminate" or (self.ending == "both" and self.episode % 2 == 0)
        endings = ended and terminates, ended and not terminates
        return self.observe(), float(self.time), *endings, {}

    def observe(self) -> np.ndarray:
        return np.array([self.episode, self.time], np.float32)


class ConstantRewardEnv(Timed):
    """Reward 1 for five steps; then the episode is truncated, or terminates.

    A truncated world looks the same at every step, since it goes on for ever. A terminating one shows the time.
    """

    def __init__(self, ending: str = "truncate", continuous: bool = False) -> None:
        self.observation_space = Box(0, 2, (1,), np.float32)
        self.action_space = Box(-1, 1, (1,), np.float32) if continuous else Discrete(2)
        self.ending = ending

    def step(self, action: Any) -> Step:
        self.time += 1
        ended = self.time >= 5
        endings = ended and self.ending == "terminate", ended and self.ending == "truncate"
        return self.observe(), 1.0, *endings, {}

    def observe(self) -> np.ndarray:
        return np.array([self.time / 5 if self.ending == "terminate" else 1.0], np.float32)


class NoisyEnv(Timed):
    """Random observations and rewards from the environment's own generator, for any action space."""

    def __init__(self, action: str = "discrete", length: int = 7) -> None:
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = {
            "discrete": Discrete(3, start=-1),
            "multi_discrete": MultiDiscrete([2, 3]),
            "box": Box(np.array([-2.0, 0.0]), np.array([2.0, 5.0]), dtype=np.float64),
            "unbounded": Box(-np.inf, np.inf, (2,), np.float32),
        }[action]
        self.length = length

    def step(self, action: Any) -> Step:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.time += 1
        terminated = bool(self.np_random.random() < 0.1)
        obs, reward = self.observe(), float(self.np_random.normal())
        return obs, reward, terminated, self.time >= self.length, {"x": 1, "y": 2.0}

    def observe(self) -> np.ndarray:
        return self.np_random.normal(size=3)


class BrokenEnv(NoisyEnv):
    """Raises after a few steps."""

    def step(self, action: Any) -> Step:
        if self.time >= 3:
            raise ZeroDivisionError("the simulator exploded")
        return super().step(action)


class BrokenGoalEnv(PointGoalEnv):
    """Raises after a few steps."""

    def step(self, action: Any) -> Step:
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

    def step(self, action: Any) -> Step:
        self.total += 1
        obs, reward, terminated, truncated, info = super().step(action)
        if self.total < self.after or (self.once and not make_once(self.once)):
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

    def reset(self, **options: Any) -> tuple[Any, dict]:
        if self.fault == "raise in reset" and self.total >= self.after:
            raise ZeroDivisionError("nothing to begin with")
        return super().reset(**options)

    def wait_for_ever(self) -> None:
        while True:
            time.sleep(0.1)


class SlowEnv(NoisyEnv):
    """Takes its time for each step, and for ever for one of them."""

    def __init__(self, seconds: float, hangs_at: int = -1) -> None:
        super().__init__(length=1000)
        self.seconds = seconds
        self.hangs = lambda: self.time == hangs_at  # no attribute that a restore changes

    def step(self, action: Any) -> Step:
        obs, reward, _, truncated, info = super().step(action)
        time.sleep(1000.0 if self.hangs() else self.seconds)
        return obs, reward, False, truncated, info


class OnlyHereEnv(NoisyEnv):
    """Can be made in one process only."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        if os.getpid() != pid:
            raise RuntimeError("it fails only in a worker")


class NestedEnv(Timed):
    """Random observations of named and numbered parts, with categories among them."""

    def __init__(self, length: int = 7) -> None:
        self.observation_space = Dict(
            position=Box(-np.inf, np.inf, (2,), np.float64),
            mode=Discrete(3),
            parts=Tuple([Box(-np.inf, np.inf, (1, 2), np.float32), MultiDiscrete([2, 2])]),
        )
        self.action_space = Box(-2.0, 2.0, (1,), np.float32)
        self.length = length

    def step(self, action: Any) -> Step:
        self.time += 1
        obs, reward = self.observe(), float(self.np_random.normal())
        return obs, reward, False, self.time >= self.length, {}

    def observe(self) -> dict[str, Any]:
        rng = self.np_random
        parts = rng.normal(size=(1, 2)).astype(np.float32), rng.integers(0, 2, 2)
        return {"position": rng.normal(size=2), "mode": int(rng.integers(3)), "parts": parts}

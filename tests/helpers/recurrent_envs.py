"""Small environments for policies with memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from masked_envs import RandomMasks
from toy_envs import Timed, make_once

from rl_training.envs.toys import HiddenTarget


class DictMasks(RandomMasks):
    """A Dict observation that holds the mask."""

    def __init__(self) -> None:
        super().__init__(source="dict")


class ImageMasks(RandomMasks):
    """Images, with masks in the info."""

    def __init__(self) -> None:
        super().__init__(observation="image")


class NotedTarget(HiddenTarget):
    """Writes the actions of each episode that ends into a file."""

    def __init__(self, actions: str, **options: Any) -> None:
        super().__init__(num_copies=2, length=8, **options)
        self.path, self.actions = actions, []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.actions = [] if seed is None else [seed]
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self.actions.append(int(action))
        answer = super().step(action)
        if answer[2] or answer[3]:
            with Path(self.path).open("a") as file:
                file.write(" ".join(map(str, self.actions)) + "\n")
        return answer


class FailingTarget(HiddenTarget):
    """Raises at the fifth step of an episode, once: `once` is a file that it makes."""

    def __init__(self, once: str | None = None) -> None:
        super().__init__(num_copies=2, length=8)
        self.once = once

    def step(self, action: Any) -> Any:
        if self.once is not None and self._steps == 4 and make_once(self.once):
            raise ZeroDivisionError("the simulator exploded")
        return super().step(action)


class Drifting(Timed):
    """Cannot be restored exactly: the length of an episode comes from a file, which counts the episodes."""

    def __init__(self, counter: str) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(3)
        self.counter = counter

    def reset(self, **options: Any) -> Any:
        with Path(self.counter).open("a") as file:
            file.write(".")
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self.time += 1
        return self.observe(), 1.0, False, self.time >= 30, {}

    def observe(self) -> Any:
        return np.array([self.time, len(Path(self.counter).read_text())], np.float32)

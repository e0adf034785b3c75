"""Environments that render small pictures, and some whose pictures cannot be filmed."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

NUM_ACTIONS = 4


class Drawn(gym.Env):
    """Random observations and rewards; the picture shows the step, the observation and the last action.

    With `masked`, `info["action_mask"]` permits some actions, and any other one is an error. The sides of a picture
    are odd.
    """

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 25}

    def __init__(
        self,
        render_mode: str | None = None,
        masked: bool = False,
        height: int = 31,
        width: int = 45,
    ) -> None:
        self.render_mode = render_mode
        self.observation_space = Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = Discrete(NUM_ACTIONS)
        self.masked, self.height, self.width = masked, height, width
        self.mask = np.ones(NUM_ACTIONS, np.bool_)
        self.time, self.action, self.obs = 0, -1, np.zeros(3, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.time, self.action = 0, -1
        return self._observe(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        if not self.mask[action]:
            raise ValueError(f"action {action} is invalid: {self.mask}")
        self.time, self.action = self.time + 1, int(action)
        reward = float(self.np_random.normal() + 0.1 * self.action)
        return (
            self._observe(),
            reward,
            self.time >= 3 and self.np_random.random() < 0.3,
            self.time >= 9,
            self._info(),
        )

    def render(self) -> Any:
        frame = np.full((self.height, self.width, 3), 40, np.uint8)
        frame[: 2 + self.time, :9] = (200, 0, 0)
        frame[15:, 15:] = (0, 60 * (self.action + 1), int(100 * (self.obs[0] + 1)))
        return frame

    def _observe(self) -> Any:
        self.obs = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return self.obs

    def _info(self) -> dict:
        if not self.masked:
            return {}
        self.mask = np.zeros(NUM_ACTIONS, np.bool_)
        self.mask[self.np_random.choice(NUM_ACTIONS, 2, replace=False)] = True
        return {"action_mask": self.mask.copy()}


class Blind(Drawn):
    """Lists no mode that gives arrays."""

    metadata: ClassVar = {"render_modes": ["ansi"]}


class Forgetful(Drawn):
    """Its constructor takes no render mode."""

    def __init__(self) -> None:
        super().__init__()


class Fixed(Drawn):
    """Its constructor takes no render mode, and it renders to arrays always."""

    def __init__(self) -> None:
        super().__init__("rgb_array")


class Wrong(Drawn):
    """Returns what is no picture: floats, nothing, or pictures that grow."""

    def __init__(self, render_mode: str | None = None, kind: str = "floats") -> None:
        super().__init__(render_mode)
        self.kind = kind

    def render(self) -> Any:
        if self.kind == "raises":
            raise ZeroDivisionError("the painter stumbled")
        if self.kind == "grows":
            self.width += 1
        return {"floats": super().render() / 255, "nothing": None, "grows": super().render()}[
            self.kind
        ]


class Unseeded(Drawn):
    """Its rewards come from a generator that no seed reaches."""

    generator = np.random.default_rng(0)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, float(self.generator.normal()), terminated, truncated, info

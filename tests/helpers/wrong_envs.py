"""An environment that returns one wrong thing, and what is said of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Tuple

BOX, ZEROS = Box(-1.0, 1.0, (2,), np.float32), np.zeros(2, np.float32)
SPACES = {
    "box": BOX,
    "image": Box(0, 255, (2,), np.uint8),
    "dict": Dict(a=BOX, b=Discrete(3)),
    "tuple": Tuple([BOX, Discrete(3)]),
    "discrete": Discrete(3),
}
GOOD = {
    "box": ZEROS,
    "image": np.zeros(2, np.uint8),
    "dict": {"a": ZEROS, "b": 1},
    "tuple": (ZEROS, 1),
    "discrete": 1,
}
OBSERVATIONS: dict[str, tuple[str, Any, str]] = {
    "shape": ("box", np.zeros(3, np.float32), "its observation has shape (3,), its space (2,)"),
    "scalar": ("box", 0.5, "its observation has shape (), its space (2,)"),
    "none": ("box", None, "its observation is None, not an array of numbers"),
    "words": ("box", "hello", "its observation is 'hello', not an array of numbers"),
    "ragged": (
        "box",
        [[1.0], [1.0, 2.0]],
        "its observation is [[1.0], [1.0, 2.0]], not an array of numbers",
    ),
    "dtype": ("image", np.zeros(2), "its observation is of float64, its space of uint8"),
    "missing key": (
        "dict",
        {"a": ZEROS},
        "its observation has no part 'b', only 'a'",
    ),
    "inner shape": (
        "dict",
        {"a": np.zeros(3, np.float32), "b": 1},
        "part 'a' of its observation has shape (3,)",
    ),
    "no dict": ("dict", np.zeros(3, np.float32), "its space Dict"),
    "short tuple": (
        "tuple",
        (ZEROS,),
        "its observation has 1 parts, its space 2",
    ),
    "fraction": ("discrete", 1.5, "its observation is of float64, its space of int64"),
}
STEPS: dict[str, tuple[Callable[..., Any], str]] = {
    "four": (
        lambda obs: (obs, 1.0, False, {}),
        "step returned a tuple of 4 instead of (obs, reward, terminated",
    ),
    "alone": (lambda obs: obs, "instead of (obs, reward, terminated, truncated, info)"),
    "reward none": (
        lambda obs: (obs, None, False, False, {}),
        "the reward of step is None, not a number",
    ),
    "reward array": (
        lambda obs: (obs, np.ones(2), False, False, {}),
        "the reward of step is array([1., 1.]), not",
    ),
    "reward word": (
        lambda obs: (obs, "good", False, False, {}),
        "the reward of step is 'good', not a number",
    ),
    "endings": (
        lambda obs: (obs, 1.0, np.zeros(2, bool), False, {}),
        "terminated is array([False, False]) in step",
    ),
}
RESETS: dict[str, tuple[Callable[..., Any], str]] = {
    "reset alone": (
        lambda obs: obs,
        "reset returned array([0., 0.], dtype=float32) instead of (observation, info)",
    ),
    "reset three": (lambda obs: (obs, {}, 1), "instead of (observation, info)"),
    "reset none": (lambda obs: None, "reset returned None instead of (observation, info)"),
}


class Wrong(gym.Env):
    """Right until its `after`-th step, then wrong in the way that `case` names; an episode has four steps."""

    def __init__(self, case: str, after: int = 1) -> None:
        self.case, self.after, self.total, self.time = case, after, 0, 0
        self.kind = OBSERVATIONS[case][0] if case in OBSERVATIONS else "box"
        self.observation_space, self.action_space = copy.deepcopy(SPACES[self.kind]), Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        is_wrong = self.case in RESETS and (self.after == 1 or self.total >= self.after)
        return RESETS[self.case][0](GOOD[self.kind]) if is_wrong else (GOOD[self.kind], {})

    def step(self, action: Any) -> Any:
        self.total += 1
        self.time += 1
        obs, is_wrong = GOOD[self.kind], self.total >= self.after
        if is_wrong and self.case in STEPS:
            return STEPS[self.case][0](obs)
        if is_wrong and self.case in OBSERVATIONS:
            obs = OBSERVATIONS[self.case][1]
        return obs, 1.0, False, self.time >= 4, {}

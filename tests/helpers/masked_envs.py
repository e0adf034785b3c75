"""Environments with action masks from every source; they note each invalid action in a file, also in a worker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from toy_envs import Step, Timed, make_once

from rl_training.spaces.spec import describe_action

ACTION_SPACES = {
    "discrete": lambda: Discrete(5),
    "started": lambda: Discrete(5, start=-2),
    "multi_discrete": lambda: MultiDiscrete([3, 4]),
    "multi_binary": lambda: MultiBinary(3),
    "box": lambda: Box(-1.0, 1.0, (2,), np.float32),
}


class RandomMasks(Timed):
    """Random observations, and random masks of which each component permits one option at least.

    `source` is where the mask is given. An invalid action is noted in the file `notes`. The first component of an
    observation counts the steps of the episode. `final` is what the mask is after the last step of an episode.
    """

    def __init__(
        self,
        action: str = "discrete",
        source: str = "info",
        notes: str | None = None,
        length: int = 7,
        end_probability: float = 0.1,
        permitted: float = 0.4,
        final: str = "random",
        observation: str = "vector",
    ) -> None:
        self.action_space = ACTION_SPACES[action]()
        self.source, self.notes, self.length, self.final = source, notes, length, final
        self.end_probability, self.permitted, self.kind = end_probability, permitted, observation
        spec = describe_action(self.action_space)
        self.choices, self.start = spec.choices, spec.start
        self.mask = np.ones(spec.num_options, np.bool_)
        self.observation_space = self._space()
        if source == "method":
            self.action_masks = self._current_mask

    def _space(self) -> gym.Space:
        vector = Box(-np.inf, np.inf, (3,), np.float32)
        if self.kind == "image":
            return Box(0, 255, (36, 36, 1), np.uint8)
        parts = {"vector": vector} if self.kind == "dict" or self.source == "dict" else None
        if self.source == "dict":
            parts["action_mask"] = Box(0, 1, (len(self.mask),), np.int8)
        return vector if parts is None else Dict(parts)

    def step(self, action: Any) -> Step:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        if self.choices:
            self._note(action)
        self.time += 1
        terminated = bool(self.np_random.random() < self.end_probability)
        truncated = self.time >= self.length and not terminated
        obs = self.observe()
        if (terminated or truncated) and self.final != "random":
            self.mask[:] = self.final == "all"
            obs = self._with_mask(obs)
        reward = float(self.np_random.normal() + np.sum(action))
        info = {**self.info(), "number": self.time, "pair": [self.time, 1.0]}
        return obs, reward, terminated, truncated, info

    def _note(self, action: Any) -> None:
        chosen = (np.asarray(action) - self.start).reshape(-1) + np.cumsum([0, *self.choices[:-1]])
        if self.notes is not None and not self.mask[chosen].all():
            with Path(self.notes).open("a") as file:
                file.write(f"{os.getpid()}: {action} where {self.mask.astype(int)}\n")

    def observe(self) -> Any:
        """Draw the mask and the observation."""
        parts = []
        for count in self.choices:
            part = self.np_random.random(count) < self.permitted
            part[self.np_random.integers(count)] = True
            parts.append(part)
        self.mask = np.concatenate(parts) if parts else self.mask
        vector = np.array([self.time, *self.np_random.normal(size=2)], np.float32)
        if self.kind == "image":
            return np.full((36, 36, 1), 20 * self.time + int(self.np_random.integers(20)), np.uint8)
        is_dict = isinstance(self.observation_space, Dict)
        return self._with_mask({"vector": vector}) if is_dict else vector

    def _with_mask(self, obs: Any) -> Any:
        return {**obs, "action_mask": self.mask.astype(np.int8)} if self.source == "dict" else obs

    def _current_mask(self) -> np.ndarray:
        return self.mask

    def info(self) -> dict[str, Any]:
        if self.source == "parts":
            parts = np.split(self.mask.astype(np.int8), np.cumsum(self.choices)[:-1])
            return {"action_mask": tuple(parts)}
        return {"action_mask": self.mask} if self.source == "info" else {}


class BadMasks(RandomMasks):
    """Gives a mask that is wrong in some way, from the first reset or the third step on."""

    def __init__(self, fault: str, at: str = "step", **options: Any) -> None:
        super().__init__(end_probability=0.0, length=1000, **options)
        self.fault, self.at = fault, at

    def info(self) -> dict[str, Any]:
        if self.at == "step" and self.time < 3:
            return super().info()
        if self.fault == "missing":
            return {}
        wrong = {
            "forbids_all": np.zeros_like(self.mask),
            "forbids_one": np.array([True] * 3 + [False] * (len(self.mask) - 3)),
            "short": self.mask[:-1],
            "two_rows": np.stack([self.mask] * 2),
            "text": np.array(["yes"] * len(self.mask)),
            "number": 1,
            "ragged": [[True], [True, False]],
        }
        return {"action_mask": wrong[self.fault]}


class SavedMasks(RandomMasks):
    """With get_state and set_state: the mask is restored although no step is taken again."""

    def get_state(self) -> dict[str, Any]:
        return {
            "time": self.time,
            "mask": self.mask.copy(),
            "generator": self.np_random.bit_generator.state,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self.time, self.mask = state["time"], state["mask"].copy()
        self.np_random.bit_generator.state = state["generator"]


class FailingMasks(RandomMasks):
    """Raises at its fifth step, once: `once` is a file that it makes."""

    def __init__(self, once: str, **options: Any) -> None:
        super().__init__(**options)
        self.once, self.total = once, 0

    def step(self, action: Any) -> Step:
        self.total += 1
        if self.total >= 5 and make_once(self.once):
            raise ZeroDivisionError("the simulator exploded")
        return super().step(action)


class WrappedMasks(gym.Wrapper):
    """The method is found through wrappers."""

    def __init__(self, **options: Any) -> None:
        super().__init__(gym.wrappers.TimeLimit(RandomMasks(source="method", **options), 1000))

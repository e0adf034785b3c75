"""Continuing a simulator: a journal of what happened since the last reset, and its replay."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv


class Journal(gym.Wrapper[Any, Any, Any, Any]):
    """The outermost wrapper: remembers the generator's state before the last reset, and the actions since.

    An environment that draws all its random numbers from `np_random` is brought back by setting that generator,
    resetting and playing the actions, through all wrappers below.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._seed: int | None = None
        self._generator_state: dict[str, Any] | None = None
        self._actions: list[Any] = []
        self.journal_to_restore: dict[str, Any] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a new page."""
        self._seed = seed
        self._generator_state = None
        if seed is None:
            self._generator_state = copy.deepcopy(dict(self.unwrapped.np_random.bit_generator.state))
        self._actions = []
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Note the action."""
        self._actions.append(action)
        return self.env.step(action)

    def journal(self) -> dict[str, Any]:
        """What `restore_journal` needs."""
        actions = np.stack(self._actions) if self._actions else None
        return {"seed": self._seed, "generator": self._generator_state, "actions": actions}

    def restore_journal(self) -> Any:
        """Replay `journal_to_restore` and return the observation it leads to."""
        journal = self.journal_to_restore
        assert journal is not None
        if journal["seed"] is None:
            self.unwrapped.np_random.bit_generator.state = journal["generator"]
        obs, _ = self.reset(seed=journal["seed"])
        for action in [] if journal["actions"] is None else journal["actions"]:
            obs, *_ = self.step(action)
        return obs


def read_journals(envs: VectorEnv[Any, Any, Any]) -> list[dict[str, Any]]:
    """The journal of every environment."""
    return list(envs.call("journal"))  # type: ignore[attr-defined]


def replay_journals(envs: VectorEnv[Any, Any, Any], journals: Sequence[dict[str, Any]]) -> list[Any]:
    """Bring every environment back to where its journal ends; returns the observations there."""
    envs.set_attr("journal_to_restore", list(journals))  # type: ignore[attr-defined]
    return list(envs.call("restore_journal"))  # type: ignore[attr-defined]

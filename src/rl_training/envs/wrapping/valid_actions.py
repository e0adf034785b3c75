"""Random actions in an environment with action masks: an invalid one is replaced by a valid one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.envs.single.masks import MaskReader, MaskSource
from rl_training.spaces.spec import describe_action


class ValidActions(gym.Wrapper[Any, Any, Any, Any]):
    """Replaces an invalid option by the valid one that its number leads to; an option out of 60 by `60 % valid`."""

    def __init__(self, env: gym.Env[Any, Any], source: MaskSource) -> None:
        super().__init__(env)
        self._reader = MaskReader(env, source)
        self._action = describe_action(env.action_space)
        self._mask: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, and read the mask."""
        answer = self.env.reset(seed=seed, options=options)
        self._mask = self._reader.read(*answer)
        return answer

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take the action, or a valid one for it, and read the next mask."""
        answer = self.env.step(self._valid(action))
        obs, _, terminated, _, info = answer
        self._mask = self._reader.read(obs, info, is_last=bool(terminated))
        return answer

    def _valid(self, action: Any) -> Any:
        options = np.atleast_1d(self._action.to_model(np.asarray(action)[None])[0])
        parts = np.split(self._mask, np.cumsum(self._action.choices)[:-1])
        for index, part in enumerate(parts):
            valid = np.flatnonzero(part)
            if not part[options[index]]:
                options[index] = valid[options[index] % len(valid)]
        return self._action.to_env(options.reshape(1, *self._action.model_shape))[0]


def make_valid(make: Callable[..., gym.Env[Any, Any]], source: MaskSource) -> gym.Env[Any, Any]:
    """Make an environment that takes no invalid action; picklable, for worker processes."""
    return ValidActions(make(), source)

"""What another goal would have brought: the rewards and endings that a goal environment computes on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from rl_training.envs.factory import make_env, split_env_kwargs
from rl_training.envs.pools import describe_error
from rl_training.errors import EnvError
from rl_training.spaces.rewards import RewardTransformConfig, transform_rewards

NUM_TRIED = 4
"""Episodes from whose beginnings goals are taken to try out the environment's functions."""
Array = npt.NDArray[Any]
OnRows = Callable[[Array, Array], Array]


class GoalRewards:
    """Asks an environment of its own for `compute_reward(achieved_goal, desired_goal, info)`, shaped as in training.

    It also asks for `compute_terminated`, where the environment has it. Both are given an empty info, and many rows at
    once if that gives what they give row by row.
    """

    def __init__(self, env_id: str, env_kwargs: Mapping[str, Any]) -> None:
        self._env = make_env(env_id, env_kwargs, with_wrappers=False)
        self._transform = split_env_kwargs(env_kwargs)[0].wrappers.reward or RewardTransformConfig()
        try:
            goals = self._some_goals()
            rewards, self._terminated = (
                self._try_out(name, goals) for name in ("compute_reward", "compute_terminated")
            )
            if rewards is None:
                raise EnvError("it has no compute_reward(achieved_goal, desired_goal, info)")
        except Exception as error:
            self.close()
            reason = str(error) if isinstance(error, EnvError) else describe_error(error)
            raise EnvError(f"hindsight replay cannot compute the rewards of '{env_id}': {reason}") from error
        self._rewards = rewards

    def __call__(self, achieved: Array, desired: Array) -> tuple[Array, Array | None]:
        """Rewards [B], and which steps terminate [B] if the environment can tell, for goals [B, G]."""
        space: Any = self._env.observation_space["desired_goal"]  # type: ignore[index]
        goals = [rows.reshape(-1, *space.shape).astype(space.dtype) for rows in (achieved, desired)]
        terminated = None if self._terminated is None else self._terminated(*goals).astype(np.bool_)
        return transform_rewards(self._rewards(*goals), self._transform).astype(np.float32), terminated

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _some_goals(self) -> tuple[Array, Array]:
        """Goals achieved and desired, some of them the same."""
        starts = [self._env.reset(seed=seed)[0] for seed in range(NUM_TRIED)]
        achieved, desired = (np.stack([obs[key] for obs in starts]) for key in ("achieved_goal", "desired_goal"))
        return np.concatenate([achieved, achieved, desired]), np.concatenate([desired, desired[::-1], desired])

    def _try_out(self, name: str, goals: tuple[Array, Array]) -> OnRows | None:
        if not self._env.has_wrapper_attr(name):
            return None
        function = self._env.get_wrapper_attr(name)
        try:
            rows = _row_by_row(function, *goals)
        except NotImplementedError:
            return None
        try:
            is_same = np.allclose(_at_once(function, *goals), rows)
        except Exception:  # it is written for one row
            is_same = False
        return partial(_at_once if is_same else _row_by_row, function)


def _row_by_row(function: Any, achieved: Array, desired: Array) -> Array:
    rows = [np.asarray(function(*pair, {})).item() for pair in zip(achieved, desired, strict=True)]
    return np.array(rows, np.float64)


def _at_once(function: Any, achieved: Array, desired: Array) -> Array:
    return np.asarray(function(achieved, desired, [{}] * len(achieved)), np.float64).reshape(len(achieved))

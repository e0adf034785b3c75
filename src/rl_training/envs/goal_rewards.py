"""Rewards and terminations of relabelled goals (HER), computed by the goal-conditioned environment."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from rl_training.envs.factory import EnvSource
from rl_training.envs.parallel.pools import describe_error
from rl_training.envs.state.aliases import Array
from rl_training.errors import EnvError
from rl_training.spaces.rewards import RewardTransformConfig, transform_rewards

NUM_TRIED = 4
"""Episodes whose first goals are used to test the environment's functions."""
OnRows = Callable[[Array, Array], Array]


class GoalRewards:
    """Calls `compute_reward(achieved_goal, desired_goal, info)` of an environment and transforms it as in training.

    It also calls `compute_terminated`, if the environment has it. Both get an empty info, and a batch of goals if a
    test shows that this gives the same results as row by row.
    """

    def __init__(self, source: EnvSource) -> None:
        self._env = source.make(with_wrappers=False)
        self._transform = source.settings.wrappers.reward or RewardTransformConfig()
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
            raise EnvError(
                f"HER cannot compute the rewards of '{source.env_id}': {reason}"
            ) from error
        self._rewards = rewards

    def __call__(self, achieved: Array, desired: Array) -> tuple[Array, Array | None]:
        """Rewards [B] for goals [B, G], and terminations [B] if the environment has `compute_terminated`."""
        space: Any = self._env.observation_space["desired_goal"]  # type: ignore[index]
        goals = [rows.reshape(-1, *space.shape).astype(space.dtype) for rows in (achieved, desired)]
        terminated = None if self._terminated is None else self._terminated(*goals).astype(np.bool_)
        return transform_rewards(self._rewards(*goals), self._transform).astype(
            np.float32
        ), terminated

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _some_goals(self) -> tuple[Array, Array]:
        """Achieved and desired goals; some pairs are equal."""
        starts = [self._env.reset(seed=seed)[0] for seed in range(NUM_TRIED)]
        achieved, desired = (
            np.stack([obs[key] for obs in starts]) for key in ("achieved_goal", "desired_goal")
        )
        return np.concatenate([achieved, achieved, desired]), np.concatenate(
            [desired, desired[::-1], desired]
        )

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
        except Exception:  # it does not accept a batch
            is_same = False
        return partial(_at_once if is_same else _row_by_row, function)


def _row_by_row(function: Any, achieved: Array, desired: Array) -> Array:
    rows = [np.asarray(function(*pair, {})).item() for pair in zip(achieved, desired, strict=True)]
    return np.array(rows, np.float64)


def _at_once(function: Any, achieved: Array, desired: Array) -> Array:
    return np.asarray(function(achieved, desired, [{}] * len(achieved)), np.float64).reshape(
        len(achieved)
    )

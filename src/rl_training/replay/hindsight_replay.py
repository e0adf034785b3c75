"""Replay in hindsight: steps are also drawn as if what came of them had been the goal (Andrychowicz et al. 2017)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rl_training.errors import EnvError
from rl_training.replay.replay_buffer import ReplayBuffer
from rl_training.replay.transitions import Array, Transitions
from rl_training.spaces.observations import ObsSpec
from rl_training.spaces.spec import Spaces

GOAL_KEYS = ("observation", "achieved_goal", "desired_goal")
GoalRewardFn = Callable[[Array, Array], tuple[Array, Array | None]]
"""Rewards [B] for goals achieved and desired [B, G], and where it can be told whether the episode terminates [B]."""


def find_goals(spec: ObsSpec) -> tuple[slice, slice]:
    """Where the achieved and the desired goal stand in a stored observation; an `EnvError` if it has none."""
    if not {(key,) for key in GOAL_KEYS} <= {part.path[:1] for part in spec.parts}:
        raise EnvError(f"hindsight replay needs a Dict observation with the keys {', '.join(GOAL_KEYS)}")
    if spec.image_shapes:
        raise EnvError("hindsight replay needs observations without images")
    goals = [part for part in spec.parts if part.path in (("achieved_goal",), ("desired_goal",))]
    if len({part.shape for part in goals}) != 1 or any(part.choices or part.scale != 1.0 for part in goals):
        raise EnvError("hindsight replay needs achieved_goal and desired_goal to be Box or MultiBinary, of one shape")
    return spec.columns("achieved_goal"), spec.columns("desired_goal")


class HindsightReplay(ReplayBuffer):
    """A ring whose batches hold `goals_per_step` transitions with another goal for each one with its own.

    The other goal is what was achieved at a step of the same episode: this one or a later one (`future`), the last
    one (`final`) or any (`episode`). An episode in progress reaches to the newest row, and one whose beginning was
    overwritten begins at the oldest. The rewards of all n steps are recomputed; so is `terminated`, if `goal_rewards`
    gives it, and stays as recorded otherwise.
    """

    def __init__(
        self,
        spaces: Spaces,
        capacity: int,
        num_envs: int,
        *,
        goal_rewards: GoalRewardFn,
        strategy: Literal["future", "final", "episode"],
        goals_per_step: int,
        **options: Any,
    ) -> None:
        achieved, self._desired = find_goals(spaces.obs)
        super().__init__(spaces, capacity, num_envs, **options)
        self._judge = goal_rewards
        self._strategy = strategy
        self._goals_per_step = goals_per_step
        self._achieved_goals = self._flat["next_obs"][:, achieved]
        self._before = np.zeros((self.num_rows, num_envs), np.int32)
        """Steps of the episode before each, overwritten ones included."""
        self._before[-1] = -1  # what the first row follows
        self._length = np.zeros_like(self._before)
        """Steps of the whole episode, 0 while it is in progress."""

    def add(
        self, obs: Array, actions: Array, rewards: Array, next_obs: Array, terminated: Array, truncated: Array
    ) -> None:
        """Store one step of every environment."""
        row, previous = self._position, self._position - 1
        self._before[row] = np.where(self._dones(previous), 0, self._before[previous] + 1)
        self._length[row] = 0
        super().add(obs, actions, rewards, next_obs, terminated, truncated)
        self._end_episodes(row, self._dones(row))

    def truncate_newest(self) -> None:
        """End the episodes with the newest row."""
        super().truncate_newest()
        if self._rows_stored:
            row = (self._position - 1) % self.num_rows
            self._end_episodes(row, self._length[row] == 0)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; where episodes begin and end is seen in the rows."""
        super().load_state_dict(state)
        rows = np.arange(self._position - self._rows_stored, self._position) % self.num_rows  # from the oldest on
        steps, dones = np.arange(len(rows))[:, None], self._dones(rows)
        begins = np.zeros_like(dones)
        begins[1:] = dones[:-1]
        first = np.maximum.accumulate(np.where(begins, steps, 0))
        last = np.minimum.accumulate(np.where(dones, steps, len(rows))[::-1])[::-1]
        self._before[rows] = steps - first
        self._length[rows] = np.where(last < len(rows), last - first + 1, 0)

    def _gather(self, index: Tensor) -> Transitions:
        """The transitions that begin there; all but every (goals_per_step + 1)th of them with another goal."""
        is_new = torch.arange(len(index)) % (self._goals_per_step + 1) != 0
        goals = self._achieved_goals[self._draw(index[is_new].numpy())]

        def judged(steps: Tensor) -> tuple[Tensor, Tensor]:
            rewards, terminated = self._outcome(steps)
            new_rewards, new_terminated = self._judge(self._achieved_goals[steps[is_new]].numpy(), goals.numpy())
            rewards[is_new] = torch.from_numpy(new_rewards)
            if new_terminated is not None:
                terminated[is_new] = torch.from_numpy(new_terminated)
            return rewards, terminated

        batch = self._n_step_transitions(index, judged)
        for obs in (batch.obs, batch.next_obs):
            obs[is_new, self._desired] = goals.to(self._device)
        return batch

    def _draw(self, slots: Array) -> Tensor:
        """For each stored step, one of its episode whose achieved goal it is given."""
        rows = slots // self.num_envs
        before, length = (steps.reshape(-1)[slots] for steps in (self._before, self._length))
        after = np.where(length > 0, length - 1 - before, (self._position - 1 - rows) % self.num_rows)
        if self._strategy == "future":
            offset = self._rng.integers(0, after, endpoint=True)
        elif self._strategy == "final":
            offset = after
        else:
            age = (rows - self._position + self._rows_stored) % self.num_rows  # since the oldest row
            offset = self._rng.integers(-np.minimum(before, age), after, endpoint=True)
        return torch.from_numpy((slots + offset * self.num_envs) % (self.num_rows * self.num_envs))

    def _end_episodes(self, row: int, ended: Array) -> None:
        for env in np.flatnonzero(ended):
            length = self._before[row, env] + 1
            rows = (row - np.arange(min(length, self._rows_stored))) % self.num_rows
            self._length[rows, env] = length

    def _dones(self, rows: Any) -> Array:
        dones: Array = self._storage["terminated"][rows] | self._storage["truncated"][rows]
        return dones

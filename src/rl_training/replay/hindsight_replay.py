"""Hindsight experience replay (HER, Andrychowicz et al. 2017): also samples transitions with relabelled goals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from rl_training.errors import EnvError
from rl_training.replay.replay_buffer import ReplayBuffer
from rl_training.replay.transitions import Array, Storage, Transitions
from rl_training.spaces.observations import ObsSpec
from rl_training.spaces.spec import Spaces

GOAL_KEYS = ("observation", "achieved_goal", "desired_goal")
GoalRewardFn = Callable[[Array, Array], tuple[Array, Array | None]]
"""Maps achieved and desired goals [B, G] to rewards [B], and to terminated [B] if the environment defines it."""


def find_goals(spec: ObsSpec) -> tuple[slice, slice]:
    """Columns of the achieved and desired goal in a stored observation; an `EnvError` if HER cannot use them."""
    if not {(key,) for key in GOAL_KEYS} <= {part.path[:1] for part in spec.leaves}:
        raise EnvError(
            f"replay kind her needs a Dict observation with the keys {', '.join(GOAL_KEYS)}"
        )
    if spec.image_shapes:
        raise EnvError(
            "replay kind her needs observations without images: remove them, or use another replay kind"
        )
    goals = [part for part in spec.leaves if part.path in (("achieved_goal",), ("desired_goal",))]
    if len({part.shape for part in goals}) != 1 or any(
        part.choices or part.scale != 1.0 for part in goals
    ):
        raise EnvError(
            "replay kind her needs achieved_goal and desired_goal to be Box or MultiBinary, of one shape"
        )
    return spec.columns("achieved_goal"), spec.columns("desired_goal")


class HindsightReplay(ReplayBuffer):
    """A `ReplayBuffer` that samples `goals_per_step` relabelled transitions per transition with its original goal.

    The relabelled goal is the one achieved at a step of the same episode: the same or a later step (`future`), the
    last (`final`) or any (`episode`). An episode in progress ends at the newest row; an episode whose first rows were
    overwritten begins at the oldest row. The rewards of all n steps are recomputed; `terminated` too, if
    `goal_rewards` returns it, otherwise it stays as recorded.
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
        self._goal_rewards = goal_rewards
        self._strategy = strategy
        self._goals_per_step = goals_per_step
        self._achieved_goals = self._flat["next_obs"][:, achieved]
        self._steps_before = np.zeros((self.num_rows, num_envs), np.int32)
        """Number of earlier steps in the episode; after a restore, of those still stored."""
        self._steps_before[-1] = -1  # the predecessor of row 0, so that row 0 gets 0
        self._episode_lengths = np.zeros_like(self._steps_before)
        """Length of the episode of each step; 0 while the episode is in progress."""

    def add(self, step: Storage) -> None:
        """Store one step of every environment, by field."""
        row, previous = self._position, self._position - 1
        self._steps_before[row] = np.where(
            self._dones(previous), 0, self._steps_before[previous] + 1
        )
        self._episode_lengths[row] = 0
        super().add(step)
        self._end_episodes(row, self._dones(row))

    def truncate_newest(self) -> None:
        """Mark the newest step of every environment truncated, unless terminated."""
        super().truncate_newest()
        if self._rows_stored:
            row = (self._position - 1) % self.num_rows
            self._end_episodes(row, self._episode_lengths[row] == 0)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; episode boundaries are derived from the flags."""
        super().load_state_dict(state)
        rows = (
            np.arange(self._position - self._rows_stored, self._position) % self.num_rows
        )  # oldest first
        steps, dones = np.arange(len(rows))[:, None], self._dones(rows)
        begins = np.zeros_like(dones)
        begins[1:] = dones[:-1]
        first = np.maximum.accumulate(np.where(begins, steps, 0))
        last = np.minimum.accumulate(np.where(dones, steps, len(rows))[::-1])[::-1]
        self._steps_before[rows] = steps - first
        self._episode_lengths[rows] = np.where(last < len(rows), last - first + 1, 0)

    def _gather(self, index: Tensor) -> Transitions:
        """Transitions that start at `index`; all but every (goals_per_step + 1)th are relabelled."""
        relabelled = torch.arange(len(index)) % (self._goals_per_step + 1) != 0
        goals = self._achieved_goals[self._sample_goal_slots(index[relabelled].numpy())]

        def outcome(steps: Tensor) -> tuple[Tensor, Tensor]:
            rewards, terminated = self._outcome(steps)
            achieved = self._achieved_goals[steps[relabelled]]
            new_rewards, new_terminated = self._goal_rewards(achieved.numpy(), goals.numpy())
            rewards[relabelled] = torch.from_numpy(new_rewards)
            if new_terminated is not None:
                terminated[relabelled] = torch.from_numpy(new_terminated)
            return rewards, terminated

        batch = self._n_step_transitions(index, outcome)
        for obs in (batch.obs, batch.next_obs):
            obs[relabelled, self._desired] = goals.to(self._device)
        return batch

    def _sample_goal_slots(self, slots: Array) -> Tensor:
        """For each step, the slot of a step in its episode whose achieved goal becomes the relabelled goal."""
        rows = slots // self.num_envs
        before, length = (
            steps.reshape(-1)[slots] for steps in (self._steps_before, self._episode_lengths)
        )
        after = np.where(
            length > 0, length - 1 - before, (self._position - 1 - rows) % self.num_rows
        )
        if self._strategy == "future":
            offset = self._rng.integers(0, after, endpoint=True)
        elif self._strategy == "final":
            offset = after
        else:
            age = (
                rows - self._position + self._rows_stored
            ) % self.num_rows  # rows since the oldest
            offset = self._rng.integers(-np.minimum(before, age), after, endpoint=True)
        return torch.from_numpy((slots + offset * self.num_envs) % (self.num_rows * self.num_envs))

    def _end_episodes(self, row: int, ended: Array) -> None:
        for env in np.flatnonzero(ended):
            length = self._steps_before[row, env] + 1
            rows = (row - np.arange(min(length, self._rows_stored))) % self.num_rows
            self._episode_lengths[rows, env] = length

    def _dones(self, rows: Any) -> Array:
        dones: Array = self._storage["terminated"][rows] | self._storage["truncated"][rows]
        return dones

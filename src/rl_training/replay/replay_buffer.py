"""The replay buffer: the latest transitions, sampled uniformly or by priority, with n-step returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.replay.sequences import Sampling, choose_starts, follow, gather
from rl_training.replay.transitions import (
    Array,
    Segment,
    StepFields,
    Storage,
    Transitions,
    allocate,
    as_index,
    copy_rows,
    rows_per_segment,
)
from rl_training.spaces.spec import Spaces

LAST_STEP_FIELDS = ("next_obs", "next_masks", "truncated")
"""Fields of an n-step transition that belong to its last step; the others belong to its first."""
BRANCHES = 16
EPSILON = 1e-6
"""Added to absolute TD errors, so that every transition keeps a positive probability."""


class ReplayBuffer:
    """Rows of steps of N environments; the oldest row is overwritten when the buffer is full.

    With `n_step` above 1 a sample sums the discounted rewards of up to n consecutive steps of one environment.
    The sum ends at the end of an episode or at the newest stored step; `discounts` holds gamma to the power of the
    steps that were summed.
    """

    def __init__(
        self,
        spaces: Spaces,
        capacity: int,
        num_envs: int,
        *,
        rng: np.random.Generator,
        device: torch.device,
        n_step: int = 1,
        gamma: float = 0.99,
        priority_alpha: float | None = None,
        fields: StepFields | None = None,
    ) -> None:
        self.num_rows = -(-capacity // num_envs)
        self.num_envs = num_envs
        self._n_step = n_step
        self._gamma = gamma
        self._rng = rng
        self._device = device
        self._storage = allocate(spaces, self.num_rows, num_envs, fields=fields)
        self._extra_names = tuple(fields or ())
        self._flat = {
            name: torch.from_numpy(array).flatten(0, 1) for name, array in self._storage.items()
        }
        self._position = 0
        self._rows_stored = 0
        self._segment_rows = rows_per_segment(
            self.num_rows, sum(array[0].nbytes for array in self._storage.values())
        )
        num_segments = -(-self.num_rows // self._segment_rows)
        self._versions = [0] * num_segments
        self._writes = 0
        num_slots = self.num_rows * num_envs
        self._priorities = (
            None if priority_alpha is None else PrioritizedSampler(num_slots, priority_alpha, rng)
        )

    def __len__(self) -> int:
        """Number of transitions stored."""
        return self._rows_stored * self.num_envs

    @property
    def nbytes(self) -> int:
        """Bytes of the full buffer."""
        return sum(array.nbytes for array in self._storage.values())

    def add(self, step: Storage) -> None:
        """Store one step of every environment, by field."""
        row = self._position
        for name, value in step.items():
            self._storage[name][row] = value
        self._writes += 1
        self._versions[row // self._segment_rows] = self._writes
        if self._priorities is not None:
            self._priorities.add(np.arange(row * self.num_envs, (row + 1) * self.num_envs))
        self._position = (row + 1) % self.num_rows
        self._rows_stored = min(self._rows_stored + 1, self.num_rows)

    def truncate_newest(self) -> None:
        """Mark the newest step of every environment truncated, unless terminated: the step after it was lost."""
        if self._rows_stored:
            row = (self._position - 1) % self.num_rows
            self._storage["truncated"][row] |= ~self._storage["terminated"][row]
            self._writes += 1
            self._versions[row // self._segment_rows] = self._writes

    def newest(self, count: int) -> Iterator[Storage]:
        """The last `count` rows, in order, as one or two views."""
        count = min(count, self._rows_stored)
        first = self._position - count
        if first < 0:
            yield {name: array[first:] for name, array in self._storage.items()}
        if self._position:
            yield {
                name: array[max(0, first) : self._position] for name, array in self._storage.items()
            }

    def newest_step(self) -> Transitions | None:
        """The newest step of all environments as tensors, [1, N]; None if the buffer is empty."""
        if not self._rows_stored:
            return None
        start = (self._position - 1) % self.num_rows * self.num_envs
        index = torch.arange(start, start + self.num_envs)
        tensors = {
            name: self._take(field, index).unsqueeze(0) for name, field in self._flat.items()
        }
        return Transitions.from_tensors(tensors)

    def sample(self, batch_size: int) -> Transitions:
        """Sample transitions with replacement: uniformly, or by priority."""
        num_stored = self._rows_stored * self.num_envs
        if self._priorities is None:
            return self._gather(torch.from_numpy(self._rng.integers(0, num_stored, batch_size)))
        slots, unscaled_weights = self._priorities.sample(batch_size, num_stored)
        index = torch.from_numpy(slots)
        weights = torch.from_numpy(unscaled_weights).float().to(self._device)
        return dataclasses.replace(self._gather(index), unscaled_weights=weights, index=index)

    def sample_batches(self, batch_size: int, count: int) -> Iterator[Transitions]:
        """Sample several batches: uniformly at once, which costs little more than one; by priority one by one."""
        if self._priorities is not None:
            return (self.sample(batch_size) for _ in range(count))
        sampled = self.sample(batch_size * count)
        return iter((sampled,)) if count == 1 else sampled.split(batch_size)

    def sample_sequences(self, batch_size: int, sampling: Sampling) -> Transitions:
        """Sample steps that follow one another in one environment, [L, batch_size, ...], with replacement."""
        is_last = self._storage["terminated"] | self._storage["truncated"]
        is_last[(self._position - 1) % self.num_rows] = True

        def first_steps() -> Array:
            begins = np.roll(is_last, 1, axis=0)
            oldest = self._position if self._rows_stored == self.num_rows else 0
            # In a full buffer the step before the oldest is overwritten: it is not known to be a first step.
            begins[oldest] = self._rows_stored < self.num_rows
            found = np.flatnonzero(begins[: self._rows_stored])
            return found if len(found) else np.arange(self.num_envs) + oldest * self.num_envs

        num_stored = self._rows_stored * self.num_envs
        starts = choose_starts(first_steps, num_stored, batch_size, sampling, self._rng)
        slots, valid = follow(starts, is_last.reshape(-1), self.num_envs, sampling)
        return gather(self._tensors_at, slots, valid)

    def _tensors_at(self, slots: Array) -> dict[str, Tensor]:
        index = torch.from_numpy(slots)
        return {name: self._take(field, index) for name, field in self._flat.items()}

    def update_priorities(self, batch: Transitions, td_errors: Tensor) -> None:
        """Set the priorities of a sampled batch from its TD errors [B]."""
        assert self._priorities is not None
        assert batch.index is not None
        self._priorities.update_priorities(batch.index.numpy(), td_errors.cpu().numpy())

    def _gather(self, index: Tensor) -> Transitions:
        """The transitions at these slots."""
        if self._n_step > 1:
            return self._n_step_transitions(index, self._outcome)
        tensors = {name: self._take(field, index) for name, field in self._flat.items()}
        extras = {name: tensors.pop(name) for name in self._extra_names}
        return Transitions(**tensors, extras=extras)

    def _take(self, field: Tensor, index: Tensor) -> Tensor:
        return field.index_select(0, index).to(self._device)

    def _outcome(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Rewards and termination flags of the steps at these slots."""
        return self._flat["rewards"][index], self._flat["terminated"][index]

    def _n_step_transitions(
        self, first: Tensor, outcome: Callable[[Tensor], tuple[Tensor, Tensor]]
    ) -> Transitions:
        """Transitions over up to n steps from each slot of `first` on, in the same environment's column."""
        newest = (self._position - 1) % self.num_rows
        rewards = torch.zeros(len(first))
        discounts = torch.ones(len(first))
        last = first.clone()
        running = torch.ones(len(first), dtype=torch.bool)
        terminated = torch.zeros(len(first), dtype=torch.bool)
        index = first
        for _ in range(self._n_step):
            step_rewards, step_terminated = outcome(index)
            rewards += torch.where(running, discounts * step_rewards, 0.0)
            discounts = torch.where(running, discounts * self._gamma, discounts)
            last = torch.where(running, index, last)
            terminated = torch.where(running, step_terminated, terminated)
            ended = (
                step_terminated | self._flat["terminated"][index] | self._flat["truncated"][index]
            )
            running = running & ~ended & (index // self.num_envs != newest)
            index = (index + self.num_envs) % (self.num_rows * self.num_envs)
        tensors = {
            name: self._take(field, last if name in LAST_STEP_FIELDS else first)
            for name, field in self._flat.items()
            if name not in ("rewards", "terminated")
        }
        computed = {"rewards": rewards, "terminated": terminated, "discounts": discounts}
        return Transitions.from_tensors(
            tensors | {name: tensor.to(self._device) for name, tensor in computed.items()}
        )

    def state_dict(self) -> dict[str, Any]:
        """The stored rows in segments, the write position and the generator."""
        starts = range(0, self._rows_stored, self._segment_rows)
        segments = [
            Segment(version, self._rows(start, start + self._segment_rows))
            for version, start in zip(self._versions, starts, strict=False)
        ]
        state = {
            "position": self._position,
            "rows_stored": self._rows_stored,
            "writes": self._writes,
            "rng": self._rng.bit_generator.state,
        }
        if self._priorities is not None:
            state["priorities"] = self._priorities.state_dict()
        return {**state, "segments": segments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._position = as_index(state["position"], self.num_rows - 1)
        self._rows_stored = as_index(state["rows_stored"], self.num_rows)
        self._writes = int(state["writes"])
        self._rng.bit_generator.state = state["rng"]
        if self._priorities is not None:
            self._priorities.load_state_dict(state["priorities"])
        start = 0
        for segment in state.get("segments", ()):  # an empty buffer has none
            rows = len(segment.arrays["rewards"])
            for name, target in self._rows(start, start + rows).items():
                copy_rows(name, segment.arrays[name], target)
            if start % self._segment_rows == 0 and rows <= self._segment_rows:
                self._versions[start // self._segment_rows] = segment.version
            start += rows
        if start != self._rows_stored:
            raise ValueError(f"the segments hold {start} rows where {self._rows_stored} are stored")

    def _rows(self, start: int, stop: int) -> Storage:
        return {
            name: array[start : min(stop, self._rows_stored)]
            for name, array in self._storage.items()
        }


class SumTree:
    """A tree with `BRANCHES` children per node, each inner node holding the sum of its children.

    Sums are recomputed from the children, never incremented, so the tree is a function of its leaves.
    """

    def __init__(self, num_leaves: int) -> None:
        self._levels = [np.zeros((-(-num_leaves // BRANCHES), BRANCHES))]
        while len(self._levels[-1]) > 1:
            self._levels.append(np.zeros((-(-len(self._levels[-1]) // BRANCHES), BRANCHES)))

    @property
    def leaves(self) -> Array:
        """The leaf values, padded with zeros."""
        return self._levels[0].reshape(-1)

    @property
    def total(self) -> float:
        """Sum of all leaves."""
        return float(self._levels[-1].sum())

    def set(self, index: Array, values: Any) -> None:
        """Set leaf values and update the sums above them."""
        self.leaves[index] = values
        for below, level in zip(self._levels, self._levels[1:], strict=False):
            index = index // BRANCHES
            level.reshape(-1)[index] = below[index].sum(1)

    def find(self, targets: Array) -> Array:
        """For each target, the leaf at which the cumulative sum of the leaves exceeds it."""
        node = np.zeros(len(targets), np.int64)
        rest, rows = targets.astype(np.float64), np.arange(len(targets))
        for level in reversed(self._levels):
            children = level[node]
            sums = children.cumsum(1)
            choice = np.count_nonzero(sums <= rest[:, None], axis=1)
            if (
                choice.max() == BRANCHES
            ):  # rounding put the target past the last sum: take the last non-zero child
                choice = np.minimum(choice, BRANCHES - 1 - (children[:, ::-1] > 0.0).argmax(1))
            rest -= sums[rows, choice] - children[rows, choice]
            node = node * BRANCHES + choice
        return node


class PrioritizedSampler:
    """Samples slots in proportion to |TD error| ** alpha (Schaul et al. 2016, proportional variant)."""

    def __init__(self, num_slots: int, alpha: float, rng: np.random.Generator) -> None:
        self._tree = SumTree(num_slots)
        self._alpha = alpha
        self._rng = rng
        self._max_priority = 1.0

    def add(self, slots: Array) -> None:
        """Give new transitions the largest priority so far."""
        self._tree.set(slots, self._max_priority)

    def sample(self, count: int, num_stored: int) -> tuple[Array, Array]:
        """Stratified sample of slots, and 1 / (N P(i)) of each."""
        total = self._tree.total
        slots = self._tree.find((np.arange(count) + self._rng.random(count)) * (total / count))
        return slots, total / (num_stored * self._tree.leaves[slots])  # eq. 1 and section 3.4

    def update_priorities(self, slots: Array, td_errors: Array) -> None:
        """Set the priorities of slots from their absolute TD errors."""
        priorities = (td_errors.astype(np.float64) + EPSILON) ** self._alpha
        self._tree.set(slots, priorities)
        self._max_priority = max(self._max_priority, float(np.max(priorities)))

    def state_dict(self) -> dict[str, Any]:
        """Priorities only: the replay buffer saves the generator."""
        return {"priorities": self._tree.leaves, "max_priority": self._max_priority}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        priorities = np.zeros_like(self._tree.leaves)
        copy_rows("priorities", state["priorities"], priorities)
        if not (np.isfinite(priorities).all() and (priorities >= 0.0).all()):
            raise ValueError("saved priorities must be finite and not negative")
        self._tree.set(np.arange(len(priorities)), priorities)
        self._max_priority = float(state["max_priority"])

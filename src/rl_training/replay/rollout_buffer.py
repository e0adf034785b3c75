"""The rollout buffer: the last T steps of N environments, for on-policy learning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from rl_training.replay.transitions import (
    StepFields,
    Storage,
    Transitions,
    allocate,
    as_index,
    copy_rows,
)
from rl_training.spaces.spec import Spaces


class RolloutBuffer:
    """Filled step by step, read as one [T, N] batch."""

    def __init__(
        self,
        spaces: Spaces,
        num_steps: int,
        num_envs: int,
        device: torch.device,
        fields: StepFields | None = None,
    ) -> None:
        self.num_steps = num_steps
        self._device = device
        self._storage = allocate(spaces, num_steps, num_envs, fields=fields)
        self._extra_names = frozenset(fields or ())
        self._position = 0

    @property
    def steps_left(self) -> int:
        """Steps until the rollout is complete."""
        return self.num_steps - self._position

    def add(self, step: Storage) -> None:
        """Store one step of every environment, by field."""
        for name, value in step.items():
            self._storage[name][self._position] = value
        self._position += 1

    def truncate_newest(self) -> None:
        """Mark the newest step of every environment truncated, unless terminated: the step after it was lost."""
        if self._position:
            row = self._position - 1
            self._storage["truncated"][row] |= ~self._storage["terminated"][row]

    def newest(self, count: int) -> Iterator[Storage]:
        """The last `count` rows, as one view."""
        rows = slice(max(0, self._position - count), self._position)
        yield {name: array[rows] for name, array in self._storage.items()}

    def rollout(self) -> Transitions:
        """The complete rollout, [T, N], which shares the buffer's memory until the next `add`; another one begins."""
        tensors = {
            name: torch.from_numpy(array).to(self._device) for name, array in self._storage.items()
        }
        extras = {name: tensors.pop(name) for name in self._extra_names}
        self._position = 0
        return Transitions(**tensors, extras=extras)

    def state_dict(self) -> dict[str, Any]:
        """The steps stored so far."""
        return {
            "position": self._position,
            "storage": {name: array[: self._position] for name, array in self._storage.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> list[str]:
        """Restore what `state_dict` returned; returns why a rollout begins anew instead, if it does."""
        position = as_index(state["position"], self.num_steps)
        if not self._extra_names.issubset(state["storage"]):
            lost = f"its first {position} steps are left out: another version stored them with other fields"
            return [lost] if position else []
        self._position = position
        for name, array in self._storage.items():
            copy_rows(name, state["storage"][name], array[: self._position])
        return []

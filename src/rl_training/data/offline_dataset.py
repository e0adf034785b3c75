"""A fixed set of transitions to learn from, without an environment."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch

from rl_training.data.dataset_fields import as_stored, check_lengths, derive_missing, find_fields, row_blocks
from rl_training.data.dataset_spaces import actions_to_model, obs_to_model
from rl_training.errors import DatasetError
from rl_training.replay.transitions import FIELDS, Array, Transitions
from rl_training.spaces.rewards import RewardTransformConfig, transform_rewards
from rl_training.spaces.spec import Spaces


class TransitionDataset:
    """Rows of transitions in the order they were recorded, sampled uniformly with replacement.

    The arrays given are kept, not copied, where their type is right, and must not change afterwards: `fingerprint`
    and `episodes` are worked out once.
    """

    obs: Array
    actions: Array
    rewards: Array
    next_obs: Array
    terminated: Array
    truncated: Array

    def __init__(
        self,
        obs: Any,
        actions: Any,
        rewards: Any,
        next_obs: Any,
        terminated: Any,
        truncated: Any,
        *,
        rng: np.random.Generator | None = None,
        device: torch.device | str = "cpu",
        notes: tuple[str, ...] = (),
    ) -> None:
        values = (obs, actions, rewards, next_obs, terminated, truncated)
        fields = {name: as_stored(name, value, "the data") for name, value in zip(FIELDS, values, strict=True)}
        check_lengths(fields, "the data")
        if fields["obs"].dtype != fields["next_obs"].dtype:
            raise DatasetError(f"obs is {fields['obs'].dtype} and next_obs {fields['next_obs'].dtype}: make them alike")
        for name, array in fields.items():
            view = array.view()
            view.flags.writeable = False
            setattr(self, name, view)
        self.notes = notes
        self._rng = rng if rng is not None else np.random.default_rng(0)
        self._device = torch.device(device)
        self._rows = {name: _as_rows(array) for name, array in self.arrays().items()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], **options: Any) -> TransitionDataset:
        """Read the fields by the names that files use; endings and next observations are derived where missing."""
        found = find_fields(fields, "the data")
        arrays = {name: as_stored(name, fields[key], "the data") for name, key in found.items()}
        check_lengths(arrays, "the data")
        complete, notes = derive_missing(arrays)
        return cls(**complete, notes=(*options.pop("notes", ()), *notes), **options)

    def __len__(self) -> int:
        """Number of transitions."""
        return len(self.rewards)

    @property
    def dones(self) -> Array:
        """Where the episode ended, in either way."""
        return self.terminated | self.truncated

    @property
    def nbytes(self) -> int:
        """Size of the arrays, in memory or mapped from a file."""
        return sum(array.nbytes for array in self.arrays().values())

    def arrays(self) -> dict[str, Array]:
        """The six fields by name."""
        return {name: getattr(self, name) for name in FIELDS}

    def sample(self, batch_size: int) -> Transitions:
        """Draw transitions uniformly, with replacement."""
        index = self._rng.integers(0, len(self), batch_size)
        return Transitions(**{name: self._take(name, index) for name in FIELDS})

    def sample_batches(self, batch_size: int, count: int) -> Iterator[Transitions]:
        """Draw several batches at once, which costs little more than drawing one."""
        return self.sample(batch_size * count).split(batch_size)

    def with_sampler(self, *, rng: np.random.Generator, device: torch.device | str = "cpu") -> TransitionDataset:
        """The same data, drawn by `rng` and handed over on `device`."""
        return self._changed(rng=rng, device=device)

    def with_reward_transform(
        self, scale: float = 1.0, shift: float = 0.0, clip_min: float | None = None, clip_max: float | None = None
    ) -> TransitionDataset:
        """The same data with each reward scaled, then shifted, then clipped."""
        if clip_min is not None and clip_max is not None and clip_min > clip_max:
            raise DatasetError(f"the lower clip bound {clip_min} is above the upper one {clip_max}")
        transform = RewardTransformConfig(scale=scale, shift=shift, clip_min=clip_min, clip_max=clip_max)
        return self._changed(rewards=transform_rewards(self.rewards, transform))

    def to_model_space(self, spaces: Spaces, *, clip_actions: bool = False) -> TransitionDataset:
        """The same data as networks see it, or a `DatasetError` that says what does not fit the environment."""
        return self._changed(
            obs=obs_to_model("obs", self.obs, spaces.obs),
            next_obs=obs_to_model("next_obs", self.next_obs, spaces.obs),
            actions=actions_to_model(self.actions, spaces.action, clip=clip_actions),
        )

    @cached_property
    def follows(self) -> Array:
        """Whether the next row's observation is this row's `next_obs`, for all rows but the last."""
        follows = np.ones(len(self) - 1, np.bool_)
        width = self.obs[0].size
        for block in row_blocks(self.obs[1:], self.next_obs[:-1]):
            after, before = self.obs[1:][block].reshape(-1), self.next_obs[:-1][block].reshape(-1)
            # Rows mostly follow, so looking for the few numbers that differ is faster than testing row by row.
            differing = np.flatnonzero(after != before)
            both_nan = np.isnan(after[differing]) & np.isnan(before[differing])
            follows[block.start + differing[~both_nan] // width] = False
        return follows

    def episodes(self) -> Array:
        """First row and the row after the last of each episode, in file order, [E, 2].

        An episode ends where it terminated or was truncated, and where the next row does not follow.
        """
        return self._episodes

    def episode_returns(self) -> Array:
        """Undiscounted sum of rewards of each episode, [E]."""
        returns: Array = np.add.reduceat(self.rewards, self._episodes[:, 0], dtype=np.float64)
        return returns

    def split_episodes(self, fraction: float, seed: int) -> tuple[TransitionDataset, TransitionDataset]:
        """Whole episodes apart: those to train on, and about `fraction` of them held out (both are copies)."""
        count = len(self._episodes)
        if not 0.0 < fraction < 1.0 or count < 2:
            raise DatasetError(
                f"cannot hold out {fraction} of {count} episodes: give a share between 0 and 1 and at least 2 episodes"
            )
        num_held_out = min(max(round(fraction * count), 1), count - 1)
        held_out = np.zeros(count, np.bool_)
        held_out[np.random.default_rng(seed).permutation(count)[:num_held_out]] = True
        parts = [self.select_episodes(np.flatnonzero(chosen)) for chosen in (~held_out, held_out)]
        return (
            parts[0].with_sampler(rng=np.random.default_rng([seed, 0]), device=self._device),
            parts[1].with_sampler(rng=np.random.default_rng([seed, 1]), device=self._device),
        )

    def select_episodes(self, numbers: Array) -> TransitionDataset:
        """A copy of the episodes of those numbers, in that order."""
        rows = np.concatenate([np.arange(start, stop) for start, stop in self._episodes[numbers]])
        return self._changed(**{name: array[rows] for name, array in self.arrays().items()})

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the names, types, shapes and bytes of the arrays."""
        digest = hashlib.sha256()
        for name, array in self.arrays().items():
            digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
            digest.update(array.reshape(-1).view(np.uint8).data)
        return digest.hexdigest()

    def state_dict(self) -> dict[str, Any]:
        """The generator, and which data it draws from."""
        return {"rng": self._rng.bit_generator.state, "fingerprint": self.fingerprint}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the sequence of samples; refused if it was drawn from other data."""
        if state["fingerprint"] != self.fingerprint:
            raise DatasetError(
                f"the data differs from what the run was started with (fingerprint {self.fingerprint[:12]}…, then"
                f" {state['fingerprint'][:12]}…): give the same file and the same reward settings"
            )
        self._rng.bit_generator.state = state["rng"]

    @cached_property
    def _episodes(self) -> Array:
        ends = np.flatnonzero(self.dones[:-1] | ~self.follows) + 1
        starts = np.concatenate([[0], ends])
        return np.stack([starts, np.append(ends, len(self))], 1)

    def _changed(self, **changes: Any) -> TransitionDataset:
        options = {"rng": self._rng, "device": self._device, "notes": self.notes}
        return TransitionDataset(**{**self.arrays(), **options, **changes})

    def _take(self, name: str, index: Array) -> torch.Tensor:
        array = getattr(self, name)
        rows = self._rows[name].take(index, 0)
        if rows.dtype != array.dtype:
            rows = rows.view(array.dtype)
        return torch.from_numpy(rows.reshape(len(index), *array.shape[1:])).to(self._device)


def _as_rows(array: Array) -> Array:
    """The array itself, or its rows as bytes where it lies unaligned in a mapped file: NumPy would copy it all."""
    if array.flags.aligned:
        return array
    return array.view(np.uint8).reshape(len(array), -1)

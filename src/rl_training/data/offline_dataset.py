"""A fixed dataset of transitions to train on without an environment."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch

from rl_training.data.dataset_fields import as_stored, check_lengths, find_fields, find_following
from rl_training.data.dataset_spaces import actions_to_model, obs_to_model
from rl_training.data.episode_layouts import complete_fields
from rl_training.errors import ConfigError, DatasetError
from rl_training.replay.sequences import Sampling, choose_starts, follow, gather
from rl_training.replay.transitions import FIELDS, MASK_FIELDS, Array, Transitions
from rl_training.spaces.rewards import RewardTransformConfig, transform_rewards
from rl_training.spaces.spec import Spaces

SOURCE = "the dataset"
"""Name of a dataset in error messages when it was not read from a file."""


class TransitionDataset:
    """Transitions in the order of the recording, sampled uniformly with replacement.

    Arrays of the right dtype are kept, not copied. Do not change them afterwards: `fingerprint` and `episodes` are
    computed once.
    """

    obs: Array
    actions: Array
    rewards: Array
    next_obs: Array
    terminated: Array
    truncated: Array
    masks: Array | None
    """Valid actions of `obs`, [n, num_options], if the dataset has action masks."""
    next_masks: Array | None
    """Valid actions of `next_obs`."""
    has_rewards: bool
    """Whether rewards were recorded; otherwise `rewards` is 0, and only imitation is possible."""

    def __init__(
        self,
        obs: Any,
        actions: Any,
        rewards: Any,
        next_obs: Any,
        terminated: Any,
        truncated: Any,
        *,
        masks: Any = None,
        next_masks: Any = None,
        rng: np.random.Generator | None = None,
        device: torch.device | str = "cpu",
        notes: tuple[str, ...] = (),
        has_rewards: bool = True,
    ) -> None:
        given = dict(
            zip(FIELDS, (obs, actions, rewards, next_obs, terminated, truncated), strict=True)
        )
        if (masks is None) is not (next_masks is None):
            raise DatasetError("masks and next_masks belong together: give both, or neither")
        if masks is not None:
            given |= {"masks": masks, "next_masks": next_masks}
        fields = {name: as_stored(name, value, SOURCE) for name, value in given.items()}
        check_lengths(fields, SOURCE)
        if fields["obs"].dtype != fields["next_obs"].dtype:
            raise DatasetError(
                f"obs is {fields['obs'].dtype} and next_obs is {fields['next_obs'].dtype}: store both in one dtype"
            )
        self._fields = {name: array.view() for name, array in fields.items()}
        for array in self._fields.values():
            array.flags.writeable = False
        self.obs, self.actions, self.rewards, self.next_obs, self.terminated, self.truncated = (
            self._fields[name] for name in FIELDS
        )
        self.masks, self.next_masks = map(self._fields.get, MASK_FIELDS)
        self.notes = notes
        self.has_rewards = has_rewards
        self._rng = rng if rng is not None else np.random.default_rng(0)
        self._device = torch.device(device)
        self._rows = {name: _as_rows(array) for name, array in self._fields.items()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> TransitionDataset:
        """Build from a mapping with the field names that files use; missing flags and `next_obs` are derived."""
        found = find_fields(fields, SOURCE)
        arrays = {name: as_stored(name, fields[key], SOURCE) for name, key in found.items()}
        complete, notes = complete_fields(arrays, SOURCE)
        return cls(**complete, notes=notes)

    def __len__(self) -> int:
        """Number of transitions."""
        return len(self.rewards)

    @property
    def dones(self) -> Array:
        """Episode ends: terminated or truncated."""
        return self.terminated | self.truncated

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, in memory or memory-mapped."""
        return sum(array.nbytes for array in self._fields.values())

    def arrays(self) -> dict[str, Array]:
        """The six fields by name, and the action masks if there are any."""
        return dict(self._fields)

    def sample(self, batch_size: int) -> Transitions:
        """Sample transitions uniformly, with replacement."""
        index = self._rng.integers(0, len(self), batch_size)
        return Transitions.from_tensors(self._take(index))

    def sample_batches(self, batch_size: int, count: int) -> Iterator[Transitions]:
        """Sample `count` batches with one gather, which costs little more than one batch."""
        return self.sample(batch_size * count).split(batch_size)

    def sample_sequences(self, batch_size: int, sampling: Sampling) -> Transitions:
        """Sample steps that follow one another in an episode, [L, batch_size, ...], with replacement."""
        is_last = np.zeros(len(self), np.bool_)
        is_last[self._episodes[:, 1] - 1] = True
        starts = choose_starts(
            lambda: self._episodes[:, 0], len(self), batch_size, sampling, self._rng
        )
        slots, valid = follow(starts, is_last, 1, sampling)
        return gather(self._take, slots, valid)

    def with_sampler(
        self, *, rng: np.random.Generator, device: torch.device | str = "cpu"
    ) -> TransitionDataset:
        """The same dataset, sampled by `rng` onto `device`."""
        return self._changed(rng=rng, device=device)

    def with_reward_transform(
        self,
        scale: float = 1.0,
        shift: float = 0.0,
        clip_min: float | None = None,
        clip_max: float | None = None,
    ) -> TransitionDataset:
        """The same dataset with each reward scaled, then shifted, then clipped."""
        try:
            transform = RewardTransformConfig(
                scale=scale, shift=shift, clip_min=clip_min, clip_max=clip_max
            )
        except ConfigError as error:
            raise DatasetError(str(error)) from None
        return self._changed(rewards=transform_rewards(self.rewards, transform))

    def to_model_space(self, spaces: Spaces, *, clip_actions: bool = False) -> TransitionDataset:
        """The dataset in model space; a `DatasetError` names the field that does not fit `spaces`.

        With `clip_actions`, continuous actions outside their bounds are clipped; otherwise they are an error.
        """
        masks = self.masks if spaces.has_masks else None
        if masks is not None and masks.shape[1:] != (spaces.action.num_options,):
            raise DatasetError(
                f"masks has rows of shape {masks.shape[1:]}, but the actions have"
                f" {spaces.action.num_options} options: store one boolean for each"
            )
        return self._changed(
            obs=obs_to_model("obs", self.obs, spaces.obs),
            next_obs=obs_to_model("next_obs", self.next_obs, spaces.obs),
            actions=actions_to_model(self.actions, spaces.action, clip=clip_actions),
            masks=masks,
            next_masks=None if masks is None else self.next_masks,
        )

    @cached_property
    def follows(self) -> Array:
        """Whether the next row's `obs` equals this row's `next_obs`, for all rows but the last, [n - 1]."""
        return find_following(self.obs, self.next_obs)

    def episodes(self) -> Array:
        """First row and row after the last of each episode, in file order, [E, 2].

        An episode ends where it terminated or was truncated, and where the next row does not follow.
        """
        return self._episodes

    def episode_returns(self) -> Array:
        """Undiscounted return of each episode, [E]."""
        returns: Array = np.add.reduceat(self.rewards, self._episodes[:, 0], dtype=np.float64)
        return returns

    def split_episodes(
        self, fraction: float, seed: int
    ) -> tuple[TransitionDataset, TransitionDataset]:
        """Split by whole episodes: a training part, and about `fraction` of the episodes held out (both copies)."""
        count = len(self._episodes)
        if not 0.0 < fraction < 1.0 or count < 2:
            raise DatasetError(
                f"cannot hold out a fraction of {fraction} of {count} episodes:"
                " give a fraction between 0 and 1, and at least 2 episodes"
            )
        num_held_out = min(max(round(fraction * count), 1), count - 1)
        held_out = np.zeros(count, np.bool_)
        held_out[np.random.default_rng(seed).permutation(count)[:num_held_out]] = True
        rows = np.repeat(held_out, np.diff(self._episodes, axis=1)[:, 0])
        training, evaluation = (
            self._changed(
                **{name: array[chosen] for name, array in self._fields.items()},
                rng=np.random.default_rng([seed, number]),
            )
            for number, chosen in enumerate((~rows, rows))
        )
        return training, evaluation

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the names, dtypes, shapes and bytes of the arrays."""
        digest = hashlib.sha256()
        for name, array in self._fields.items():
            digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
            digest.update(array.reshape(-1).view(np.uint8).data)
        return digest.hexdigest()

    def state_dict(self) -> dict[str, Any]:
        """State of the random generator, and the fingerprint of the dataset."""
        return {"rng": self._rng.bit_generator.state, "fingerprint": self.fingerprint}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the random generator; a `DatasetError` if the fingerprint differs."""
        if state["fingerprint"] != self.fingerprint:
            raise DatasetError(
                f"the dataset differs from the one this run started with (fingerprint {self.fingerprint[:12]}…, saved"
                f" {state['fingerprint'][:12]}…): use the same file and the same reward settings"
            )
        self._rng.bit_generator.state = state["rng"]

    @cached_property
    def _episodes(self) -> Array:
        ends = np.flatnonzero(self.dones[:-1] | ~self.follows) + 1
        starts = np.concatenate([[0], ends])
        return np.stack([starts, np.append(ends, len(self))], 1)

    def _changed(self, **changes: Any) -> TransitionDataset:
        options = {
            "rng": self._rng,
            "device": self._device,
            "notes": self.notes,
            "has_rewards": self.has_rewards,
        }
        return TransitionDataset(**{**self._fields, **options, **changes})

    def _take(self, index: Array) -> dict[str, torch.Tensor]:
        """The rows of every field."""
        taken = {}
        for name, array in self._fields.items():
            rows = self._rows[name].take(index, 0).view(array.dtype)
            rows = rows.reshape(len(index), *array.shape[1:])
            taken[name] = torch.from_numpy(rows).to(self._device)
        return taken


def _as_rows(array: Array) -> Array:
    """The array itself, or its rows as bytes where a mapped file leaves it unaligned: `take` would copy all of it."""
    if array.flags.aligned:
        return array
    return array.view(np.uint8).reshape(len(array), -1)

"""A replay buffer for images that stores each frame once, even if several observations contain it."""

from __future__ import annotations

import dataclasses
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.replay.replay_buffer import ReplayBuffer
from rl_training.replay.transitions import (
    Array,
    Segment,
    Storage,
    as_index,
    copy_rows,
    rows_per_segment,
    storage_bytes,
)
from rl_training.spaces.observations import ObsSpec
from rl_training.spaces.spec import Spaces

NUM_COLOURS = 3
ROWS_PER_SPARE_FRAME = 16
"""Each episode has one frame more than steps; episodes shorter than this make the frame array grow."""


class FrameReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` whose rows hold, for each observation, the indices of its frames in a shared frame array.

    A frame is shared only if it equals, byte for byte, the expected one: `obs` repeats the previous `next_obs`,
    `next_obs` is the same stack shifted by one, and a new stack repeats its first frame. A frame index is free again
    when the last row that refers to it is overwritten. Samples equal those of a `ReplayBuffer`.
    """

    def __init__(self, spaces: Spaces, capacity: int, num_envs: int, **options: Any) -> None:
        super().__init__(_with_frame_indices(spaces), capacity, num_envs, **options)
        self._obs_shape = spaces.obs.shape
        num_rows = self.num_rows * num_envs
        self._set_frames(np.zeros((_frame_capacity(num_rows), *frame_shape(spaces.obs)), np.uint8))
        self._ref_counts = np.zeros(len(self._frames), np.int64)
        self._free_frames: list[int] = []
        """Frame indices below `_num_allocated` that no row refers to; the last one is reused first."""
        self._num_allocated = 0
        self._frames_per_segment = rows_per_segment(len(self._frames), self._frames[0].nbytes)
        self._frame_versions: list[int] = []

    @property
    def nbytes(self) -> int:
        """Memory of the rows and of the frame array."""
        return super().nbytes + self._frames.nbytes + self._ref_counts.nbytes

    def add(self, step: Storage) -> None:
        """Store one step of every environment, by field."""
        row, indices = self._position, self._storage["next_obs"]
        expected = indices[row - 1] if self._rows_stored else np.full_like(indices[0], -1)
        obs_indices = self._store_stacks(step["obs"], expected)
        shifted = np.concatenate([obs_indices[:, 1:], obs_indices[:, -1:]], 1)
        next_indices = self._store_stacks(step["next_obs"], shifted)
        added = np.concatenate([obs_indices, next_indices], None)
        released = (
            self._references(slice(row, row + 1))
            if self._rows_stored == self.num_rows
            else added[:0]
        )
        np.add.at(self._ref_counts, added, 1)
        np.subtract.at(self._ref_counts, released, 1)
        self._free_frames += [
            int(index) for index in np.unique(released)[::-1] if not self._ref_counts[index]
        ]
        super().add({**step, "obs": obs_indices, "next_obs": next_indices})

    def state_dict(self) -> dict[str, Any]:
        """State of the rows, and the frames in segments of their own."""
        state, size = super().state_dict(), self._frames_per_segment
        frames = [
            Segment(
                version,
                {
                    "frames": self._frames[
                        index * size : min((index + 1) * size, self._num_allocated)
                    ]
                },
            )
            for index, version in enumerate(self._frame_versions)
        ]
        free_frames = np.array(self._free_frames, np.int64)
        return {**state, "free_frames": free_frames, "segments": [*state["segments"], *frames]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        segments = state.get("segments", ())
        super().load_state_dict(
            {**state, "segments": [part for part in segments if "frames" not in part.arrays]}
        )
        self._num_allocated, self._frame_versions = 0, []
        for segment in segments:
            if "frames" in segment.arrays:
                self._load_frames(segment)
        indices = self._references(slice(0, self._rows_stored))
        if len(indices) and not 0 <= indices.min() <= indices.max() < self._num_allocated:
            raise ValueError(
                f"rows refer to frames outside the {self._num_allocated} that are saved"
            )
        self._ref_counts = np.bincount(indices, minlength=len(self._frames))
        saved = np.asarray(state["free_frames"]).tolist()
        self._free_frames = [as_index(index, self._num_allocated - 1) for index in saved]
        if (
            sorted(self._free_frames)
            != np.flatnonzero(self._ref_counts[: self._num_allocated] == 0).tolist()
        ):
            raise ValueError("the saved free_frames differ from the frames that no row refers to")

    def _take(self, field: Tensor, index: Tensor) -> Tensor:
        if field is not self._flat["obs"] and field is not self._flat["next_obs"]:
            return super()._take(field, index)
        frame_indices = field.index_select(0, index).view(-1)
        return (
            self._frame_tensor.index_select(0, frame_indices)
            .view(-1, *self._obs_shape)
            .to(self._device)
        )

    def _store_stacks(self, obs: Array, expected: Array) -> Array:
        """Frame indices [N, frames] of the observations: the expected ones where equal, otherwise newly stored."""
        stacks = obs.reshape(*expected.shape, -1)
        stored = self._frames.reshape(len(self._frames), -1)
        is_new = (stored[expected] != stacks).any(-1) | (expected < 0)
        indices = expected.copy()
        for env, depth in np.argwhere(is_new):
            if depth and np.array_equal(stacks[env, depth], stacks[env, depth - 1]):
                indices[env, depth] = indices[env, depth - 1]
            else:
                indices[env, depth] = self._store_frame(stacks[env, depth])
        return indices

    def _store_frame(self, frame: Array) -> int:
        if self._free_frames:
            index = self._free_frames.pop()
        else:
            index, self._num_allocated = self._num_allocated, self._num_allocated + 1
            self._grow(self._num_allocated)
        self._frames[index] = frame.reshape(self._frames.shape[1:])
        self._writes += 1
        segment = index // self._frames_per_segment
        self._frame_versions[segment : segment + 1] = [self._writes]
        return index

    def _grow(self, count: int) -> None:
        if count <= len(self._frames):
            return
        larger = np.zeros(
            (max(count, len(self._frames) * 3 // 2), *self._frames.shape[1:]), np.uint8
        )
        larger[: len(self._frames)] = self._frames
        self._set_frames(larger)
        new_counts = np.zeros(len(larger) - len(self._ref_counts), np.int64)
        self._ref_counts = np.concatenate([self._ref_counts, new_counts])

    def _set_frames(self, frames: Array) -> None:
        self._frames, self._frame_tensor = frames, torch.from_numpy(frames)

    def _load_frames(self, segment: Segment) -> None:
        saved, start = segment.arrays["frames"], self._num_allocated
        self._num_allocated += len(saved)
        self._grow(self._num_allocated)
        copy_rows("frames", saved, self._frames[start : self._num_allocated])
        last = (self._num_allocated - 1) // self._frames_per_segment
        while (
            len(self._frame_versions) <= last
        ):  # segments saved with another size get version 0: written again
            self._frame_versions.append(0)
        if start % self._frames_per_segment == 0 and len(saved) <= self._frames_per_segment:
            self._frame_versions[last] = segment.version

    def _references(self, rows: slice) -> Array:
        """Frame indices in these rows, with repeats."""
        return np.concatenate([self._storage["obs"][rows], self._storage["next_obs"][rows]], None)


def stores_frames(obs: ObsSpec) -> bool:
    """Whether observations are stored frame by frame: images that are not part of a Dict or Tuple."""
    return bool(obs.image_shapes) and not obs.leaves


def replay_class(spaces: Spaces) -> type[ReplayBuffer]:
    """The replay buffer class for these observations."""
    return FrameReplayBuffer if stores_frames(spaces.obs) else ReplayBuffer


def replay_bytes(spaces: Spaces, count: int) -> int:
    """Memory of a replay buffer of `count` transitions, if frame stacks shift by one frame per step."""
    if not stores_frames(spaces.obs):
        return storage_bytes(spaces, count)
    frame_bytes = prod(frame_shape(spaces.obs)) + 8  # and its reference count
    return storage_bytes(_with_frame_indices(spaces), count) + _frame_capacity(count) * frame_bytes


def frame_shape(obs: ObsSpec) -> tuple[int, ...]:
    """Shape of one frame: the observation's without its first axis, unless that axis is not a stack."""
    is_stack = len(obs.shape) == 4 or (
        len(obs.shape) == 3 and obs.shape[-1] >= obs.shape[0] != NUM_COLOURS
    )
    return obs.shape[1:] if is_stack else obs.shape


def _with_frame_indices(spaces: Spaces) -> Spaces:
    depth = prod(spaces.obs.shape) // prod(frame_shape(spaces.obs))
    return dataclasses.replace(spaces, obs=ObsSpec((depth,), "int32"))


def _frame_capacity(num_transitions: int) -> int:
    return num_transitions + num_transitions // ROWS_PER_SPARE_FRAME + 2 * NUM_COLOURS

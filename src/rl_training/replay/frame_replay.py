"""A replay of images that holds each picture once, however many observations show it."""

from __future__ import annotations

import dataclasses
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.replay.replay_buffer import ReplayBuffer
from rl_training.replay.segments import Segment, rows_per_segment
from rl_training.replay.transitions import Array, as_index, copy_rows, storage_bytes
from rl_training.spaces.observations import ObsSpec
from rl_training.spaces.spec import Spaces

NUM_COLOURS = 3
ROWS_PER_SPARE_FRAME = 16
"""Each episode has one picture more than it has steps; shorter ones than this make the store grow."""


class FrameReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` whose rows hold, for each observation, the places of its pictures in a store of frames.

    A frame is stored anew unless it equals, byte for byte, the one that is expected there: an observation is the one
    that followed last, the next one is the same stack moved on by one, and a new stack repeats its first frame. A
    place is free again when the last row that names it is overwritten. What is drawn is what a `ReplayBuffer` draws.
    """

    def __init__(self, spaces: Spaces, capacity: int, num_envs: int, **options: Any) -> None:
        super().__init__(_with_places(spaces), capacity, num_envs, **options)
        self._obs_shape = spaces.obs.shape
        num_rows = self.num_rows * num_envs
        self._set_frames(np.zeros((_num_frames(num_rows), *frame_shape(spaces.obs)), np.uint8))
        self._uses = np.zeros(len(self._frames), np.int64)
        self._free: list[int] = []
        """Places below `_num_used` that no row names, the next one to be taken last."""
        self._num_used = 0
        self._frames_per_segment = rows_per_segment(len(self._frames), self._frames[0].nbytes)
        self._frame_versions: list[int] = []

    @property
    def nbytes(self) -> int:
        """Memory of the rows and of all places for frames."""
        return super().nbytes + self._frames.nbytes + self._uses.nbytes

    def add(
        self, obs: Array, actions: Array, rewards: Array, next_obs: Array, terminated: Array, truncated: Array
    ) -> None:
        """Store one step of every environment."""
        row, places = self._position, self._storage["next_obs"]
        expected = places[row - 1] if self._rows_stored else np.full_like(places[0], -1)
        obs_places = self._store(obs, expected)
        next_places = self._store(next_obs, np.concatenate([obs_places[:, 1:], obs_places[:, -1:]], 1))
        named = np.concatenate([obs_places, next_places], None)
        released = self._names(slice(row, row + 1)) if self._rows_stored == self.num_rows else named[:0]
        np.add.at(self._uses, named, 1)
        np.subtract.at(self._uses, released, 1)
        self._free += [int(place) for place in np.unique(released)[::-1] if not self._uses[place]]
        super().add(obs_places, actions, rewards, next_places, terminated, truncated)

    def state_dict(self) -> dict[str, Any]:
        """That of the rows, and the frames in segments of their own."""
        state, size = super().state_dict(), self._frames_per_segment
        frames = [
            Segment(version, {"frames": self._frames[index * size : min((index + 1) * size, self._num_used)]})
            for index, version in enumerate(self._frame_versions)
        ]
        return {**state, "free": np.array(self._free, np.int64), "segments": [*state["segments"], *frames]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        segments = state.get("segments", ())
        super().load_state_dict({**state, "segments": [part for part in segments if "frames" not in part.arrays]})
        self._num_used, self._frame_versions = 0, []
        for segment in segments:
            if "frames" in segment.arrays:
                self._load_frames(segment)
        named = self._names(slice(0, self._rows_stored))
        if len(named) and not 0 <= named.min() <= named.max() < self._num_used:
            raise ValueError(f"the rows name frames that are not among the {self._num_used} that are stored")
        self._uses = np.bincount(named, minlength=len(self._frames))
        self._free = [as_index(place, self._num_used - 1) for place in np.asarray(state["free"]).tolist()]
        if sorted(self._free) != np.flatnonzero(self._uses[: self._num_used] == 0).tolist():
            raise ValueError("the free places are not those that no row names")

    def _take(self, field: Tensor, index: Tensor) -> Tensor:
        if field is not self._flat["obs"] and field is not self._flat["next_obs"]:
            return super()._take(field, index)
        places = field.index_select(0, index).view(-1)
        return self._frame_tensor.index_select(0, places).view(-1, *self._obs_shape).to(self._device)

    def _store(self, obs: Array, expected: Array) -> Array:
        """The places [envs, frames] of the pictures of observations, each at the expected one if it is there."""
        stacks = obs.reshape(*expected.shape, -1)
        stored = self._frames.reshape(len(self._frames), -1)
        is_new = (stored[expected] != stacks).any(-1) | (expected < 0)
        places = expected.copy()
        for env, depth in np.argwhere(is_new):
            if depth and np.array_equal(stacks[env, depth], stacks[env, depth - 1]):
                places[env, depth] = places[env, depth - 1]
            else:
                places[env, depth] = self._store_frame(stacks[env, depth])
        return places

    def _store_frame(self, frame: Array) -> int:
        if self._free:
            place = self._free.pop()
        else:
            place, self._num_used = self._num_used, self._num_used + 1
            self._make_room(self._num_used)
        self._frames[place] = frame.reshape(self._frames.shape[1:])
        self._writes += 1
        segment = place // self._frames_per_segment
        self._frame_versions[segment : segment + 1] = [self._writes]
        return place

    def _make_room(self, count: int) -> None:
        if count <= len(self._frames):
            return
        larger = np.zeros((max(count, len(self._frames) * 3 // 2), *self._frames.shape[1:]), np.uint8)
        larger[: len(self._frames)] = self._frames
        self._set_frames(larger)
        self._uses = np.concatenate([self._uses, np.zeros(len(larger) - len(self._uses), np.int64)])

    def _set_frames(self, frames: Array) -> None:
        self._frames, self._frame_tensor = frames, torch.from_numpy(frames)

    def _load_frames(self, segment: Segment) -> None:
        saved, start = segment.arrays["frames"], self._num_used
        self._num_used += len(saved)
        self._make_room(self._num_used)
        copy_rows("frames", saved, self._frames[start : self._num_used])
        last = (self._num_used - 1) // self._frames_per_segment
        while len(self._frame_versions) <= last:  # of another size where the segments were made otherwise
            self._frame_versions.append(0)
        if start % self._frames_per_segment == 0 and len(saved) <= self._frames_per_segment:
            self._frame_versions[last] = segment.version

    def _names(self, rows: slice) -> Array:
        """Every place that these rows name, as often as they do."""
        return np.concatenate([self._storage["obs"][rows], self._storage["next_obs"][rows]], None)


def holds_frames(obs: ObsSpec) -> bool:
    """Whether such observations are stored frame by frame: images that are not part of something else."""
    return bool(obs.image_shapes) and not obs.parts


def replay_class(spaces: Spaces) -> type[ReplayBuffer]:
    """The kind of buffer for such observations."""
    return FrameReplayBuffer if holds_frames(spaces.obs) else ReplayBuffer


def replay_bytes(spaces: Spaces, count: int) -> int:
    """Memory that a replay of `count` transitions takes, where stacks of frames move on by one."""
    if not holds_frames(spaces.obs):
        return storage_bytes(spaces, count)
    return storage_bytes(_with_places(spaces), count) + _num_frames(count) * (prod(frame_shape(spaces.obs)) + 8)


def frame_shape(obs: ObsSpec) -> tuple[int, ...]:
    """What moves through a stack of images: what stands behind its first axis, unless that is one of colours."""
    is_stack = len(obs.shape) == 4 or (len(obs.shape) == 3 and obs.shape[-1] >= obs.shape[0] != NUM_COLOURS)
    return obs.shape[1:] if is_stack else obs.shape


def _with_places(spaces: Spaces) -> Spaces:
    depth = prod(spaces.obs.shape) // prod(frame_shape(spaces.obs))
    return dataclasses.replace(spaces, obs=ObsSpec((depth,), "int32"))


def _num_frames(num_transitions: int) -> int:
    return num_transitions + num_transitions // ROWS_PER_SPARE_FRAME + 2 * NUM_COLOURS

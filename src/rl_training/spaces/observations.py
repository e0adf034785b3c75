"""The stored form of an observation: one array for every space, so that buffers and files need not know the space.

A Box keeps its shape and a Discrete is an integer. Dict and Tuple become one float32 row with categories one-hot
encoded, as in `gymnasium.spaces.flatten`. With images among them, the row is uint8: the bytes of the float32 numbers
first, then the images' bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from rl_training.spaces.given import Array, LeafPath, ObsLeaf, read_parts

FLOAT_BYTES = 4
MIN_IMAGE_SIDE = 36
"""Smaller images would be reduced to nothing by the convolutions, and are read as vectors."""


@dataclass(frozen=True)
class ObsSpec:
    """The stored form of an observation: shape, dtype, and the number of categories of a Discrete."""

    shape: tuple[int, ...]
    dtype: str
    num_categories: int | None = None
    leaves: tuple[ObsLeaf, ...] = ()
    """Leaves of a Dict or Tuple, images last; empty for other spaces."""

    @property
    def num_features(self) -> int:
        """Length of the flat (or one-hot encoded) observation, without images."""
        return sum(part.width for part in self.parts if not part.is_image)

    @property
    def image_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of its images, in stored order."""
        return tuple(part.shape for part in self.parts if part.is_image)

    def as_stored(self, obs: Any) -> Array:
        """Stored form [B, *shape] of a batch of the environment's observations."""
        if not self.leaves:
            return np.asarray(obs).astype(self.dtype, copy=False)
        rows = [leaf.row(obs) for leaf in self.leaves if not leaf.is_image]
        if self.dtype == "float32":
            return np.hstack(rows)
        numbers = [np.hstack(rows).view(np.uint8)] if rows else []
        return np.hstack([*numbers, *(leaf.row(obs) for leaf in self.leaves if leaf.is_image)])

    def one_as_stored(self, obs: Any) -> Array:
        """Stored form [*shape] of one observation of the environment."""
        stored: Array = self.as_stored(self.as_batch(obs))[0]
        return stored

    def as_batch(self, obs: Any) -> Any:
        """One observation of the environment as a batch of one."""
        return _as_batch(obs) if self.leaves else np.asarray(obs)[None]

    @property
    def parts(self) -> tuple[ObsLeaf, ...]:
        """The arrays of an observation: its leaves, or the observation as the only one."""
        if self.leaves:
            return self.leaves
        if self.num_categories is not None:
            return (ObsLeaf((), (), choices=(self.num_categories,), start=(0,)),)
        return (array_leaf((), self.shape, is_bytes=self.dtype == "uint8"),)

    def read(self, obs: Any) -> tuple[Any, bool]:
        """Observation or batch given by a user, as a batch for `as_stored`, and whether it was a batch.

        Raises an `EnvError` if it cannot be of the observation space.
        """
        arrays, is_batch = read_parts(obs, self.parts)
        return self.nested(arrays), is_batch

    def nested(self, arrays: Sequence[Array]) -> Any:
        """The parts of a batch as a batch for `as_stored`; Tuples become dictionaries with whole keys."""
        if not self.parts[0].path:
            return arrays[0]
        batch: dict[str | int, Any] = {}
        for leaf, array in zip(self.leaves, arrays, strict=True):
            inner = batch
            for key in leaf.path[:-1]:
                inner = inner.setdefault(key, {})
            inner[leaf.path[-1]] = array
        return batch

    def numbers(self, rows: Array) -> Array:
        """The float numbers in stored rows, [..., numbers], which could be NaN."""
        if self.leaves and self.dtype == "uint8":
            rows = rows[..., : FLOAT_BYTES * self.num_features].view(np.float32)
        return rows

    def leaf_columns(self) -> Iterator[tuple[ObsLeaf, slice]]:
        """Each leaf of a Dict or Tuple with its columns: of an image in the stored row, of others in its numbers."""
        starts = {False: 0, True: FLOAT_BYTES * self.num_features}
        for leaf in self.leaves:
            start = starts[leaf.is_image]
            starts[leaf.is_image] += leaf.width
            yield leaf, slice(start, start + leaf.width)

    def columns(self, name: str) -> slice:
        """Columns of a leaf in the stored row of a Dict without images."""
        return next(columns for leaf, columns in self.leaf_columns() if leaf.path == (name,))

    def state_dict(self) -> dict[str, Any]:
        """All fields, JSON-compatible."""
        state = {"shape": self.shape, "dtype": self.dtype, "num_categories": self.num_categories}
        return (
            {**state, "leaves": [dict(vars(leaf)) for leaf in self.leaves]}
            if self.leaves
            else state
        )

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> ObsSpec:
        """Rebuild what `state_dict` wrote, or raise a `ValueError`."""
        leaves = []
        for saved in state.get("leaves", ()):
            lists = {name: tuple(saved[name]) for name in ("path", "shape", "choices", "start")}
            leaves.append(ObsLeaf(**{**saved, **lists}))
        spec = cls(**{**state, "shape": tuple(state["shape"]), "leaves": tuple(leaves)})
        spec._check()
        return spec

    def _check(self) -> None:
        """Raise a `ValueError` unless `describe_observation` can return this."""
        check_sizes(self.shape)
        dtypes: tuple[str, ...] = ("float32", "uint8")
        if self.num_categories is not None:
            check_sizes([self.num_categories])
            dtypes = ("int64",)
        if self.dtype not in dtypes:
            raise ValueError(f"observations cannot be of type {self.dtype!r:.100}")
        for leaf in self.leaves:
            _check_leaf(leaf)
        if self.leaves and (self.shape, self.dtype) != stored_as(self.leaves):
            raise ValueError("shape and dtype do not match the leaves")


def _check_leaf(leaf: ObsLeaf) -> None:
    """Raise a `ValueError` unless `describe_observation` can return an observation with this leaf."""
    check_sizes(leaf.shape)
    check_sizes(leaf.choices)
    if type(leaf.is_image) is not bool:
        raise ValueError("is_image of a leaf is not true or false")
    if type(leaf.scale) is not float or not 0.0 < leaf.scale <= 1.0:
        raise ValueError("the scale of a leaf is not a float above 0 and at most 1")
    if any(type(first) is not int for first in leaf.start):
        raise ValueError("the first category of a leaf is not an integer")
    if leaf.is_image and not is_image_shape(leaf.shape):
        raise ValueError("a leaf is marked as an image, but its shape is not an image's")
    if any(type(key) not in (str, int) for key in leaf.path):
        raise ValueError("a key in the path of a leaf is not a string or an integer")
    if len(leaf.choices) not in (0, prod(leaf.shape)) or len(leaf.choices) != len(leaf.start):
        raise ValueError("a leaf needs one number of categories and one start per component")


def check_sizes(sizes: Iterable[Any]) -> None:
    """Raise a `ValueError` unless all are positive integers."""
    for number in sizes:
        if type(number) is not int or number < 1:
            raise ValueError(f"{number!r:.100} is not a size of a space")


def array_leaf(path: LeafPath, shape: tuple[int, ...], *, is_bytes: bool) -> ObsLeaf:
    """The leaf of a Box: bytes are an image, or numbers that are scaled to [0, 1]."""
    is_image = is_bytes and is_image_shape(shape)
    return ObsLeaf(path, shape, is_image, 1 / 255 if is_bytes and not is_image else 1.0)


def is_image_shape(shape: tuple[int, ...]) -> bool:
    """Whether bytes of this shape are an image for a CNN: [H, W], with channels first or last, or a stack of such."""
    return len(shape) in (2, 3, 4) and min(plane_shape(shape)) >= MIN_IMAGE_SIDE


def plane_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Height and width of an image of this shape."""
    image = shape[-3:]
    has_channels_last = len(image) == 3 and image[-1] < image[0]
    if has_channels_last:
        image = image[:2]
    return image[-2], image[-1]


def stored_as(leaves: tuple[ObsLeaf, ...]) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of the stored row of these leaves."""
    num_pixels = sum(leaf.width for leaf in leaves if leaf.is_image)
    num_numbers = sum(leaf.width for leaf in leaves if not leaf.is_image)
    if num_pixels:
        return (FLOAT_BYTES * num_numbers + num_pixels,), "uint8"
    return (num_numbers,), "float32"


def _as_batch(obs: Any) -> Any:
    if isinstance(obs, dict):
        return {key: _as_batch(value) for key, value in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_as_batch(value) for value in obs)
    return np.asarray(obs)[None]

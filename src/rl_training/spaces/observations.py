"""How an observation is stored: as one array, whatever its space, so that buffers and files need not know more.

A Box keeps its shape and a Discrete is a number. Dict and Tuple become one row of float32, each category as a row of
zeros with a one in it, as `gymnasium.spaces.flatten` has it. Where there are images among them, the row is one of
bytes: those of the float32 numbers first, then those of the images.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import Space
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from rl_training.errors import EnvError

Array = npt.NDArray[Any]
Path = tuple[str | int, ...]
FLOAT_BYTES = 4
MIN_IMAGE_SIDE = 36
"""Smaller pictures leave nothing behind the convolutions, and are read as vectors."""


@dataclass(frozen=True)
class ObsLeaf:
    """One leaf of a Dict or Tuple: where it is found, and what it is stored as."""

    path: Path
    shape: tuple[int, ...]
    is_image: bool = False
    scale: float = 1.0
    """What its numbers are multiplied with."""
    choices: tuple[int, ...] = ()
    """Number of options of each component, where it holds categories."""
    start: tuple[int, ...] = ()
    """First option of each."""

    @property
    def width(self) -> int:
        """Numbers in its stored row."""
        return sum(self.choices) or prod(self.shape)

    def find(self, obs: Any) -> Any:
        """The leaf itself."""
        for key in self.path:
            obs = obs[key]
        return obs

    def row(self, obs: Any) -> Array:
        """Its part of a batch of observations, [B, width]."""
        values = np.asarray(self.find(obs))
        rows = values.reshape(len(values), prod(self.shape))
        if self.is_image:
            return rows
        if not self.choices:
            return rows.astype(np.float32) if self.scale == 1.0 else rows.astype(np.float32) * np.float32(self.scale)
        columns = zip((rows - np.asarray(self.start)).T, self.choices, strict=True)
        return np.hstack([column[:, None] == np.arange(count) for column, count in columns]).astype(np.float32)


@dataclass(frozen=True)
class ObsSpec:
    """One observation as it is stored: its shape, its dtype, and for a category how many there are."""

    shape: tuple[int, ...]
    dtype: str
    num_categories: int | None = None
    parts: tuple[ObsLeaf, ...] = ()
    """What a Dict or Tuple is made of, images last; none for other spaces."""

    @property
    def num_features(self) -> int:
        """Numbers that a network reads once the observation is flat (or one-hot coded), images aside."""
        if self.parts:
            return sum(part.width for part in self.parts if not part.is_image)
        return 0 if self.image_shapes else self.num_categories or prod(self.shape)

    @property
    def image_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the images in it, in the order in which they are stored."""
        if self.parts:
            return tuple(part.shape for part in self.parts if part.is_image)
        return (self.shape,) if self.dtype == "uint8" and is_image_shape(self.shape) else ()

    def as_stored(self, obs: Any) -> Array:
        """A batch of the environment's observations as [B, *shape]."""
        if not self.parts:
            return np.asarray(obs).astype(self.dtype, copy=False)
        rows = [part.row(obs) for part in self.parts if not part.is_image]
        if self.dtype == "float32":
            return np.hstack(rows)
        numbers = [np.hstack(rows).view(np.uint8)] if rows else []
        return np.hstack([*numbers, *(part.row(obs) for part in self.parts if part.is_image)])

    def one_as_stored(self, obs: Any) -> Array:
        """One of the environment's observations as [*shape]."""
        stored: Array = self.as_stored(self.as_batch(obs))[0]
        return stored

    def as_batch(self, obs: Any) -> Any:
        """One of the environment's observations as a batch of one."""
        return _as_batch(obs) if self.parts else np.asarray(obs)[None]

    def is_batch(self, obs: Any) -> bool:
        """Whether `obs` is a batch and not a single observation; an `EnvError` if it is neither."""
        answers: set[bool] = set()
        for part in self.parts or (ObsLeaf((), self.shape),):
            name = "/".join(map(str, part.path))
            try:
                shape = np.shape(part.find(obs))
            except (KeyError, IndexError, TypeError):
                raise EnvError(f"the observation has no part '{name}'") from None
            if shape != part.shape and (not shape or shape[1:] != part.shape):
                what = f"part '{name}' of the observation has shape" if name else "observation of shape"
                raise EnvError(f"{what} {shape} does not fit: expected {part.shape}, or {('batch', *part.shape)}")
            answers.add(shape != part.shape)
        if len(answers) > 1:
            raise EnvError("some parts of the observation are a batch and others are not")
        return answers.pop()

    def numbers(self, rows: Array) -> Array:
        """The numbers in stored rows that could be NaN, [..., numbers]."""
        if self.parts and self.dtype == "uint8":
            rows = rows[..., : FLOAT_BYTES * self.num_features].view(np.float32)
        return rows

    def columns(self, name: str) -> slice:
        """Where a part of a Dict without images stands in the stored row."""
        start = 0
        for part in self.parts:
            if part.path == (name,):
                return slice(start, start + part.width)
            start += part.width
        raise KeyError(name)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to store observations later without the environment."""
        state = {"shape": self.shape, "dtype": self.dtype, "num_categories": self.num_categories}
        return {**state, "parts": [dict(vars(part)) for part in self.parts]} if self.parts else state

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> ObsSpec:
        """Rebuild what `state_dict` wrote, or raise a `ValueError`."""
        parts = []
        for saved in state.get("parts", ()):
            lists = {name: tuple(saved[name]) for name in ("path", "shape", "choices", "start")}
            parts.append(ObsLeaf(**{**saved, **lists}))
        spec = cls(**{**state, "shape": tuple(state["shape"]), "parts": tuple(parts)})
        spec._check()
        return spec

    def _check(self) -> None:
        """Raise a `ValueError` unless `describe_observation` could have made this."""
        sizes = [*self.shape, *([] if self.num_categories is None else [self.num_categories])]
        sizes += [size for part in self.parts for size in (*part.shape, *part.choices)]
        check_sizes(sizes)
        if self.dtype not in (("float32", "uint8") if self.num_categories is None else ("int64",)):
            raise ValueError(f"observations cannot be of type {self.dtype!r:.100}")
        if not self.parts:
            return
        if any(part.is_image is not True and part.is_image is not False for part in self.parts):
            raise ValueError("a part of the observation neither is an image nor is none")
        if any(type(part.scale) is not float or not 0.0 < part.scale <= 1.0 for part in self.parts):
            raise ValueError("a part of the observation has no scale from 0 to 1")
        if any(type(first) is not int for part in self.parts for first in part.start):
            raise ValueError("a category of the observation does not begin at a number")
        if any(part.is_image and not is_image_shape(part.shape) for part in self.parts):
            raise ValueError("an image of the observation has no shape of an image")
        if not all(type(key) in (str, int) for part in self.parts for key in part.path):
            raise ValueError("a part of the observation has no name")
        if any(len(part.choices) not in (0, prod(part.shape)) for part in self.parts) or any(
            len(part.choices) != len(part.start) for part in self.parts
        ):
            raise ValueError("the categories of the observation are not of its shape")
        if (self.shape, self.dtype) != stored_as(self.parts):
            raise ValueError("the parts of the observation do not make up its shape")


def check_sizes(sizes: Iterable[Any]) -> None:
    """Raise a `ValueError` if one of them is no size of a space."""
    for number in sizes:
        if type(number) is not int or number < 1:
            raise ValueError(f"{number!r:.100} is not a size of a space")


def is_image_shape(shape: tuple[int, ...]) -> bool:
    """Whether bytes of this shape are read by convolutions: [H, W], with channels first or last, or a stack of such."""
    return len(shape) in (2, 3, 4) and min(plane_shape(shape)) >= MIN_IMAGE_SIDE


def plane_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Height and width of an image of this shape."""
    image = shape[-3:]
    height, width = image[:2] if len(image) == 3 and image[-1] < image[0] else image[-2:]
    return height, width


def stored_as(parts: tuple[ObsLeaf, ...]) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of the row that parts make up."""
    num_pixels = sum(part.width for part in parts if part.is_image)
    num_numbers = sum(part.width for part in parts if not part.is_image)
    return ((FLOAT_BYTES * num_numbers + num_pixels,), "uint8") if num_pixels else ((num_numbers,), "float32")


def describe_observation(space: Space[Any]) -> ObsSpec:
    """Read an observation space, or raise an `EnvError` that says what is supported."""
    if isinstance(space, Discrete):
        if space.start != 0:
            raise EnvError(
                f"observation space {space} starts at {space.start}; only Discrete spaces from 0 are supported"
            )
        return ObsSpec((), "int64", int(space.n))
    if isinstance(space, Box):
        return ObsSpec(tuple(space.shape), "uint8" if space.dtype == np.uint8 else "float32")
    if isinstance(space, MultiBinary):
        return ObsSpec(tuple(space.shape), "float32")
    parts = tuple(sorted(leaves(space), key=lambda part: part.is_image))
    if not parts:
        raise EnvError(f"observation space {space} is empty")
    return ObsSpec(*stored_as(parts), parts=parts)


def leaves(space: Space[Any], path: Path = ()) -> Iterator[ObsLeaf]:
    """Every part of a Dict or Tuple, in the order that the space has them."""
    if isinstance(space, Dict):
        for key, inner in space.spaces.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(space, Tuple):
        for index, inner in enumerate(space.spaces):
            yield from leaves(inner, (*path, index))
    elif isinstance(space, Box):
        is_bytes = space.dtype == np.uint8
        is_image = is_bytes and is_image_shape(space.shape)
        yield ObsLeaf(path, tuple(space.shape), is_image, 1 / 255 if is_bytes and not is_image else 1.0)
    elif isinstance(space, MultiBinary):
        yield ObsLeaf(path, tuple(space.shape))
    elif isinstance(space, Discrete):
        yield ObsLeaf(path, (), choices=(int(space.n),), start=(int(space.start),))
    elif isinstance(space, MultiDiscrete):
        choices, start = (tuple(int(n) for n in array.reshape(-1)) for array in (space.nvec, space.start))
        yield ObsLeaf(path, tuple(space.shape), choices=choices, start=start)
    else:
        raise EnvError(
            f"observation space {space} is not supported: use Box, Discrete, MultiDiscrete, MultiBinary, or Dict and"
            " Tuple of these"
        )


def _as_batch(obs: Any) -> Any:
    if isinstance(obs, dict):
        return {key: _as_batch(value) for key, value in obs.items()}
    return tuple(_as_batch(value) for value in obs) if isinstance(obs, tuple) else np.asarray(obs)[None]

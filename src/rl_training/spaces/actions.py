"""Action spaces: kind, shape, and conversion between model space and environment space.

Model space is what networks, buffers and losses see: continuous actions are flat vectors in [-1, 1] when the
space is bounded, discrete actions count from 0. Environment space is what `env.step` takes.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np

from rl_training.spaces.given import Array


def _nothing() -> Array:
    return np.zeros(0)


class ActionKind(enum.Enum):
    """Kind of an action space."""

    DISCRETE = "discrete"
    MULTI_DISCRETE = "multi_discrete"
    CONTINUOUS = "continuous"


@dataclass(frozen=True, eq=False)
class ActionSpec:
    """An action space: its kind, and the conversion between model space and environment space."""

    kind: ActionKind
    shape: tuple[int, ...]
    dtype: str
    choices: tuple[int, ...] = ()
    """Number of options of each discrete component; empty for Box."""
    start: Array = field(default_factory=_nothing)
    """First option of each discrete component."""
    low: Array = field(default_factory=_nothing)
    high: Array = field(default_factory=_nothing)
    """Bounds of each continuous component."""

    @property
    def num_components(self) -> int:
        """Length of an action in model space (1 for a plain Discrete)."""
        return prod(self.shape)

    @property
    def num_options(self) -> int:
        """Length of an action mask: the options of all discrete components, one after the other."""
        return sum(self.choices)

    @cached_property
    def is_bounded(self) -> bool:
        """Whether every component has two finite bounds, onto which [-1, 1] is mapped."""
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())

    @cached_property
    def random_range(self) -> tuple[Array, Array]:
        """Center and half width of the range of random model actions, float32 [A].

        The range is [-1, 1], unless some bounds are finite and others infinite: then it is the finite range of a
        component, or a range of length 2 at its finite bound.
        """
        center = np.zeros(self.num_components, np.float32)
        half_width = np.ones_like(center)
        if self.is_bounded:
            return center, half_width
        low, high = self.low.reshape(-1), self.high.reshape(-1)
        has_low, has_high = np.isfinite(low), np.isfinite(high)
        center[has_low], center[has_high] = low[has_low] + 1.0, high[has_high] - 1.0
        both = has_low & has_high
        low, high = low[both], high[both]
        center[both], half_width[both] = (low + high) / 2.0, (high - low) / 2.0
        return center, half_width

    @property
    def model_shape(self) -> tuple[int, ...]:
        """Shape of one action in model space."""
        return () if self.kind is ActionKind.DISCRETE else (self.num_components,)

    @property
    def model_dtype(self) -> str:
        """Dtype of an action in model space."""
        return "float32" if self.kind is ActionKind.CONTINUOUS else "int64"

    def to_env(self, actions: Array) -> Array:
        """Turn a batch of model actions [B, ...] into a batch that `env.step` takes."""
        shaped = actions.reshape(-1, *self.shape)
        if self.kind is not ActionKind.CONTINUOUS:
            return (shaped + self.start).astype(self.dtype, copy=False)
        if self.is_bounded:
            shaped = self.low + (shaped + 1.0) * 0.5 * (self.high - self.low)
        return np.clip(shaped, self.low, self.high).astype(self.dtype, copy=False)

    def to_model(self, actions: Array) -> Array:
        """Turn a batch of environment actions into model space (the inverse of `to_env`)."""
        batch = len(actions)
        if self.kind is not ActionKind.CONTINUOUS:
            counted = np.asarray(actions) - self.start
            return counted.reshape(batch, *self.model_shape).astype(np.int64)
        shaped = np.asarray(actions, dtype=np.float64)
        if self.is_bounded:
            span = np.where(self.high > self.low, self.high - self.low, 1.0)
            shaped = (shaped - self.low) / span * 2.0 - 1.0
        return shaped.reshape(batch, -1).astype(np.float32)

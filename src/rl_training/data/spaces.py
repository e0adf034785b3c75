"""What an algorithm must know of an environment's spaces, and the one place where actions change scale.

Model space is what networks, buffers and losses see: continuous actions are flat vectors in [-1, 1] when the
space is bounded, discrete actions count from 0. Environment space is what `env.step` takes.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, fields
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from torch import Tensor

from rl_training.data.observations import Array, ObsSpec, check_sizes, describe_observation
from rl_training.errors import EnvError


def _nothing() -> Array:
    return np.zeros(0)


class ActionKind(enum.Enum):
    """How an action is chosen."""

    DISCRETE = "discrete"
    MULTI_DISCRETE = "multi_discrete"
    CONTINUOUS = "continuous"


@dataclass(frozen=True, eq=False)
class ActionSpec:
    """One action: its kind, its size in model space, and the way to and from the environment's space."""

    kind: ActionKind
    shape: tuple[int, ...]
    dtype: str
    choices: tuple[int, ...] = ()
    """Number of options of each discrete component."""
    start: Array = field(default_factory=_nothing)
    """First option of each discrete component."""
    low: Array = field(default_factory=_nothing)
    high: Array = field(default_factory=_nothing)
    """Bounds of each continuous component."""

    @property
    def num_components(self) -> int:
        """Length of an action in model space (1 for a plain Discrete)."""
        return prod(self.shape)

    @cached_property
    def is_bounded(self) -> bool:
        """True if every component has two finite bounds, so that [-1, 1] can be mapped onto it."""
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())

    @cached_property
    def random_range(self) -> tuple[Array, Array]:
        """Center and half width of uniformly random model actions, float32 [A].

        It is [-1, 1], except where some bound is infinite and another is not: there it is the finite range, or a range
        of length 2 beside the finite bound.
        """
        center, half_width = np.zeros(self.num_components, np.float32), np.ones(self.num_components, np.float32)
        if self.is_bounded:
            return center, half_width
        low, high = self.low.reshape(-1), self.high.reshape(-1)
        has_low, has_high = np.isfinite(low), np.isfinite(high)
        center[has_low], center[has_high] = low[has_low] + 1.0, high[has_high] - 1.0
        both = has_low & has_high
        center[both], half_width[both] = (low[both] + high[both]) / 2.0, (high[both] - low[both]) / 2.0
        return center, half_width

    @property
    def model_shape(self) -> tuple[int, ...]:
        """Shape of one action in model space."""
        return () if self.kind is ActionKind.DISCRETE else (self.num_components,)

    @property
    def model_dtype(self) -> str:
        """Dtype of an action in model space."""
        return "float32" if self.kind is ActionKind.CONTINUOUS else "int64"

    def executed(self, actions: Tensor) -> Tensor:
        """The model actions [B, ...] that the environment executes: continuous ones moved onto their bounds.

        `to_env` gives the same action for `executed(actions)` as for `actions`.
        """
        if self.kind is not ActionKind.CONTINUOUS:
            return actions
        if self.is_bounded:
            return actions.clamp(-1.0, 1.0)
        low, high = (torch.from_numpy(bound.reshape(-1)).to(actions) for bound in (self.low, self.high))
        return actions.clamp(low, high)

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
            return (np.asarray(actions) - self.start).reshape(batch, *self.model_shape).astype(np.int64)
        shaped = np.asarray(actions, dtype=np.float64)
        if self.is_bounded:
            span = np.where(self.high > self.low, self.high - self.low, 1.0)
            shaped = (shaped - self.low) / span * 2.0 - 1.0
        return shaped.reshape(batch, -1).astype(np.float32)


@dataclass(frozen=True)
class Spaces:
    """The observation and the action of one environment."""

    obs: ObsSpec
    action: ActionSpec

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to act later without the environment."""
        action = {item.name: getattr(self.action, item.name) for item in fields(self.action)}
        return {"obs": self.obs.state_dict(), "action": {**action, "kind": self.action.kind.value}}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Spaces:
        """Rebuild what `state_dict` wrote."""
        action = dict(state["action"])
        action.update(kind=ActionKind(action["kind"]), shape=tuple(action["shape"]), choices=tuple(action["choices"]))
        spaces = cls(ObsSpec.from_state_dict(state["obs"]), ActionSpec(**action))
        spaces._check_action()
        return spaces

    def equals(self, other: Spaces) -> bool:
        """Whether observations and actions mean the same in both."""
        mine, its = self.state_dict(), other.state_dict()
        return mine["obs"] == its["obs"] and all(
            np.array_equal(value, its["action"][name]) for name, value in mine["action"].items()
        )

    def _check_action(self) -> None:
        """Raise a `ValueError` unless `describe_spaces` could have made the action."""
        action = self.action
        check_sizes((*action.shape, *action.choices))
        is_continuous = action.kind is ActionKind.CONTINUOUS
        if np.dtype(action.dtype).kind not in ("f" if is_continuous else "iu"):
            raise ValueError(f"actions cannot be of type {action.dtype!r:.100}")
        arrays = (action.low, action.high) if is_continuous else (action.start,)
        if any(not isinstance(array, np.ndarray) or array.shape != action.shape for array in arrays):
            raise ValueError("the bounds of the actions are not of their shape")
        if len(action.choices) != (0 if is_continuous else action.num_components):
            raise ValueError("the choices of the actions are not of their shape")


def describe_spaces(observation_space: Space[Any], action_space: Space[Any]) -> Spaces:
    """Read the two spaces of an environment, or raise an `EnvError` that says what is supported."""
    return Spaces(describe_observation(observation_space), _describe_action(action_space))


def require_bounded_box(spaces: Spaces, algorithm: str, alternatives: str) -> None:
    """Raise an `EnvError` unless [-1, 1] can be mapped onto every component of an action."""
    action = spaces.action
    if action.kind is not ActionKind.CONTINUOUS:
        raise EnvError(f"{algorithm} needs a Box action space; for Discrete actions use {alternatives}")
    if not action.is_bounded:
        raise EnvError(
            f"{algorithm} needs a Box action space with finite bounds, not from {action.low} to {action.high}:"
            " gymnasium.wrappers.TransformAction can give it some"
        )


def require_vectors(spaces: Spaces, algorithm: str, alternatives: str) -> None:
    """Raise an `EnvError` if there are images to read."""
    if spaces.obs.image_shapes:
        raise EnvError(f"{algorithm} reads vectors, not images; for images use {alternatives}")


def _describe_action(space: Space[Any]) -> ActionSpec:
    if isinstance(space, Discrete):
        start = np.asarray(int(space.start))
        return ActionSpec(ActionKind.DISCRETE, (), str(space.dtype), (int(space.n),), start)
    if isinstance(space, MultiDiscrete):
        choices = tuple(int(n) for n in space.nvec.reshape(-1))
        start = np.asarray(space.start, dtype=np.int64)
        return ActionSpec(ActionKind.MULTI_DISCRETE, tuple(space.shape), str(space.dtype), choices, start)
    if isinstance(space, MultiBinary):
        choices, start = (2,) * prod(space.shape), np.zeros(space.shape, np.int64)
        return ActionSpec(ActionKind.MULTI_DISCRETE, tuple(space.shape), str(space.dtype), choices, start)
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating):
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        return ActionSpec(ActionKind.CONTINUOUS, tuple(space.shape), str(space.dtype), low=low, high=high)
    raise EnvError(
        f"action space {space} is not supported: use Discrete, MultiDiscrete, MultiBinary or a Box of floats"
    )

"""What an algorithm must know of an environment's spaces, and the one place where actions change scale.

Model space is what networks, buffers and losses see: continuous actions are flat vectors in [-1, 1] when the
space is bounded, discrete actions count from 0. Environment space is what `env.step` takes.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import Space
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from rl_training.errors import EnvError

Array = npt.NDArray[Any]


def _nothing() -> Array:
    return np.zeros(0)


class ActionKind(enum.Enum):
    """How an action is chosen."""

    DISCRETE = "discrete"
    MULTI_DISCRETE = "multi_discrete"
    CONTINUOUS = "continuous"


@dataclass(frozen=True)
class ObsSpec:
    """One observation as it is stored: its shape, its dtype, and for a category how many there are."""

    shape: tuple[int, ...]
    dtype: str
    num_categories: int | None = None

    @property
    def num_features(self) -> int:
        """Width of the observation once flattened (or one-hot coded) for a network."""
        return self.num_categories or prod(self.shape)


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

    @property
    def is_bounded(self) -> bool:
        """True if every component has two finite bounds, so that [-1, 1] can be mapped onto it."""
        return bool(np.isfinite(self.low).all() and np.isfinite(self.high).all())

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
        if self.kind is not ActionKind.CONTINUOUS:
            return (actions.reshape(-1, *self.shape) + self.start).astype(self.dtype, copy=False)
        shaped = actions.reshape(-1, *self.shape)
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
        action = self.action
        return {
            "obs": {
                "shape": list(self.obs.shape),
                "dtype": self.obs.dtype,
                "num_categories": self.obs.num_categories,
            },
            "action": {
                "kind": action.kind.value,
                "shape": list(action.shape),
                "dtype": action.dtype,
                "choices": list(action.choices),
                "start": action.start,
                "low": action.low,
                "high": action.high,
            },
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Spaces:
        """Rebuild what `state_dict` wrote."""
        obs, action = dict(state["obs"]), dict(state["action"])
        obs["shape"] = tuple(obs["shape"])
        action.update(kind=ActionKind(action["kind"]), shape=tuple(action["shape"]), choices=tuple(action["choices"]))
        spaces = cls(ObsSpec(**obs), ActionSpec(**action))
        spaces._check()
        return spaces

    def equals(self, other: Spaces) -> bool:
        """Whether observations and actions mean the same in both."""
        mine, its = self.state_dict(), other.state_dict()
        return mine["obs"] == its["obs"] and all(
            np.array_equal(value, its["action"][name]) for name, value in mine["action"].items()
        )

    def _check(self) -> None:
        """Raise a `ValueError` unless `describe_spaces` could have made this."""
        obs, action = self.obs, self.action
        categories = () if obs.num_categories is None else (obs.num_categories,)
        for number in (*obs.shape, *categories, *action.shape, *action.choices):
            if type(number) is not int or number < 1:
                raise ValueError(f"{number!r:.100} is not a size of a space")
        if obs.dtype not in (("float32", "uint8") if obs.num_categories is None else ("int64",)):
            raise ValueError(f"observations cannot be of type {obs.dtype!r:.100}")
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
    return Spaces(_describe_observation(observation_space), _describe_action(action_space))


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


def _describe_observation(space: Space[Any]) -> ObsSpec:
    if isinstance(space, Discrete):
        if space.start != 0:
            raise EnvError(
                f"observation space {space} starts at {space.start}; only Discrete spaces from 0 are supported"
            )
        return ObsSpec((), "int64", int(space.n))
    if isinstance(space, Box):
        return ObsSpec(tuple(space.shape), "uint8" if space.dtype == np.uint8 else "float32")
    raise EnvError(
        f"observation space {space} is not supported: use Box or Discrete"
        " (gymnasium.wrappers.FlattenObservation turns Dict and Tuple into a Box)"
    )


def _describe_action(space: Space[Any]) -> ActionSpec:
    if isinstance(space, Discrete):
        start = np.asarray(int(space.start))
        return ActionSpec(ActionKind.DISCRETE, (), str(space.dtype), (int(space.n),), start)
    if isinstance(space, MultiDiscrete):
        choices = tuple(int(n) for n in space.nvec.reshape(-1))
        start = np.asarray(space.start, dtype=np.int64)
        return ActionSpec(ActionKind.MULTI_DISCRETE, tuple(space.shape), str(space.dtype), choices, start)
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating):
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        return ActionSpec(ActionKind.CONTINUOUS, tuple(space.shape), str(space.dtype), low=low, high=high)
    raise EnvError(f"action space {space} is not supported: use Discrete, MultiDiscrete or a Box of floats")

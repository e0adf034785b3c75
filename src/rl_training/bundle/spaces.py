"""Observation and action space of a bundle, read from `spaces.json`, and the observations given to its policy."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from rl_training.bundle.reading import MAX_CHOICES, MAX_RANK, Array, Settings, count
from rl_training.errors import BundleError
from rl_training.spaces.given import read_parts

OBS_DTYPES = ("float32", "uint8", "int64")
ACTION_DTYPES = {
    "continuous": ("float16", "float32", "float64"),
    "discrete": ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
}
MASK_KEY = "action_mask"
"""Key of the mask in a Dict observation."""
MASK_USES = ("none", "optional", "required")
MAX_LEAVES = 1024


@dataclass(frozen=True)
class Leaf:
    """One array of an observation: the whole observation, or a leaf of a Dict or Tuple."""

    path: tuple[str | int, ...]
    """Keys that lead to it; empty for an observation that is one array."""
    shape: tuple[int, ...]
    dtype: str
    """float32 for numbers, uint8 for bytes and images, int64 for categories."""
    choices: tuple[int, ...] = ()
    """Number of categories of each component; empty for numbers."""
    start: tuple[int, ...] = ()
    """First category of each component."""

    @property
    def name(self) -> str:
        """Its path as text, such as `arm/camera`; empty for the whole observation."""
        return "/".join(map(str, self.path))

    def find(self, obs: Any) -> Any:
        """The leaf in an observation."""
        for key in self.path:
            obs = obs[key]
        return obs


@dataclass(frozen=True, eq=False)
class ActionSpace:
    """The action space of the environment."""

    kind: str
    """`discrete` (also MultiDiscrete and MultiBinary) or `continuous`."""
    shape: tuple[int, ...]
    dtype: str
    choices: tuple[int, ...] = ()
    """Number of options of each discrete component."""
    start: Array | None = None
    """First option of each discrete component, in the shape of the action."""
    low: Array | None = None
    high: Array | None = None
    """Bounds of a continuous action; infinite where it has none."""

    @property
    def num_options(self) -> int:
        """Length of an action mask."""
        return sum(self.choices)


@dataclass(frozen=True, eq=False)
class BundleSpaces:
    """What the policy reads and what it returns."""

    observation: tuple[Leaf, ...]
    action: ActionSpace
    mask_use: str
    """Whether action masks are `required`, `optional` or not obeyed (`none`)."""
    state_size: int = 0
    """Length of the policy state; 0 for a policy without memory."""

    def as_batch(self, obs: Any) -> tuple[list[Array], bool]:
        """The leaves of an observation or a batch, each [B, *shape], and whether it was a batch."""
        return read_parts(obs, self.observation)

    def mask_in(self, obs: Any) -> Any | None:
        """The mask that a Dict observation holds under `action_mask`; None if it holds none."""
        return obs[MASK_KEY] if any(leaf.path == (MASK_KEY,) for leaf in self.observation) else None


def parse_spaces(values: dict[str, Any]) -> BundleSpaces:
    """Read `spaces.json`."""
    settings = Settings(values, "spaces.json")
    leaves = settings.any("observation")
    if not isinstance(leaves, list) or not 0 < len(leaves) <= MAX_LEAVES:
        raise settings.fault("observation", f"a list of at most {MAX_LEAVES:,} parts")
    observation = tuple(_parse_leaf(leaf, f"spaces.json, observation {index}") for index, leaf in enumerate(leaves))
    if len({leaf.path for leaf in observation}) < len(observation) or (
        len(observation) > 1 and any(not leaf.path for leaf in observation)
    ):
        raise BundleError("spaces.json: the parts of the observation do not have different paths")
    action = _parse_action(Settings(settings.any("action"), "spaces.json, action"))
    mask_use, state_size = settings.text("mask_use", MASK_USES), settings.whole("state_size", 0)
    if mask_use != "none" and not action.choices:
        raise settings.fault("mask_use", "none for continuous actions")
    settings.finish()
    return BundleSpaces(observation, action, mask_use, state_size)


def _parse_leaf(value: Any, where: str) -> Leaf:
    settings = Settings(value, where)
    path = settings.any("path")
    if not isinstance(path, list) or len(path) > MAX_RANK or any(type(key) not in (str, int) for key in path):
        raise settings.fault("path", f"a list of at most {MAX_RANK} strings and integers")
    shape, dtype = settings.sizes("shape"), settings.text("dtype", OBS_DTYPES)
    choices = settings.sizes("choices", most=MAX_CHOICES)
    start = settings.sizes("start", -(1 << 62), 1 << 62, MAX_CHOICES)
    if not len(choices) == len(start) == (count(shape) if dtype == "int64" else 0):
        raise settings.fault("choices", "one number for each category, and so should start")
    settings.finish()
    return Leaf(tuple(path), shape, dtype, choices, start)


def _parse_action(settings: Settings) -> ActionSpace:
    kind = settings.text("kind", tuple(ACTION_DTYPES))
    shape, dtype = settings.sizes("shape"), settings.text("dtype", ACTION_DTYPES[kind])
    size = count(shape)
    if kind == "continuous":
        low, high = (_parse_bounds(settings, key, shape, sign) for key, sign in (("low", -1.0), ("high", 1.0)))
        if (low > high).any():
            raise BundleError(f"{settings.where}: a lower bound is above the upper bound")
        action = ActionSpace(kind, shape, dtype, low=low, high=high)
    else:
        choices = settings.sizes("choices", most=MAX_CHOICES)
        start = settings.sizes("start", -(1 << 62), 1 << 62, MAX_CHOICES)
        if not len(choices) == len(start) == size:
            raise settings.fault("choices", f"{size} numbers, and so should start")
        action = ActionSpace(kind, shape, dtype, choices, np.asarray(start, np.int64).reshape(shape))
    settings.finish()
    return action


def _parse_bounds(settings: Settings, key: str, shape: tuple[int, ...], sign: float) -> Array:
    """Bounds as float64; null stands for no bound."""
    values = settings.any(key)
    if not isinstance(values, list) or len(values) != prod(shape):
        raise settings.fault(key, f"a list of {prod(shape)} numbers, null where there is no bound")
    if any(value is not None and type(value) not in (int, float) for value in values):
        raise settings.fault(key, "numbers, or null where there is no bound")
    bounds = np.asarray([sign * np.inf if value is None else value for value in values], np.float64)
    return bounds.reshape(shape)

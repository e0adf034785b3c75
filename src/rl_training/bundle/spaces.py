"""Observation and action space of a bundle, read from `spaces.json`, and the observations given to its policy."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from rl_training.bundle.reading import MAX_CHOICES, MAX_RANK, Array, Settings, count
from rl_training.errors import BundleError
from rl_training.spaces.actions import ActionKind, ActionSpec
from rl_training.spaces.given import ObsLeaf, read_parts

OBS_DTYPES = ("float32", "uint8", "int64")
ACTION_DTYPES = {
    "continuous": ("float16", "float32", "float64"),
    "discrete": ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
}
MASK_USES = ("none", "optional", "required")
MAX_LEAVES = 1024


@dataclass(frozen=True, eq=False)
class BundleSpaces:
    """What the policy reads and what it returns."""

    observation: tuple[ObsLeaf, ...]
    action: ActionSpec
    mask_use: str
    """Whether action masks are `required`, `optional` or not obeyed (`none`)."""
    state_size: int = 0
    """Length of the policy state; 0 for a policy without memory."""

    def as_batch(self, obs: Any) -> tuple[list[Array], bool]:
        """The leaves of an observation or a batch, each [B, *shape], and whether it was a batch."""
        return read_parts(obs, self.observation)


def parse_spaces(values: dict[str, Any]) -> BundleSpaces:
    """Read `spaces.json`."""
    settings = Settings(values, "spaces.json")
    leaves = settings.any("observation")
    if not isinstance(leaves, list) or not 0 < len(leaves) <= MAX_LEAVES:
        raise settings.fault("observation", f"a list of at most {MAX_LEAVES:,} parts")
    observation = tuple(
        _parse_leaf(leaf, f"spaces.json, observation {index}") for index, leaf in enumerate(leaves)
    )
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


def _parse_leaf(value: Any, where: str) -> ObsLeaf:
    settings = Settings(value, where)
    path = settings.any("path")
    if (
        not isinstance(path, list)
        or len(path) > MAX_RANK
        or any(type(key) not in (str, int) for key in path)
    ):
        raise settings.fault("path", f"a list of at most {MAX_RANK} strings and integers")
    shape, dtype = settings.sizes("shape"), settings.text("dtype", OBS_DTYPES)
    choices, start = (
        settings.sizes("choices", most=MAX_CHOICES),
        tuple(settings.starts("start").tolist()),
    )
    if not len(choices) == len(start) == (count(shape) if dtype == "int64" else 0):
        raise settings.fault("choices", "one number for each category, and so should start")
    settings.finish()
    return ObsLeaf(tuple(path), shape, is_image=dtype == "uint8", choices=choices, start=start)


def _parse_action(settings: Settings) -> ActionSpec:
    kind = settings.text("kind", tuple(ACTION_DTYPES))
    shape, dtype = settings.sizes("shape"), settings.text("dtype", ACTION_DTYPES[kind])
    if kind == "continuous":
        low, high = (
            _parse_bounds(settings, "low", shape, -np.inf),
            _parse_bounds(settings, "high", shape, np.inf),
        )
        if (low > high).any():
            raise BundleError(f"{settings.where}: a lower bound is above the upper bound")
        action = ActionSpec(ActionKind.CONTINUOUS, shape, dtype, low=low, high=high)
    else:
        choices, start = settings.sizes("choices", most=MAX_CHOICES), settings.starts("start")
        if not len(choices) == len(start) == count(shape):
            raise settings.fault("choices", f"{count(shape)} numbers, and so should start")
        discrete = ActionKind.MULTI_DISCRETE if shape else ActionKind.DISCRETE
        action = ActionSpec(discrete, shape, dtype, choices, start.reshape(shape))
    settings.finish()
    return action


def _parse_bounds(settings: Settings, key: str, shape: tuple[int, ...], none: float) -> Array:
    """Bounds as float64; null is `none`, an infinity."""
    values = settings.any(key)
    if not isinstance(values, list) or len(values) != prod(shape):
        raise settings.fault(key, f"a list of {prod(shape)} numbers, null where there is no bound")
    if any(value is not None and type(value) not in (int, float) for value in values):
        raise settings.fault(key, "numbers, or null where there is no bound")
    bounds = np.asarray([none if value is None else value for value in values], np.float64)
    return bounds.reshape(shape)

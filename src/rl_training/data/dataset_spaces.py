"""Recorded observations and actions against an environment's spaces: what fits is converted, the rest is named."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_training.data.dataset_fields import flat_rows, row_blocks, rows_where
from rl_training.data.recorded_observations import check_recorded, from_recorded
from rl_training.errors import DatasetError
from rl_training.replay.transitions import Array
from rl_training.spaces.actions import ActionKind, ActionSpec
from rl_training.spaces.observations import MIN_IMAGE_SIDE, ObsSpec
from rl_training.spaces.spec import Spaces

TOLERANCE = 1e-5
"""How far beyond its bounds an action may lie, as a share of their distance: float32 rounds."""
MAX_OPTIONS = 100_000
"""More would make networks of gigabytes; such integers are identifiers or quantities."""
MAX_BYTES = MIN_IMAGE_SIDE**2
"""Longer rows of bytes may hold an image."""
ELSEWHERE = "the data was recorded in another environment or with other wrappers"


def infer_spaces(dataset: Any) -> Spaces:
    """The spaces that the recorded rows span, for data without an environment."""
    obs, actions = dataset.obs, dataset.actions
    if obs.dtype == np.int64 and obs.ndim == 1:
        obs_spec = ObsSpec((), "int64", _count_options("obs", obs, dataset.next_obs))
    else:
        if obs.dtype == np.uint8 and obs.ndim == 2 and obs.shape[1] >= MAX_BYTES:
            raise DatasetError(
                f"obs has rows of {obs.shape[1]:,} bytes: without an env_id, a Dict or Tuple with images cannot be told"
                " from a vector. Set env_id to the environment of the recording, or store plain images as [n, height,"
                " width, channels]"
            )
        obs_spec = ObsSpec(obs.shape[1:], "uint8" if obs.dtype == np.uint8 else "float32")
    if actions.dtype.kind != "f":
        if actions.ndim > 1 and actions[0].size != 1:
            raise DatasetError("several discrete actions a step need an env_id, which knows how many options each has")
        choices = (_count_options("actions", actions),)
        return Spaces(obs_spec, ActionSpec(ActionKind.DISCRETE, (), "int64", choices, np.asarray(0)))
    low, high = actions.min(0).astype(np.float64), actions.max(0).astype(np.float64)
    if np.all(low >= -1.0 - TOLERANCE) and np.all(high <= 1.0 + TOLERANCE):
        low, high = np.full_like(low, -1.0), np.full_like(high, 1.0)
    return Spaces(obs_spec, ActionSpec(ActionKind.CONTINUOUS, actions.shape[1:], "float32", low=low, high=high))


def _count_options(name: str, *arrays: Array) -> int:
    count = max(int(array.max()) for array in arrays) + 1
    if not 0 < count <= MAX_OPTIONS:
        raise DatasetError(
            f"{name} has integers up to {count - 1:,}, and without an env_id they count as choices from 0 on, at most"
            f" {MAX_OPTIONS:,}: number the choices from 0, or store quantities as floats"
        )
    return count


def obs_to_model(name: str, obs: Array, spec: ObsSpec) -> Array:
    """Recorded observations as they are stored, in the shape and type of the environment's."""
    if obs.shape[1:] != spec.shape and not (spec.shape == () and obs.shape[1:] == (1,)):
        raise DatasetError(
            f"{name} has rows of shape {obs.shape[1:]} and the environment's observations {spec.shape}: {ELSEWHERE}"
        )
    obs = obs.reshape(len(obs), *spec.shape)
    if obs.dtype == np.int64 and spec.dtype == "float32":
        return obs.astype(np.float32)
    if obs.dtype != spec.dtype:
        raise DatasetError(
            f"{name} is {obs.dtype} and the environment's observations are {spec.dtype}:"
            f" store them as {spec.dtype}, on the environment's scale"
        )
    last = (spec.num_categories or 1) - 1
    if spec.num_categories is not None and len(wrong := np.flatnonzero((obs < 0) | (obs > last))):
        raise DatasetError(f"{name}[{wrong[0]}] is {obs[wrong[0]]}: the environment has categories 0 to {last}")
    check_recorded(name, obs, spec)
    return from_recorded(spec, obs)


def actions_to_model(actions: Array, spec: ActionSpec, *, clip: bool = False) -> Array:
    """Recorded actions in model space; with `clip`, continuous ones beyond their bounds are moved onto them."""
    actions = shape_actions(actions, spec)
    if clip and spec.kind is ActionKind.CONTINUOUS:
        actions = np.clip(actions, spec.low, spec.high).astype(actions.dtype)
    outside = actions_outside(actions, spec)
    if len(outside):
        raise DatasetError(
            f"{len(outside):,} of {len(actions):,} actions lie outside the action space, first actions[{outside[0]}] ="
            f" {actions[outside[0]].tolist()}; it spans {describe_bounds(spec)}: rescale or clip them to these bounds"
        )
    if spec.kind is ActionKind.CONTINUOUS and np.all(spec.low == -1.0) and np.all(spec.high == 1.0):
        return flat_rows(actions)
    model = np.empty((len(actions), *spec.model_shape), spec.model_dtype)
    for block in row_blocks(actions):
        model[block] = spec.to_model(actions[block])
    if spec.is_bounded and spec.kind is ActionKind.CONTINUOUS:
        np.clip(model, -1.0, 1.0, out=model)
    return model


def shape_actions(actions: Array, spec: ActionSpec) -> Array:
    """Actions as [n, *shape of the space], or a `DatasetError` if they are of another kind or size."""
    is_float = actions.dtype.kind == "f"
    if is_float != (spec.kind is ActionKind.CONTINUOUS):
        remedy = "store the chosen option as an integer" if is_float else "store them as floats"
        raise DatasetError(
            f"actions are {actions.dtype} and the environment's action space is {spec.kind.value}: {remedy}"
        )
    if actions[0].size != spec.num_components or (actions.ndim > 2 and actions.shape[1:] != spec.shape):
        raise DatasetError(
            f"actions have rows of shape {actions.shape[1:]} and the environment's actions {spec.shape}: {ELSEWHERE}"
        )
    return actions.reshape(len(actions), *spec.shape)


def actions_outside(actions: Array, spec: ActionSpec) -> Array:
    """Rows whose action is not in the space, NaN included."""
    low, high = _bounds(spec)
    if spec.kind is ActionKind.CONTINUOUS:
        slack = np.where(np.isfinite(high - low), TOLERANCE * (high - low), 0.0)
        low, high = (low - slack).astype(np.float32), (high + slack).astype(np.float32)
    return rows_where(lambda part: ~((part >= low) & (part <= high)), actions)


def describe_bounds(spec: ActionSpec) -> str:
    """The bounds in words: one pair if all components share them."""
    low, high = map(np.ravel, _bounds(spec))
    if np.all(low == low[0]) and np.all(high == high[0]):
        return f"{low[0]:g} to {high[0]:g}"
    return f"{low.tolist()} to {high.tolist()}"


def _bounds(spec: ActionSpec) -> tuple[Array, Array]:
    if spec.kind is ActionKind.CONTINUOUS:
        return spec.low, spec.high
    return spec.start, spec.start + np.reshape(spec.choices, spec.shape) - 1

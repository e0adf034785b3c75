"""Convert a dataset's observations and actions to an environment's spaces, or name the mismatch."""

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
"""Allowed excess of an action beyond its bounds, as a fraction of their distance: float32 rounds."""
MAX_CATEGORIES = 100_000
"""Maximum number of categories. Larger integers are identifiers or quantities, not categories."""
MAX_BYTES = MIN_IMAGE_SIDE**2
"""Longer uint8 rows may contain an image."""
OTHER_ENV = "the dataset was recorded in another environment or with other wrappers; use those of the recording"


def infer_spaces(dataset: Any) -> Spaces:
    """Infer spaces from the values, for a dataset without an environment."""
    obs, actions = dataset.obs, dataset.actions
    if obs.dtype == np.int64 and obs.ndim == 1:
        obs_spec = ObsSpec((), "int64", _count_categories("obs", obs, dataset.next_obs))
    else:
        if obs.dtype == np.uint8 and obs.ndim == 2 and obs.shape[1] >= MAX_BYTES:
            raise DatasetError(
                f"obs has rows of {obs.shape[1]:,} bytes, which may be a vector or a Dict or Tuple with images: set"
                " env_id to the environment of the recording, or store images as [n, height, width, channels]"
            )
        obs_spec = ObsSpec(obs.shape[1:], "uint8" if obs.dtype == np.uint8 else "float32")
    if actions.dtype.kind != "f":
        if actions.ndim > 1 and actions[0].size != 1:
            raise DatasetError(
                f"actions have {actions[0].size} discrete components, whose numbers of options are unknown: set env_id"
            )
        choices = (_count_categories("actions", actions),)
        if dataset.masks is not None:
            choices = (dataset.masks.shape[1],)
        action = ActionSpec(ActionKind.DISCRETE, (), "int64", choices, np.asarray(0))
        return Spaces(obs_spec, action, has_masks=dataset.masks is not None)
    low, high = actions.min(0).astype(np.float64), actions.max(0).astype(np.float64)
    if np.all(low >= -1.0 - TOLERANCE) and np.all(high <= 1.0 + TOLERANCE):
        low, high = np.full_like(low, -1.0), np.full_like(high, 1.0)
    return Spaces(obs_spec, ActionSpec(ActionKind.CONTINUOUS, actions.shape[1:], "float32", low=low, high=high))


def _count_categories(name: str, *arrays: Array) -> int:
    count = max(int(array.max()) for array in arrays) + 1
    if not 0 < count <= MAX_CATEGORIES:
        raise DatasetError(
            f"{name} has integers up to {count - 1:,}; without an env_id they are categories, at most"
            f" {MAX_CATEGORIES:,}: number them from 0, or store quantities as floats"
        )
    return count


def obs_to_model(name: str, obs: Array, spec: ObsSpec) -> Array:
    """Observations in the shape, dtype and scale of model space."""
    if obs.shape[1:] != spec.shape and not (spec.shape == () and obs.shape[1:] == (1,)):
        raise DatasetError(
            f"{name} has rows of shape {obs.shape[1:]} and the environment's observations have {spec.shape}:"
            f" {OTHER_ENV}"
        )
    obs = obs.reshape(len(obs), *spec.shape)
    if obs.dtype == np.int64 and spec.dtype == "float32":
        return obs.astype(np.float32)
    if obs.dtype != spec.dtype:
        raise DatasetError(
            f"{name} is {obs.dtype} and the environment's observations are {spec.dtype}:"
            f" store them as {spec.dtype} in the environment's units"
        )
    last = (spec.num_categories or 1) - 1
    if spec.num_categories is not None and len(wrong := np.flatnonzero((obs < 0) | (obs > last))):
        raise DatasetError(
            f"{name}[{wrong[0]}] is {obs[wrong[0]]}: the environment has categories 0 to {last}; {OTHER_ENV}"
        )
    check_recorded(name, obs, spec)
    return from_recorded(spec, obs)


def actions_to_model(actions: Array, spec: ActionSpec, *, clip: bool = False) -> Array:
    """Actions in model space; with `clip`, continuous actions are clipped to their bounds first."""
    actions = shape_actions(actions, spec)
    if clip and spec.kind is ActionKind.CONTINUOUS:
        actions = np.clip(actions, spec.low, spec.high).astype(actions.dtype)
    outside = actions_outside(actions, spec)
    if len(outside):
        raise DatasetError(
            f"{len(outside):,} of {len(actions):,} actions lie outside the action space, first actions[{outside[0]}] ="
            f" {actions[outside[0]].tolist()}; its bounds are {describe_bounds(spec)}: rescale or clip the actions"
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
    """Reshape actions to [n, *spec.shape]; a `DatasetError` if the kind or size differs.

    Whole numbers that are stored as floats count as integers where the action space is discrete.
    """
    if actions_as_floats(actions, spec):
        actions = actions.astype(np.int64)
    is_float = actions.dtype.kind == "f"
    if is_float != (spec.kind is ActionKind.CONTINUOUS):
        remedy = "store each action as an integer" if is_float else "store each action as floats"
        raise DatasetError(
            f"actions are {actions.dtype} and the environment's action space is {spec.kind.value}: {remedy}"
        )
    if spec.choices and spec.num_components == 1 and actions.shape[1:] == spec.choices:
        raise DatasetError(
            f"actions have rows of shape {actions.shape[1:]}, which look one-hot: store the index of each action, as"
            " actions.argmax(1) gives it"
        )
    if actions[0].size != spec.num_components or (actions.ndim > 2 and actions.shape[1:] != spec.shape):
        raise DatasetError(
            f"actions have rows of shape {actions.shape[1:]} and the environment's actions have {spec.shape}:"
            f" {OTHER_ENV}"
        )
    return actions.reshape(len(actions), *spec.shape)


def actions_as_floats(actions: Array, spec: ActionSpec) -> bool:
    """Whether discrete actions are stored as floats, without a fraction."""
    if actions.dtype.kind != "f" or spec.kind is ActionKind.CONTINUOUS:
        return False
    return not len(rows_where(lambda part: ~((np.abs(part) < MAX_CATEGORIES) & (part == np.rint(part))), actions))


def actions_outside(actions: Array, spec: ActionSpec) -> Array:
    """Rows whose action lies outside the action space; NaN counts as outside."""
    low, high = _bounds(spec)
    if spec.kind is ActionKind.CONTINUOUS:
        slack = np.where(np.isfinite(high - low), TOLERANCE * (high - low), 0.0)
        low, high = (low - slack).astype(np.float32), (high + slack).astype(np.float32)
    return rows_where(lambda part: ~((part >= low) & (part <= high)), actions)


def describe_bounds(spec: ActionSpec) -> str:
    """Text of the bounds: one pair if all components share it."""
    low, high = map(np.ravel, _bounds(spec))
    if np.all(low == low[0]) and np.all(high == high[0]):
        return f"{low[0]:g} to {high[0]:g}"
    return f"{low.tolist()} to {high.tolist()}"


def _bounds(spec: ActionSpec) -> tuple[Array, Array]:
    if spec.kind is ActionKind.CONTINUOUS:
        return spec.low, spec.high
    return spec.start, spec.start + np.reshape(spec.choices, spec.shape) - 1

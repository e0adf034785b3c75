"""Convert a dataset's observations and actions to an environment's spaces, or name the mismatch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from rl_training.data.dataset_fields import flat_rows, row_blocks, rows_where
from rl_training.errors import DatasetError
from rl_training.replay.transitions import Array
from rl_training.spaces.actions import ActionKind, ActionSpec
from rl_training.spaces.given import LeafPath
from rl_training.spaces.observations import MIN_IMAGE_SIDE, ObsSpec
from rl_training.spaces.spec import Spaces, describe_action, describe_observation, find_leaves

TOLERANCE = 1e-5
"""Allowed excess of an action beyond its bounds, as a fraction of their distance: float32 rounds."""
MAX_CATEGORIES = 100_000
"""Maximum number of categories. Larger integers are identifiers or quantities, not categories."""
MAX_BYTES = MIN_IMAGE_SIDE**2
"""Longer uint8 rows may contain an image."""
OTHER_ENV = "the dataset was recorded in another environment or with other wrappers; use those of the recording"
MAX_BYTE = 255


def infer_spaces(dataset: Any) -> Spaces:
    """Infer spaces from the values, for a dataset without an environment."""
    obs, actions = dataset.obs, dataset.actions
    if obs.dtype == np.int64 and obs.ndim == 1:
        count = _count_categories("obs", obs, dataset.next_obs)
        obs_spec = describe_observation(spaces.Discrete(count))
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
        count, has_masks = _count_categories("actions", actions), dataset.masks is not None
        options = dataset.masks.shape[1] if has_masks else count
        return Spaces(obs_spec, describe_action(spaces.Discrete(options)), has_masks)
    low, high = actions.min(0).astype(np.float64), actions.max(0).astype(np.float64)
    if np.all(low >= -1.0 - TOLERANCE) and np.all(high <= 1.0 + TOLERANCE):
        low, high = np.full_like(low, -1.0), np.full_like(high, 1.0)
    action = ActionSpec(ActionKind.CONTINUOUS, actions.shape[1:], "float32", low=low, high=high)
    return Spaces(obs_spec, action)


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
    if actions[0].size != spec.num_components or (
        actions.ndim > 2 and actions.shape[1:] != spec.shape
    ):
        raise DatasetError(
            f"actions have rows of shape {actions.shape[1:]} and the environment's actions have {spec.shape}:"
            f" {OTHER_ENV}"
        )
    return actions.reshape(len(actions), *spec.shape)


def actions_as_floats(actions: Array, spec: ActionSpec) -> bool:
    """Whether discrete actions are stored as floats, without a fraction."""
    if actions.dtype.kind != "f" or spec.kind is ActionKind.CONTINUOUS:
        return False
    return all(
        (
            (np.abs(actions[block]) < MAX_CATEGORIES) & (actions[block] == np.rint(actions[block]))
        ).all()
        for block in row_blocks(actions)
    )


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


def recorded_spec(spec: ObsSpec) -> ObsSpec:
    """The spec without scaling: observations in the environment's units."""
    return dataclasses.replace(
        spec, leaves=tuple(dataclasses.replace(part, scale=1.0) for part in spec.leaves)
    )


def to_recorded(spec: ObsSpec, rows: Array) -> Array:
    """Convert stored rows [n, *shape] to file rows; the same array if nothing is scaled."""
    return _rescale(spec, rows, lambda values, scale: np.rint(values / scale))


def from_recorded(spec: ObsSpec, rows: Array) -> Array:
    """Convert file rows to stored rows: the inverse of `to_recorded`."""
    return _rescale(spec, rows, lambda values, scale: values * np.float32(scale))


def _rescale(spec: ObsSpec, rows: Array, change: Callable[[Array, float], Array]) -> Array:
    scaled = [(leaf.scale, columns) for leaf, columns in spec.leaf_columns() if leaf.scale != 1.0]
    if not scaled:
        return rows
    changed = rows.copy()
    numbers = spec.numbers(changed)
    for scale, columns in scaled:
        numbers[:, columns] = change(numbers[:, columns], scale)
    return changed


def check_recorded(name: str, rows: Array, spec: ObsSpec) -> None:
    """Raise a `DatasetError` unless uint8 parts hold bytes and discrete parts are one-hot."""
    for leaf, columns in spec.leaf_columns():
        if leaf.scale != 1.0:
            find_fault = _not_bytes
            remedy = "integers from 0 to 255: store them unscaled, or record the dataset again"
        elif leaf.choices:
            find_fault = partial(_not_one_hot, leaf.choices)
            remedy = "categories: store each one-hot"
        else:
            continue
        for block in row_blocks(rows):
            values = spec.numbers(rows[block])[:, columns]
            if len(wrong := np.flatnonzero(find_fault(values))):
                raise DatasetError(
                    f"{name}[{block.start + wrong[0]}] has {values[wrong[0]][:8].tolist()} for"
                    f" '{leaf.name or 'obs'}': the environment has {remedy}"
                )


def _not_bytes(values: Array) -> Array:
    """Rows with a number that is no whole number from 0 to 255, [n]."""
    is_fault: Array = (values < 0) | (values > MAX_BYTE) | (values != np.rint(values))
    has_fault: Array = np.any(is_fault, axis=1)
    return has_fault


def _not_one_hot(choices: tuple[int, ...], values: Array) -> Array:
    """Rows with a component that is not one-hot, [n]."""
    is_code: Array = ((values == 0) | (values == 1)).all(1)
    sums = np.add.reduceat(values, np.cumsum((0, *choices[:-1])), axis=1)
    is_code &= (sums == 1).all(1)
    return ~is_code


def as_observations(space: Space[Any], rows: Array) -> Any:
    """Convert file rows [n, *shape] to a batch of observations of `space`."""
    spec = describe_observation(space)
    if not spec.leaves:
        return rows.reshape(len(rows), *space.shape).astype(space.dtype)  # type: ignore[misc]
    numbers = spec.numbers(rows)
    found = {
        leaf.path: (rows if leaf.is_image else numbers)[:, columns]
        for leaf, columns in spec.leaf_columns()
    }
    return _nested(space, (), found)


def _nested(space: Space[Any], path: LeafPath, found: dict[LeafPath, Array]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _nested(inner, (*path, key), found) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(
            _nested(inner, (*path, index), found) for index, inner in enumerate(space.spaces)
        )
    values = found[path]
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        (leaf,) = find_leaves(space)
        parts = np.split(values, np.cumsum(leaf.choices)[:-1], axis=1)
        values = np.stack([part.argmax(1) for part in parts], 1) + np.asarray(leaf.start)
    return values.reshape(len(values), *(space.shape or ())).astype(space.dtype)

"""Checks of what an algorithm declares and of what its `act` returns, before the first step is stored."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from rl_training.algorithms.base import ActResult, Algorithm
from rl_training.errors import ConfigError, EnvError
from rl_training.replay.transitions import KNOWN_FIELDS, Array, StepField, StepFields


def stored_fields(algorithm: Algorithm[Any]) -> dict[str, StepField]:
    """Further fields of the step record: what the algorithm returns from `act`, and the info it asks for."""
    owner, declared, asked = type(algorithm).__name__, algorithm.step_fields(), algorithm.info_fields
    for name in declared.keys() & asked.keys():
        raise ConfigError(f"{owner} declares '{name}' in step_fields and in info_fields: rename one of them")
    fields = {**declared, **asked}
    for name, field in fields.items():
        if name in KNOWN_FIELDS or name == "extras":
            raise ConfigError(f"{owner} declares the step field '{name}', which exists: rename it")
        if not isinstance(field, StepField) or not _is_dtype(field.dtype):
            raise ConfigError(f"the step field '{name}' of {owner} is {field!r:.100}: write StepField((3,), 'float32')")
    return fields


def initial_state_of(algorithm: Algorithm[Any], num_envs: int) -> Tensor | None:
    """The policy state in which the algorithm begins an episode, one row per environment."""
    state = algorithm.initial_state(num_envs)
    owner = type(algorithm).__name__
    if state is not None and not isinstance(state, Tensor):
        raise ConfigError(f"initial_state of {owner} returns a {type(state).__name__}: return one tensor, or None")
    if state is not None and (state.dim() == 0 or len(state) != num_envs):
        shape = tuple(state.shape)
        raise ConfigError(f"initial_state({num_envs}) of {owner} has shape {shape}: return {num_envs} rows")
    return state


def check_acted(acted: Any, algorithm: Algorithm[Any], num_envs: int) -> None:
    """Raise a `ConfigError` unless `act` returned actions, state and fields as declared."""
    owner = f"act of {type(algorithm).__name__}"
    if not isinstance(acted, ActResult):
        raise ConfigError(f"{owner} returns a {type(acted).__name__}: return ActResult(actions)")
    expected = {"actions": (num_envs, *algorithm.spaces.action.model_shape)}
    found: dict[str, Any] = {"actions": acted.actions}
    state = algorithm.initial_state(num_envs)
    if (state is None) is not (acted.state is None):
        wanted = "None" if state is None else f"shape {tuple(state.shape)}, as initial_state"
        raise ConfigError(f"{owner} returns the state {_shape_of(acted.state)}: return {wanted}")
    if state is not None:
        expected["state"], found["state"] = tuple(state.shape), acted.state
    declared = algorithm.step_fields()
    if acted.fields.keys() != declared.keys():
        raise ConfigError(
            f"{owner} returns the fields {sorted(acted.fields)}, and step_fields declares {sorted(declared)}:"
            " return those, [B, ...] each, when exploring"
        )
    for name, field in declared.items():
        expected[f"field '{name}'"], found[f"field '{name}'"] = (num_envs, *field.shape), acted.fields[name]
    for name, shape in expected.items():
        if _shape_of(found[name]) != str(shape):
            raise ConfigError(f"{owner} returns {name} of shape {_shape_of(found[name])}: return shape {shape}")


def check_info(values: dict[str, Array], fields: StepFields) -> None:
    """Raise an `EnvError` unless the info values of all environments, [N, ...], fit their declared fields."""
    for name, value in values.items():
        field = fields[name]
        if value.dtype.kind not in "biuf" or value.shape[1:] != field.shape:
            raise EnvError(
                f"info['{name}'] is {value[0]!r:.60} in environment 0: the algorithm reads {field.dtype} of shape"
                f" {field.shape}"
            )
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            env = int(np.argwhere(~np.isfinite(value))[0, 0])
            raise EnvError(f"info['{name}'] of environment {env} is {value[env]}: the algorithm reads finite numbers")


def _shape_of(value: Any) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else f"of a {type(value).__name__}"


def _is_dtype(name: Any) -> bool:
    try:
        return np.dtype(name).kind in "biuf"
    except TypeError:
        return False

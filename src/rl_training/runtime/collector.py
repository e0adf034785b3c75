"""The only code that steps training environments, and the checks of what an algorithm declares and `act` returns."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import ActResult, Algorithm
from rl_training.envs.parallel.vector import TrainingEnv
from rl_training.errors import ConfigError, EnvError, NonFiniteError
from rl_training.replay.transitions import (
    FIELDS,
    KNOWN_FIELDS,
    Array,
    StepField,
    StepFields,
    Storage,
)
from rl_training.runtime.trainer import CollectResult, TrainerState
from rl_training.spaces.observations import ObsSpec
from rl_training.spaces.spec import Spaces

FIELD_WORDS = {
    "obs": "the observation",
    "actions": "the action",
    "rewards": "the reward",
    "next_obs": "the next observation",
}


Act = Callable[[Tensor, Tensor | None, Tensor | None], ActResult]
"""Actions for observations, policy state and action masks, [N, ...] each; the last two may be None."""


class StepBuffer(Protocol):
    """A buffer that stores one step of every environment at a time."""

    def add(self, step: Storage) -> None:
        """Store the step: the six fields, masks, and what the algorithm declares, by name."""

    def truncate_newest(self) -> None:
        """Mark the newest step of every environment truncated, unless terminated."""

    def newest(self, count: int) -> Iterable[Storage]:
        """The last `count` rows."""


class Collector:
    """Acts in the environments and stores the transitions.

    The environments reset within the step that ends an episode, so the observation they return then belongs to the
    next episode. `next_obs` is the final observation, which they return in `info`. The policy state of an environment
    is set back to `initial_state` (one row per environment) where its episode ends.
    """

    def __init__(
        self,
        envs: TrainingEnv,
        spaces: Spaces,
        device: torch.device,
        initial_state: Tensor | None = None,
        algorithm: Algorithm[Any] | None = None,
    ) -> None:
        self._envs = envs
        self._spaces = spaces
        self._device = device
        self._initial_state = initial_state
        self._policy_state = initial_state
        self._masks: Array | None = None
        self._unchecked = algorithm
        """The algorithm, until its first `act` is checked."""
        self._info_fields = {} if algorithm is None else algorithm.info_fields
        # Called at every step: without leaves the stored form is an array of the stored dtype.
        self._as_stored: Callable[[Any], Array] = spaces.obs.as_stored
        if not spaces.obs.leaves:
            self._as_stored = functools.partial(np.asarray, dtype=spaces.obs.dtype)
        # Moving a tensor to its own device takes a microsecond.
        self._tensor: Callable[[Array], Tensor] = torch.from_numpy
        if device.type != "cpu":
            self._tensor = functools.partial(torch.as_tensor, device=device)
        self._obs = np.zeros((envs.num_envs, *spaces.obs.shape), spaces.obs.dtype)
        self.num_envs = envs.num_envs
        self.inexact_reasons = list(envs.inexact_reasons)
        """Why the environments may not be in the state that an uninterrupted run would have."""

    @property
    def num_restarts(self) -> int:
        """Environments that failed and were recreated, over the whole run."""
        return self._envs.num_restarts

    def reset(self, seeds: list[int]) -> None:
        """Start new episodes, one seed per environment."""
        obs, _ = self._envs.reset(seed=seeds)
        self._obs = self._spaces.obs.as_stored(obs)
        self._masks = self._envs.current_masks()
        self._policy_state = self._initial_state

    def collect(
        self, act: Act, buffer: StepBuffer, num_steps: int, state: TrainerState
    ) -> CollectResult:
        """Take `num_steps` steps in every environment, or fewer if a stop is requested."""
        returns: list[float] = []
        lengths: list[int] = []
        first_step, stored = state.global_step, 0
        while stored < num_steps and not (stored and state.should_stop):
            masks = None if self._masks is None else self._tensor(self._masks)
            acted = act(self._tensor(self._obs), self._policy_state, masks)
            if self._unchecked is not None:
                check_acted(acted, self._unchecked, self.num_envs)
                self._unchecked = None
            actions = acted.actions.cpu().numpy()
            try:
                env_obs, rewards, terminated, truncated, info = self._envs.step(
                    self._spaces.action.to_env(actions)
                )
            except EnvError:  # non-finite actions may be the cause
                self._check_finite(buffer, stored, first_step, actions)
                raise
            obs = self._as_stored(env_obs)
            for episode_return, length in info.get("episodes", ()):
                returns.append(episode_return)
                lengths.append(length)
            if "restarted" in info:
                self._interrupt(buffer, obs)
                continue
            next_obs = self._with_final_obs(obs, info) if "final_obs" in info else obs
            step: Storage = {"obs": self._obs, "actions": actions, "rewards": rewards}
            step |= {"next_obs": next_obs, "terminated": terminated, "truncated": truncated}
            for name, field in acted.fields.items():
                step[name] = field.cpu().numpy()
            if "fields" in info:
                step |= self._fields_of_info(info)
                self._masks = info.get("masks")
            buffer.add(step)
            self._obs = obs
            if acted.state is not None:
                self._policy_state = self._after_ends(acted.state, terminated | truncated)
            stored += 1
            state.global_step += self.num_envs
        self._check_finite(buffer, stored, first_step)
        return CollectResult(
            state.global_step - first_step, returns, lengths, self._envs.num_restarts
        )

    def state_dict(self) -> dict[str, Any]:
        """The states of the environments, and the policy state where there is one."""
        state = {"envs": self._envs.state(), "inexact_reasons": list(self.inexact_reasons)}
        return (
            state if self._policy_state is None else {**state, "policy_state": self._policy_state}
        )

    def load_state_dict(self, state: dict[str, Any]) -> list[str]:
        """Restore the environments; returns why they may not be in the exact state."""
        obs, reasons = self._envs.restore(state["envs"])
        self._obs = self._spaces.obs.as_stored(obs)
        self._masks = self._envs.current_masks()
        if self._initial_state is not None:
            saved = self._saved_policy_state(state)
            self._policy_state = (
                self._initial_state if reasons else saved
            )  # the stored episodes end here as well
        self.inexact_reasons = list(dict.fromkeys([*state["inexact_reasons"], *reasons]))
        return reasons

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()

    def _fields_of_info(self, info: dict[str, Any]) -> Storage:
        """Masks and requested info."""
        fields: Storage = {}
        if self._info_fields:
            check_info(info["fields"], self._info_fields)
            fields |= info["fields"]
        if self._masks is not None:
            fields |= {"masks": self._masks, "next_masks": info["next_masks"]}
        return fields

    def _after_ends(self, policy_state: Tensor, ended: Array) -> Tensor:
        """The policy state of the next step: the initial one where an episode ended."""
        if not ended.any():
            return policy_state
        assert self._initial_state is not None
        rows = torch.from_numpy(ended).to(self._device).view(-1, *[1] * (policy_state.dim() - 1))
        return torch.where(rows, self._initial_state, policy_state)

    def _saved_policy_state(self, state: dict[str, Any]) -> Tensor:
        saved, expected = state["policy_state"], self._initial_state
        assert expected is not None
        if saved.shape != expected.shape or saved.dtype != expected.dtype:
            raise ValueError(
                f"the saved policy state {tuple(saved.shape)} is not of shape {tuple(expected.shape)}"
            )
        restored: Tensor = saved.to(self._device)
        return restored

    def _interrupt(self, buffer: StepBuffer, obs: Array) -> None:
        """Go on from `obs` after an environment was recreated: the row of this step is incomplete and not stored."""
        buffer.truncate_newest()
        self._obs, self._masks = obs, self._envs.current_masks()
        # Also of the other environments: the stored sequence is interrupted.
        self._policy_state = self._initial_state

    def _with_final_obs(self, obs: Array, info: dict[str, Any]) -> Array:
        """The observations that the steps ended in: where an episode ended, its last one."""
        next_obs, final_obs, ended = obs.copy(), info["final_obs"], info["_final_obs"]
        if isinstance(final_obs, np.ndarray) and final_obs.dtype != object:  # of one simulator
            next_obs[ended] = self._as_stored(final_obs[ended])
            return next_obs
        for index in np.flatnonzero(ended):
            next_obs[index] = self._spaces.obs.one_as_stored(final_obs[index])
        return next_obs

    def _check_finite(
        self, buffer: StepBuffer, stored: int, first_step: int, actions: Array | None = None
    ) -> None:
        """Raise if anything collected since `first_step` is NaN or infinite."""
        row = 0
        for rows in buffer.newest(stored):
            found = find_non_finite(rows, self._spaces.obs)
            if found is not None:
                name, offset, env = found
                step = first_step + (row + offset + 1) * self.num_envs
                value = self._spaces.obs.numbers(rows[name]) if name.endswith("obs") else rows[name]
                raise NonFiniteError(
                    f"{FIELD_WORDS[name]} of environment {env} is not finite at step {step:,}: {value[offset, env]}"
                )
            row += len(rows["rewards"])
        if actions is not None and actions.dtype.kind == "f" and not np.isfinite(actions).all():
            raise NonFiniteError(
                f"the policy's actions are not finite after step {first_step + row}: {actions}"
            )


def find_non_finite(rows: Mapping[str, Array], obs_spec: ObsSpec) -> tuple[str, int, int] | None:
    """Field, row and environment of the first NaN or infinity in rows [rows, envs, ...]; None if all are finite."""
    numbers = {name: rows[name] for name in FIELDS[:4]}
    if obs_spec.leaves:
        numbers |= {name: obs_spec.numbers(rows[name]) for name in ("obs", "next_obs")}
    floats = {name: array for name, array in numbers.items() if array.dtype.kind == "f"}
    flat = [array.reshape(-1) for array in floats.values()]
    with np.errstate(over="ignore", invalid="ignore"):
        # The sum of squares is the cheapest number that any NaN or infinity spoils.
        if math.isfinite(sum(array.dot(array) for array in flat)):
            return None
    found = []
    for order, (name, array) in enumerate(floats.items()):
        bad = ~np.isfinite(array.reshape(*array.shape[:2], -1)).all(-1)
        found += [(int(row), order, name, int(env)) for row, env in np.argwhere(bad)[:1]]
    if not found:
        return None
    row, _, name, env = min(found)
    return name, row, env


def stored_fields(algorithm: Algorithm[Any]) -> dict[str, StepField]:
    """Further fields of the step record: what the algorithm returns from `act`, and the info it asks for."""
    owner, declared, asked = (
        type(algorithm).__name__,
        algorithm.step_fields(),
        algorithm.info_fields,
    )
    for name in declared.keys() & asked.keys():
        raise ConfigError(
            f"{owner} declares '{name}' in step_fields and in info_fields: rename one of them"
        )
    fields = {**declared, **asked}
    for name, field in fields.items():
        if name in KNOWN_FIELDS or name == "extras":
            raise ConfigError(f"{owner} declares the step field '{name}', which exists: rename it")
        if not isinstance(field, StepField) or not _is_dtype(field.dtype):
            raise ConfigError(
                f"the step field '{name}' of {owner} is {field!r:.100}: write StepField((3,), 'float32')"
            )
    return fields


def initial_state_of(algorithm: Algorithm[Any], num_envs: int) -> Tensor | None:
    """The policy state in which the algorithm begins an episode, one row per environment."""
    state = algorithm.initial_state(num_envs)
    owner = type(algorithm).__name__
    if state is not None and not isinstance(state, Tensor):
        raise ConfigError(
            f"initial_state of {owner} returns a {type(state).__name__}: return one tensor, or None"
        )
    if state is not None and (state.dim() == 0 or len(state) != num_envs):
        shape = tuple(state.shape)
        raise ConfigError(
            f"initial_state({num_envs}) of {owner} has shape {shape}: return {num_envs} rows"
        )
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
        expected[f"field '{name}'"], found[f"field '{name}'"] = (
            (num_envs, *field.shape),
            acted.fields[name],
        )
    for name, shape in expected.items():
        if _shape_of(found[name]) != str(shape):
            raise ConfigError(
                f"{owner} returns {name} of shape {_shape_of(found[name])}: return shape {shape}"
            )


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
            raise EnvError(
                f"info['{name}'] of environment {env} is {value[env]}: the algorithm reads finite numbers"
            )


def _shape_of(value: Any) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else f"of a {type(value).__name__}"


def _is_dtype(name: Any) -> bool:
    try:
        return np.dtype(name).kind in "biuf"
    except TypeError:
        return False

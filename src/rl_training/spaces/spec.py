"""Observation and action space of an environment, and what algorithms require of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from rl_training.errors import EnvError
from rl_training.spaces.actions import ActionKind, ActionSpec
from rl_training.spaces.given import LeafPath, ObsLeaf
from rl_training.spaces.observations import ObsSpec, array_leaf, check_sizes, stored_as


@dataclass(frozen=True)
class Spaces:
    """The observation and the action of one environment."""

    obs: ObsSpec
    action: ActionSpec
    has_masks: bool = False
    """Whether the environment says at every step which actions are valid."""

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to act later without the environment."""
        action = {item.name: getattr(self.action, item.name) for item in fields(self.action)}
        state = {"obs": self.obs.state_dict(), "action": {**action, "kind": self.action.kind.value}}
        return {**state, "has_masks": True} if self.has_masks else state

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Spaces:
        """Rebuild what `state_dict` wrote."""
        action = dict(state["action"])
        action.update(
            kind=ActionKind(action["kind"]),
            shape=tuple(action["shape"]),
            choices=tuple(action["choices"]),
        )
        spaces = cls(
            ObsSpec.from_state_dict(state["obs"]),
            ActionSpec(**action),
            state.get("has_masks") is True,
        )
        spaces._check_action()
        return spaces

    def equals(self, other: Spaces) -> bool:
        """Whether observations and actions mean the same in both, with or without masks."""
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
        if any(
            not isinstance(array, np.ndarray) or array.shape != action.shape for array in arrays
        ):
            raise ValueError("the bounds of the actions are not of their shape")
        if len(action.choices) != (0 if is_continuous else action.num_components):
            raise ValueError("the choices of the actions are not of their shape")


def describe_spaces(
    observation_space: Space[Any], action_space: Space[Any], *, has_masks: bool = False
) -> Spaces:
    """Read the two spaces of an environment, or raise an `EnvError` that says what is supported."""
    return Spaces(describe_observation(observation_space), describe_action(action_space), has_masks)


def describe_observation(space: Space[Any]) -> ObsSpec:
    """Read an observation space, or raise an `EnvError` that says what is supported."""
    if isinstance(space, Discrete):
        if space.start != 0:
            raise EnvError(
                f"observation space {space} starts at {space.start}; only Discrete spaces from 0 are supported"
            )
        return ObsSpec((), "int64", int(space.n))
    leaves = tuple(sorted(find_leaves(space), key=lambda leaf: leaf.is_image))
    if isinstance(space, (Box, MultiBinary)):
        return ObsSpec(leaves[0].shape, leaves[0].dtype)
    if not leaves:
        raise EnvError(f"observation space {space} is empty")
    return ObsSpec(*stored_as(leaves), leaves=leaves)


def find_leaves(space: Space[Any], path: LeafPath = ()) -> Iterator[ObsLeaf]:
    """The leaves of a Dict or Tuple, in the order of the space."""
    if isinstance(space, (Dict, Tuple)):
        spaces = space.spaces.items() if isinstance(space, Dict) else enumerate(space.spaces)
        for key, inner in spaces:
            yield from find_leaves(inner, (*path, key))
    elif isinstance(space, Box):
        yield array_leaf(path, tuple(space.shape), is_bytes=space.dtype == np.uint8)
    elif isinstance(space, MultiBinary):
        yield ObsLeaf(path, tuple(space.shape))
    elif isinstance(space, (Discrete, MultiDiscrete)):
        counts = space.n if isinstance(space, Discrete) else space.nvec
        choices, start = (tuple(np.ravel(numbers).tolist()) for numbers in (counts, space.start))
        yield ObsLeaf(path, tuple(space.shape or ()), choices=choices, start=start)
    else:
        raise EnvError(
            f"observation space {space} is not supported: use Box, Discrete, MultiDiscrete, MultiBinary, or Dict and"
            " Tuple of these"
        )


def describe_action(space: Space[Any]) -> ActionSpec:
    """Read an action space, or raise an `EnvError` that says what is supported."""
    if isinstance(space, MultiBinary):
        space = MultiDiscrete(np.full(space.shape, 2), space.dtype)
    if isinstance(space, (Discrete, MultiDiscrete)):
        (leaf,) = find_leaves(space)
        is_one = isinstance(space, Discrete)
        kind = ActionKind.DISCRETE if is_one else ActionKind.MULTI_DISCRETE
        start = np.asarray(leaf.start, np.int64).reshape(leaf.shape)
        return ActionSpec(kind, leaf.shape, str(space.dtype), leaf.choices, start)
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating):
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        return ActionSpec(
            ActionKind.CONTINUOUS, tuple(space.shape), str(space.dtype), low=low, high=high
        )
    raise EnvError(
        f"action space {space} is not supported: use Discrete, MultiDiscrete, MultiBinary or a Box of floats"
    )

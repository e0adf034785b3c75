"""Actions of a trained policy for observations of the environment."""

from __future__ import annotations

from types import EllipsisType
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.errors import ConfigError
from rl_training.evaluation.evaluator import act_on
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.given import check_masks, mask_in, read_state

Array = npt.NDArray[Any]
NO_STATE: EllipsisType = ...
"""Default of `state`: the caller does not ask for the next policy state."""


def predict(
    algorithm: Algorithm[Any],
    obs: Any,
    *,
    deterministic: bool = True,
    state: Any = NO_STATE,
    mask: npt.ArrayLike | None = None,
) -> Any:
    """Environment action for one observation (an int for a Discrete space), or actions for a batch.

    With `state` the result is a pair: the actions, and the policy state to pass with the next observations. Pass
    `state=None` at the first step of an episode. A policy with memory requires it; for others the next state is None.
    `mask` marks the valid actions, one row per observation.
    """
    spec = algorithm.spaces.obs
    batch, is_batch = spec.read(obs)
    count = len(spec.as_stored(batch))
    before = _state_before(algorithm, state, count, is_batch=is_batch)
    masks = _masks(algorithm, obs, mask, count, is_batch=is_batch)
    actions, after = act_on(algorithm, batch, before, masks, deterministic=deterministic)
    is_discrete = algorithm.spaces.action.kind is ActionKind.DISCRETE
    answer = actions if is_batch else int(actions[0]) if is_discrete else actions[0]
    if state is NO_STATE:
        return answer
    next_state = None if after is None else after.cpu().numpy()
    return answer, next_state if is_batch or next_state is None else next_state[0]


def _state_before(
    algorithm: Algorithm[Any], state: Any, count: int, *, is_batch: bool
) -> Tensor | None:
    first = algorithm.initial_state(count)
    if first is None:
        if state is not NO_STATE and state is not None:
            raise ConfigError(
                "this policy has no memory, so it has no state: pass state=None or leave it out"
            )
        return None
    if state is NO_STATE:
        raise ConfigError(
            "this policy has memory: pass state=None at the first step of an episode, and afterwards the state that"
            " predict returned: action, state = predict(obs, state=state)"
        )
    if state is None:
        return first
    given = read_state(state, count, tuple(first.shape[1:]), is_batch=is_batch)
    return torch.from_numpy(given).to(first)


def _masks(
    algorithm: Algorithm[Any], obs: Any, mask: Any, count: int, *, is_batch: bool
) -> Array | None:
    spaces = algorithm.spaces
    if mask is None and spaces.has_masks:
        mask = mask_in(obs, spaces.obs.parts)
        if mask is None:
            raise ConfigError(
                "this policy was trained with action masks: pass mask=…, one boolean for each action (all true permits"
                " every action)"
            )
    if mask is None:
        return None
    if not algorithm.obeys_masks or not spaces.action.choices:
        raise ConfigError("mask is given, but this policy does not obey action masks: leave it out")
    return check_masks(mask, count, spaces.action.choices, is_batch=is_batch)

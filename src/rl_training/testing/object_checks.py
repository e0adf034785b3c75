"""Checks of an algorithm object: its spaces, `act`, `update` and `state_dict`."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from torch import Tensor, nn

from rl_training.algorithms.base import ActResult, Algorithm, UpdateResult
from rl_training.errors import ConfigError, EnvError
from rl_training.experiment.registry import Loop
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.spec import Spaces, describe_action
from rl_training.testing.case import (
    AlgorithmCase,
    check,
    fail,
    first_difference,
    no_global_randomness,
    saved_state,
    set_progress,
    unsaved_attributes,
)

ACTION_SPACES = (
    Discrete(3),
    Box(-2.0, 2.0, (2,), np.float32),
    Box(-np.inf, np.inf, (2,), np.float32),
    MultiDiscrete([2, 3]),
    MultiBinary(2),
)
NUM_UPDATES = 3
SCALARS = "report scalar tensors or numbers"
KEEP_STATE = (
    "keep everything that changes in self.counters, in a parameter or buffer of an nn.Module, or in an object with"
    " state_dict and load_state_dict"
)


@check
def check_construction(case: AlgorithmCase) -> None:
    """The constructor draws from `self.generator` only, and every tensor and generator can be saved."""
    with no_global_randomness("the constructor"):
        algorithm = case.make()
    algorithm.stateful_members()
    if first_difference(saved_state(algorithm), saved_state(case.make()), path="state"):
        fail("two objects with the same seed differ", "initialize from self.generator only")


@check
def check_spaces(case: AlgorithmCase) -> None:
    """`check_spaces` accepts an action space with which the algorithm works, or raises an `EnvError`."""
    for space in ACTION_SPACES:
        spaces = Spaces(case.spaces.obs, describe_action(space))
        try:
            case.algorithm_class.check_spaces(spaces)
        except EnvError:
            continue
        except Exception as error:
            fail(
                f"check_spaces raises {type(error).__name__} ({error}) for {space} actions",
                "raise an EnvError",
            )
        try:
            algorithm = case.make(spaces=spaces)
            for explore in (False, True):
                acted = algorithm.act(case.obs(2), algorithm.initial_state(2), explore=explore)
                _check_acted(algorithm, acted, 2)
        except (ConfigError, EnvError):  # a setting that these actions do not support
            continue
        except Exception as error:
            found = f"check_spaces accepts {space} actions, but with them {type(error).__name__} is raised ({error})"
            fail(found, "raise an EnvError in check_spaces")


@check
def check_act(case: AlgorithmCase) -> None:
    """Actions have the shape, dtype and range of model space; without `explore` no random number is drawn."""
    algorithm = case.make()
    for count, explore in itertools.product((1, 5), (True, False)):
        before = algorithm.generator.get_state()
        with no_global_randomness(f"act(explore={explore})"):
            acted = case.act(algorithm, count, explore=explore)
        _check_acted(algorithm, acted, count)
        if explore:
            continue
        if not torch.equal(before, algorithm.generator.get_state()):
            found = "act draws from self.generator without explore"
            fail(found, "return the deterministic policy's actions")
        again = case.act(algorithm, count, explore=False)
        if not torch.equal(acted.actions, again.actions):
            found = "act without explore gives other actions for the same observations"
            fail(found, "make it deterministic")


@check
def check_masks(case: AlgorithmCase) -> None:
    """With `obeys_masks`, no invalid action is taken."""
    action = case.spaces.action
    if not case.algorithm_class.for_spaces(case.spaces).obeys_masks or not action.choices:
        return
    algorithm = case.make(spaces=dataclasses.replace(case.spaces, has_masks=True))
    starts = [sum(action.choices[:index]) for index in range(len(action.choices))]
    rows, masks = torch.arange(64), torch.zeros(64, action.num_options, dtype=torch.bool)
    for start, count in zip(starts, action.choices, strict=True):
        masks[rows, start + rows % count] = True
    for explore in (True, False):
        acted = algorithm.act(
            case.obs(64), algorithm.initial_state(64), explore=explore, mask=masks
        )
        chosen = acted.actions.reshape(64, -1) + torch.tensor(starts)
        if not masks.gather(1, chosen).all():
            fail(
                f"act(explore={explore}) takes actions that the mask forbids",
                "use rl_training.models.actions.masked",
            )


def _check_acted(algorithm: Algorithm[Any], acted: Any, count: int) -> None:
    if not isinstance(acted, ActResult):
        fail(
            f"act returns a {type(acted).__name__}",
            "return ActResult(actions), of rl_training.algorithms.base",
        )
    _check_actions(acted.actions, algorithm.spaces, count)
    shape, expected = _shape(acted.state), _shape(algorithm.initial_state(count))
    if shape != expected:
        fail(
            f"act returns a state of shape {shape}",
            f"return the shape of initial_state, {expected}",
        )


def _shape(state: Tensor | None) -> tuple[int, ...] | None:
    return None if state is None else tuple(state.shape)


def _check_actions(actions: Any, spaces: Spaces, count: int) -> None:
    spec = spaces.action
    shape, dtype = (count, *spec.model_shape), getattr(torch, spec.model_dtype)
    if not isinstance(actions, Tensor):
        fail(f"act returns a {type(actions).__name__}", "return a tensor of model actions")
    if tuple(actions.shape) != shape:
        fail(
            f"act returns shape {tuple(actions.shape)} for {count} observations",
            f"return shape {shape}",
        )
    if actions.dtype != dtype:
        fail(f"act returns {actions.dtype}", f"return {dtype}")
    if actions.requires_grad:
        fail("act returns actions with a gradient", "decorate it with @torch.no_grad()")
    if spec.kind is ActionKind.CONTINUOUS:
        if not actions.isfinite().all():
            fail("act returns actions that are not finite", "return finite numbers")
        return
    columns = actions.reshape(count, -1)
    if (columns < 0).any() or (columns >= torch.tensor(spec.choices)).any():
        largest = [choices - 1 for choices in spec.choices]
        fail(f"act returns {actions.tolist()}", f"return model actions, from 0 to {largest}")


@check
def check_update(case: AlgorithmCase) -> None:
    """`update` returns finite scalar metrics, changes some parameter and depends on the object's state only."""
    states = []
    for _ in range(2):
        algorithm = case.make()
        before = _learned(algorithm)
        for number in range(NUM_UPDATES):
            batch = case.batch(number)
            set_progress(algorithm, number)
            with no_global_randomness("update"):
                result = algorithm.update(batch)
            _check_result(result, len(batch.rewards))
        if first_difference(before, _learned(algorithm), path="members") is None:
            found = f"{NUM_UPDATES} updates change no parameter"
            fail(found, "take an optimizer step on parameters that act uses")
        states.append(saved_state(algorithm))
    path = first_difference(*states, path="state")
    if path:
        found = f"two objects with the same seed learn differently from the same batches, at {path}"
        fail(found, "keep no state outside of the object, and draw from self.generator only")


def _learned(algorithm: Algorithm[Any]) -> dict[str, Any]:
    """The states of the networks; of all members if none is a module."""
    members = algorithm.stateful_members()
    networks = {name: member for name, member in members.items() if isinstance(member, nn.Module)}
    state = saved_state(algorithm)["members"]
    return {name: state[name] for name in networks or members}


def _check_result(result: Any, batch_size: int) -> None:
    if not isinstance(result, UpdateResult):
        fail(f"update returns a {type(result).__name__}", "return UpdateResult(metrics)")
    for name, value in result.metrics.items():
        if not isinstance(value, (Tensor, int, float)):
            fail(f"metric '{name}' is a {type(value).__name__}", SCALARS)
        if isinstance(value, Tensor) and value.numel() != 1:
            fail(f"metric '{name}' is a tensor of shape {tuple(value.shape)}", SCALARS)
        if isinstance(value, Tensor) and value.requires_grad:
            fail(f"metric '{name}' has a gradient", f"report {name}.detach()")
        if not math.isfinite(float(value)):
            fail(f"metric '{name}' is {float(value)}", "keep the loss and the gradient finite")
    if type(result.gradient_steps) is not int or result.gradient_steps < 0:
        fail(
            f"gradient_steps is {result.gradient_steps!r}",
            "report the optimizer steps of the update, an int",
        )
    if result.td_errors is not None and tuple(result.td_errors.shape) != (batch_size,):
        fail(
            f"td_errors has shape {tuple(result.td_errors.shape)}",
            f"report one per transition, [{batch_size}]",
        )


@check
def check_inputs(case: AlgorithmCase) -> None:
    """`act` and `update` do not modify the tensors they are given, which belong to the buffer."""
    algorithm = case.make()
    for explore in (True, False):
        obs = case.obs(5)
        algorithm.act(obs, algorithm.initial_state(5), explore=explore, mask=case.masks(5))
        if not torch.equal(obs, case.obs(5)):
            fail("act modifies the observations in place", "work on a copy: obs.clone()")
    for number in range(NUM_UPDATES):
        batch = case.batch(number)
        algorithm.update(batch)
        path = first_difference(batch.tensors(), case.batch(number).tensors(), path="batch")
        if path:
            name = path.removeprefix("batch/")
            fail(f"update modifies batch.{name} in place", f"work on a copy: batch.{name}.clone()")


@check
def check_truncation(case: AlgorithmCase) -> None:
    """Off-policy and offline, `truncated` does not change the update: only `terminated` cuts the bootstrap."""
    if case.loop is Loop.ON_POLICY:
        return
    states = []
    for is_truncated in (False, True):
        algorithm = case.make()
        metrics = []
        for number in range(NUM_UPDATES):
            batch = case.batch(number)
            terminated = torch.zeros_like(batch.terminated)
            truncated = terminated.clone()
            truncated[::2] = is_truncated
            batch = dataclasses.replace(batch, terminated=terminated, truncated=truncated)
            metrics.append(_numbers(algorithm.update(batch)))
        states.append({"metrics": metrics, **saved_state(algorithm)})
    path = first_difference(*states, path="state")
    if path:
        fail(
            f"an update with truncated transitions differs from one without, at {path}",
            "bootstrap truncated episodes: use bootstrap_discounts(batch, gamma) or batch.terminated, not batch.dones",
        )


def _numbers(result: UpdateResult) -> dict[str, float]:
    return {name: float(value) for name, value in result.metrics.items()}


@check
def check_state(case: AlgorithmCase) -> None:
    """A new object that loads the `state_dict` of a trained one has its attributes, and continues bit-exactly."""
    algorithm = case.make()
    last = unsaved_attributes(algorithm)
    changed = set()
    for number in range(NUM_UPDATES):
        case.train(algorithm, number)
        before, last = last, unsaved_attributes(algorithm)
        changed |= {name for name in before.keys() & last.keys() if before[name] != last[name]}
    restored = case.make(seed=2)
    restored.load_state_dict(saved_state(algorithm))
    loaded = unsaved_attributes(restored)
    lost = sorted(name for name in changed & last.keys() if loaded.get(name) != last[name])
    if lost:
        names = ", ".join(f"'{name}'" for name in lost)
        fail(f"attribute {names} changes in act or update, and no checkpoint holds it", KEEP_STATE)
    for number in range(NUM_UPDATES, 2 * NUM_UPDATES):
        results = []
        for one in (algorithm, restored):
            actions, result = case.train(one, number)
            results.append({"actions": actions, "metrics": _numbers(result), **saved_state(one)})
        path = first_difference(*results, path="state")
        if path:
            found = f"after load_state_dict, act and update continue differently, at {path}"
            fail(found, KEEP_STATE)

"""Steps an environment with given actions and records what it returns: faults, episode lengths, speed."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.envs.single.answers import check, explain_reset, explain_step, is_reward, short
from rl_training.envs.state.generators import drawn_from, global_generators
from rl_training.envs.state.unsaved_state import shared_state
from rl_training.errors import EnvError

STEPS_TRACED = 200
Env = gym.Env[Any, Any]


@dataclass
class ProbeResult:
    """What an environment returned during one probe."""

    env_class: type
    where: str = "reset"
    """The call in progress: `reset` or `step 3`."""
    steps: int = 0
    faults: dict[str, str] = field(default_factory=dict)
    """First fault of each check, by the check's name: training would fail."""
    warnings: dict[str, str] = field(default_factory=dict)
    """First deviation of each check, by the check's name: training tolerates it."""
    episode_lengths: list[int] = field(default_factory=list)
    truncated_at: int = 0
    """Length of the longest episode that was truncated; 0: none was."""
    largest_obs: float = 0.0
    reuses_array: bool = False
    seconds: float = 0.0
    global_generators: list[str] = field(default_factory=list)
    """Libraries whose global random generator it samples from."""
    shared_changes: list[str] = field(default_factory=list)
    """Class attributes and module variables that it changes."""
    trace: list[Any] = field(default_factory=list)
    """Copies of the first observations, rewards, terminated and truncated flags."""


def probe(env: Env, actions: Sequence[Any], seed: int, neighbour: Env | None = None) -> ProbeResult:
    """Take the actions and close the environment; an exception ends the probe and is recorded as a fault.

    A `neighbour` is stepped after each step, to find state that two environments share.
    """
    result = ProbeResult(type(env.unwrapped))
    before, shared = global_generators(), shared_state(result.env_class, with_tables=True)
    try:
        _take_actions(env, actions, seed, neighbour, result)
    except EnvError as error:
        result.faults["runs"] = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        result.faults["runs"] = f"it raised {type(error).__name__} in {result.where}: {error}"
    env.close()
    now = shared_state(result.env_class, with_tables=True)
    result.global_generators = drawn_from(before)
    result.shared_changes = [name for name in shared if now.get(name) != shared[name]]
    return result


def _take_actions(
    env: Env, actions: Sequence[Any], seed: int, neighbour: Env | None, result: ProbeResult
) -> None:
    obs = _check_reset(env, env.reset(seed=seed), result)
    length, neighbour_ended = 0, True
    for action in actions:
        result.where = f"step {result.steps + 1}"
        start = time.perf_counter()
        answer = env.step(action)
        result.seconds += time.perf_counter() - start
        result.steps += 1
        length += 1
        next_obs, ended = _check_step(env, answer, result)
        result.reuses_array |= isinstance(obs, np.ndarray) and next_obs is obs
        obs = next_obs
        if result.steps <= STEPS_TRACED:
            result.trace.append(copy.deepcopy(answer[:4]))
        if neighbour is not None:
            if neighbour_ended:
                neighbour.reset(seed=seed + result.steps)
            neighbour_ended = any(neighbour.step(action)[2:4])
        if ended:
            result.episode_lengths.append(length)
            result.truncated_at = max(result.truncated_at, length if answer[3] else 0)
            length, result.where = 0, "reset"
            obs = _check_reset(env, env.reset(), result)


def _check_reset(env: Env, answer: Any, result: ProbeResult) -> Any:
    check(explain_reset(answer))
    _check_obs(env.observation_space, answer[0], result)
    if result.steps < STEPS_TRACED:
        result.trace.append(copy.deepcopy(answer[0]))
    return answer[0]


def _check_step(env: Env, answer: Any, result: ProbeResult) -> tuple[Any, bool]:
    """Check what `step` returned; gives the observation and whether the episode ended."""
    where = result.where
    fault = explain_step(answer, where)
    if isinstance(answer, tuple) and len(answer) == 5:
        _check_obs(env.observation_space, answer[0], result)
        if not is_reward(answer[1]):
            result.faults.setdefault("reward", f"{short(answer[1])} in {where} is not a number")
    check(fault)
    obs, reward, terminated, truncated, _ = answer
    if not math.isfinite(float(reward)):
        result.faults.setdefault("reward", f"it is {reward} in {where}")
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(value, (bool, np.bool_)):
            result.warnings.setdefault(
                "endings", f"{name} is {short(value)} in {where}, not a bool"
            )
    return obs, bool(terminated) or bool(truncated)


def _check_obs(space: gym.Space[Any], obs: Any, result: ProbeResult) -> None:
    fault = _find_fault(space, obs)
    if fault is not None:
        result.faults.setdefault("observations", f"{result.where} returned {fault}")
    elif isinstance(space, gym.spaces.Box):
        result.largest_obs = max(
            result.largest_obs, float(np.abs(np.asarray(obs, np.float64)).max(initial=0.0))
        )
        warning = _find_deviation(space, obs)
        if warning is not None:
            result.warnings.setdefault("observations", f"{result.where} returned {warning}")


def _find_fault(space: gym.Space[Any], obs: Any) -> str | None:
    """Why training cannot use the observation; None if it can."""
    if not isinstance(space, gym.spaces.Box):
        return None if space.contains(obs) else f"{short(obs)}, which is not in {space}"
    array = np.asarray(obs)
    if array.dtype.kind not in "biuf":
        return f"{short(obs)}, not an array of numbers"
    if array.shape != space.shape:
        return f"shape {array.shape}, its space {space.shape}"
    if not np.isfinite(array).all():
        index = np.argwhere(~np.isfinite(array))[0].tolist()
        return f"{array[tuple(index)]} at {index}"
    return None


def _find_deviation(space: gym.spaces.Box, obs: Any) -> str | None:
    """How an observation without a fault differs from its space; None if it does not."""
    array = np.asarray(obs)
    if not isinstance(obs, np.ndarray):
        return f"a {type(obs).__name__}, not an array"
    if array.dtype != space.dtype:
        return f"{array.dtype}, its space {space.dtype}"
    if not space.contains(array):
        index = np.argwhere((array < space.low) | (array > space.high))[0].tolist()
        value, low, high = (values[tuple(index)] for values in (array, space.low, space.high))
        return f"{value:g} at {index}, outside [{low:g}, {high:g}]"
    return None

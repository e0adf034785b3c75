"""How an environment behaves when it is stepped: what it returns, how long its episodes are, how fast it is."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.envs.answers import check, explain_reset, explain_step, is_reward, short
from rl_training.envs.state.global_generators import drawn_from, global_generators
from rl_training.envs.state.unsaved_state import shared_state
from rl_training.errors import EnvError

STEPS_TRACED = 200


@dataclass
class ProbeResult:
    """What was seen during a walk of random actions."""

    env_class: type
    steps: int = 0
    faults: dict[str, str] = field(default_factory=dict)
    """The first of each kind of fault, in words, by the name of its check."""
    oddities: dict[str, str] = field(default_factory=dict)
    """The same for what a trainer can live with."""
    episode_lengths: list[int] = field(default_factory=list)
    largest_obs: float = 0.0
    reuses_array: bool = False
    seconds: float = 0.0
    global_generators: list[str] = field(default_factory=list)
    """Whose global random generator it draws from."""
    shared_changes: list[str] = field(default_factory=list)
    """Which class attributes and module variables it changes."""
    trace: list[Any] = field(default_factory=list)
    """Copies of the first observations, rewards and endings."""


def watch(
    env: gym.Env[Any, Any], actions: Sequence[Any], seed: int, neighbour: gym.Env[Any, Any] | None = None
) -> ProbeResult:
    """Step the environment (and between its steps a `neighbour`) and note what it does; stop if it fails; close it."""
    seen = ProbeResult(type(env.unwrapped))
    before, shared = global_generators(), shared_state(type(env.unwrapped), with_tables=True)
    where = "reset"
    try:
        obs = _look_at_reset(env, env.reset(seed=seed), seen)
        length, neighbour_ended = 0, True
        for action in actions:
            where = f"step {seen.steps + 1}"
            start = time.perf_counter()
            answer = env.step(action)
            seen.seconds += time.perf_counter() - start
            seen.steps += 1
            length += 1
            next_obs, ended = _look_at_step(env, answer, where, seen)
            seen.reuses_array |= isinstance(obs, np.ndarray) and next_obs is obs
            obs = next_obs
            if seen.steps <= STEPS_TRACED:
                seen.trace.append(copy.deepcopy(answer[:4]))
            if neighbour is not None:
                if neighbour_ended:
                    neighbour.reset(seed=seed + seen.steps)
                neighbour_ended = any(neighbour.step(action)[2:4])
            if ended:
                seen.episode_lengths.append(length)
                length, where = 0, "reset"
                obs = _look_at_reset(env, env.reset(), seen)
    except EnvError as error:
        seen.faults["runs"] = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        seen.faults["runs"] = f"it raised {type(error).__name__} in {where}: {error}"
    env.close()
    now = shared_state(type(env.unwrapped), with_tables=True)
    changed = [name for name in shared if now.get(name) != shared[name]]
    return dataclasses.replace(seen, global_generators=drawn_from(before), shared_changes=changed)


def _look_at_reset(env: gym.Env[Any, Any], answer: Any, seen: ProbeResult) -> Any:
    check(explain_reset(answer))
    _look_at_obs(env.observation_space, answer[0], "reset", seen)
    if seen.steps < STEPS_TRACED:
        seen.trace.append(copy.deepcopy(answer[0]))
    return answer[0]


def _look_at_step(env: gym.Env[Any, Any], answer: Any, where: str, seen: ProbeResult) -> tuple[Any, bool]:
    complaint = explain_step(answer, where)
    if isinstance(answer, tuple) and len(answer) == 5:
        _look_at_obs(env.observation_space, answer[0], where, seen)
        if not is_reward(answer[1]):
            seen.faults.setdefault("reward", f"{short(answer[1])} in {where} is no number")
    check(complaint)
    obs, reward, terminated, truncated, _ = answer
    if not math.isfinite(float(reward)):
        seen.faults.setdefault("reward", f"it is {reward} in {where}")
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(value, (bool, np.bool_)):
            seen.oddities.setdefault("endings", f"{name} is {short(value)} in {where}, not a bool")
    return obs, bool(terminated) or bool(truncated)


def _look_at_obs(space: gym.Space[Any], obs: Any, where: str, seen: ProbeResult) -> None:
    array = np.asarray(obs)
    fault = oddity = None
    if not isinstance(space, gym.spaces.Box):
        fault = None if space.contains(obs) else f"{short(obs)} of {where} is not in {space}"
    elif array.dtype.kind not in "biuf":
        fault = f"that of {where} is {short(obs)}, not an array of numbers"
    elif array.shape != space.shape:
        fault = f"that of {where} has shape {array.shape}, its space {space.shape}"
    elif not np.isfinite(array).all():
        place = np.argwhere(~np.isfinite(array))[0].tolist()
        fault = f"that of {where} is {array[tuple(place)]} at {place}"
    else:
        seen.largest_obs = max(seen.largest_obs, float(np.abs(array.astype(np.float64)).max(initial=0.0)))
        if not isinstance(obs, np.ndarray):
            oddity = f"that of {where} is a {type(obs).__name__}, not an array"
        elif array.dtype != space.dtype:
            oddity = f"that of {where} is {array.dtype}, its space {space.dtype}"
        elif not space.contains(array):
            place = np.argwhere((array < space.low) | (array > space.high))[0].tolist()
            value, low, high = (values[tuple(place)] for values in (array, space.low, space.high))
            oddity = f"{value:g} at {place} in {where} is outside [{low:g}, {high:g}]"
    for kind, text in ((seen.faults, fault), (seen.oddities, oddity)):
        if text is not None:
            kind.setdefault("observations", text)

"""How an environment behaves when it is stepped: what it returns, how long its episodes are, how fast it is."""

from __future__ import annotations

import math
import numbers
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.envs.attributes import is_same


@dataclass
class Conduct:
    """What was seen during a walk of random actions."""

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


class Broke(Exception):  # noqa: N818 - it carries a finding, and never reaches a user
    """The environment raised or returned something that nothing can go on with."""


def watch(env: gym.Env[Any, Any], actions: Sequence[Any], seed: int) -> Conduct:
    """Step the environment and note what it does; stops early if it cannot go on."""
    seen = Conduct()
    before = {"numpy": np.random.get_state(legacy=False), "Python": random.getstate()}
    try:
        obs = _reset(env, seed, seen)
        length = 0
        for action in actions:
            start = time.perf_counter()
            answer = _call(lambda action=action: env.step(action), f"step {seen.steps + 1}")
            seen.seconds += time.perf_counter() - start
            seen.steps += 1
            length += 1
            next_obs, ended = _look_at_step(env, answer, seen)
            seen.reuses_array |= isinstance(obs, np.ndarray) and next_obs is obs
            obs = next_obs
            if ended:
                seen.episode_lengths.append(length)
                length = 0
                obs = _reset(env, None, seen)
    except Broke as broke:
        seen.faults.setdefault("runs", str(broke))
    after = {"numpy": np.random.get_state(legacy=False), "Python": random.getstate()}
    seen.global_generators = [name for name in before if not is_same(before[name], after[name])]
    return seen


def _call(call: Any, where: str) -> Any:
    try:
        return call()
    except (Exception, SystemExit) as error:
        raise Broke(f"it raised {type(error).__name__} in {where}: {error}") from error


def _reset(env: gym.Env[Any, Any], seed: int | None, seen: Conduct) -> Any:
    answer = _call(lambda: env.reset(seed=seed), "reset")
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], dict):
        raise Broke(f"reset returned {_short(answer)} instead of (observation, info)")
    _look_at_obs(env, answer[0], "reset", seen)
    return answer[0]


def _look_at_step(env: gym.Env[Any, Any], answer: Any, seen: Conduct) -> tuple[Any, bool]:
    where = f"step {seen.steps}"
    if not isinstance(answer, tuple) or len(answer) != 5:
        shape = f"a tuple of {len(answer)}" if isinstance(answer, tuple) else _short(answer)
        raise Broke(f"{where} returned {shape} instead of (obs, reward, terminated, truncated, info)")
    obs, reward, terminated, truncated, info = answer
    _look_at_obs(env, obs, where, seen)
    if not isinstance(reward, (numbers.Real, np.number)) or isinstance(reward, np.complexfloating):
        is_single = isinstance(reward, np.ndarray) and reward.size == 1
        (seen.oddities if is_single else seen.faults).setdefault("reward", f"{_short(reward)} in {where} is no number")
        if not is_single:
            raise Broke(f"the reward of {where} is {_short(reward)}")
    if not math.isfinite(float(np.asarray(reward).reshape(-1)[0])):
        seen.faults.setdefault("reward", f"it is {reward} in {where}")
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(value, (bool, np.bool_)):
            seen.oddities.setdefault("endings", f"{name} is {_short(value)} in {where}, not a bool")
    if not isinstance(info, dict):
        raise Broke(f"the info of {where} is {_short(info)}, not a dictionary")
    return obs, bool(terminated) or bool(truncated)


def _look_at_obs(env: gym.Env[Any, Any], obs: Any, where: str, seen: Conduct) -> None:
    space = env.observation_space
    if not isinstance(space, gym.spaces.Box):
        if not space.contains(obs):
            seen.faults.setdefault("observations", f"{_short(obs)} of {where} is not in {space}")
        return
    array = np.asarray(obs)
    if array.dtype.kind not in "biuf":
        seen.faults.setdefault("observations", f"that of {where} is {_short(obs)}, not an array of numbers")
        return
    if array.shape != space.shape:
        seen.faults.setdefault("observations", f"that of {where} has shape {array.shape}, its space {space.shape}")
        return
    if not np.isfinite(array).all():
        place = np.argwhere(~np.isfinite(array))[0].tolist()
        seen.faults.setdefault("observations", f"that of {where} is {array[tuple(place)]} at {place}")
        return
    seen.largest_obs = max(seen.largest_obs, float(np.abs(array.astype(np.float64)).max(initial=0.0)))
    if not isinstance(obs, np.ndarray):
        seen.oddities.setdefault("observations", f"that of {where} is a {type(obs).__name__}, not an array")
    elif array.dtype != space.dtype:
        seen.oddities.setdefault("observations", f"that of {where} is {array.dtype}, its space {space.dtype}")
    elif not space.contains(array):
        outside = np.argwhere((array < space.low) | (array > space.high))[0].tolist()
        value, bounds = array[tuple(outside)], (space.low[tuple(outside)], space.high[tuple(outside)])
        text = f"{value:g} at {outside} in {where} is outside [{bounds[0]:g}, {bounds[1]:g}]"
        seen.oddities.setdefault("observations", text)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:40]}... ({type(value).__name__})"

"""Checks of what an environment's `reset` and `step` return, with the messages of `rl-training doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.errors import EnvError

REMEDIES = {
    "runs": "fix the environment; step it by hand to see the traceback",
    "observations": "return what observation_space describes",
    "reward": "return a finite float",
    "endings": "return bool(...) for both",
}
"""Remedies by the name of the doctor's check."""


def explain_reset(answer: Any) -> str | None:
    """Describe the fault in a result of `reset`; None if it is (observation, info)."""
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], dict):
        return f"reset returned {short(answer)} instead of (observation, info)"
    return None


def explain_step(answer: Any, where: str = "step") -> str | None:
    """Describe the fault in a result of `step`, except in its observation; None if it is usable."""
    if not isinstance(answer, tuple) or len(answer) != 5:
        shape = f"a tuple of {len(answer)}" if isinstance(answer, tuple) else short(answer)
        return f"{where} returned {shape} instead of (obs, reward, terminated, truncated, info)"
    _, reward, terminated, truncated, info = answer
    if not is_reward(reward):
        return f"the reward of {where} is {short(reward)}, not a number ({REMEDIES['reward']})"
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        if np.size(value) != 1 or isinstance(value, (str, bytes)):
            return f"{name} is {short(value)} in {where}, not a bool ({REMEDIES['endings']})"
    if not isinstance(info, dict):
        return f"the info of {where} is {short(info)}, not a dictionary"
    return None


def is_reward(reward: Any) -> bool:
    """Whether `reward` is a scalar number."""
    if isinstance(reward, (str, bytes)) or np.size(reward) != 1 or np.ndim(reward) > 0:
        return False
    try:
        float(reward)
    except (TypeError, ValueError):
        return False
    return True


def find_misfit(space: gym.Space[Any], obs: Any) -> str | None:
    """Describe why an observation does not fit `space` in structure, shape or dtype; None if it fits."""
    misfit = _find_misfit(space, obs, "")
    return None if misfit is None else f"{misfit} ({REMEDIES['observations']})"


def _find_misfit(space: gym.Space[Any], obs: Any, path: str) -> str | None:
    what = f"part '{path}' of its observation" if path else "its observation"
    if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        return _find_misfit_of_parts(space, obs, path, what)
    if space.shape is None or space.dtype is None:
        return None if space.contains(obs) else f"{what} is {short(obs)}, which is not in {space}"
    try:
        array = np.asarray(obs)
    except (ValueError, TypeError):  # rows of several lengths, say
        return f"{what} is {short(obs)}, not an array of numbers"
    if array.dtype.kind not in "biuf":
        return f"{what} is {short(obs)}, not an array of numbers"
    if array.shape != space.shape:
        return f"{what} has shape {array.shape}, its space {space.shape}"
    if not np.can_cast(array.dtype, space.dtype, "same_kind"):
        return f"{what} is of {array.dtype}, its space of {space.dtype}"
    return None


def _find_misfit_of_parts(space: Any, obs: Any, path: str, what: str) -> str | None:
    is_dict = isinstance(space, gym.spaces.Dict)
    if not isinstance(obs, Mapping if is_dict else (tuple, list)):
        return f"{what} is {short(obs)}, its space {type(space).__name__}"
    if not is_dict and len(obs) != len(space.spaces):
        return f"{what} has {len(obs)} parts, its space {len(space.spaces)}"
    for key, inner in space.spaces.items() if is_dict else enumerate(space.spaces):
        if is_dict and key not in obs:
            return f"{what} has no part {key!r}, only {', '.join(map(repr, obs))}"
        misfit = _find_misfit(inner, obs[key], f"{path}/{key}".lstrip("/"))
        if misfit is not None:
            return misfit
    return None


def check(complaint: str | None) -> None:
    """Raise an `EnvError` unless `complaint` is None."""
    if complaint is not None:
        raise EnvError(complaint)


def short(value: Any) -> str:
    """The `repr` of a value, shortened."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:40]}... ({type(value).__name__})"

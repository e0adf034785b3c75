"""One training environment that can be left at any step and brought back to it."""

from __future__ import annotations

import copy
import inspect
from collections import deque
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

MAX_ARRAY_BYTES = 1 << 16
MAX_ITEMS = 4096
"""Larger attributes are left to the replay of the journal."""
KNOWN_INEXACT = {"BipedalWalker": "the ground contacts of BipedalWalker are not the same after a replay"}


class Step(NamedTuple):
    """What one step brought; at an ending `obs` is the next episode's first."""

    obs: Any
    reward: float
    terminated: bool
    truncated: bool
    final_obs: Any = None
    episode: tuple[float, int] | None = None
    """Raw return and length of the episode that ended."""


class ResumableEnv:
    """An environment that resets itself when an episode ends and knows how to get back to where it is.

    Most simulators cannot be copied, but do again what they did before. So the generator's state before the last
    reset and the actions since are kept; restoring sets the generator, resets and plays the actions, through all
    wrappers. Plain attributes that then still differ (a count of episodes, say) are set to what they were. An
    environment with `get_state` and `set_state` is asked instead, and so is the Atari emulator.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self.env = env
        self._seed: int | None = None
        self._generator_before_reset: dict[str, Any] | None = None
        self._actions: list[Any] = []
        self._obs: Any = None

    def reset(self, seed: int | None = None) -> Any:
        """Begin an episode, and a new page of the journal."""
        self._seed = seed
        self._generator_before_reset = None if seed is not None else _generator_state(self.env)
        self._actions = []
        self._obs, _ = self.env.reset(seed=seed)
        return self._obs

    def step(self, action: Any) -> Step:
        """Note the action and take it; begin the next episode where this one ends."""
        self._actions.append(action)
        obs, reward, terminated, truncated, info = self.env.step(action)
        if not (terminated or truncated):
            self._obs = obs
            return Step(obs, float(reward), False, False)
        return Step(self.reset(), float(reward), bool(terminated), bool(truncated), obs, info.get("episode"))

    def state(self) -> dict[str, Any]:
        """Everything `restore` needs, and what may keep it from being exact."""
        own = _own_state(self.env)
        return {
            "seed": self._seed,
            "generator_before_reset": self._generator_before_reset,
            "actions": np.stack(self._actions) if self._actions and own is None else None,
            "own": own,
            "generator": _generator_state(self.env),
            "attributes": [_plain_attributes(layer) for layer in _layers(self.env, with_core=own is None)],
            "obs": copy.deepcopy(self._obs),
            "caveats": [text for name, text in KNOWN_INEXACT.items() if type(self.env.unwrapped).__name__ == name],
        }

    def restore(self, state: dict[str, Any]) -> tuple[Any, list[str]]:
        """Go back to where `state` was taken. Returns the observation there, and why it may not be exactly there."""
        doubts: list[str] = list(state["caveats"])
        if state["own"] is not None:
            self._restore_own(state, doubts)
        else:
            self._replay(state, doubts)
        layers = _layers(self.env, with_core=state["own"] is None)
        for layer, saved in zip(layers, state["attributes"] or (), strict=False):
            _set_attributes(layer, saved)
        if state["generator"] is not None and not _same(_generator_state(self.env), state["generator"]):
            if state["own"] is None:
                doubts.append("its random generator is not where it was")
            _set_generator(self.env, state["generator"])
        return self._obs, doubts

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _replay(self, state: dict[str, Any], doubts: list[str]) -> None:
        if state["seed"] is None:
            _set_generator(self.env, state["generator_before_reset"])
        obs = self.reset(state["seed"])
        self._generator_before_reset = state["generator_before_reset"]
        for action in [] if state["actions"] is None else state["actions"]:
            self._actions.append(action)
            obs, _, terminated, truncated, _ = self.env.step(action)
            if terminated or truncated:
                doubts.append("its episode ended earlier when it was replayed")
                self._obs = self.reset()
                return
        self._obs = obs
        if not _same(obs, state["obs"]):
            doubts.append("replaying its actions led to another observation")

    def _restore_own(self, state: dict[str, Any], doubts: list[str]) -> None:
        self.reset(state["seed"])
        self._generator_before_reset = state["generator_before_reset"]
        _set_own_state(self.env, state["own"])
        if not _same(_own_state(self.env), state["own"]):
            doubts.append("its get_state after set_state returns something else")
        self._obs = state["obs"]


def _own_state(env: gym.Env[Any, Any]) -> Any:
    """The state as the environment itself gives it, if it does."""
    core: Any = env.unwrapped
    if hasattr(core, "ale"):
        return np.frombuffer(core.clone_state(include_rng=True).serialize(), np.uint8).copy()
    return copy.deepcopy(core.get_state()) if _keeps_own_state(core) else None


def _set_own_state(env: gym.Env[Any, Any], state: Any) -> None:
    core: Any = env.unwrapped
    if hasattr(core, "ale"):
        from ale_py import ALEState

        core.restore_state(ALEState(state.tobytes()))
    else:
        core.set_state(copy.deepcopy(state))


def _keeps_own_state(core: Any) -> bool:
    """Whether it has `get_state()` and `set_state(state)`; others use these names with more arguments."""
    try:
        inspect.signature(core.get_state).bind()
        inspect.signature(core.set_state).bind(None)
    except (AttributeError, TypeError, ValueError):
        return False
    return True


def _layers(env: gym.Env[Any, Any], *, with_core: bool) -> list[gym.Env[Any, Any]]:
    """The wrappers from the outside in, and the environment itself."""
    layers = [env]
    while isinstance(layers[-1], gym.Wrapper):
        layers.append(layers[-1].env)
    return layers if with_core else layers[:-1]


def _generator_state(env: gym.Env[Any, Any]) -> dict[str, Any] | None:
    """The state of the environment's generator, if it has made one (asking for it would make one)."""
    generator = getattr(env.unwrapped, "_np_random", None)
    return copy.deepcopy(dict(generator.bit_generator.state)) if isinstance(generator, np.random.Generator) else None


def _set_generator(env: gym.Env[Any, Any], state: dict[str, Any] | None) -> None:
    if state is not None:
        env.unwrapped.np_random.bit_generator.state = state


def _plain_attributes(layer: gym.Env[Any, Any]) -> dict[str, Any]:
    """A copy of the attributes that are numbers, words, small arrays, or lists of these."""
    return {name: copy.deepcopy(value) for name, value in vars(layer).items() if name != "env" and _is_plain(value)}


def _set_attributes(layer: gym.Env[Any, Any], saved: dict[str, Any]) -> None:
    """Give the attributes that differ their saved values; the others may be shared with the simulator."""
    for name, value in saved.items():
        current = vars(layer).get(name)
        if name not in vars(layer) or _same(current, value):
            continue
        if isinstance(current, np.ndarray) and isinstance(value, np.ndarray) and current.shape == value.shape:
            current[...] = value
        else:
            setattr(layer, name, _as_before(value, current))


def _as_before(value: Any, current: Any) -> Any:
    """`value` in the type of `current`, where a file does not tell a tuple or a numpy number from others."""
    if isinstance(current, deque):
        return deque(value, maxlen=current.maxlen)
    if isinstance(current, (tuple, np.generic)) and value is not None:
        return type(current)(value)
    return value


def _is_plain(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.nbytes <= MAX_ARRAY_BYTES and value.dtype.kind in "biuf"
    if isinstance(value, (list, tuple, deque)):
        return len(value) <= MAX_ITEMS and all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str, np.bool_, np.integer, np.floating))


def _same(one: Any, other: Any) -> bool:
    """Whether two trees of plain values are equal to the bit; a file turns tuples into lists."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f")
    if isinstance(one, (list, tuple, deque)) and isinstance(other, (list, tuple, deque)):
        return len(one) == len(other) and all(_same(*pair) for pair in zip(one, other, strict=True))
    return bool(one == other) or (one != one and other != other)

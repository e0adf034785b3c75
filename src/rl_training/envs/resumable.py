"""One training environment that can be left at any step and brought back to it."""

from __future__ import annotations

import copy
import inspect
import random
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from rl_training.envs import atari
from rl_training.envs.attributes import is_same, put_back, take_down


class Step(NamedTuple):
    """What one step brought; at an ending `obs` is the next episode's first."""

    obs: Any
    reward: float
    terminated: bool
    truncated: bool
    final_obs: Any = None
    episode: tuple[float, int] | None = None
    """Raw return and length of the episode that ended."""


class BeforeReset(NamedTuple):
    """What the beginning of an episode depends on."""

    seed: int | None
    generator: dict[str, Any] | None
    attributes: list[dict[str, Any]]
    emulator: bytes | None
    """A snapshot of the Atari emulator, of which only the generators are saved."""


class ResumableEnv:
    """An environment that resets itself when an episode ends and knows how to get back to where it is.

    Most simulators cannot be copied, but do again what they did before. So what the last reset began from (the
    generators and the plain attributes) and the actions since are kept; restoring puts these back, resets and plays
    the actions, through all wrappers. Plain attributes that then still differ (a clock, say) are set to what they
    were. An environment with `get_state` and `set_state` is asked instead.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self.env = env
        self._before = BeforeReset(None, None, [], None)
        self._actions: list[Any] = []
        self._obs: Any = None

    @property
    def keeps_own_state(self) -> bool:
        """Whether the environment itself says where it is; otherwise its episode is played again."""
        return _keeps_own_state(self.env.unwrapped)

    def reset(self, seed: int | None = None) -> Any:
        """Begin an episode, and a new page of the journal."""
        core = self.env.unwrapped
        self._before = BeforeReset(
            seed,
            None if seed is not None else _generator_state(self.env),
            [take_down(layer) for layer in _layers(self.env)],
            atari.snapshot(core) if seed is None and atari.is_atari(core) else None,
        )
        self._actions = []
        _renew_world(core)
        self._obs, _ = self.env.reset(seed=seed)
        return self._obs

    def step(self, action: Any) -> Step:
        """Note the action and take it; begin the next episode where this one ends."""
        self._actions.append(action)
        obs, reward, terminated, truncated, info = self.env.step(action)
        if not (terminated or truncated):
            self._obs = obs
            return Step(obs, float(reward), False, False)
        final_obs = copy.deepcopy(obs)  # some environments write the next observation into the same array
        return Step(self.reset(), float(reward), bool(terminated), bool(truncated), final_obs, info.get("episode"))

    def state(self) -> dict[str, Any]:
        """Everything `restore` needs."""
        own = _own_state(self.env)
        before = self._before
        return {
            "seed": before.seed,
            "generator_before_reset": before.generator,
            "attributes_before_reset": before.attributes if own is None else None,
            "emulator_before_reset": None if before.emulator is None else atari.read_generators(before.emulator),
            "actions": np.stack(self._actions) if self._actions and own is None else None,
            "own": own,
            "generator": _generator_state(self.env),
            "attributes": [take_down(layer) for layer in _layers(self.env, with_core=own is None)],
            "obs": copy.deepcopy(self._obs),
        }

    def restore(self, state: dict[str, Any]) -> tuple[Any, list[str]]:
        """Go back to where `state` was taken. Returns the observation there, and why it may not be exactly there."""
        doubts: list[str] = []
        before = _global_generators()
        if state["own"] is not None:
            self._restore_own(state, doubts)
        else:
            self._replay(state, doubts)
        for name, generator in _global_generators().items():
            if not is_same(generator, before[name]):
                doubts.append(f"it draws from {name}'s global generator, which is not saved: use self.np_random")
        layers = _layers(self.env, with_core=state["own"] is None)
        for layer, saved in zip(layers, state["attributes"] or (), strict=False):
            put_back(layer, saved)
        if state["generator"] is not None and not is_same(_generator_state(self.env), state["generator"]):
            if state["own"] is None:
                doubts.append("its random generator is not where it was")
            _set_generator(self.env, state["generator"])
        return self._obs, doubts

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _replay(self, state: dict[str, Any], doubts: list[str]) -> None:
        self._set_before_reset(state, doubts)
        obs = self.reset(state["seed"])
        for action in [] if state["actions"] is None else state["actions"]:
            self._actions.append(action)
            obs, _, terminated, truncated, _ = self.env.step(action)
            if terminated or truncated:
                doubts.append("its episode ended earlier when it was replayed")
                self._obs = self.reset()
                return
        self._obs = obs
        if not is_same(obs, state["obs"]):
            doubts.append("replaying its actions led to another observation")

    def _set_before_reset(self, state: dict[str, Any], doubts: list[str]) -> None:
        for layer, saved in zip(_layers(self.env), state.get("attributes_before_reset") or (), strict=False):
            put_back(layer, saved)
        core = self.env.unwrapped
        if state["seed"] is None:
            _set_generator(self.env, state["generator_before_reset"])
            if state.get("emulator_before_reset") is not None:
                atari.set_generators(core, state["emulator_before_reset"])
            elif atari.is_atari(core):
                doubts.append("the generators of its Atari emulator were not saved")

    def _restore_own(self, state: dict[str, Any], doubts: list[str]) -> None:
        self.reset(state["seed"])
        _set_own_state(self.env, state["own"])
        if not is_same(_own_state(self.env), state["own"]):
            doubts.append("its get_state after set_state returns something else")
        self._obs = state["obs"]


def _own_state(env: gym.Env[Any, Any]) -> Any:
    """The state as the environment itself gives it, if it does."""
    core: Any = env.unwrapped
    return copy.deepcopy(core.get_state()) if _keeps_own_state(core) else None


def _set_own_state(env: gym.Env[Any, Any], state: Any) -> None:
    core: Any = env.unwrapped
    core.set_state(copy.deepcopy(state))


def _keeps_own_state(core: Any) -> bool:
    """Whether it has `get_state()` and `set_state(state)`; others use these names with more arguments."""
    try:
        inspect.signature(core.get_state).bind()
        inspect.signature(core.set_state).bind(None)
    except (AttributeError, TypeError, ValueError):
        return False
    return True


def _renew_world(core: Any) -> None:
    """Give a Box2D environment a new world for its new episode.

    BipedalWalker and CarRacing clear their world and use it again. What earlier episodes leave in it (the order of
    its contacts) changes the last bits of the next one, which no replay in a new world repeats.
    """
    world: Any = getattr(core, "world", None)
    if type(world).__name__ == "b2World" and hasattr(core, "_destroy"):
        core._destroy()
        make_world: Any = type(world)
        core.world = make_world(gravity=world.gravity)


def _layers(env: gym.Env[Any, Any], *, with_core: bool = True) -> list[gym.Env[Any, Any]]:
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


def _global_generators() -> dict[str, Any]:
    return {"numpy": np.random.get_state(legacy=False), "Python": random.getstate()}

"""One training environment that can be left at any step and brought back to it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from rl_training.envs import atari
from rl_training.envs.attributes import is_same, put_back, take_down
from rl_training.envs.global_generators import drawn_from, global_generators

GOES_ON = "goes_on"
"""In the info of a step that terminates: the environment is to be stepped on, not reset."""


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

    Most simulators cannot be copied, but do again what they did before. So what the last reset began from (the
    generators and the plain attributes) and the actions since are kept; restoring puts these back, resets and plays
    the actions, through all wrappers. Plain attributes that then still differ (a clock, say) are set to what they
    were. An environment with `get_state` and `set_state` is asked instead.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self.env = env
        self._core: Any = env.unwrapped
        self._before: dict[str, Any] = {}
        """What the beginning of the episode depends on."""
        self._actions: list[Any] = []
        self._obs: Any = None
        self._has_stepped = False
        self._global_draws: set[str] = set()
        """Whose global generator it was seen to draw from."""

    @property
    def keeps_own_state(self) -> bool:
        """Whether it has `get_state()` and `set_state(state)`; others use these names with more arguments."""
        try:
            inspect.signature(self._core.get_state).bind()
            inspect.signature(self._core.set_state).bind(None)
        except (AttributeError, TypeError, ValueError):
            return False
        return True

    def reset(self, seed: int | None = None) -> Any:
        """Begin an episode, and a new page of the journal."""
        is_emulated = seed is None and atari.is_atari(self._core)
        self._before = {
            "seed": seed,
            "generator_before_reset": None if seed is not None else self._generator_state(),
            "attributes_before_reset": [take_down(layer) for layer in self._layers()],
            # Of this snapshot only the generators are saved.
            "emulator_before_reset": atari.snapshot(self._core) if is_emulated else None,
        }
        self._actions = []
        _renew_world(self._core)
        self._obs, _ = self.env.reset(seed=seed)
        return self._obs

    def step(self, action: Any) -> Step:
        """Note the action and take it; begin the next episode where this one ends."""
        before = None if self._has_stepped else global_generators()  # once: it takes longer than many a step
        self._has_stepped = True
        self._actions.append(action)
        obs, reward, terminated, truncated, info = self.env.step(action)
        if before is not None:
            self._global_draws.update(drawn_from(before))
        if not (terminated or truncated) or GOES_ON in info:
            self._obs = obs
            return Step(obs, float(reward), bool(terminated), False)
        final_obs = copy.deepcopy(obs)  # some environments write the next observation into the same array
        return Step(self.reset(), float(reward), bool(terminated), bool(truncated), final_obs, info.get("episode"))

    def state(self) -> dict[str, Any]:
        """Everything `restore` needs."""
        own = copy.deepcopy(self._core.get_state()) if self.keeps_own_state else None
        emulator = self._before["emulator_before_reset"]
        return {
            **self._before,
            "attributes_before_reset": self._before["attributes_before_reset"] if own is None else None,
            "emulator_before_reset": None if emulator is None else atari.read_generators(emulator),
            "actions": np.stack(self._actions) if self._actions and own is None else None,
            "own": own,
            "generator": self._generator_state(),
            "attributes": [take_down(layer) for layer in self._layers(with_core=own is None)],
            "obs": copy.deepcopy(self._obs),
            "global_draws": sorted(self._global_draws),
        }

    def restore(self, state: dict[str, Any], report: Callable[[], None] = lambda: None) -> tuple[Any, list[str]]:
        """Go back to where `state` was taken. Returns the observation there, and why it may not be exactly there.

        `report` is called after each replayed action, so that whoever waits knows that this goes on.
        """
        doubts: list[str] = []
        before = global_generators()
        if state["own"] is not None:
            self._restore_own(state, doubts)
        else:
            self._replay(state, doubts, report)
        known = [name for name in before if name in state.get("global_draws", ())]
        self._global_draws.update(known, drawn_from(before))
        for name in sorted(self._global_draws):
            doubts.append(f"it draws from {name}'s global generator, which is not saved: use self.np_random")
        for layer, saved in zip(self._layers(with_core=state["own"] is None), state["attributes"] or (), strict=False):
            put_back(layer, saved)
        if state["generator"] is not None and not is_same(self._generator_state(), state["generator"]):
            if state["own"] is None:
                doubts.append("its random generator is not where it was")
            self._core.np_random.bit_generator.state = state["generator"]
        return self._obs, doubts

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _replay(self, state: dict[str, Any], doubts: list[str], report: Callable[[], None]) -> None:
        self._set_before_reset(state, doubts)
        obs = self.reset(state["seed"])
        for action in [] if state["actions"] is None else state["actions"]:
            self._actions.append(action)
            obs, _, terminated, truncated, info = self.env.step(action)
            report()
            if (terminated or truncated) and GOES_ON not in info:
                doubts.append("its episode ended earlier when it was replayed")
                self._obs = self.reset()
                return
        self._obs = obs
        if not is_same(obs, state["obs"]):
            doubts.append("replaying its actions led to another observation")

    def _set_before_reset(self, state: dict[str, Any], doubts: list[str]) -> None:
        for layer, saved in zip(self._layers(), state.get("attributes_before_reset") or (), strict=False):
            put_back(layer, saved)
        if state["seed"] is not None:
            return
        if state["generator_before_reset"] is not None:
            self._core.np_random.bit_generator.state = state["generator_before_reset"]
        if state.get("emulator_before_reset") is not None:
            atari.set_generators(self._core, state["emulator_before_reset"])
        elif atari.is_atari(self._core):
            doubts.append("the generators of its Atari emulator were not saved")

    def _restore_own(self, state: dict[str, Any], doubts: list[str]) -> None:
        self.reset(state["seed"])
        self._core.set_state(copy.deepcopy(state["own"]))
        if not is_same(self._core.get_state(), state["own"]):
            doubts.append("its get_state after set_state returns something else")
        self._obs = state["obs"]

    def _layers(self, *, with_core: bool = True) -> list[gym.Env[Any, Any]]:
        """The wrappers from the outside in, and the environment itself."""
        layers = [self.env]
        while isinstance(layers[-1], gym.Wrapper):
            layers.append(layers[-1].env)
        return layers if with_core else layers[:-1]

    def _generator_state(self) -> dict[str, Any] | None:
        """The state of the environment's generator, if it has made one (asking for it would make one)."""
        made = getattr(self._core, "_np_random", None)
        return copy.deepcopy(dict(made.bit_generator.state)) if isinstance(made, np.random.Generator) else None


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

"""One training environment that can be left at any step and brought back to it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from rl_training.envs.answers import check, explain_reset, find_misfit
from rl_training.envs.state import ale_rng
from rl_training.envs.state.attributes import (
    MAX_ARRAY_BYTES,
    MAX_ITEMS,
    capture_attributes,
    is_same,
    restore_attributes,
    restore_generator,
)
from rl_training.envs.state.global_generators import global_generators
from rl_training.envs.state.shared_changes import change_of_shared, watch_call
from rl_training.envs.state.unsaved_state import shared_state, unsaved_state

NO_RESET = "goes_on"
"""In the info of a step that terminates: the environment is to be stepped on, not reset."""
MAX_WATCHED = 1024
"""The first, second, fourth, ... of so many resets and steps are watched for changes that no checkpoint holds."""
SAVED_ATTRIBUTES = (
    f"arrays of up to {MAX_ARRAY_BYTES // 1024} KiB and containers of up to {MAX_ITEMS:,} items are; for more, write"
    " get_state and set_state"
)


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
        self._return = 0.0
        """Sum of the rewards since the last reset."""
        self._obs: Any = None
        self._num_resets = 0
        self._num_steps = 0
        self.failed_call: str | None = None
        """What failed within `step`, if it was the reset after the end of an episode."""
        self._generators: dict[str, Any] = {}
        """Where the generators that are not saved were when the environment was first reset, or restored."""
        self._unsaved_draws: set[str] = set()
        """From which of these it was seen to draw."""
        self._shared_changes: set[str] = set()
        """Which class attributes and module variables it was seen to change."""

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
        is_emulated = seed is None and ale_rng.is_atari(self._core)
        self._before = {
            "seed": seed,
            "generator_before_reset": None if seed is not None else self._generator_state(),
            "attributes_before_reset": [capture_attributes(layer) for layer in self._layers()],
            # Of this snapshot only the generators are saved.
            "emulator_before_reset": ale_rng.snapshot(self._core) if is_emulated else None,
        }
        self._actions = []
        self._return = 0.0
        _renew_world(self._core)
        if not self._num_resets:
            self._generators = self._unsaved_generators()
        before = self._shared_before(self._num_resets)
        answer = self.env.reset(seed=seed)
        self._note_changes(before)
        if not self._num_resets:
            check(explain_reset(answer) or find_misfit(self.env.observation_space, answer[0]))
        self._num_resets += 1
        self._obs = answer[0]
        return self._obs

    def step(self, action: Any) -> Step:
        """Note the action and take it; begin the next episode where this one ends."""
        number = self._num_steps
        self._num_steps = number + 1
        before = None if number & (number - 1) else self._shared_before(number)
        self._actions.append(action)
        answer = self.env.step(action.copy() if isinstance(action, np.ndarray) else action)  # it may write into it
        if before:
            self._note_changes(before)
        obs, reward, terminated, truncated, info = answer
        reward = float(reward)
        self._return += reward
        if not number:
            check(find_misfit(self.env.observation_space, obs))
        if not (terminated or truncated) or NO_RESET in info:
            self._obs = obs
            return Step(obs, reward, bool(terminated), False)
        final_obs = copy.deepcopy(obs)  # some environments write the next observation into the same array
        try:
            first_obs = self.reset()
        except BaseException:
            self.failed_call = "reset"
            raise
        return Step(first_obs, reward, bool(terminated), bool(truncated), final_obs, info.get("episode"))

    def state(self) -> dict[str, Any]:
        """Everything `restore` needs."""
        own = copy.deepcopy(self._core.get_state()) if self.keeps_own_state else None
        emulator = self._before["emulator_before_reset"]
        return {
            **self._before,
            "attributes_before_reset": self._before["attributes_before_reset"] if own is None else None,
            "emulator_before_reset": None if emulator is None else ale_rng.read_generators(emulator),
            "actions": np.stack(self._actions) if self._actions and own is None else None,
            "own": own,
            "generator": self._generator_state(),
            "attributes": [capture_attributes(layer) for layer in self._layers(with_core=own is None)],
            "unsaved": self._unsaved(with_core=own is None),
            "obs": copy.deepcopy(self._obs),
            "return": self._return,
            "global_draws": sorted(self._draws()),
            "shared_changes": sorted(self._shared_changes),
        }

    def restore(self, state: dict[str, Any], report: Callable[[], None] = lambda: None) -> tuple[Any, list[str]]:
        """Go back to where `state` was taken. Returns the observation there, and why it may not be exactly there.

        `report` is called after each replayed action, so that whoever waits knows that this goes on.
        """
        inexact_reasons: list[str] = []
        before, self._generators = shared_state(type(self._core)), self._unsaved_generators()
        if state["own"] is not None:
            self._restore_own(state, inexact_reasons)
        else:
            self._replay(state, inexact_reasons, report)
        self._note_changes(before)
        inexact_reasons += self._unsaved_changes(state)
        for layer, saved in zip(self._layers(with_core=state["own"] is None), state["attributes"] or (), strict=False):
            inexact_reasons += [
                f"the objects in its attribute '{name}' are not as they were"
                for name in restore_attributes(layer, saved)
            ]
        for now, then in zip(self._unsaved(with_core=state["own"] is None), state.get("unsaved") or (), strict=False):
            for name in sorted(name for name in now if now[name] != then.get(name, now[name])):
                inexact_reasons.append(f"its attribute '{name}' is not as it was, and is not saved: {SAVED_ATTRIBUTES}")
        if state["generator"] is not None and not is_same(self._generator_state(), state["generator"]):
            if state["own"] is None:
                inexact_reasons.append("its random generator is not where it was")
            self._set_generator(state["generator"])
        return self._obs, inexact_reasons

    def close(self) -> None:
        """Close the environment."""
        with watch_call(type(self._core), "close"):
            self.env.close()

    def _replay(self, state: dict[str, Any], inexact_reasons: list[str], report: Callable[[], None]) -> None:
        self._set_before_reset(state, inexact_reasons)
        obs = self.reset(state["seed"])
        for action in [] if state["actions"] is None else state["actions"]:
            self._actions.append(action)
            obs, reward, terminated, truncated, info = self.env.step(action.copy())
            self._return += float(reward)
            report()
            if (terminated or truncated) and NO_RESET not in info:
                inexact_reasons.append("its episode ended earlier when it was replayed")
                self._obs = self.reset()
                return
        self._obs = obs
        if not is_same(obs, state["obs"]):
            inexact_reasons.append("replaying its actions led to another observation")
        if not is_same(self._return, state["return"]):
            inexact_reasons.append("replaying its actions led to other rewards")

    def _set_before_reset(self, state: dict[str, Any], inexact_reasons: list[str]) -> None:
        for layer, saved in zip(self._layers(), state.get("attributes_before_reset") or (), strict=False):
            restore_attributes(layer, saved)
        if state["seed"] is not None:
            return
        if state["generator_before_reset"] is not None:
            self._set_generator(state["generator_before_reset"])
        if state.get("emulator_before_reset") is not None:
            ale_rng.set_generators(self._core, state["emulator_before_reset"])
        elif ale_rng.is_atari(self._core):
            inexact_reasons.append("the generators of its Atari emulator were not saved")

    def _restore_own(self, state: dict[str, Any], inexact_reasons: list[str]) -> None:
        self.reset(state["seed"])
        self._core.set_state(copy.deepcopy(state["own"]))
        if not is_same(self._core.get_state(), state["own"]):
            inexact_reasons.append("its get_state after set_state returns something else")
        self._obs = state["obs"]
        self._return = state["return"]

    def _unsaved_changes(self, state: dict[str, Any]) -> list[str]:
        """Why it may be elsewhere: what it drew or changed, before it was saved or now, that no checkpoint holds."""
        drawn = {name for name in self._generators if name in state["global_draws"]}
        self._unsaved_draws = drawn | self._draws()
        self._shared_changes |= {name for name in state.get("shared_changes", ()) if isinstance(name, str)}
        use = "which is not saved: use self.np_random"
        draws = [f"it (or a callback) draws from {name}, {use}" for name in sorted(self._unsaved_draws)]
        return [*draws, *map(change_of_shared, sorted(self._shared_changes))]

    def _shared_before(self, number: int) -> dict[str, int]:
        """What it shares with others of its class, for a few of the calls: to look takes longer than many a step."""
        is_watched = number <= MAX_WATCHED and number & (number - 1) == 0
        return shared_state(type(self._core)) if is_watched else {}

    def _note_changes(self, before: dict[str, int]) -> None:
        now = shared_state(type(self._core)) if before else {}
        self._shared_changes.update(name for name in before if now.get(name) != before[name])

    def _unsaved_generators(self) -> dict[str, Any]:
        found = {f"{name}'s global generator": state for name, state in global_generators().items()}
        for name in ("action_space", "observation_space"):
            made = getattr(vars(self._core).get(name), "_np_random", None)
            found[f"the generator of its {name}"] = made and copy.deepcopy(made.bit_generator.state)
        return found

    def _draws(self) -> set[str]:
        now = self._unsaved_generators()
        moved = {name for name in self._generators if not is_same(now[name], self._generators[name])}
        return self._unsaved_draws | moved

    def _unsaved(self, *, with_core: bool) -> list[dict[str, int]]:
        return [unsaved_state(layer, capture_attributes(layer)) for layer in self._layers(with_core=with_core)]

    def _layers(self, *, with_core: bool = True) -> list[gym.Env[Any, Any]]:
        """The wrappers from the outside in, and the environment itself."""
        layers = [self.env]
        while isinstance(layers[-1], gym.Wrapper):
            layers.append(layers[-1].env)
        return layers if with_core else layers[:-1]

    def _set_generator(self, state: dict[str, Any]) -> None:
        current = self._core.np_random
        restored = restore_generator(current, state)
        if restored is not current:
            self._core.np_random = restored

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

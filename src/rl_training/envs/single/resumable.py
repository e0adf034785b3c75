"""One training environment whose state can be saved at any step and restored exactly."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from rl_training.envs.single.answers import check, explain_reset, explain_step, find_misfit
from rl_training.envs.single.masks import NOTHING, StepReading
from rl_training.envs.state import generators as ale_rng
from rl_training.envs.state.aliases import Env, State
from rl_training.envs.state.attributes import (
    MAX_ARRAY_BYTES,
    MAX_ITEMS,
    capture_attributes,
    generator_state,
    has_custom_state,
    is_same,
    restore_attributes,
    restore_generator,
)
from rl_training.envs.state.generators import global_generators
from rl_training.envs.state.unsaved_state import (
    change_of_shared,
    changed_names,
    is_watched,
    shared_state,
    unsaved_state,
    watch_call,
)

NO_RESET = "rl_training.no_reset"
"""Info key of a step that terminates without a reset: the game continues. Qualified, so that no user's info has it."""
SAVED_ATTRIBUTES = (
    f"arrays up to {MAX_ARRAY_BYTES // 1024} KiB and containers up to {MAX_ITEMS:,} items"
)


class FurtherParts(NamedTuple):
    """What is read beside the observation of a step."""

    mask: Any
    """Action mask of `obs`, where the environment gives masks; else None."""
    final_mask: Any
    """Action mask of `final_obs`; None within an episode."""
    info: tuple[Any, ...]
    """Values of the info keys that the algorithm asks for."""


class Step(NamedTuple):
    """The result of one step; at an episode end `obs` is the first observation of the next episode."""

    obs: Any
    reward: float
    terminated: bool
    truncated: bool
    final_obs: Any = None
    """Last observation of the episode that ended; None within an episode."""
    episode: tuple[float, int] | None = None
    """Return and length of the episode that ended; None within an episode."""
    further: FurtherParts | None = None
    """Masks and info values, where they are read."""


class ResumableEnv:
    """An environment that resets itself at episode ends and can be saved and restored at any step.

    Most simulators cannot be copied, but are deterministic. So the state before the last reset (generators and
    attributes) and the actions since (the action log) are kept; `restore` sets that state, resets and replays the
    actions through all wrappers. Attributes that still differ afterwards (a clock, say) get their saved values. An
    environment with `get_state` and `set_state` is restored by these instead.
    """

    def __init__(self, env: Env, reading: StepReading = NOTHING) -> None:
        self.env = env
        self._reading = reading
        self._masks = reading.mask_reader(env)
        self._mask: Any = None
        self._reads_more = reading is not NOTHING
        self._core: Any = env.unwrapped
        self._before: dict[str, Any] = {}
        """State before the last reset, on which the start of the episode depends."""
        self._actions: list[Any] = []
        """The action log: the actions since the last reset."""
        self._return = 0.0
        self._length = 0
        self._obs: Any = None
        self._num_resets = 0
        self._num_steps = 0
        self.failed_call: str | None = None
        """The method that failed within `step`, if it was the reset after an episode end."""
        self._generators: dict[str, Any] = {}
        """States of the unsaved generators before the first reset, or before `restore`."""
        self._unsaved_draws: set[str] = set()
        """Unsaved generators from which the environment drew."""
        self._shared_changes: set[str] = set()
        """Class attributes and module variables that the environment changed."""

    def reset(self, seed: int | None = None) -> Any:
        """Start an episode and a new action log."""
        is_emulated = seed is None and ale_rng.is_atari(self._core)
        self._before = {
            "seed": seed,
            "generator_before_reset": None if seed is not None else generator_state(self._core),
            "attributes_before_reset": [
                capture_attributes(wrapper) for wrapper in self._wrapper_chain()
            ],
            # Only the generators of this snapshot are saved.
            "emulator_before_reset": ale_rng.snapshot(self._core) if is_emulated else None,
        }
        self._actions = []
        self._return, self._length = 0.0, 0
        _renew_world(self._core)
        if not self._num_resets:
            self._generators = self._unsaved_generators()
        before = self._shared_before(self._num_resets)
        answer = self.env.reset(seed=seed)
        self._note_changes(before)
        check(explain_reset(answer))
        if not self._num_resets:
            check(find_misfit(self.env.observation_space, answer[0]))
        self._num_resets += 1
        self._obs = answer[0]
        if self._masks is not None:
            self._mask = self._masks.read(*answer)
        return self._obs

    def current_mask(self) -> Any:
        """The action mask of the current observation."""
        return self._mask

    def step(self, action: Any) -> Step:
        """Log the action and take it; reset at the end of an episode."""
        number = self._num_steps
        self._num_steps = number + 1
        before = None if number & (number - 1) else self._shared_before(number)
        self._actions.append(action)
        # The environment may write into its action.
        answer = self.env.step(action.copy() if isinstance(action, np.ndarray) else action)
        if before:
            self._note_changes(before)
        if not number:  # a later answer is checked only where reading it fails
            check(explain_step(answer) or find_misfit(self.env.observation_space, answer[0]))
        try:
            obs, reward, terminated, truncated, info = answer
            reward = float(reward)
            has_ended = (terminated or truncated) and NO_RESET not in info
        except (TypeError, ValueError):
            check(explain_step(answer))
            raise
        self._return += reward
        self._length += 1
        self._obs = obs
        further = None
        if self._reads_more:
            if self._masks is not None:
                is_last = bool(has_ended and terminated)
                self._mask = self._masks.read(obs, info, is_last=is_last)
            further = FurtherParts(self._mask, None, self._reading.info_values(info))
        if not has_ended:
            return Step(obs, reward, bool(terminated), False, None, None, further)
        episode = (self._return, self._length)
        final_obs = copy.deepcopy(obs)  # the next one may be written into the same array
        try:
            first_obs = self.reset()
        except BaseException:
            self.failed_call = "reset"
            raise
        if further is not None:
            further = FurtherParts(self._mask, further.mask, further.info)
        endings = bool(terminated), bool(truncated)
        return Step(first_obs, reward, *endings, final_obs, episode, further)

    def state(self) -> State:
        """The state that `restore` takes."""
        custom = None
        if has_custom_state(self._core):
            custom = copy.deepcopy(self._core.get_state())
        is_replayed = custom is None
        emulator = self._before["emulator_before_reset"]
        chain = self._wrapper_chain(with_core=is_replayed)
        attributes = [capture_attributes(wrapper) for wrapper in chain]
        state = {
            **self._before,
            "emulator_before_reset": emulator and ale_rng.read_generators(emulator),
            "actions": np.stack(self._actions) if self._actions and is_replayed else None,
            "custom_state": custom,
            "generator": generator_state(self._core),
            "attributes": attributes,
            "unsaved": list(map(unsaved_state, chain, attributes)),
            "obs": copy.deepcopy(self._obs),
            "return": self._return,
            "length": self._length,
            "global_draws": sorted(self._draws()),
            "shared_changes": sorted(self._shared_changes),
        }
        if not is_replayed:
            state["attributes_before_reset"] = None
        if self._masks is not None:
            state["mask"] = self._mask
        return state

    def restore(
        self, state: State, report: Callable[[], None] = lambda: None
    ) -> tuple[Any, list[str]]:
        """Restore a saved state; returns the observation, and the reasons why the restored state may be inexact.

        `report` is called after each replayed action, as a sign of progress.
        """
        inexact_reasons: list[str] = []
        before, self._generators = self._shared_state(), self._unsaved_generators()
        is_replayed = state["custom_state"] is None
        if is_replayed:
            self._replay(state, inexact_reasons, report)
        else:
            self._restore_custom_state(state, inexact_reasons)
        self._note_changes(before)
        inexact_reasons += self._unsaved_changes(state)
        inexact_reasons += self._restore_attributes(state, with_core=is_replayed)
        if state["generator"] is not None and not is_same(
            generator_state(self._core), state["generator"]
        ):
            if is_replayed:
                inexact_reasons.append("its random generator is in another state")
            self._set_generator(state["generator"])
        return self._obs, inexact_reasons

    def close(self) -> None:
        """Close the environment."""
        with watch_call(type(self._core), "close"):
            self.env.close()

    def _replay(self, state: State, inexact_reasons: list[str], report: Callable[[], None]) -> None:
        """Restore the state before the last reset, reset, and take the logged actions again."""
        self._set_before_reset(state, inexact_reasons)
        self.reset(state["seed"])
        for action in [] if state["actions"] is None else state["actions"]:
            step = self.step(action)
            report()
            if step.episode is not None:
                inexact_reasons.append("its episode ended earlier when it was replayed")
                return
        if not is_same(self._obs, state["obs"]):
            inexact_reasons.append("replaying its actions led to another observation")
        if not is_same(self._return, state["return"]):
            inexact_reasons.append("replaying its actions led to other rewards")
            self._return = float(state["return"])

    def _set_before_reset(self, state: State, inexact_reasons: list[str]) -> None:
        for wrapper, saved in zip(
            self._wrapper_chain(), state.get("attributes_before_reset") or (), strict=False
        ):
            restore_attributes(wrapper, saved)
        if state["seed"] is not None:
            return
        if state["generator_before_reset"] is not None:
            self._set_generator(state["generator_before_reset"])
        if state.get("emulator_before_reset") is not None:
            ale_rng.set_generators(self._core, state["emulator_before_reset"])
        elif ale_rng.is_atari(self._core):
            inexact_reasons.append("the generators of its Atari emulator were not saved")

    def _restore_custom_state(self, state: State, inexact_reasons: list[str]) -> None:
        self.reset(state["seed"])
        self._core.set_state(copy.deepcopy(state["custom_state"]))
        if not is_same(self._core.get_state(), state["custom_state"]):
            inexact_reasons.append("its get_state after set_state returns something else")
        self._obs = state["obs"]
        self._mask = state.get("mask", self._mask)
        self._return, self._length = float(state["return"]), int(state["length"])

    def _restore_attributes(self, state: State, *, with_core: bool) -> list[str]:
        """Set the saved attributes; returns why attributes differ from the saved environment's."""
        reasons = []
        chain = self._wrapper_chain(with_core=with_core)
        for wrapper, saved in zip(chain, state["attributes"] or (), strict=False):
            lost = restore_attributes(wrapper, saved)
            reasons += [
                f"the objects in its attribute '{name}' differ from the saved ones" for name in lost
            ]
        for wrapper, then in zip(chain, state.get("unsaved") or (), strict=False):
            now = unsaved_state(wrapper, capture_attributes(wrapper))
            changed = sorted(name for name in now if now[name] != then.get(name, now[name]))
            remedy = f"which is not saved ({SAVED_ATTRIBUTES} are): add get_state and set_state"
            reasons += [f"its attribute '{name}' differs, {remedy}" for name in changed]
        return reasons

    def _unsaved_changes(self, state: State) -> list[str]:
        """Reasons why the state may be inexact: unsaved generators it drew from, shared variables it changed."""
        drawn = {name for name in self._generators if name in state["global_draws"]}
        self._unsaved_draws = drawn | self._draws()
        self._shared_changes |= {
            name for name in state.get("shared_changes", ()) if isinstance(name, str)
        }
        use = "which is not saved: use self.np_random"
        draws = [
            f"it (or a callback) draws from {name}, {use}" for name in sorted(self._unsaved_draws)
        ]
        return [*draws, *map(change_of_shared, sorted(self._shared_changes))]

    def _shared_before(self, number: int) -> dict[str, int]:
        """Checksums of its class's shared variables, for a few of the calls: computing them is slower than a step."""
        return self._shared_state() if is_watched(number) else {}

    def _shared_state(self) -> dict[str, int]:
        """Checksums of the shared variables of the environment's class and of its wrappers' classes."""
        found: dict[str, int] = {}
        for kind in dict.fromkeys(map(type, self._wrapper_chain())):
            for name, value in shared_state(kind).items():
                found[name] = hash((found[name], value)) if name in found else value
        return found

    def _note_changes(self, before: dict[str, int]) -> None:
        if before:
            self._shared_changes.update(changed_names(before, self._shared_state()))

    def _unsaved_generators(self) -> dict[str, Any]:
        found = {f"{name}'s global generator": state for name, state in global_generators().items()}
        for name in ("action_space", "observation_space"):
            made = getattr(vars(self._core).get(name), "_np_random", None)
            found[f"the generator of its {name}"] = made and made.bit_generator.state
        return found

    def _draws(self) -> set[str]:
        now = self._unsaved_generators()
        moved = {
            name for name in self._generators if not is_same(now[name], self._generators[name])
        }
        return self._unsaved_draws | moved

    def _wrapper_chain(self, *, with_core: bool = True) -> list[Env]:
        """The wrappers from the outermost inwards; with `with_core`, the environment itself comes last."""
        chain = [self.env]
        while isinstance(chain[-1], gym.Wrapper):
            chain.append(chain[-1].env)
        return chain if with_core else chain[:-1]

    def _set_generator(self, state: State) -> None:
        current = self._core.np_random
        restored = restore_generator(current, state)
        if restored is not current:
            self._core.np_random = restored


def _renew_world(core: Any) -> None:
    """Give a Box2D environment a new world for its new episode.

    BipedalWalker and CarRacing clear their world and reuse it. The order of its contacts, left by earlier episodes,
    changes the last bits of the next one, so a replay in a new world would not be bit-exact.
    """
    world: Any = getattr(core, "world", None)
    if type(world).__name__ == "b2World" and hasattr(core, "_destroy"):
        core._destroy()
        make_world: Any = type(world)
        core.world = make_world(gravity=world.gravity)

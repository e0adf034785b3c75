"""Action masks and info values read from an environment, and a wrapper that replaces invalid actions."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.envs.state.aliases import Array, Env, Info, MakeEnv, Result
from rl_training.envs.state.generators import seeded_global_generators
from rl_training.errors import EnvError
from rl_training.spaces.given import MASK_KEY, find_fault, read_masks
from rl_training.spaces.spec import describe_action

MASK_METHOD = "action_masks"


class MaskSource(enum.Enum):
    """Where an environment gives its action masks."""

    METHOD = f"its method {MASK_METHOD}()"
    OBSERVATION = f"key '{MASK_KEY}' of its observation"
    INFO = f"info['{MASK_KEY}']"


@dataclass(frozen=True)
class StepReading:
    """What is read after each reset and step beside the observation; picklable, for worker processes."""

    masks: MaskSource | None = None
    info_keys: tuple[str, ...] = ()
    """Keys of the info of a step that the algorithm asks for."""

    def mask_reader(self, env: Env) -> MaskReader | None:
        """The reader of this environment's masks; None if it gives none."""
        return None if self.masks is None else MaskReader(env, self.masks)

    def info_values(self, info: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values of the requested keys."""
        try:
            return tuple(info[key] for key in self.info_keys)
        except KeyError as error:
            known = ", ".join(map(repr, info)) or "none"
            raise EnvError(
                f"the info of step has no {error}, which the algorithm reads (its keys: {known})"
            ) from None


NOTHING = StepReading()


class MaskReader:
    """Reads the mask of the current observation."""

    def __init__(self, env: Env, source: MaskSource) -> None:
        self._source = source
        self._action = describe_action(env.action_space)
        self._method = env.get_wrapper_attr(MASK_METHOD) if source is MaskSource.METHOD else None

    def read(self, obs: Any, info: Mapping[str, Any], *, is_last: bool = False) -> Array:
        """The mask [num_options]; after the last step of a terminated episode (`is_last`) it may permit nothing."""
        mask = read_masks(self._find(obs, info), self._action.choices)
        wanted = (self._action.num_options,)
        if mask.shape != wanted:
            raise EnvError(
                f"its action mask from {self._source.value} has shape {mask.shape}: give shape {wanted}"
            )
        fault = find_fault(mask, self._action.choices)
        if fault is None:
            return mask
        if is_last:
            return np.ones_like(mask)  # no action follows, and its value is not used
        raise EnvError(f"its action mask from {self._source.value} {fault}: permit at least one")

    def _find(self, obs: Any, info: Mapping[str, Any]) -> Any:
        if self._method is not None:
            return self._method()
        where = info if self._source is MaskSource.INFO else obs
        if MASK_KEY not in where:
            raise EnvError(
                f"no action mask in {self._source.value}, where reset gave one: give it at every step"
            )
        return where[MASK_KEY]


def find_mask_source(env: Env, make_example: MakeEnv) -> MaskSource | None:
    """Where an environment gives its masks; `make_example` makes another one to reset, if only its info can tell."""
    if isinstance(env.action_space, gym.spaces.Box):
        return None
    if env.has_wrapper_attr(MASK_METHOD) and callable(env.get_wrapper_attr(MASK_METHOD)):
        return MaskSource.METHOD
    space = env.observation_space
    if isinstance(space, gym.spaces.Dict) and MASK_KEY in space.spaces:
        return MaskSource.OBSERVATION
    return MaskSource.INFO if MASK_KEY in _first_info(make_example) else None


def _first_info(make_example: MakeEnv) -> Mapping[str, Any]:
    """The info of a first reset; empty if the environment fails, which its own reset will report."""
    try:
        with seeded_global_generators(0), contextlib.closing(make_example()) as env:
            answer = env.reset(seed=0)
        return answer[1] if isinstance(answer, tuple) and isinstance(answer[1], dict) else {}
    except (Exception, SystemExit):
        return {}


class ValidActions(gym.Wrapper[Any, Any, Any, Any]):
    """Replaces an invalid option by the valid one that its number leads to; an option out of 60 by `60 % valid`."""

    def __init__(self, env: Env, source: MaskSource) -> None:
        super().__init__(env)
        self._reader = MaskReader(env, source)
        self._action = describe_action(env.action_space)
        self._mask: Any = None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Reset, and read the mask."""
        answer = self.env.reset(seed=seed, options=options)
        self._mask = self._reader.read(*answer)
        return answer

    def step(self, action: Any) -> Result:
        """Take the action, or a valid one for it, and read the next mask."""
        answer = self.env.step(self._valid(action))
        obs, _, terminated, _, info = answer
        self._mask = self._reader.read(obs, info, is_last=bool(terminated))
        return answer

    def _valid(self, action: Any) -> Any:
        options = np.atleast_1d(self._action.to_model(np.asarray(action)[None])[0])
        parts = np.split(self._mask, np.cumsum(self._action.choices)[:-1])
        for index, part in enumerate(parts):
            valid = np.flatnonzero(part)
            if not part[options[index]]:
                options[index] = valid[options[index] % len(valid)]
        return self._action.to_env(options.reshape(1, *self._action.model_shape))[0]


def make_valid(make: Callable[..., Env], source: MaskSource) -> Env:
    """Make an environment that takes no invalid action; picklable, for worker processes."""
    return ValidActions(make(), source)

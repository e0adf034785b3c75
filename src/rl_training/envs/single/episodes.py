"""Evaluation episodes, each in a newly made environment."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rl_training.envs.single.answers import check, explain_reset, explain_step, find_misfit
from rl_training.envs.single.masks import NOTHING, MaskReader, StepReading
from rl_training.envs.state.aliases import Env, MakeEnv
from rl_training.envs.state.generators import seed_global_generators
from rl_training.envs.state.unsaved_state import shared_changes, watch_call

SUCCESS_KEYS = ("is_success", "success")
"""Keys of the last info that report success."""


class EpisodeStep(NamedTuple):
    """One step of an evaluation episode."""

    obs: Any
    reward: float
    ended: bool
    success: bool | None
    """Success as reported in the info; None if it is not."""
    mask: Any = None
    """Action mask of `obs`, where the environment gives masks; else None."""


class EpisodeEnv:
    """A pool member that runs one evaluation episode after the other.

    Environments may keep state across episodes: counters, generators, a curriculum. A new environment for each
    episode makes its result depend on its seed and the policy only.
    """

    def __init__(
        self,
        make: MakeEnv,
        reading: StepReading = NOTHING,
        *,
        has_own_process: bool,
    ) -> None:
        self._make_env = make
        self._reading = reading
        self._masks: MaskReader | None = None
        self._has_own_process = has_own_process
        self._env: Env | None = None
        self._is_checked = False
        self._watch = contextlib.ExitStack()
        """Records changes of class attributes and module variables during the episode."""

    def make(self, seed: int) -> None:
        """Close the environment of the last episode and make the next one."""
        # Only the last one must close without error.
        with contextlib.suppress(Exception, SystemExit):
            self.close()
        if self._has_own_process:  # in the main process they are seeded once per evaluation
            seed_global_generators(seed)
        self._env = self._make_env()
        self._masks = self._reading.mask_reader(self._env)
        self._is_checked = False
        self._watch.enter_context(watch_call(type(self._env.unwrapped), "episode"))

    def reset(self, seed: int) -> EpisodeStep:
        """Start the episode; returns a step without reward that holds the first observation."""
        assert self._env is not None
        answer = self._env.reset(seed=seed)
        check(explain_reset(answer))
        check(find_misfit(self._env.observation_space, answer[0]))
        mask = None if self._masks is None else self._masks.read(*answer)
        return EpisodeStep(answer[0], 0.0, False, None, mask)

    def step(self, action: Any) -> EpisodeStep:
        """Take one step."""
        assert self._env is not None
        answer = self._env.step(action.copy() if isinstance(action, np.ndarray) else action)
        try:
            obs, reward, terminated, truncated, info = answer
            ended = bool(terminated or truncated)
            mask = None if self._masks is None or ended else self._masks.read(obs, info)
            step = EpisodeStep(obs, float(reward), ended, read_success(info), mask)
        except Exception:
            check(explain_step(answer))
            raise
        if not self._is_checked:
            self._is_checked = True
            check(explain_step(answer) or find_misfit(self._env.observation_space, obs))
        return step

    def render(self) -> Any:
        """The current state, as the environment's render mode gives it."""
        assert self._env is not None
        return self._env.render()

    def close(self) -> None:
        """Close the environment."""
        self._watch.close()
        env, self._env = self._env, None
        if env is not None:
            with watch_call(type(env.unwrapped), "close"):
                env.close()

    def shared_changes(self) -> list[str]:
        """Class attributes and module variables that changed, also by other environments of this process."""
        self._watch.close()
        return [] if self._env is None else shared_changes(type(self._env.unwrapped))


def read_success(info: Mapping[str, Any]) -> bool | None:
    """Success as reported in an info; None if it is not."""
    return next((bool(info[key]) for key in SUCCESS_KEYS if key in info), None)

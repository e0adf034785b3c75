"""Episodes of evaluation, each in an environment of its own that is made for it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from rl_training.envs.answers import check, explain_reset, explain_step, find_misfit
from rl_training.envs.state.global_generators import seed_global_generators
from rl_training.envs.state.shared_changes import shared_changes, watch_call

SUCCESS_KEYS = ("is_success", "success")
"""Where the last info of an episode tells how it went."""


class EpisodeStep(NamedTuple):
    """One step of an evaluation episode."""

    obs: Any
    reward: float
    ended: bool
    success: bool | None
    """What the info tells of success, if it does."""


class EpisodeEnv:
    """A place for one evaluation episode after the other.

    An environment may remember its earlier episodes: counters, generators, a curriculum. So each episode gets a new
    one, and its result depends on its seed and the policy alone, whatever was evaluated before.
    """

    def __init__(self, make: Callable[[], gym.Env[Any, Any]], *, has_own_process: bool) -> None:
        self._make_env = make
        self._has_own_process = has_own_process
        self._env: gym.Env[Any, Any] | None = None
        self._is_checked = False
        self._watch = contextlib.ExitStack()
        """Sees what the episode changes that others of its class share."""

    def make(self, seed: int) -> None:
        """Close the environment of the last episode, and make one for the next."""
        with contextlib.suppress(Exception, SystemExit):  # the episode is over; the last one's failure is told
            self.close()
        if self._has_own_process:  # elsewhere they are seeded for the whole evaluation
            seed_global_generators(seed)
        self._env = self._make_env()
        self._is_checked = False
        self._watch.enter_context(watch_call(type(self._env.unwrapped), "episode"))

    def reset(self, seed: int) -> Any:
        """Begin the episode."""
        assert self._env is not None
        answer = self._env.reset(seed=seed)
        check(explain_reset(answer))
        check(find_misfit(self._env.observation_space, answer[0]))
        return answer[0]

    def step(self, action: Any) -> EpisodeStep:
        """Take one step."""
        assert self._env is not None
        answer = self._env.step(action.copy() if isinstance(action, np.ndarray) else action)
        try:
            obs, reward, terminated, truncated, info = answer
            step = EpisodeStep(obs, float(reward), bool(terminated or truncated), read_success(info))
        except Exception:
            check(explain_step(answer))
            raise
        if not self._is_checked:
            self._is_checked = True
            check(explain_step(answer) or find_misfit(self._env.observation_space, obs))
        return step

    def close(self) -> None:
        """Close the environment."""
        self._watch.close()
        env, self._env = self._env, None
        if env is not None:
            with watch_call(type(env.unwrapped), "close"):
                env.close()

    def shared_changes(self) -> list[str]:
        """Which class attributes and module variables were seen to change, here and in others of this process."""
        self._watch.close()
        return [] if self._env is None else shared_changes(type(self._env.unwrapped))


def read_success(info: Mapping[str, Any]) -> bool | None:
    """Whether the info tells of success or failure."""
    return next((bool(info[key]) for key in SUCCESS_KEYS if key in info), None)

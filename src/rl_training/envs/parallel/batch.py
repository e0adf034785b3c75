"""Training environments that one object steps together: counts of their episodes, resets within the step, state."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from rl_training.envs.parallel.pools import describe_error
from rl_training.envs.parallel.vector import TrainingEnv
from rl_training.envs.single.masks import StepReading
from rl_training.envs.state.aliases import Array, Env, Info, Result, RewardTransform, State
from rl_training.errors import EnvError
from rl_training.plugins.user_code import trace_from_user


class Batch(Protocol):
    """Environments that are stepped by one object, which does not count their episodes."""

    name: str
    """What error messages call it."""
    is_savable: bool = True
    new_episodes: str = ""
    """Why a resumed run starts new episodes, where the batch cannot be restored."""

    def reset_all(self, seeds: Sequence[int | None], num_resumes: int) -> Any:
        """Reset every environment; returns the first observations."""

    def step(self, actions: Any) -> Sequence[Any]:
        """Observations, rewards, terminated and truncated in arrays of their own, and infos."""

    def end_episodes(self, obs: Any, ended: Array, infos: Any) -> tuple[Any, Any]:
        """The last observations of the ended episodes, and all observations after these environments were reset."""

    def state(self) -> State:
        """The entries of a saved state that only this kind of batch has."""
        return {"batch": None}

    def reads(self, state: State) -> bool:
        """Whether a saved state can be restored."""
        return self.is_savable

    def restore(self, state: State) -> list[str]:
        """Restore a saved state after a reset; returns why the restored state may be inexact."""
        return []

    def close(self) -> None:
        """Release what the batch holds."""


class BatchTrainingEnv(TrainingEnv):
    """A batch with episode limits, episode returns and resets within the step."""

    def __init__(
        self,
        batch: Batch,
        example: Env,
        num_envs: int,
        transform_rewards: RewardTransform | None,
        limit: float = math.inf,
    ) -> None:
        super().__init__(example, num_envs)
        self._batch = batch
        self.inexact_reasons = () if batch.is_savable else (batch.new_episodes,)
        self._transform_rewards = transform_rewards
        self._limit = limit
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, np.int64)
        self._obs: Any = None
        self._num_resumes = 0

    def step(self, actions: Any) -> Result:
        """Take one step in every environment, and reset those whose episode ended."""
        self._obs, rewards, terminated, truncated, infos = self._attempt(
            "step", self._batch.step, actions
        )
        rewards = np.asarray(rewards, np.float64)
        self._returns += rewards
        self._lengths += 1
        truncated = truncated | (self._lengths >= self._limit)
        ended = terminated | truncated
        info: Info = {}
        if ended.any():
            info = {"episodes": self._episodes(ended), "_final_obs": ended}
            info["final_obs"], self._obs = self._attempt(
                "reset", self._batch.end_episodes, self._obs, ended, infos
            )
            self._returns[ended], self._lengths[ended] = 0.0, 0
        shaped = rewards if self._transform_rewards is None else self._transform_rewards(rewards)
        return self._obs, shaped, terminated, truncated, info

    def state(self) -> State:
        """The state of the batch, and the return and length of each episode in progress."""
        episodes = self._episodes(slice(None))
        return {
            "seeds": list(self._seeds),
            "num_restarts": 0,
            "num_resumes": self._num_resumes,
            "environments": [{"return": total, "length": length} for total, length in episodes],
            "obs": copy.deepcopy(self._obs),
            **self._batch.state(),
        }

    def restore(self, state: State) -> tuple[Any, list[str]]:
        """Restore a saved state; a batch that cannot be restored starts new episodes."""
        self._seeds = list(state["seeds"])
        is_restored = self._batch.reads(state)
        self._num_resumes = state["num_resumes"] + (not is_restored)
        self._reset_all()  # also creates what a restored state is written to
        if not is_restored:
            return self._obs, [self._batch.new_episodes]
        reasons = self._batch.restore(state)
        self._returns[:] = [saved["return"] for saved in state["environments"]]
        self._lengths[:] = [saved["length"] for saved in state["environments"]]
        self._obs = copy.deepcopy(state["obs"])
        return self._obs, reasons

    def close_extras(self, **kwargs: Any) -> None:
        """Close the batch."""
        self._batch.close()

    def _reset_all(self) -> Any:
        self._returns[:], self._lengths[:] = 0.0, 0
        self._obs = self._attempt("reset", self._batch.reset_all, self._seeds, self._num_resumes)
        return self._obs

    def _episodes(self, rows: Any) -> list[tuple[float, int]]:
        """Returns and lengths."""
        return list(zip(self._returns[rows].tolist(), self._lengths[rows].tolist(), strict=True))

    def _attempt(self, what: str, call: Callable[..., Any], *values: Any) -> Any:
        try:
            return call(*values)
        except (KeyboardInterrupt, EnvError):
            raise
        except BaseException as error:
            actions = f"\ntheir last actions: {np.asarray(values[0])}" if what == "step" else ""
            raise EnvError(
                f"{self._batch.name} failed in {what}: {describe_error(error)}\n"
                f"their seeds: {self._seeds}{actions}\ntheir own traceback:\n{trace_from_user(error).rstrip()}"
            ) from error


def derived_seeds(seeds: Sequence[int | None], num_resumes: int) -> Array:
    """A seed for each environment; another one after each resume, so that no episodes are repeated."""
    entropy: Any = None if None in seeds else [*seeds, num_resumes]
    return np.random.SeedSequence(entropy).generate_state(len(seeds))


def refuse_reading(reading: StepReading, what: str, remedy: str) -> None:
    """Raise an `EnvError` if masks or infos are to be read from a batch, which gives none."""
    if reading.masks is not None:
        raise EnvError(
            f"{what} does not read the action masks of the environment from {reading.masks.value}: {remedy},"
            " or set env_kwargs.action_masks=false"
        )
    if reading.info_keys:
        raise EnvError(
            f"{what} gives no info, and the algorithm reads {reading.info_keys[0]!r} of it"
        )

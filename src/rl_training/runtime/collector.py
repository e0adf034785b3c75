"""The only code that steps training environments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from rl_training.data.spaces import Spaces
from rl_training.data.transitions import Array
from rl_training.envs.resumable import read_journals, replay_journals
from rl_training.runtime.trainer import CollectResult, TrainerState


class StepStore(Protocol):
    """A buffer that takes one step of every environment at a time."""

    def add(
        self, obs: Array, actions: Array, rewards: Array, next_obs: Array, terminated: Array, truncated: Array
    ) -> None:
        """Store the step."""


class Collector:
    """Acts in the environments and stores what happens.

    The environments reset within the step that ends an episode, so the observation they return then belongs to the
    next episode. What is stored as `next_obs` is the final observation, which they hand over separately.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any], spaces: Spaces, device: torch.device) -> None:
        self._envs = envs
        self._spaces = spaces
        self._device = device
        self._obs = np.zeros((envs.num_envs, *spaces.obs.shape), spaces.obs.dtype)

    @property
    def num_envs(self) -> int:
        """Environments stepped together."""
        return self._envs.num_envs

    def reset(self, seeds: list[int]) -> None:
        """Begin new episodes, each environment with its own seed."""
        obs, _ = self._envs.reset(seed=seeds)  # type: ignore[arg-type]
        self._obs = self._as_stored(obs)

    def collect(
        self, act: Callable[[Tensor], Tensor], store: StepStore, num_steps: int, state: TrainerState
    ) -> CollectResult:
        """Take `num_steps` steps in every environment, or fewer if the run is asked to stop."""
        returns: list[float] = []
        lengths: list[int] = []
        first_step = state.global_step
        for _ in range(num_steps):
            actions = act(torch.from_numpy(self._obs).to(self._device)).cpu().numpy()
            step = self._envs.step(self._spaces.action.to_env(actions))
            obs, rewards, terminated, truncated = self._as_stored(step[0]), *step[1:4]
            next_obs = obs
            if "final_obs" in step[4]:
                next_obs = self._with_final_obs(obs, step[4])
                for episode_return, length in step[4]["final_info"]["episode"][terminated | truncated]:
                    returns.append(float(episode_return))
                    lengths.append(int(length))
            store.add(self._obs, actions, rewards, next_obs, terminated, truncated)
            self._obs = obs
            state.global_step += self.num_envs
            if state.should_stop:
                break
        return CollectResult(state.global_step - first_step, returns, lengths)

    def state_dict(self) -> dict[str, Any]:
        """The current observations, and the journals that lead to them."""
        return {"obs": self._obs, "journals": read_journals(self._envs)}

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Bring the environments back; returns whether they are exactly where they were."""
        reached = self._as_stored(np.stack(replay_journals(self._envs, state["journals"])))
        self._obs = reached
        return bool(np.array_equal(reached, state["obs"]))

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()

    def _as_stored(self, obs: Array) -> Array:
        return obs.astype(self._spaces.obs.dtype, copy=False)

    def _with_final_obs(self, obs: Array, info: dict[str, Any]) -> Array:
        next_obs = obs.copy()
        for index in np.flatnonzero(info["_final_obs"]):
            next_obs[index] = info["final_obs"][index]
        return next_obs

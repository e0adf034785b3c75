"""The only code that steps training environments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rl_training.envs.vector import TrainingEnv
from rl_training.errors import EnvError, NonFiniteError
from rl_training.replay.transitions import Array, Storage, find_non_finite
from rl_training.runtime.trainer import CollectResult, TrainerState
from rl_training.spaces.spec import Spaces

NAMES = {"obs": "the observation", "actions": "the action", "rewards": "the reward", "next_obs": "the next observation"}


class StepStore(Protocol):
    """A buffer that takes one step of every environment at a time."""

    def add(
        self, obs: Array, actions: Array, rewards: Array, next_obs: Array, terminated: Array, truncated: Array
    ) -> None:
        """Store the step."""

    def truncate_newest(self) -> None:
        """End all episodes with the newest row."""

    def newest(self, count: int) -> Iterable[Storage]:
        """The last `count` rows."""


class Collector:
    """Acts in the environments and stores what happens.

    The environments reset within the step that ends an episode, so the observation they return then belongs to the
    next episode. What is stored as `next_obs` is the final observation, which they hand over separately.
    """

    def __init__(self, envs: TrainingEnv, spaces: Spaces, device: torch.device) -> None:
        self._envs = envs
        self._spaces = spaces
        self._device = device
        self._obs = np.zeros((envs.num_envs, *spaces.obs.shape), spaces.obs.dtype)
        self.inexact_reasons = list(envs.inexact_reasons)
        """Why the environments may not be exactly where an uninterrupted run would have them."""

    @property
    def num_restarts(self) -> int:
        """Environments that failed and were made anew, over the whole run."""
        return self._envs.num_restarts

    @property
    def num_envs(self) -> int:
        """Environments stepped together."""
        return self._envs.num_envs

    def reset(self, seeds: list[int]) -> None:
        """Begin new episodes, each environment with its own seed."""
        obs, _ = self._envs.reset(seed=seeds)
        self._obs = self._spaces.obs.as_stored(obs)

    def collect(
        self, act: Callable[[Tensor], Tensor], store: StepStore, num_steps: int, state: TrainerState
    ) -> CollectResult:
        """Take `num_steps` steps in every environment, or fewer if the run is asked to stop."""
        returns: list[float] = []
        lengths: list[int] = []
        first_step = state.global_step
        stored = 0
        while stored < num_steps and not (stored and state.should_stop):
            actions = act(torch.from_numpy(self._obs).to(self._device)).cpu().numpy()
            try:
                step = self._envs.step(self._spaces.action.to_env(actions))
            except EnvError:
                self._check_finite(store, stored, first_step, actions)  # which may be what upset the environment
                raise
            obs, rewards, terminated, truncated = self._spaces.obs.as_stored(step[0]), *step[1:4]
            for episode_return, length in step[4].get("episodes", ()):
                returns.append(episode_return)
                lengths.append(length)
            if "restarted" in step[4]:
                store.truncate_newest()  # a row of which a part is lost is not stored
                self._obs = obs
                continue
            next_obs = self._with_final_obs(obs, step[4]) if "final_obs" in step[4] else obs
            store.add(self._obs, actions, rewards, next_obs, terminated, truncated)
            self._obs = obs
            stored += 1
            state.global_step += self.num_envs
        self._check_finite(store, stored, first_step)
        return CollectResult(state.global_step - first_step, returns, lengths, self.num_restarts)

    def state_dict(self) -> dict[str, Any]:
        """Where the environments are."""
        return {"envs": self._envs.state(), "inexact_reasons": list(self.inexact_reasons)}

    def load_state_dict(self, state: dict[str, Any]) -> list[str]:
        """Bring the environments back; returns why they may not be exactly where they were."""
        obs, inexact_reasons = self._envs.restore(state["envs"])
        self._obs = self._spaces.obs.as_stored(obs)
        self.inexact_reasons = list(dict.fromkeys([*state["inexact_reasons"], *inexact_reasons]))
        return inexact_reasons

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()

    def _with_final_obs(self, obs: Array, info: dict[str, Any]) -> Array:
        next_obs = obs.copy()
        for index in np.flatnonzero(info["_final_obs"]):
            next_obs[index] = self._spaces.obs.one_as_stored(info["final_obs"][index])
        return next_obs

    def _check_finite(self, store: StepStore, stored: int, first_step: int, actions: Array | None = None) -> None:
        """Raise if anything collected since `first_step` is NaN or infinite."""
        row = 0
        for rows in store.newest(stored):
            found = find_non_finite(rows, self._spaces.obs)
            if found is not None:
                name, offset, env = found
                step = first_step + (row + offset + 1) * self.num_envs
                value = self._spaces.obs.numbers(rows[name]) if name.endswith("obs") else rows[name]
                raise NonFiniteError(
                    f"{NAMES[name]} of environment {env} is not finite at step {step:,}: {value[offset, env]}"
                )
            row += len(rows["rewards"])
        if actions is not None and actions.dtype.kind == "f" and not np.isfinite(actions).all():
            raise NonFiniteError(f"the policy's actions are not finite after step {first_step + row}: {actions}")

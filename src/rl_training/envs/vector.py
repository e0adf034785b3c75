"""Several training environments stepped together, in this process or each in its own, with their faults named."""

from __future__ import annotations

import traceback
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from rl_training.envs.resumable import ResumableEnv
from rl_training.errors import EnvError

MakeEnv = Callable[[], gym.Env[Any, Any]]


@dataclass(frozen=True)
class Fault:
    """What went wrong in one environment."""

    what: str
    """It raised ..., its process exited, it hung."""
    trace: str
    """Its own traceback, as far as there is one."""
    cause: BaseException | None = None


class TrainingVectorEnv(VectorEnv[Any, Any, Any]):
    """A Gymnasium vector environment that resets within the step, and can be saved and restored.

    The info of a step holds `final_obs` and `_final_obs` as Gymnasium has them, `episodes` (raw return and length of
    each episode that ended), and `restarted` where an environment failed and was made anew: its step was lost.
    """

    doubts: Sequence[str] = ()
    """Why a run on these environments cannot be resumed exactly, if that is known from the start."""

    def __init__(self, example: gym.Env[Any, Any], num_envs: int, max_restarts: int = 0) -> None:
        self.num_envs = num_envs
        self.max_restarts = max_restarts
        self.num_restarts = 0
        self.metadata = {**example.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.render_mode = example.render_mode
        self.single_observation_space = example.observation_space
        self.single_action_space = example.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._seeds: list[int | None] = [None] * num_envs

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in every environment."""
        if seed is None or isinstance(seed, int):
            self._seeds = [None if seed is None else seed + index for index in range(self.num_envs)]
        else:
            self._seeds = [None if value is None else int(value) for value in seed]
        return self._begin(), {}

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """The states of all environments."""

    @abstractmethod
    def restore(self, state: dict[str, Any]) -> tuple[Any, list[str]]:
        """Bring all environments back; returns their observations and why some may not be exactly where they were."""

    @abstractmethod
    def _begin(self) -> Any:
        """Begin an episode in every environment, with its seed; returns the first observations."""


class MemberVectorEnv(TrainingVectorEnv):
    """Environments of which each is stepped by itself, so that the others survive its faults."""

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take one step in every environment."""
        results = self._run("step", [(action,) for action in actions])
        info: dict[str, Any] = {}
        for index, result in enumerate(results):
            if isinstance(result, Fault):
                results[index] = (self._recover(index, result, actions[index]), 0.0, False, True, None, None)
                info.setdefault("restarted", {})[index] = result.what
        obs, rewards, terminated, truncated, final_obs, episodes = zip(*results, strict=True)
        if any(episode is not None for episode in episodes):
            info["episodes"] = [episode for episode in episodes if episode is not None]
        ended = np.array([final is not None for final in final_obs])
        if ended.any():
            info["_final_obs"] = ended
            info["final_obs"] = np.empty(self.num_envs, object)
            for index, final in enumerate(final_obs):
                info["final_obs"][index] = final
        batched = batch_observations(self.single_observation_space, obs)
        return batched, np.array(rewards, np.float64), np.array(terminated), np.array(truncated), info

    def state(self) -> dict[str, Any]:
        """The state of each environment."""
        return {
            "seeds": list(self._seeds),
            "num_restarts": self.num_restarts,
            "environments": self._ask("state", [()] * self.num_envs),
        }

    def restore(self, state: dict[str, Any]) -> tuple[Any, list[str]]:
        """Bring each environment back."""
        self._seeds = list(state["seeds"])
        self.num_restarts = state["num_restarts"]
        observations, doubts = [], []
        for index, (obs, reasons) in enumerate(self._ask("restore", [(saved,) for saved in state["environments"]])):
            observations.append(obs)
            doubts += [f"environment {index}: {reason}" for reason in reasons]
        return batch_observations(self.single_observation_space, observations), doubts

    def _begin(self) -> Any:
        observations = self._ask("reset", [(value,) for value in self._seeds])
        return batch_observations(self.single_observation_space, observations)

    @abstractmethod
    def _run(self, command: str, arguments: Sequence[tuple[Any, ...] | None]) -> list[Any]:
        """Let each environment that has arguments carry out a command; an item of the answer may be a `Fault`."""

    @abstractmethod
    def _replace(self, index: int) -> None:
        """Make one environment anew."""

    def _ask(self, command: str, arguments: Sequence[tuple[Any, ...] | None], what: str | None = None) -> list[Any]:
        """Like `_run`, for commands that must not fail."""
        results = self._run(command, arguments)
        for index, result in enumerate(results):
            if isinstance(result, Fault):
                raise self._error(index, result, what or command)
        return results

    def _recover(self, index: int, fault: Fault, action: Any) -> Any:
        """Replace an environment that failed, if there is a restart left; returns its first observation."""
        if self.num_restarts >= self.max_restarts:
            raise self._error(index, fault, "step", action)
        self.num_restarts += 1
        self._replace(index)
        seed = np.random.SeedSequence([self._seeds[index] or 0, self.num_restarts]).generate_state(1)
        self._seeds[index] = int(seed[0])
        only_this = [(self._seeds[index],) if other == index else None for other in range(self.num_envs)]
        return self._ask("reset", only_this, "reset after a restart")[index]

    def _error(self, index: int, fault: Fault, command: str, action: Any = None) -> EnvError:
        lines = [f"environment {index} of {self.num_envs} failed in {command}: {fault.what}"]
        lines.append(f"its seed: {self._seeds[index]}")
        if action is not None:
            lines.append(f"its last action: {np.asarray(action).tolist()}")
        if self.max_restarts:
            lines.append(f"restarts used: {self.num_restarts} of {self.max_restarts} (env_kwargs.max_restarts)")
        if fault.trace:
            lines.append("its own traceback:\n" + fault.trace.rstrip())
        error = EnvError("\n".join(lines))
        error.__cause__ = fault.cause
        return error


class LocalVectorEnv(MemberVectorEnv):
    """All environments in this process, one after the other."""

    def __init__(self, make: MakeEnv, num_envs: int, max_restarts: int = 0) -> None:
        self._make = make
        self._members = [ResumableEnv(make()) for _ in range(num_envs)]
        super().__init__(self._members[0].env, num_envs, max_restarts)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments."""
        for member in self._members:
            member.close()

    def _run(self, command: str, arguments: Sequence[tuple[Any, ...] | None]) -> list[Any]:
        results: list[Any] = []
        for member, values in zip(self._members, arguments, strict=True):
            try:
                results.append(None if values is None else getattr(member, command)(*values))
            except (Exception, SystemExit) as error:
                results.append(Fault(describe_error(error), traceback.format_exc(), error))
        return results

    def _replace(self, index: int) -> None:
        self._members[index] = ResumableEnv(self._make())


def batch_observations(space: gym.Space[Any], observations: Sequence[Any]) -> Any:
    """One observation of each environment as a batch, in new memory."""
    out: Any = create_empty_array(space, len(observations))
    return concatenate(space, observations, out)


def describe_error(error: BaseException) -> str:
    """An exception in one line."""
    return f"it raised {type(error).__name__}: {error}"

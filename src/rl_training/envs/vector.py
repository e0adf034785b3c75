"""Several training environments stepped together, in this process or each in its own, with their faults named."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from rl_training.envs.answers import find_misfit
from rl_training.envs.pools import Fault, Pool, SyncPool, close_example
from rl_training.envs.resumable import ResumableEnv
from rl_training.envs.workers import AsyncPool
from rl_training.errors import EnvError

MakeEnv = Callable[[], gym.Env[Any, Any]]


class TrainingEnv(VectorEnv[Any, Any, Any]):
    """A Gymnasium vector environment that resets within the step, and can be saved and restored.

    The info of a step holds `final_obs` and `_final_obs` as Gymnasium has them, `episodes` (raw return and length of
    each episode that ended), and `restarted` where an environment failed and was made anew: its step was lost.
    """

    inexact_reasons: Sequence[str] = ()
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


class PooledTrainingEnv(TrainingEnv):
    """Environments of which each is stepped by itself, so that the others survive its faults."""

    def __init__(self, pool: Pool, example: gym.Env[Any, Any], max_restarts: int = 0) -> None:
        super().__init__(example, pool.size, max_restarts)
        self.pool = pool

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Take one step in every environment."""
        results = self.pool.run("step", [(action,) for action in actions])
        info: dict[str, Any] = {}
        self._replace_faulty(results, actions, info)
        try:
            return self._assemble(results, info)
        except Exception as error:
            self._find_misfits(results, error)
        self._replace_faulty(results, actions, info)
        return self._assemble(results, info)

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
        observations, inexact_reasons = [], []
        for index, (obs, reasons) in enumerate(self._ask("restore", [(saved,) for saved in state["environments"]])):
            observations.append(obs)
            inexact_reasons += [f"environment {index}: {reason}" for reason in reasons]
        return self._batch(observations, "restore"), inexact_reasons

    def close_extras(self, **kwargs: Any) -> None:
        """Close all environments, then tell of those that failed to."""
        self.closed = True  # also if one failed to
        for index, fault in self.pool.close():
            raise self._error(index, fault, "close")

    def _begin(self) -> Any:
        return self._batch(self._ask("reset", [(value,) for value in self._seeds]), "reset")

    def _ask(self, command: str, arguments: Sequence[tuple[Any, ...] | None]) -> list[Any]:
        """Run a command that must not fail."""
        results = self.pool.run(command, arguments)
        for index, result in enumerate(results):
            if isinstance(result, Fault):
                raise self._error(index, result, command)
        return results

    def _batch(self, observations: Sequence[Any], command: str) -> Any:
        try:
            return batch_observations(self.single_observation_space, observations)
        except Exception:
            for index, obs in enumerate(observations):
                misfit = find_misfit(self.single_observation_space, obs)
                if misfit is not None:
                    raise self._error(index, Fault(misfit, ""), command) from None
            raise

    def _assemble(self, results: list[Any], info: dict[str, Any]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """The steps of all environments as one step."""
        obs, rewards, terminated, truncated, final_obs, episodes = zip(*results, strict=True)
        batched = batch_observations(self.single_observation_space, obs)
        if any(episode is not None for episode in episodes):
            info["episodes"] = [episode for episode in episodes if episode is not None]
        ended = np.array([final is not None for final in final_obs])
        if ended.any():
            info["_final_obs"] = ended
            info["final_obs"] = np.empty(self.num_envs, object)
            for index in np.flatnonzero(ended):
                if find_misfit(self.single_observation_space, final_obs[index]) is not None:
                    raise ValueError("the last observation of an episode does not fit its space")
                info["final_obs"][index] = final_obs[index]
        return batched, np.array(rewards, np.float64), np.array(terminated), np.array(truncated), info

    def _find_misfits(self, results: list[Any], error: Exception) -> None:
        """Put a `Fault` in the place of each result that does not fit; raise `error` if all fit."""
        faults = {}
        for index, step in enumerate(results):
            shown = [step[0]] if step[4] is None else [step[0], step[4]]
            misfit = next(filter(None, (find_misfit(self.single_observation_space, obs) for obs in shown)), None)
            if misfit is not None:
                faults[index] = Fault(misfit, "")
        if not faults:
            raise error
        for index, fault in faults.items():
            results[index] = fault

    def _replace_faulty(self, results: list[Any], actions: Any, info: dict[str, Any]) -> None:
        for index, result in enumerate(results):
            if isinstance(result, Fault):
                results[index] = (self._recover(index, result, actions[index]), 0.0, False, True, None, None)
                info.setdefault("restarted", {})[index] = result.what

    def _recover(self, index: int, fault: Fault, action: Any) -> Any:
        """Replace an environment that failed, while there is a restart left; returns its first observation."""
        what, last_action = fault.call or "step", action
        while True:
            if self.num_restarts >= self.max_restarts:
                raise self._error(index, fault, what, last_action)
            self.num_restarts += 1
            seed = np.random.SeedSequence([self._seeds[index] or 0, self.num_restarts]).generate_state(1)
            self._seeds[index] = int(seed[0])
            answer: Any = self.pool.replace(index)
            what, last_action = "starting anew", None
            if answer is None:
                what = "reset after a restart"
                answer = self.pool.run_one(index, "reset", self._seeds[index])
                if not isinstance(answer, Fault):
                    return answer
            fault = answer

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


def make_sync(make: MakeEnv, num_envs: int, max_restarts: int = 0) -> PooledTrainingEnv:
    """Training environments in this process."""
    pool = SyncPool(partial(make_member, make), num_envs)
    first: Any = pool.members[0]
    return PooledTrainingEnv(pool, first.env, max_restarts)


def make_async(make: MakeEnv, num_envs: int, max_restarts: int, timeout_seconds: float) -> PooledTrainingEnv:
    """Training environments in processes of their own."""
    example = make()  # here, so that a bad id or argument is reported from here
    pool = AsyncPool(partial(make_member, make), num_envs, timeout_seconds)
    envs = PooledTrainingEnv(pool, example, max_restarts)
    close_example(example)
    try:
        for index, fault in pool.start():
            raise envs._error(index, fault, "starting")
    except BaseException:
        pool.close()
        raise
    return envs


def make_member(make: MakeEnv) -> ResumableEnv:
    """Make one training environment, maybe in another process."""
    return ResumableEnv(make())


def make_limited(make: MakeEnv, length_limit: int) -> gym.Env[Any, Any]:
    """Make an environment whose episodes are truncated at this length, maybe in another process."""
    return gym.wrappers.TimeLimit(make(), length_limit)


def batch_observations(space: gym.Space[Any], observations: Sequence[Any]) -> Any:
    """One observation of each environment as a batch, in new memory."""
    out: Any = create_empty_array(space, len(observations))
    return concatenate(space, observations, out)

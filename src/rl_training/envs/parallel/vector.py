"""Vector environments for training: stepped in this process or in worker processes; failures name the environment."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array

from rl_training.envs.parallel.pools import (
    Arguments,
    Fault,
    MakeMember,
    Member,
    Pool,
    close_example,
    faults_in,
    try_to,
)
from rl_training.envs.parallel.workers import AsyncPool
from rl_training.envs.single.answers import find_misfit
from rl_training.envs.single.masks import NOTHING, StepReading
from rl_training.envs.single.resumable import FurtherParts, ResumableEnv, Step
from rl_training.envs.state.aliases import Array, Env, Info, MakeEnv, Result, RewardTransform, State
from rl_training.errors import EnvError
from rl_training.spaces.spec import Spaces, describe_spaces

FindReading = Callable[[Env, MakeEnv], StepReading]
"""Finds what to read from an environment beside its observations; may make another one to look at its first info."""


class TrainingEnv(VectorEnv[Any, Any, Any]):
    """A Gymnasium vector environment with `AutoresetMode.SAME_STEP` whose state can be saved and restored.

    The info of a step holds Gymnasium's `final_obs` and `_final_obs`, `episodes` (return and length of each episode
    that ended, before the reward transform), and `restarted` (index and error of each environment that failed and was
    recreated; its step is lost). Where the environments give action masks, it holds `masks` of the observations and
    `next_masks`, which differ at an episode end as `final_obs` does. `fields` holds the info values asked for, by key.
    """

    inexact_reasons: Sequence[str] = ()
    """Why a run with these environments cannot be resumed exactly, where this is known before training."""
    has_masks = False
    """Whether the environments give action masks."""

    def __init__(self, example: Env, num_envs: int, max_restarts: int = 0) -> None:
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
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: Info | None = None,
    ) -> tuple[Any, Info]:
        """Reset every environment; an integer seed is incremented by the environment's index."""
        if seed is None:
            self._seeds = [None] * self.num_envs
        elif isinstance(seed, int):
            self._seeds = [seed + index for index in range(self.num_envs)]
        else:
            self._seeds = [None if value is None else int(value) for value in seed]
        return self._reset_all(), {}

    @property
    def spaces(self) -> Spaces:
        """The spaces of one environment, as algorithms and buffers see them."""
        return describe_spaces(
            self.single_observation_space, self.single_action_space, has_masks=self.has_masks
        )

    def current_masks(self) -> Array | None:
        """Action masks of the current observations, [N, num_options]; None without masks."""
        return None

    @abstractmethod
    def state(self) -> State:
        """State of all environments, for a checkpoint."""

    @abstractmethod
    def restore(self, state: State) -> tuple[Any, list[str]]:
        """Restore a saved state; returns the observations, and the reasons why the restored state may be inexact."""

    @abstractmethod
    def _reset_all(self) -> Any:
        """Reset every environment with its seed; returns the first observations."""


class SyncPool(Pool):
    """All members in this process, run one after the other."""

    def __init__(self, make: MakeMember, size: int) -> None:
        self.size = size
        self.make = make
        """Makes a member, also in the place of a failed one."""
        self.members: list[Member] = []
        try:
            self.members += [make() for _ in range(size)]
        except BaseException:
            self.close()
            raise

    def run(self, command: str, arguments: Arguments, seconds: float | None = None) -> list[Any]:
        """Run a command in each member whose arguments are not None."""
        results: list[Any] = []
        for member, values in zip(self.members, arguments, strict=True):
            try:
                results.append(None if values is None else getattr(member, command)(*values))
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                results.append(Fault.from_error(error, member))
        return results

    def replace(self, index: int) -> Fault | None:
        """Close a failed member, ignoring errors, and make another."""
        try_to(self.members[index].close)
        return try_to(self._make_at, index)

    def close(self) -> list[tuple[int, Fault]]:
        """Close all members, also after one fails to close."""
        faults = faults_in([try_to(member.close) for member in self.members])
        self.members.clear()
        return faults

    def _make_at(self, index: int) -> None:
        self.members[index] = self.make()


class PooledTrainingEnv(TrainingEnv):
    """Environments stepped one by one, so that a failed one is recreated while the others keep their episodes."""

    def __init__(
        self,
        pool: Pool,
        example: Env,
        max_restarts: int = 0,
        transform_rewards: RewardTransform | None = None,
        reading: StepReading = NOTHING,
    ) -> None:
        super().__init__(example, pool.size, max_restarts)
        self.pool = pool
        self._transform_rewards = transform_rewards
        self._reading = reading
        self.has_masks = reading.masks is not None

    def step(self, actions: Any) -> Result:
        """Take one step in every environment."""
        results = self.pool.run("step", list(zip(actions, strict=True)))
        restarted: dict[int, str] = {}
        while True:
            try:
                return self._assemble(results, restarted)
            except Exception as error:  # a result is a Fault, or an observation is not in its space
                faults = self._find_faults(results, error)
            for index, fault in faults.items():
                first_obs = self._recover(index, fault, actions[index])
                results[index] = Step(first_obs, 0.0, terminated=False, truncated=True)
                restarted[index] = fault.what

    def current_masks(self) -> Array | None:
        """Action masks of the current observations, [N, num_options]; None without masks."""
        return np.stack(self._ask("current_mask", [()] * self.num_envs)) if self.has_masks else None

    def state(self) -> State:
        """Seeds, restarts used, and the state of each environment."""
        return {
            "seeds": list(self._seeds),
            "num_restarts": self.num_restarts,
            "environments": self._ask("state", [()] * self.num_envs),
        }

    def restore(self, state: State) -> tuple[Any, list[str]]:
        """Restore each environment; a reason begins with the environment's index."""
        self._seeds = list(state["seeds"])
        self.num_restarts = state["num_restarts"]
        restored = self._ask("restore", [(saved,) for saved in state["environments"]])
        inexact_reasons = [
            f"environment {index}: {reason}"
            for index, (_, reasons) in enumerate(restored)
            for reason in reasons
        ]
        return self._batch([obs for obs, _ in restored], "restore"), inexact_reasons

    def close_extras(self, **kwargs: Any) -> None:
        """Close all environments, then raise the first error."""
        self.closed = True  # also if one fails to close
        for index, fault in self.pool.close():
            raise self._error(index, fault, "close")

    def _reset_all(self) -> Any:
        return self._batch(self._ask("reset", [(value,) for value in self._seeds]), "reset")

    def _ask(self, command: str, arguments: Sequence[tuple[Any, ...] | None]) -> list[Any]:
        """Run a command; raise an `EnvError` if it fails in any environment."""
        results = self.pool.run(command, arguments)
        for index, fault in faults_in(results):
            raise self._error(index, fault, command)
        return results

    def _batch(self, observations: Sequence[Any], command: str) -> Any:
        try:
            return batch_observations(self.single_observation_space, observations)
        except Exception:
            for index, fault in self._find_misfits([[obs] for obs in observations]).items():
                raise self._error(index, fault, command) from None
            raise

    def _find_misfits(self, observations: Sequence[Sequence[Any]]) -> dict[int, Fault]:
        """Faults, by index, of environments with an observation outside of its space."""
        faults: dict[int, Fault] = {}
        for index, of_one in enumerate(observations):
            for obs in of_one:
                misfit = find_misfit(self.single_observation_space, obs)
                if misfit is not None:
                    faults.setdefault(index, Fault(misfit, ""))
        return faults

    def _assemble(self, results: list[Any], restarted: dict[int, str]) -> Result:
        """Stack the steps of all environments; raises if a result is a `Fault` or does not fit its space."""
        obs, rewards, terminated, truncated, final_obs, episodes, further = zip(
            *results, strict=True
        )
        batch = batch_observations(self.single_observation_space, obs)
        info = self._end_info(final_obs, episodes) if any(episodes) else {}
        if restarted:
            info["restarted"] = restarted
        elif self._reading is not NOTHING:
            info |= self._further_info(further)
        raw = np.array(rewards, np.float64)
        shaped = raw if self._transform_rewards is None else self._transform_rewards(raw)
        return batch, shaped, np.array(terminated), np.array(truncated), info

    def _end_info(
        self, final_obs: Sequence[Any], episodes: Sequence[tuple[float, int] | None]
    ) -> dict[str, Any]:
        """The info of a step in which episodes ended."""
        ended = np.array([episode is not None for episode in episodes])
        finals = np.empty(self.num_envs, object)
        for index in np.flatnonzero(ended).tolist():
            if find_misfit(self.single_observation_space, final_obs[index]) is not None:
                raise ValueError("the last observation of an episode does not fit its space")
            finals[index] = final_obs[index]
        return {
            "episodes": [episode for episode in episodes if episode is not None],
            "final_obs": finals,
            "_final_obs": ended,
        }

    def _further_info(self, further: Sequence[FurtherParts]) -> Info:
        masks, final_masks, values = zip(*further, strict=True)
        keys = self._reading.info_keys
        info: Info = {
            "fields": dict(zip(keys, map(np.asarray, zip(*values, strict=True)), strict=True))
        }
        if self.has_masks:
            last = [
                mask if final is None else final
                for mask, final in zip(masks, final_masks, strict=True)
            ]
            info |= {"masks": np.stack(masks), "next_masks": np.stack(last)}
        return info

    def _find_faults(self, results: list[Any], error: Exception) -> dict[int, Fault]:
        """Faults by index: failed steps, else observations outside their space; re-raises `error` if there are none."""
        faults = dict(faults_in(results))
        if not faults:
            faults = self._find_misfits(
                [[step.obs, *([step.final_obs] if step.episode else [])] for step in results]
            )
        if not faults:
            raise error
        return faults

    def _recover(self, index: int, fault: Fault, action: Any) -> Any:
        """Recreate a failed environment with a new seed, within `max_restarts`; returns its first observation."""
        what, last_action = fault.call or "step", action
        while True:
            if self.num_restarts >= self.max_restarts:
                raise self._error(index, fault, what, last_action)
            self.num_restarts += 1
            seed = np.random.SeedSequence(
                [self._seeds[index] or 0, self.num_restarts]
            ).generate_state(1)
            self._seeds[index] = int(seed[0])
            answer: Any = self.pool.replace(index)
            what, last_action = "restarting", None
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
            lines.append(
                f"restarts used: {self.num_restarts} of {self.max_restarts} (env_kwargs.max_restarts)"
            )
        if fault.trace:
            lines.append("its own traceback:\n" + fault.trace.rstrip())
        error = EnvError("\n".join(lines))
        error.__cause__ = fault.cause
        return error


def make_sync(
    make: MakeEnv,
    num_envs: int,
    max_restarts: int,
    transform_rewards: RewardTransform | None,
    find_reading: FindReading,
) -> PooledTrainingEnv:
    """Make training environments in this process."""
    pool = SyncPool(partial(make_member, make), num_envs)
    first: Any = pool.members[0]
    # After all are made: had another one been reset before, their attributes would be looked up more slowly.
    reading = find_reading(first.env, make)
    pool.make = partial(make_member, make, reading)
    pool.members = [ResumableEnv(member.env, reading) for member in pool.members]  # type: ignore[attr-defined]
    return PooledTrainingEnv(pool, first.env, max_restarts, transform_rewards, reading)


def make_async(
    make: MakeEnv,
    num_envs: int,
    max_restarts: int,
    timeout_seconds: float,
    transform_rewards: RewardTransform | None,
    find_reading: FindReading,
) -> PooledTrainingEnv:
    """Make training environments in worker processes, one each."""
    example = make()  # in this process first, so that a wrong id or argument raises here
    reading = find_reading(example, make)
    pool = AsyncPool(partial(make_member, make, reading), num_envs, timeout_seconds)
    envs = PooledTrainingEnv(pool, example, max_restarts, transform_rewards, reading)
    close_example(example)
    try:
        for index, fault in pool.start():
            raise envs._error(index, fault, "starting")
    except BaseException:
        pool.close()
        raise
    return envs


def make_member(make: MakeEnv, reading: StepReading = NOTHING) -> ResumableEnv:
    """Make one pool member; picklable, for worker processes."""
    return ResumableEnv(make(), reading)


def make_limited(make: MakeEnv, length_limit: int) -> Env:
    """Make an environment truncated at `length_limit` steps; picklable, for worker processes."""
    return gym.wrappers.TimeLimit(make(), length_limit)


def batch_observations(space: gym.Space[Any], observations: Sequence[Any]) -> Any:
    """Stack the observations of several environments into a new batch."""
    if isinstance(space, gym.spaces.Box):
        box = np.empty((len(observations), *space.shape), space.dtype)
        return np.stack(observations, out=box)
    out: Any = create_empty_array(space, len(observations))
    return concatenate(space, observations, out)

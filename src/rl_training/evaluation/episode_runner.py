"""Runs evaluation episodes in parallel, each in a new environment; a failed episode is retried."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from rl_training.envs.factory import EnvSource
from rl_training.envs.parallel.pools import Fault, Pool, close_example
from rl_training.envs.parallel.vector import batch_observations
from rl_training.envs.parallel.workers import SECONDS_TO_START
from rl_training.envs.single.answers import find_misfit
from rl_training.envs.single.episodes import EpisodeStep
from rl_training.envs.state.attributes import is_same
from rl_training.envs.state.generators import seeded_global_generators
from rl_training.envs.state.unsaved_state import shared_changes
from rl_training.errors import EnvError, NonFiniteError

ATTEMPTS_WITH_ITS_SEED = 3
"""Attempts after which a failing episode is run with another seed: its fault is reproducible."""


@dataclass
class Episode:
    """An episode in progress."""

    index: int
    """Position in the list of seeds."""
    member: int
    """Pool member that runs it."""
    seed: int
    obs: Any = None
    mask: Any = None
    """Action mask of `obs`, where the environment gives masks."""
    policy_state: Any = None
    """Policy state before the next step; None at the start of the episode."""
    total: float = 0.0
    length: int = 0
    actions: list[Any] = field(default_factory=list)
    """Recorded only if the episode may be retried."""
    attempts: int = 0

    @property
    def name(self) -> str:
        """The episode in messages."""
        return f"evaluation episode {self.index} (seed {self.seed})"

    def begin(self, first: EpisodeStep) -> None:
        """Start with the first observation."""
        self.obs, self.mask, self.policy_state = first.obs, first.mask, None
        self.total, self.length = 0.0, 0

    def add(self, step: EpisodeStep) -> None:
        """Add the reward and observation of a step."""
        self.obs, self.mask = step.obs, step.mask
        self.total += step.reward
        self.length += 1


class EpisodeRunner:
    """Starts and steps episodes; a failed episode is retried up to `env_kwargs.max_restarts` times in all."""

    def __init__(self, source: EnvSource, num_members: int) -> None:
        settings = source.settings
        self.num_members = num_members
        self.max_restarts, self.num_restarts = settings.max_restarts, 0
        self._is_local = settings.backend != "async"
        self._started_pool: Pool | None = None
        make = partial(source.make, with_wrappers=False)
        example = make()
        reading = source.find_reading(example, make)
        self.has_masks = reading.masks is not None
        self._make_pool = partial(source.make_episode_pool, num_members, reading)
        self.obs_space, self.action_space = (
            example.observation_space,
            copy.deepcopy(example.action_space),
        )
        close_example(example)
        self._class = type(example.unwrapped)
        self._changes_in_workers: set[str] = set()

    @property
    def shared_changes(self) -> list[str]:
        """Class attributes and module variables that the environments of the run changed."""
        return sorted({*shared_changes(self._class), *self._changes_in_workers})

    @contextlib.contextmanager
    def running(self, seed: int) -> Iterator[None]:
        """Start the pool; in-process environments get seeded global generators, restored at the end of the block."""
        if self._started_pool is None:
            self._started_pool = self._make_pool()
            for member, fault in self._started_pool.start():
                raise self._error(Episode(member, member, seed), fault, "at creation")
        with seeded_global_generators(seed) if self._is_local else contextlib.nullcontext():
            yield
        for found in self._pool.run("shared_changes", [()] * self._pool.size):
            self._changes_in_workers.update([] if isinstance(found, Fault) else found)

    def start(self, episodes: Sequence[Episode]) -> None:
        """Create a new environment for each episode and reset it."""
        if not episodes:
            return
        seeds: list[tuple[int] | None] = [None] * self._pool.size
        for episode in episodes:
            seeds[episode.member] = (episode.seed,)
        made = self._pool.run("make", seeds, SECONDS_TO_START)
        started = self._pool.run(
            "reset",
            [seed if fault is None else None for fault, seed in zip(made, seeds, strict=True)],
        )
        for episode in episodes:
            answer = (
                started[episode.member] if made[episode.member] is None else made[episode.member]
            )
            if isinstance(answer, Fault):
                self._retry(episode, answer, "at reset")
            else:
                episode.begin(answer)

    def batch(self, active: Sequence[Episode]) -> Any:
        """The observations of the episodes as one batch."""
        try:
            batch = batch_observations(self.obs_space, [episode.obs for episode in active])
        except Exception:
            misfits = {
                episode.member: find_misfit(self.obs_space, episode.obs) for episode in active
            }
            if not any(misfits.values()):
                raise
        else:
            _check_finite(batch, active)
            return batch
        for episode in active:
            misfit = misfits[episode.member]
            if misfit is not None:
                episode.actions.clear()
                self._retry(episode, Fault(misfit, ""), f"after {episode.length} steps")
        return self.batch(active)

    def step(self, active: Sequence[Episode], actions: Sequence[Any]) -> list[EpisodeStep | None]:
        """Step every episode; None where an episode failed and was started again."""
        arguments: list[tuple[Any] | None] = [None] * self._pool.size
        for episode, action in zip(active, actions, strict=True):
            arguments[episode.member] = (action,)
            if self.max_restarts:
                episode.actions.append(action)
                episode.obs = copy.deepcopy(episode.obs)  # the environment may reuse the array
        answers = self._pool.run("step", arguments)
        steps = []
        for episode, action in zip(active, actions, strict=True):
            step = answers[episode.member]
            if isinstance(step, Fault):
                step = self._retry(episode, step, f"at action {np.asarray(action).tolist()}")
            if step is not None:
                episode.add(step)
                if not math.isfinite(step.reward):
                    raise NonFiniteError(
                        f"the reward of {episode.name} is {step.reward} at step {episode.length:,}"
                    )
            steps.append(step)
        return steps

    def render(self, episode: Episode) -> Any:
        """The current state of an episode, as the environment's render mode gives it."""
        answer = self._pool.run_one(episode.member, "render")
        if isinstance(answer, Fault):
            raise self._error(episode, answer, "in render")
        return answer

    def close(self) -> None:
        """Close the environments; raise the first failure afterwards."""
        if self._started_pool is not None:
            for _, fault in self._started_pool.close():
                raise EnvError(
                    f"an evaluation environment failed in close: {fault.what}\n{fault.trace}".rstrip()
                )

    @property
    def _pool(self) -> Pool:
        assert self._started_pool is not None
        return self._started_pool

    def _retry(self, episode: Episode, fault: Fault, where: str) -> EpisodeStep | None:
        """Repeat a failed episode in a new environment, up to and including the step that failed.

        Returns that step, or None if the episode was started again: with another seed, or because the new environment
        did not reproduce the old one's observations and rewards.
        """
        while True:
            if self.num_restarts >= self.max_restarts:
                raise self._error(episode, fault, where)
            self.num_restarts += 1
            episode.attempts += 1
            if episode.attempts > ATTEMPTS_WITH_ITS_SEED:
                episode.seed = int(
                    np.random.SeedSequence([episode.seed, episode.attempts]).generate_state(1)[0]
                )
                episode.actions.clear()
            answer: Any = self._pool.replace(episode.member)
            if answer is None:
                answer = self._replay(episode)
            if not isinstance(answer, Fault):
                return answer  # type: ignore[no-any-return]
            fault = answer

    def _replay(self, episode: Episode) -> EpisodeStep | Fault | None:
        """Repeat an episode's actions; returns the last step, a fault, or None if the episode was started again."""
        again = Episode(episode.index, episode.member, episode.seed)
        fault = self._start_one(again)
        has_ended = False
        for action in episode.actions[:-1]:
            if fault is not None or has_ended:
                break
            step = self._pool.run_one(again.member, "step", action)
            if isinstance(step, Fault):
                return step
            again.add(step)
            has_ended = step.ended
        if fault is not None:
            return fault
        if episode.actions:
            if not has_ended and again.total == episode.total and is_same(again.obs, episode.obs):
                last: EpisodeStep | Fault = self._pool.run_one(
                    again.member, "step", episode.actions[-1]
                )
                return last
            fault = self._start_one(again)
        episode.begin(EpisodeStep(again.obs, 0.0, False, None, again.mask))
        episode.actions.clear()
        return fault

    def _start_one(self, episode: Episode) -> Fault | None:
        """Start an episode in a new environment."""
        answer = self._pool.run_one(episode.member, "make", episode.seed, seconds=SECONDS_TO_START)
        if not isinstance(answer, Fault):
            answer = self._pool.run_one(episode.member, "reset", episode.seed)
        if isinstance(answer, Fault):
            return answer
        episode.begin(answer)
        return None

    def _error(self, episode: Episode, fault: Fault, where: str) -> EnvError:
        lines = [f"the environment of {episode.name} failed {where}:"]
        lines[0] += f" {fault.what}"
        if self.max_restarts:
            lines.append(
                f"restarts used: {self.num_restarts} of {self.max_restarts} (env_kwargs.max_restarts)"
            )
        if fault.trace:
            lines.append(f"its own traceback:\n{fault.trace.rstrip()}")
        error = EnvError("\n".join(lines))
        error.__cause__ = fault.cause
        return error


def _check_finite(batch: Any, active: Sequence[Episode]) -> None:
    """Raise if an observation holds NaN or infinity: a score of it would mean nothing."""
    if isinstance(batch, (dict, tuple)):
        for part in batch.values() if isinstance(batch, dict) else batch:
            _check_finite(part, active)
    elif batch.dtype.kind == "f" and not np.isfinite(batch).all():
        row = int(np.argwhere(~np.isfinite(batch))[0, 0])
        episode = active[row]
        raise NonFiniteError(
            f"the observation of {episode.name} is not finite after {episode.length:,} steps"
        )

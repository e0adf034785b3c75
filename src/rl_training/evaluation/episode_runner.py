"""Episodes of an evaluation, stepped together, each in an environment of its own; one that fails is run again."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from rl_training.envs.answers import find_misfit
from rl_training.envs.episodes import EpisodeStep
from rl_training.envs.factory import make_env, make_episode_pool, split_env_kwargs
from rl_training.envs.pools import Fault, Pool, close_example
from rl_training.envs.state.attributes import is_same
from rl_training.envs.state.global_generators import seeded_global_generators
from rl_training.envs.state.shared_changes import shared_changes
from rl_training.envs.vector import batch_observations
from rl_training.envs.workers import SECONDS_TO_START
from rl_training.errors import EnvError

ATTEMPTS_WITH_ITS_SEED = 3
"""Restarts after which an episode that still fails is run with another seed: its fault is no accident."""


@dataclass
class Episode:
    """An episode in progress."""

    index: int
    """Its place in the list of seeds."""
    place: int
    """Which member of the pool it runs in."""
    seed: int
    obs: Any = None
    total: float = 0.0
    length: int = 0
    actions: list[Any] = field(default_factory=list)
    """Kept only where it may have to be run again."""
    attempts: int = 0

    def add(self, step: EpisodeStep) -> None:
        """Take in a step."""
        self.obs = step.obs
        self.total += step.reward
        self.length += 1


class EpisodeRunner:
    """Begins and steps episodes. An episode that fails is run again while `env_kwargs.max_restarts` allows."""

    def __init__(self, env_id: str, env_kwargs: Mapping[str, Any], num_places: int) -> None:
        settings = split_env_kwargs(env_kwargs)[0]
        self.num_places = num_places
        self.max_restarts, self.num_restarts = settings.max_restarts, 0
        self._is_local = settings.backend != "async"
        self._make_pool = partial(make_episode_pool, env_id, env_kwargs, num_places)
        self._started_pool: Pool | None = None
        example = make_env(env_id, env_kwargs, with_wrappers=False)
        self.obs_space, self.action_space = example.observation_space, copy.deepcopy(example.action_space)
        close_example(example)
        self._class = type(example.unwrapped)
        self._changes_in_workers: set[str] = set()

    @property
    def shared_changes(self) -> list[str]:
        """Which class attributes and module variables the environments of the run were seen to change."""
        return sorted({*shared_changes(self._class), *self._changes_in_workers})

    @contextlib.contextmanager
    def running(self, seed: int) -> Iterator[None]:
        """Have the places ready. Where they are in this process, its global generators are lent to them, seeded."""
        if self._started_pool is None:
            self._started_pool = self._make_pool()
            for place, fault in self._started_pool.start():
                raise self._error(Episode(place, place, seed), fault, "in starting")
        with seeded_global_generators(seed) if self._is_local else contextlib.nullcontext():
            yield
        for found in self._pool.run("shared_changes", [()] * self._pool.size):
            self._changes_in_workers.update([] if isinstance(found, Fault) else found)

    def begin(self, episodes: Sequence[Episode]) -> None:
        """Make an environment for each episode and begin it."""
        if not episodes:
            return
        seeds: list[tuple[int] | None] = [None] * self._pool.size
        for episode in episodes:
            seeds[episode.place] = (episode.seed,)
        made = self._pool.run("make", seeds, SECONDS_TO_START)
        begun = self._pool.run(
            "reset", [seed if fault is None else None for fault, seed in zip(made, seeds, strict=True)]
        )
        for episode in episodes:
            answer = begun[episode.place] if made[episode.place] is None else made[episode.place]
            if isinstance(answer, Fault):
                self._run_again(episode, answer, "at its start")
            else:
                episode.obs = answer

    def batch(self, active: Sequence[Episode]) -> Any:
        """The observations of the episodes as one batch."""
        try:
            return batch_observations(self.obs_space, [episode.obs for episode in active])
        except Exception:
            misfits = {episode.place: find_misfit(self.obs_space, episode.obs) for episode in active}
            if not any(misfits.values()):
                raise
        for episode in active:
            misfit = misfits[episode.place]
            if misfit is not None:
                episode.actions.clear()
                self._run_again(episode, Fault(misfit, ""), f"after {episode.length} steps")
        return self.batch(active)

    def step(self, active: Sequence[Episode], actions: Sequence[Any]) -> list[EpisodeStep | None]:
        """One step of every episode; None where one failed and began anew."""
        arguments: list[tuple[Any] | None] = [None] * self._pool.size
        for episode, action in zip(active, actions, strict=True):
            arguments[episode.place] = (action,)
            if self.max_restarts:
                episode.actions.append(action)
                episode.obs = copy.deepcopy(episode.obs)  # the environment may write the next one into the same array
        answers = self._pool.run("step", arguments)
        steps = []
        for episode, action in zip(active, actions, strict=True):
            step = answers[episode.place]
            if isinstance(step, Fault):
                step = self._run_again(episode, step, f"at action {np.asarray(action).tolist()}")
            if step is not None:
                episode.add(step)
            steps.append(step)
        return steps

    def close(self) -> None:
        """Close the environments, then tell of those that failed to."""
        if self._started_pool is not None:
            for _, fault in self._started_pool.close():
                raise EnvError(f"an environment of evaluation failed in close: {fault.what}\n{fault.trace}".rstrip())

    @property
    def _pool(self) -> Pool:
        assert self._started_pool is not None
        return self._started_pool

    def _run_again(self, episode: Episode, fault: Fault, where: str) -> EpisodeStep | None:
        """Bring a failed episode, in a new environment, through the step that failed.

        Returns that step, or None if the episode began anew: with another seed, or because the new environment did
        something else than the old one.
        """
        while True:
            if self.num_restarts >= self.max_restarts:
                raise self._error(episode, fault, where)
            self.num_restarts += 1
            episode.attempts += 1
            if episode.attempts > ATTEMPTS_WITH_ITS_SEED:
                episode.seed = int(np.random.SeedSequence([episode.seed, episode.attempts]).generate_state(1)[0])
                episode.actions.clear()
            answer: Any = self._pool.replace(episode.place)
            if answer is None:
                answer = self._replay(episode)
            if not isinstance(answer, Fault):
                return answer  # type: ignore[no-any-return]
            fault = answer

    def _replay(self, episode: Episode) -> EpisodeStep | Fault | None:
        """Take the actions of an episode again; returns the last step, a fault, or None if the episode began anew."""
        again = Episode(episode.index, episode.place, episode.seed)
        again.obs = self._begin_one(again)
        has_ended = False
        for action in episode.actions[:-1]:
            if isinstance(again.obs, Fault) or has_ended:
                break
            step = self._pool.run_one(again.place, "step", action)
            if isinstance(step, Fault):
                return step
            again.add(step)
            has_ended = step.ended
        if isinstance(again.obs, Fault):
            return again.obs
        if episode.actions:
            if not has_ended and again.total == episode.total and is_same(again.obs, episode.obs):
                last: EpisodeStep | Fault = self._pool.run_one(again.place, "step", episode.actions[-1])
                return last
            again.obs = self._begin_one(again)
        episode.obs, episode.total, episode.length = again.obs, 0.0, 0
        episode.actions.clear()
        return again.obs if isinstance(again.obs, Fault) else None

    def _begin_one(self, episode: Episode) -> Any:
        fault = self._pool.run_one(episode.place, "make", episode.seed, seconds=SECONDS_TO_START)
        return fault if isinstance(fault, Fault) else self._pool.run_one(episode.place, "reset", episode.seed)

    def _error(self, episode: Episode, fault: Fault, where: str) -> EnvError:
        lines = [f"the environment of evaluation episode {episode.index} (seed {episode.seed}) failed {where}:"]
        lines[0] += f" {fault.what}"
        if self.max_restarts:
            lines.append(f"restarts used: {self.num_restarts} of {self.max_restarts} (env_kwargs.max_restarts)")
        if fault.trace:
            lines.append(f"its own traceback:\n{fault.trace.rstrip()}")
        error = EnvError("\n".join(lines))
        error.__cause__ = fault.cause
        return error

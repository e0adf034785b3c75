"""Evaluation of the deterministic policy in separate environments, with seeds that training never uses."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import resources
from typing import Any

import numpy as np
import torch
import yaml
from gymnasium import Space
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.envs.factory import EnvSource
from rl_training.envs.single.episodes import EpisodeStep
from rl_training.evaluation.episode_runner import Episode, EpisodeRunner
from rl_training.models.actions import random_actions
from rl_training.replay.transitions import Array
from rl_training.spaces.spec import Spaces, describe_action, describe_spaces

MAX_ENVS = 8
MAX_EPISODE_STEPS = 100_000
"""Episodes are cut after this many steps."""
EVAL_METRICS = ("eval_return_mean", "eval_return_std", "eval_length_mean", "eval_episodes")
NORMALIZED_SCORE = "eval_normalized_score"
SUCCESS_RATE = "eval_success_rate"
SUCCESS_REPORTS = "eval_success_reports"
MAX_STEPS_TRIED = 1000
OnProgress = Callable[[int], None]
"""Called before every step with the number of finished episodes."""
OnObservations = Callable[[Any, Sequence[Episode]], None]
"""Called before every step with the batch of observations, and the episodes that they are of."""


class Evaluator:
    """Runs the same seeded episodes at each evaluation, without reward wrappers; training is not affected.

    Each episode gets a new environment, so no evaluation depends on an earlier one.
    """

    def __init__(self, source: EnvSource, seeds: Sequence[int]) -> None:
        self.seeds = [int(seed) for seed in seeds]
        self._normalize = partial(normalized_score, source)
        self._runner = EpisodeRunner(source, min(len(self.seeds), MAX_ENVS))

    @property
    def num_restarts(self) -> int:
        """Environments that failed and were recreated, over the whole run."""
        return self._runner.num_restarts

    @num_restarts.setter
    def num_restarts(self, count: int) -> None:
        self._runner.num_restarts = count

    @property
    def shared_changes(self) -> list[str]:
        """Class attributes and module variables that the environments of the run changed."""
        return self._runner.shared_changes

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Metrics of every evaluation; the success rate is added where environments report it."""
        return EVAL_METRICS if self._normalize(0.0) is None else (*EVAL_METRICS, NORMALIZED_SCORE)

    @property
    def spaces(self) -> Spaces:
        """The spaces of the environments."""
        runner = self._runner
        return describe_spaces(runner.obs_space, runner.action_space, has_masks=runner.has_masks)

    @property
    def obs_space(self) -> Space[Any]:
        """The observation space of the environments."""
        return self._runner.obs_space

    def evaluate(self, algorithm: Algorithm[Any], on_progress: OnProgress) -> dict[str, float]:
        """Mean and standard deviation of the unscaled return, mean length and number of episodes.

        Adds the normalized score if references are known, and the success rate if the last `info` of an episode
        reports success. An exception of `on_progress` ends the evaluation.
        """
        return self.summarize(*self.run_episodes(algorithm, on_progress))

    def summarize(
        self, returns: Sequence[float], lengths: Sequence[int], successes: Sequence[bool | None]
    ) -> dict[str, float]:
        """The metrics of these episodes."""
        mean = float(np.mean(returns))
        values = (mean, float(np.std(returns)), float(np.mean(lengths)), len(returns))
        metrics = dict(zip(EVAL_METRICS, values, strict=True))
        normalized = self._normalize(mean)
        if normalized is not None:
            metrics[NORMALIZED_SCORE] = normalized
        return metrics | success_metrics(successes)

    def run_episodes(
        self,
        algorithm: Algorithm[Any],
        on_progress: OnProgress,
        on_observations: OnObservations | None = None,
    ) -> tuple[list[float], list[int], list[bool | None]]:
        """Return, length and success (None if not reported) of each episode, in the order of the seeds."""
        runner = self._runner
        returns = [0.0] * len(self.seeds)
        lengths = [0] * len(self.seeds)
        successes: list[bool | None] = [None] * len(self.seeds)
        with runner.running(self.seeds[0]):
            waiting = iter(range(len(self.seeds)))
            active = [
                Episode(next(waiting), member, self.seeds[member])
                for member in range(runner.num_members)
            ]
            runner.start(active)
            num_done = 0
            while active:
                on_progress(num_done)
                batch = runner.batch(active)
                if on_observations is not None:
                    on_observations(batch, active)
                actions = act_in(algorithm, active, batch)
                still_active, started = [], []
                for episode, step in zip(active, runner.step(active, list(actions)), strict=True):
                    if step is None or not (step.ended or episode.length >= MAX_EPISODE_STEPS):
                        still_active.append(episode)
                        continue
                    returns[episode.index], lengths[episode.index] = episode.total, episode.length
                    successes[episode.index] = step.success
                    num_done += 1
                    following = next(waiting, None)
                    if following is not None:
                        started.append(Episode(following, episode.member, self.seeds[following]))
                        still_active.append(started[-1])
                runner.start(started)
                active = still_active
        return returns, lengths, successes

    def reports_success(self) -> bool:
        """Whether a random episode reports success in its last info."""
        runner, space, rng = (
            self._runner,
            copy.deepcopy(self._runner.action_space),
            np.random.default_rng(0),
        )
        space.seed(0)
        with runner.running(self.seeds[0]):
            episode = Episode(0, 0, self.seeds[0])
            runner.start([episode])
            step: EpisodeStep | None = None
            for _ in range(MAX_STEPS_TRIED):
                (step,) = runner.step([episode], [_random_action(space, episode.mask, rng)])
                if step is not None and (step.ended or step.success is not None):
                    break
        return step is not None and step.success is not None

    def close(self) -> None:
        """Close the environments."""
        self._runner.close()


def success_metrics(successes: Sequence[bool | None]) -> dict[str, float]:
    """Success rate and number of episodes that reported success or failure; empty if none did.

    An episode without a report counts as a failure: many environments report successes only.
    """
    num_reports = sum(success is not None for success in successes)
    if num_reports == 0:
        return {}
    return {SUCCESS_RATE: sum(map(bool, successes)) / len(successes), SUCCESS_REPORTS: num_reports}


def _random_action(space: Space[Any], mask: Array | None, rng: np.random.Generator) -> Any:
    """An action of the space, among the valid ones if there is a mask."""
    if mask is None:
        return space.sample()
    action = describe_action(space)
    return action.to_env(random_actions(action, 1, rng, torch.from_numpy(mask[None])).numpy())[0]


def act_in(algorithm: Algorithm[Any], active: Sequence[Episode], obs: Any) -> Array:
    """Environment actions of the deterministic policy in each episode, whose policy state is advanced."""
    state = algorithm.initial_state(len(active))
    if state is not None:
        pairs = zip(active, state, strict=True)
        state = torch.stack(
            [row if item.policy_state is None else item.policy_state for item, row in pairs]
        )
    masks = np.stack([episode.mask for episode in active]) if active[0].mask is not None else None
    actions, state = act_on(algorithm, obs, state, masks, deterministic=True)
    if state is not None:
        for episode, row in zip(active, state, strict=True):
            episode.policy_state = row
    return actions


def act_on(
    algorithm: Algorithm[Any],
    obs: Any,
    state: Tensor | None = None,
    masks: Array | None = None,
    *,
    deterministic: bool,
) -> tuple[Array, Tensor | None]:
    """Environment actions for a batch of environment observations, and the next policy state."""
    stored = np.require(
        algorithm.spaces.obs.as_stored(obs), requirements=("C", "W")
    )  # torch takes no read-only array
    inputs = torch.from_numpy(stored).to(algorithm.device)
    mask = None if masks is None else torch.from_numpy(masks).to(algorithm.device)
    acted = algorithm.act(inputs, state, explore=not deterministic, mask=mask)
    return algorithm.spaces.action.to_env(acted.actions.cpu().numpy()), acted.state


@cache
def reference_scores() -> dict[str, tuple[float, float]]:
    """Returns of random actions and of an expert, by environment id; reference_scores.yaml names their sources."""
    text = resources.files(__package__).joinpath("reference_scores.yaml").read_text()
    return {
        env_id: tuple(pair)
        for group in yaml.safe_load(text)
        for env_id, pair in group["scores"].items()
    }


def normalized_score(source: EnvSource, score: float) -> float | None:
    """The score from 0 (random) to 100 (expert); None if there is no reference for the environment and its settings."""
    env_id, limit = source.env_id, source.settings.max_episode_steps
    if (
        env_id not in reference_scores()
        or source.arguments
        or limit is not None
        or source.settings.wrappers.list
    ):
        return None
    random, expert = reference_scores()[env_id]
    return 100.0 * (score - random) / (expert - random)

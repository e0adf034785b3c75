"""Evaluation: the deterministic policy, on environments of its own, with seeds that training never uses."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rl_training.algorithms.base import Algorithm
from rl_training.data.spaces import Spaces, describe_spaces
from rl_training.data.transitions import Array
from rl_training.envs.factory import make_env
from rl_training.envs.reference_scores import normalized_score
from rl_training.envs.vector import batch_observations, describe_error
from rl_training.errors import EnvError

MAX_ENVS = 8
MAX_EPISODE_STEPS = 100_000
"""Where an episode without an end of its own is cut."""
EVAL_METRICS = ("eval_return_mean", "eval_return_std", "eval_length_mean", "eval_episodes")
NORMALIZED_SCORE = "eval_normalized_score"
SUCCESS_RATE = "eval_success_rate"
SUCCESS_KEYS = ("is_success", "success")
"""Where the last info of an episode tells how it went."""
MAX_STEPS_TRIED = 1000
Watch = Callable[[int], None]
"""Hears how many episodes are done."""


@dataclass
class _Episode:
    """An episode in progress."""

    index: int
    env: gym.Env[Any, Any]
    obs: Any
    total: float = 0.0
    length: int = 0


class Evaluator:
    """Runs the same seeded episodes each time, without reward wrappers and without touching training."""

    def __init__(self, env_id: str, env_kwargs: Mapping[str, Any], seeds: Sequence[int]) -> None:
        self._seeds = [int(seed) for seed in seeds]
        self._normalize = partial(normalized_score, env_id, env_kwargs)
        count = min(len(self._seeds), MAX_ENVS)
        self._make = partial(make_env, env_id, env_kwargs, with_wrappers=False)
        self._envs = [self._make() for _ in range(count)]

    @property
    def metric_names(self) -> tuple[str, ...]:
        """What an evaluation tells, besides the success rate."""
        return EVAL_METRICS if self._normalize(0.0) is None else (*EVAL_METRICS, NORMALIZED_SCORE)

    @property
    def spaces(self) -> Spaces:
        """The spaces of the environments."""
        return describe_spaces(self._envs[0].observation_space, self._envs[0].action_space)

    def evaluate(self, algorithm: Algorithm[Any], watch: Watch) -> dict[str, float]:
        """Mean and spread of the raw return over the episodes, and what else can be told.

        That is the normalized score where references are known, and the share of successful episodes where the last
        info tells. Before every step `watch` hears how many episodes are done; what it raises ends the evaluation.
        """
        returns, lengths, successes = self.run_episodes(algorithm, watch)
        mean = float(np.mean(returns))
        values = (mean, float(np.std(returns)), float(np.mean(lengths)), len(returns))
        metrics = dict(zip(EVAL_METRICS, values, strict=True))
        normalized = self._normalize(mean)
        if normalized is not None:
            metrics[NORMALIZED_SCORE] = normalized
        told = [success for success in successes if success is not None]
        return {**metrics, SUCCESS_RATE: float(np.mean(told))} if told else metrics

    def run_episodes(self, algorithm: Algorithm[Any], watch: Watch) -> tuple[list[float], list[int], list[bool | None]]:
        """Return, length and success (if told) of each episode, in the order of the seeds."""
        returns = [0.0] * len(self._seeds)
        lengths = [0] * len(self._seeds)
        successes: list[bool | None] = [None] * len(self._seeds)
        space = self._envs[0].observation_space
        waiting = iter(range(len(self._seeds)))
        active = [self._begin(index, env) for env, index in zip(self._envs, waiting, strict=False)]
        num_done = 0
        while active:
            watch(num_done)
            actions = act_on(
                algorithm, batch_observations(space, [episode.obs for episode in active]), deterministic=True
            )
            still_active = []
            for episode, action in zip(active, actions, strict=True):
                try:
                    episode.obs, reward, terminated, truncated, info = episode.env.step(action)
                except Exception as error:
                    raise self._fault(episode.index, f"at action {action.tolist()}", error) from error
                episode.total += float(reward)
                episode.length += 1
                if not (terminated or truncated or episode.length >= MAX_EPISODE_STEPS):
                    still_active.append(episode)
                    continue
                returns[episode.index], lengths[episode.index] = episode.total, episode.length
                successes[episode.index] = _success(info)
                num_done += 1
                following = next(waiting, None)
                if following is not None:
                    still_active.append(self._begin(following, episode.env))
            active = still_active
        return returns, lengths, successes

    def tells_success(self) -> bool:
        """Whether a random episode, in an environment that is not used otherwise, ends with the word."""
        env = self._make()
        env.action_space.seed(0)
        env.reset(seed=self._seeds[0])
        for _ in range(MAX_STEPS_TRIED):
            _, _, terminated, truncated, info = env.step(env.action_space.sample())
            if terminated or truncated or _success(info) is not None:
                break
        env.close()
        return _success(info) is not None

    def close(self) -> None:
        """Close the environments."""
        for env in self._envs:
            env.close()

    def _begin(self, index: int, env: gym.Env[Any, Any]) -> _Episode:
        try:
            obs, _ = env.reset(seed=self._seeds[index])
        except Exception as error:
            raise self._fault(index, "in reset", error) from error
        return _Episode(index, env, obs)

    def _fault(self, index: int, where: str, error: Exception) -> EnvError:
        return EnvError(
            f"the environment of evaluation episode {index} (seed {self._seeds[index]}) failed {where}:"
            f" {describe_error(error)}\nits own traceback:\n{traceback.format_exc().rstrip()}"
        )


def _success(info: Mapping[str, Any]) -> bool | None:
    return next((bool(info[key]) for key in SUCCESS_KEYS if key in info), None)


def act_on(algorithm: Algorithm[Any], obs: Any, *, deterministic: bool) -> Array:
    """Environment actions for a batch of environment observations."""
    stored = np.ascontiguousarray(algorithm.spaces.obs.as_stored(obs))
    actions = algorithm.act(torch.from_numpy(stored).to(algorithm.device), explore=not deterministic)
    return algorithm.spaces.action.to_env(actions.cpu().numpy())

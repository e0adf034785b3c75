"""The off-policy loop: add new steps to the replay buffer, learn from samples of it, keep the ratio of the two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.config import OffPolicyConfig, OnlineStageConfig
from rl_training.replay.frame_replay import replay_class
from rl_training.replay.hindsight_replay import GoalRewardFn, HindsightReplay
from rl_training.replay.mixed_replay import MixedReplay
from rl_training.replay.replay_buffer import ReplayBuffer
from rl_training.runtime.collector import Collector
from rl_training.runtime.session import Session
from rl_training.spaces.spec import Spaces

STEPS_BETWEEN_REPORTS = 1000
"""A long round without updates (the warm-up) is cut here, so that the run stays visible."""
MAX_BATCHES_AT_ONCE = 32
Pace = OffPolicyConfig | OnlineStageConfig


def make_replay_buffer(
    config: OffPolicyConfig,
    spaces: Spaces,
    num_envs: int,
    rng: np.random.Generator,
    device: torch.device,
    goal_rewards: GoalRewardFn | None = None,
) -> ReplayBuffer:
    """The buffer this loop fills and samples; with `goal_rewards`, one that relabels goals (HER)."""
    options: dict[str, Any] = {"rng": rng, "device": device, "n_step": config.n_step, "gamma": config.gamma}
    replay = config.replay
    if goal_rewards is not None:
        options |= {"goal_rewards": goal_rewards, "strategy": replay.strategy, "goals_per_step": replay.goals_per_step}
        return HindsightReplay(spaces, config.buffer_capacity, num_envs, **options)
    priority_alpha = replay.alpha if replay.kind == "prioritized" else None
    return replay_class(spaces)(spaces, config.buffer_capacity, num_envs, priority_alpha=priority_alpha, **options)


def off_policy_loop(session: Session, algorithm: Algorithm[Any], collector: Collector, buffer: ReplayBuffer) -> None:
    """Train until the run is over."""
    config: OffPolicyConfig = algorithm.config

    def explore(obs: Tensor) -> Tensor:
        if session.state.global_step < config.learning_starts:
            return algorithm.random_actions(len(obs))
        return algorithm.act(obs, explore=True)

    collect_and_learn(session, algorithm, collector, buffer, config, explore)


def collect_and_learn(
    session: Session,
    algorithm: Algorithm[Any],
    collector: Collector,
    buffer: ReplayBuffer | MixedReplay,
    pace: Pace,
    explore: Callable[[Tensor], Tensor],
    *,
    first_step: int = 0,
) -> None:
    """Alternate steps and updates until the run is over. By `first_step` as many updates had been done as steps."""
    state = session.state

    def act(obs: Tensor) -> Tensor:
        algorithm.advance(state.global_step, session.progress)
        return explore(obs)

    while not state.should_stop:
        if not updates_due(pace, state.global_step - first_step, state.update_count - first_step):
            if not session.has_steps_left:
                break
            step, total = state.global_step - first_step, session.total_steps - first_step
            steps = steps_to_next_update(pace, step, total, collector.num_envs)
            result = collector.collect(act, buffer, steps, state)
            session.collected(result)
            if result.steps < steps * collector.num_envs:
                break  # asked to stop within the round
        algorithm.advance(state.global_step, session.progress)
        while due := updates_due(pace, state.global_step - first_step, state.update_count - first_step):
            if state.should_stop:
                return  # within the round again: a resumed run does the rest of the updates first
            for batch in buffer.sample_batches(algorithm.config.batch_size, min(due, MAX_BATCHES_AT_ONCE)):
                learned = algorithm.update(batch)
                if learned.errors is not None and isinstance(buffer, ReplayBuffer):
                    buffer.update_priorities(batch, learned.errors)
                session.updated(learned)
        session.end_iteration()


def updates_due(pace: Pace, step: int, update_count: int) -> int:
    """Updates still to do at `step`, so that their ratio to steps does not depend on `num_envs`."""
    rounds = max(0, step - pace.learning_starts) // pace.train_frequency
    return rounds * pace.gradient_steps - update_count


def steps_to_next_update(pace: Pace, step: int, total_steps: int, num_envs: int) -> int:
    """Steps each environment takes until the next updates are due, or until it is time to report."""
    rounds = max(0, (step - pace.learning_starts) // pace.train_frequency) + 1
    next_round = pace.learning_starts + rounds * pace.train_frequency
    next_report = (step // STEPS_BETWEEN_REPORTS + 1) * STEPS_BETWEEN_REPORTS
    return -(-(min(next_round, next_report, total_steps) - step) // num_envs)

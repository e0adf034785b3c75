"""The off-policy loop: store new steps in the replay buffer, update from samples of it, at a fixed ratio."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from rl_training.algorithms.base import ActResult, Algorithm
from rl_training.algorithms.config import HINDSIGHT, OffPolicyConfig, OnlineStageConfig
from rl_training.envs.goal_rewards import GoalRewards
from rl_training.errors import ConfigError
from rl_training.replay.frame_replay import replay_class
from rl_training.replay.hindsight_replay import GoalRewardFn, HindsightReplay, find_goals
from rl_training.replay.mixed_replay import MixedReplay
from rl_training.replay.replay_buffer import ReplayBuffer
from rl_training.replay.sequences import sampler_of
from rl_training.replay.transitions import StepFields, Storage
from rl_training.runtime.assembly import (
    RunComponents,
    RunSetup,
    check_batch_fits,
    check_replay_fits,
    make_collector,
    translate_memory_errors,
    try_to_close,
)
from rl_training.runtime.collector import Act, Collector, stored_fields
from rl_training.runtime.session import Session
from rl_training.spaces.spec import Spaces

STEPS_BETWEEN_REPORTS = 1000
"""A long collection without updates (the warm-up) is split here, so that its progress is shown."""
MAX_BATCHES_AT_ONCE = 32
"""Batches sampled together: indexing once costs less than indexing per batch; a stop waits for their updates."""
UpdateRatio = OffPolicyConfig | OnlineStageConfig
"""Settings of how many updates follow how many environment steps."""


def assemble_off_policy(setup: RunSetup, on_failure: contextlib.ExitStack) -> RunComponents:
    """Make and check the components of an off-policy run."""
    config, algo_config = setup.config, setup.algo_config
    envs = setup.make_envs()
    on_failure.callback(try_to_close, envs)
    spaces = envs.spaces
    algorithm = setup.make_algorithm(spaces)
    fields = stored_fields(algorithm)
    off_policy_bytes(setup, spaces, fields)
    check_sampling(algo_config)
    goal_rewards = None
    if algo_config.replay.kind == HINDSIGHT:
        find_goals(spaces.obs)
        goal_rewards = GoalRewards(setup.required_env)
        on_failure.callback(try_to_close, goal_rewards)
    with translate_memory_errors():
        rng = setup.seeds.replay_generator()
        options: dict[str, Any] = {"rng": rng, "device": algorithm.device, "fields": fields}
        buffer = make_replay_buffer(algo_config, spaces, config.num_envs, goal_rewards, **options)
    evaluator = setup.make_evaluator()
    on_failure.callback(try_to_close, evaluator)
    new_steps = config.total_timesteps - setup.warm_start_step
    key = "learning_starts" if setup.warm_start_step == 0 else None  # it cannot change on a resume
    notes = no_update_warnings(algo_config, new_steps, config.num_envs, key)
    stored = min(algo_config.buffer_capacity, new_steps)
    notes += repeated_batch_warnings(algo_config.batch_size, stored, "the replay buffer")
    collector = make_collector(envs, algorithm)
    return RunComponents(
        algorithm, collector, buffer, evaluator, notes=notes, goal_rewards=goal_rewards
    )


def off_policy_bytes(setup: RunSetup, spaces: Spaces, fields: StepFields | None = None) -> int:
    """Memory of the replay buffer at its fullest; raises where there is less for it or for a batch."""
    algo_config, total = setup.algo_config, setup.config.total_timesteps
    check_batch_fits(spaces, algo_config.batch_size)
    return check_replay_fits(
        spaces, algo_config.buffer_capacity, total, algo_config.replay.kind, fields
    )


def no_update_warnings(
    ratio: UpdateRatio, num_steps: int, num_envs: int, key: str | None
) -> list[str]:
    """A warning if the run ends before its first gradient step; `key` is the setting that may be lowered."""
    last_step = -(-num_steps // num_envs) * num_envs
    if updates_due(ratio, last_step, 0) > 0:
        return []
    remedy = (
        "raise total_timesteps"
        if key is None
        else f"lower algo_kwargs.{key} or raise total_timesteps"
    )
    return [
        f"WARNING: nothing will be learned in the environment: {key or 'learning_starts'} {ratio.learning_starts:,} and"
        f" train_frequency {ratio.train_frequency:,} leave no gradient step in {num_steps:,} steps; {remedy}"
    ]


def repeated_batch_warnings(batch_size: int, num_stored: int, where: str) -> list[str]:
    """A warning if a batch is larger than what it is drawn from."""
    if batch_size <= num_stored:
        return []
    return [
        f"WARNING: batch_size {batch_size:,} is larger than {where}, which holds at most {num_stored:,} transitions:"
        " every batch repeats some; lower algo_kwargs.batch_size"
    ]


def check_sampling(config: OffPolicyConfig) -> None:
    """Raise a `ConfigError` where sequences are drawn and the replay changes single transitions."""
    kind = config.sampling().kind
    if kind != "transitions" and (config.n_step > 1 or config.replay.kind != "uniform"):
        raise ConfigError(
            f"this algorithm draws {kind}: set n_step to 1 and replay.kind to uniform"
        )


def make_replay_buffer(
    config: OffPolicyConfig,
    spaces: Spaces,
    num_envs: int,
    goal_rewards: GoalRewardFn | None = None,
    **options: Any,
) -> ReplayBuffer:
    """The replay buffer of the configured kind; with `goal_rewards`, one that relabels goals (HER)."""
    options |= {"n_step": config.n_step, "gamma": config.gamma}
    replay = config.replay
    if goal_rewards is not None:
        options |= {
            "goal_rewards": goal_rewards,
            "strategy": replay.strategy,
            "goals_per_step": replay.goals_per_step,
        }
        return HindsightReplay(spaces, config.buffer_capacity, num_envs, **options)
    priority_alpha = replay.alpha if replay.kind == "prioritized" else None
    return replay_class(spaces)(
        spaces, config.buffer_capacity, num_envs, priority_alpha=priority_alpha, **options
    )


def off_policy_loop(
    session: Session, algorithm: Algorithm[Any], collector: Collector, buffer: ReplayBuffer
) -> None:
    """Train until the run is over.

    A trained policy (`init_from`, an import) collects the warm-up itself, without epsilon's schedule: random actions
    would fill the new replay buffer with states that it never visits. `learning_starts` counts from its first step.
    """
    config: OffPolicyConfig = algorithm.config
    state = session.state
    algorithm.starts_trained = state.warm_start_step is not None
    needs_act = bool(algorithm.step_fields()) or algorithm.initial_state(1) is not None

    def explore(obs: Tensor, policy_state: Tensor | None, mask: Tensor | None) -> ActResult:
        session.set_progress()
        if algorithm.starts_trained or state.global_step >= config.learning_starts:
            return algorithm.act(obs, policy_state, explore=True, mask=mask)
        actions = algorithm.random_actions(len(obs), mask)
        if not needs_act:
            return ActResult(actions)
        acted = algorithm.act(obs, policy_state, explore=True, mask=mask)
        return (
            acted._replace(actions=actions) if isinstance(acted, ActResult) else acted
        )  # the collector refuses it

    first_step = state.warm_start_step or 0
    collect_and_update(
        session, algorithm, collector, buffer, config, explore, first_step=first_step
    )


def collect_and_update(
    session: Session,
    algorithm: Algorithm[Any],
    collector: Collector,
    buffer: ReplayBuffer | MixedReplay,
    ratio: UpdateRatio,
    explore: Act,
    *,
    first_step: int = 0,
) -> None:
    """Alternate environment steps and updates until the run is over.

    `first_step` is the step at which an offline stage ended, or at which the run took over a trained policy; each step
    before it counts as one update.
    """
    state, total = session.state, session.training_progress.total - first_step
    draw, batch_size = sampler_of(buffer, algorithm.config.sampling()), algorithm.config.batch_size
    storage = ObservedReplay(buffer, algorithm) if algorithm.needs_steps else buffer
    while not state.should_stop:
        if not updates_due(ratio, state.global_step - first_step, state.update_calls - first_step):
            step = state.global_step - first_step
            if step >= total:
                break
            steps = steps_to_next_update(ratio, step, total, collector.num_envs)
            result = collector.collect(explore, storage, steps, state)
            session.collected(result)
            if result.steps < steps * collector.num_envs:
                break  # a stop was requested within the collection
        session.set_progress()
        while due := updates_due(
            ratio, state.global_step - first_step, state.update_calls - first_step
        ):
            if state.should_stop:
                return  # within the iteration: a resumed run does the remaining updates first
            for batch in draw(batch_size, min(due, MAX_BATCHES_AT_ONCE)):
                result_of_update = algorithm.update(batch)
                if result_of_update.td_errors is not None and isinstance(buffer, ReplayBuffer):
                    buffer.update_priorities(batch, result_of_update.td_errors)
                session.updated(result_of_update)
        session.end_iteration()


class ObservedReplay:
    """A buffer that hands each step to the algorithm's `observe`, just before the next one is stored.

    So the newest stored step is always the only one that `observe` has not seen: wherever a run is stopped and resumed,
    every step is seen once. It is also final by then: `truncate_newest` may mark it after it was stored.
    """

    def __init__(self, buffer: ReplayBuffer | MixedReplay, algorithm: Algorithm[Any]) -> None:
        self._buffer = buffer
        self._algorithm = algorithm

    def add(self, step: Storage) -> None:
        """Store one step of every environment, by field."""
        newest = self._buffer.newest_step()
        if newest is not None:
            self._algorithm.observe(newest)
        self._buffer.add(step)

    def truncate_newest(self) -> None:
        """Mark the newest step of every environment truncated, unless terminated."""
        self._buffer.truncate_newest()

    def newest(self, count: int) -> Iterable[Storage]:
        """The last `count` rows."""
        return self._buffer.newest(count)


def updates_due(ratio: UpdateRatio, step: int, update_calls: int) -> int:
    """Updates still to do at `step`, so that their ratio to environment steps does not depend on `num_envs`."""
    times = max(0, step - ratio.learning_starts) // ratio.train_frequency
    return times * ratio.gradient_steps - update_calls


def steps_to_next_update(ratio: UpdateRatio, step: int, total_steps: int, num_envs: int) -> int:
    """Steps of each environment until the next updates are due, or until progress is reported."""
    times = max(0, (step - ratio.learning_starts) // ratio.train_frequency) + 1
    next_update = ratio.learning_starts + times * ratio.train_frequency
    next_report = (step // STEPS_BETWEEN_REPORTS + 1) * STEPS_BETWEEN_REPORTS
    return -(-(min(next_update, next_report, total_steps) - step) // num_envs)

"""The on-policy loop: collect a rollout with the current policy, learn from it, discard it."""

from __future__ import annotations

import contextlib
from typing import Any

from torch import Tensor

from rl_training.algorithms.base import ActResult, Algorithm
from rl_training.replay.rollout_buffer import RolloutBuffer
from rl_training.replay.transitions import StepFields
from rl_training.runtime.assembly import (
    RunComponents,
    RunSetup,
    check_rollout_fits,
    make_collector,
    translate_memory_errors,
    try_to_close,
)
from rl_training.runtime.collector import Collector, stored_fields
from rl_training.runtime.session import Session
from rl_training.spaces.spec import Spaces


def assemble_on_policy(setup: RunSetup, on_failure: contextlib.ExitStack) -> RunComponents:
    """Make and check the components of an on-policy run."""
    config = setup.config
    envs = setup.make_envs()
    on_failure.callback(try_to_close, envs)
    spaces = envs.spaces
    algorithm = setup.make_algorithm(spaces)
    fields = stored_fields(algorithm)
    rollout_bytes(setup, spaces, fields)
    with translate_memory_errors():
        buffer = RolloutBuffer(
            spaces, setup.algo_config.num_steps, config.num_envs, algorithm.device, fields
        )
    evaluator = setup.make_evaluator()
    on_failure.callback(try_to_close, evaluator)
    return RunComponents(algorithm, make_collector(envs, algorithm), buffer, evaluator)


def rollout_bytes(setup: RunSetup, spaces: Spaces, fields: StepFields | None = None) -> int:
    """Memory of the rollout; raises where there is less."""
    return check_rollout_fits(spaces, setup.algo_config.num_steps, setup.config.num_envs, fields)


def on_policy_loop(
    session: Session, algorithm: Algorithm[Any], collector: Collector, buffer: RolloutBuffer
) -> None:
    """Train until the run is over. The last rollout is always completed, so the run may end a little later."""
    state = session.state

    def explore(obs: Tensor, policy_state: Tensor | None, mask: Tensor | None) -> ActResult:
        return algorithm.act(obs, policy_state, explore=True, mask=mask)

    while not state.should_stop and (
        session.has_steps_left or buffer.steps_left < buffer.num_steps
    ):
        if (
            buffer.steps_left == buffer.num_steps
        ):  # a run resumed within a rollout keeps the progress it began with
            session.set_progress()
        session.collected(collector.collect(explore, buffer, buffer.steps_left, state))
        if buffer.steps_left:
            break  # a stop was requested within the rollout, which is saved as far as it is
        session.updated(algorithm.update(buffer.rollout()))
        session.end_iteration()

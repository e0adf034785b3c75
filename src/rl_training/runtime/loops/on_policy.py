"""The on-policy loop: collect a rollout with the current policy, learn from it, forget it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.replay.rollout_buffer import RolloutBuffer
from rl_training.runtime.collector import Collector
from rl_training.runtime.session import Session


def on_policy_loop(session: Session, algorithm: Algorithm[Any], collector: Collector, buffer: RolloutBuffer) -> None:
    """Train until the run is over. The last rollout is always completed, so the run may end a little later."""
    state = session.state

    def explore(obs: Tensor) -> Tensor:
        return algorithm.act(obs, explore=True)

    while not state.should_stop and (session.has_steps_left or buffer.steps_left < buffer.num_steps):
        algorithm.advance(state.global_step, session.progress)
        session.collected(collector.collect(explore, buffer, buffer.steps_left, state))
        if buffer.steps_left:
            break  # asked to stop within the rollout; what there is of it is saved
        session.updated(algorithm.update(buffer.rollout()))
        buffer.clear()
        session.end_iteration()

"""The offline loop: learn from samples of a fixed data set, where a step is an update; then perhaps go on online."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.config import OfflineConfig, OfflineToOnlineConfig
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.replay.mixed_replay import MixedReplay
from rl_training.runtime.collector import Collector
from rl_training.runtime.loops.off_policy import collect_and_learn
from rl_training.runtime.session import Session

MAX_BATCHES_AT_ONCE = 16


def offline_loop(
    session: Session, algorithm: Algorithm[Any], collector: Collector | None, data: TransitionDataset | MixedReplay
) -> None:
    """Train until the run is over."""
    config: OfflineConfig = algorithm.config
    state = session.state
    online = config.online if isinstance(config, OfflineToOnlineConfig) else None
    num_updates = min(session.total_steps, online.after_updates) if online else session.total_steps
    while state.global_step < num_updates and not state.should_stop:
        count = min(session.steps_to_next_event, num_updates - state.global_step, MAX_BATCHES_AT_ONCE)
        # Batches that are drawn are used, even if a stop is asked for: a resumed run would not draw them again.
        for batch in data.sample_batches(config.batch_size, count):
            algorithm.advance(state.global_step, session.progress)
            state.global_step += 1
            session.updated(algorithm.update(batch))
        session.end_iteration()
    if online is None or collector is None or isinstance(data, TransitionDataset) or state.should_stop:
        return

    def explore(obs: Tensor) -> Tensor:
        return algorithm.add_exploration_noise(algorithm.act(obs, explore=True), online.exploration)

    collect_and_learn(session, algorithm, collector, data, online, explore, first_step=num_updates)

"""The offline loop: learn from samples of a fixed data set; a step is an update."""

from __future__ import annotations

from typing import Any

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.config import OfflineConfig
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.runtime.session import Session

MAX_BATCHES_AT_ONCE = 16


def offline_loop(session: Session, algorithm: Algorithm[Any], collector: None, dataset: TransitionDataset) -> None:
    """Train until the run is over."""
    state = session.state
    config: OfflineConfig = algorithm.config
    while session.has_steps_left and not state.should_stop:
        count = min(session.steps_to_next_event, MAX_BATCHES_AT_ONCE)
        # Batches that are drawn are used, even if a stop is asked for: a resumed run would not draw them again.
        for batch in dataset.sample_batches(config.batch_size, count):
            algorithm.advance(state.global_step, session.progress)
            state.global_step += 1
            session.updated(algorithm.update(batch))
        session.end_round()

"""Steps of training environments, as the collector stores them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.algorithms.base import ActResult
from rl_training.envs.parallel.vector import TrainingEnv
from rl_training.models.actions import random_actions
from rl_training.replay.replay_buffer import ReplayBuffer
from rl_training.runtime.collector import Collector
from rl_training.runtime.trainer import CollectResult, TrainerState


def collect(
    envs: TrainingEnv, num_steps: int, seed: int = 0
) -> tuple[dict[str, np.ndarray], CollectResult]:
    """Steps [T, N] with random valid actions, and what the collector reports."""
    spaces, device, rng = envs.spaces, torch.device("cpu"), np.random.default_rng(seed)
    buffer = ReplayBuffer(spaces, num_steps * envs.num_envs, envs.num_envs, rng=rng, device=device)
    collector = Collector(envs, spaces, device)
    collector.reset(list(range(seed, seed + envs.num_envs)))

    def act(obs: Any, state: Any, mask: Any) -> ActResult:
        return ActResult(random_actions(spaces.action, len(obs), rng, mask))

    state = TrainerState(None, Path())  # type: ignore[arg-type]
    result = collector.collect(act, buffer, num_steps, state)
    assert result.steps == state.global_step == num_steps * envs.num_envs
    (rows,) = buffer.newest(num_steps)
    return rows, result

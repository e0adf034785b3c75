"""Recording transitions of an agent in an environment, one episode after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.spaces import ActionKind, ActionSpec, Spaces, describe_spaces
from rl_training.data.transitions import FIELDS
from rl_training.envs.factory import make_vector_env, without_training_wrappers
from rl_training.experiment.progress import counting
from rl_training.runtime.collector import Collector
from rl_training.runtime.trainer import TrainerState

Act = Callable[[Tensor], Tensor]
STEPS_AT_ONCE = 500
"""How often the progress bar moves."""


def record_transitions(
    env_id: str, env_kwargs: Mapping[str, Any], num_steps: int, seed: int, make_act: Callable[[Spaces], Act]
) -> TransitionDataset:
    """Take `num_steps` steps with the model actions that `make_act(spaces)` chooses.

    Actions are stored as the environment takes them, rewards as it gives them.
    """
    envs = make_vector_env(env_id, without_training_wrappers(env_kwargs))
    device = torch.device("cpu")
    try:
        spaces = describe_spaces(envs.single_observation_space, envs.single_action_space)
        store = ReplayBuffer(spaces, num_steps, 1, rng=np.random.default_rng(0), device=device)
        collector = Collector(envs, spaces, device)
        collector.reset([seed])
        act, state = make_act(spaces), TrainerState(None, Path())  # type: ignore[arg-type]
        for part in counting(-(-num_steps // STEPS_AT_ONCE), "recording"):
            collector.collect(act, store, min(STEPS_AT_ONCE, num_steps - part * STEPS_AT_ONCE), state)
        store.cut()  # the last episode ends where the recording does
    finally:
        envs.close()
    (rows,) = store.newest(num_steps)
    fields = {name: rows[name][:, 0] for name in FIELDS}
    fields["actions"] = spaces.action.to_env(fields["actions"])
    return TransitionDataset.from_dict(fields)


def record_random_actions(
    env_id: str, env_kwargs: Mapping[str, Any], num_steps: int, seeds: np.random.SeedSequence
) -> TransitionDataset:
    """Actions drawn uniformly from the action space."""
    seed, action_seed = (int(value) for value in seeds.generate_state(2))
    rng = np.random.default_rng(action_seed)

    def make_act(spaces: Spaces) -> Act:
        return lambda obs: random_actions(spaces.action, len(obs), rng)

    return record_transitions(env_id, env_kwargs, num_steps, seed, make_act)


def random_actions(spec: ActionSpec, count: int, rng: np.random.Generator) -> Tensor:
    """Model actions drawn uniformly."""
    if spec.kind is ActionKind.CONTINUOUS:
        return torch.from_numpy(rng.uniform(-1.0, 1.0, (count, *spec.model_shape)).astype(np.float32))
    columns = [torch.from_numpy(rng.integers(0, n, count)) for n in spec.choices]
    return columns[0] if spec.kind is ActionKind.DISCRETE else torch.stack(columns, -1)


def disturbed(algorithm: Algorithm[Any], epsilon: float, noise: float, rng: np.random.Generator) -> Act:
    """The deterministic policy with a share of random actions, and with noise on continuous ones."""
    spec = algorithm.spaces.action

    def act(obs: Tensor) -> Tensor:
        if rng.random() < epsilon:
            return random_actions(spec, len(obs), rng)
        actions = algorithm.act(obs, explore=False)
        if noise:
            actions = (actions + noise * torch.from_numpy(rng.normal(size=actions.shape)).float()).clamp(-1.0, 1.0)
        return actions

    return act

"""Recording transitions of an agent in an environment, one episode after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.recorded_observations import to_recorded
from rl_training.envs.factory import make_vector_env, without_training_wrappers
from rl_training.memory import check_data_fits
from rl_training.replay.replay_buffer import ReplayBuffer
from rl_training.replay.transitions import FIELDS, storage_bytes
from rl_training.runtime.collector import Collector
from rl_training.runtime.trainer import TrainerState
from rl_training.spaces.actions import ActionKind, ActionSpec
from rl_training.spaces.spec import Spaces, describe_spaces
from rl_training.terminal.progress import counting

Act = Callable[[Tensor], Tensor]
STEPS_AT_ONCE = 500
"""How often the progress bar moves."""


@dataclass(frozen=True)
class Recording:
    """Recorded transitions, and the spaces of the environment as it was made for them."""

    dataset: TransitionDataset
    observation_space: Space[Any]
    action_space: Space[Any]


def record_transitions(
    env_id: str, env_kwargs: Mapping[str, Any], num_steps: int, seed: int, make_act: Callable[[Spaces], Act]
) -> Recording:
    """Take `num_steps` steps with the model actions that `make_act(spaces)` chooses.

    Observations and rewards are recorded as the environment gives them, actions as it executes them.
    """
    envs = make_vector_env(env_id, without_training_wrappers(env_kwargs))
    device = torch.device("cpu")
    try:
        spaces = describe_spaces(envs.single_observation_space, envs.single_action_space)
        needed, remedy = storage_bytes(spaces, num_steps), "record fewer (algo_kwargs.dataset_size, --steps)"
        check_data_fits(needed, f"a recording of {num_steps:,} transitions", remedy)
        store = ReplayBuffer(spaces, num_steps, 1, rng=np.random.default_rng(0), device=device)
        collector = Collector(envs, spaces, device)
        collector.reset([seed])
        act, state = make_act(spaces), TrainerState(None, Path())  # type: ignore[arg-type]
        for part in counting(-(-num_steps // STEPS_AT_ONCE), "recording"):
            collector.collect(act, store, min(STEPS_AT_ONCE, num_steps - part * STEPS_AT_ONCE), state)
        store.truncate_newest()  # the last episode ends where the recording does
    finally:
        envs.close()
    (rows,) = store.newest(num_steps)
    fields = {name: rows[name][:, 0] for name in FIELDS}
    fields["actions"] = spaces.action.to_env(fields["actions"])
    fields |= {name: to_recorded(spaces.obs, fields[name]) for name in ("obs", "next_obs")}
    return Recording(TransitionDataset.from_dict(fields), envs.single_observation_space, envs.single_action_space)


def record_random(
    env_id: str, env_kwargs: Mapping[str, Any], num_steps: int, seeds: np.random.SeedSequence
) -> Recording:
    """Take `num_steps` steps with actions sampled uniformly from the action space."""
    seed, action_seed = (int(value) for value in seeds.generate_state(2))
    rng = np.random.default_rng(action_seed)

    def make_act(spaces: Spaces) -> Act:
        return lambda obs: random_actions(spaces.action, len(obs), rng)

    return record_transitions(env_id, env_kwargs, num_steps, seed, make_act)


def record_random_actions(
    env_id: str, env_kwargs: Mapping[str, Any], num_steps: int, seeds: np.random.SeedSequence
) -> TransitionDataset:
    """The transitions of `record_random`."""
    return record_random(env_id, env_kwargs, num_steps, seeds).dataset


def random_actions(spec: ActionSpec, count: int, rng: np.random.Generator) -> Tensor:
    """Model actions drawn uniformly."""
    if spec.kind is ActionKind.CONTINUOUS:
        center, half_width = spec.random_range
        return torch.from_numpy(
            center + half_width * rng.uniform(-1.0, 1.0, (count, *spec.model_shape)).astype(np.float32)
        )
    columns = [torch.from_numpy(rng.integers(0, n, count)) for n in spec.choices]
    return columns[0] if spec.kind is ActionKind.DISCRETE else torch.stack(columns, -1)


def noisy_policy(algorithm: Algorithm[Any], epsilon: float, noise: float, seed: int) -> Act:
    """The deterministic policy with Gaussian noise on Box actions, and random actions with probability `epsilon`.

    Noise is drawn from the algorithm's own generator, which is seeded anew.
    """
    algorithm.generator.manual_seed(seed)

    def act(obs: Tensor) -> Tensor:
        actions = algorithm.act(obs, explore=False)
        if noise:
            actions = algorithm.add_exploration_noise(actions, noise)
        return algorithm.replace_at_random(actions, epsilon) if epsilon else actions

    return act

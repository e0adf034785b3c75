"""Records the transitions of a policy in an environment, as a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from rl_training.algorithms.base import ActResult, Algorithm
from rl_training.data.dataset_spaces import to_recorded
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.envs.factory import EnvSource
from rl_training.memory import check_data_fits
from rl_training.models.actions import random_actions
from rl_training.replay.replay_buffer import ReplayBuffer
from rl_training.replay.transitions import FIELDS, MASK_FIELDS, storage_bytes
from rl_training.runtime.collector import Act, Collector
from rl_training.runtime.trainer import TrainerState
from rl_training.spaces.spec import Spaces
from rl_training.terminal.progress import counting

STEPS_AT_ONCE = 500
"""Environment steps between two updates of the progress bar."""


@dataclass(frozen=True)
class Recording:
    """Recorded transitions, and the spaces of their environment."""

    dataset: TransitionDataset
    observation_space: Space[Any]
    action_space: Space[Any]


def record_transitions(
    env_id: str,
    env_kwargs: Mapping[str, Any],
    num_steps: int,
    seed: int,
    make_act: Callable[[Spaces], Act],
    initial_state: Tensor | None = None,
) -> Recording:
    """Record `num_steps` steps of the policy `make_act(spaces)`, which maps observations to model actions.

    Observations, rewards and action masks are recorded as the environment returns them, actions as it executes them.
    """
    envs = EnvSource.parse(env_id, env_kwargs).without_training_wrappers().make_vector()
    device = torch.device("cpu")
    try:
        spaces = envs.spaces
        needed, remedy = (
            storage_bytes(spaces, num_steps),
            "record fewer (algo_kwargs.dataset_size, --steps)",
        )
        check_data_fits(needed, f"a recording of {num_steps:,} transitions", remedy)
        buffer = ReplayBuffer(spaces, num_steps, 1, rng=np.random.default_rng(0), device=device)
        collector = Collector(envs, spaces, device, initial_state)
        collector.reset([seed])
        act, state = make_act(spaces), TrainerState(None, Path())  # type: ignore[arg-type]
        for chunk in counting(-(-num_steps // STEPS_AT_ONCE), "recording"):
            collector.collect(
                act, buffer, min(STEPS_AT_ONCE, num_steps - chunk * STEPS_AT_ONCE), state
            )
        buffer.truncate_newest()  # the last episode ends with the recording
    finally:
        envs.close()
    (rows,) = buffer.newest(num_steps)
    fields = {
        name: rows[name][:, 0] for name in (*FIELDS, *(MASK_FIELDS if spaces.has_masks else ()))
    }
    fields["actions"] = spaces.action.to_env(fields["actions"])
    fields |= {name: to_recorded(spaces.obs, fields[name]) for name in ("obs", "next_obs")}
    return Recording(
        TransitionDataset.from_dict(fields), envs.single_observation_space, envs.single_action_space
    )


def record_random(
    env_id: str, env_kwargs: Mapping[str, Any], num_steps: int, seeds: np.random.SeedSequence
) -> Recording:
    """Record `num_steps` steps with actions sampled uniformly from the action space."""
    seed, action_seed = (int(value) for value in seeds.generate_state(2))
    rng = np.random.default_rng(action_seed)

    def make_act(spaces: Spaces) -> Act:
        return lambda obs, _, mask: ActResult(random_actions(spaces.action, len(obs), rng, mask))

    return record_transitions(env_id, env_kwargs, num_steps, seed, make_act)


def record_random_actions(
    env_id: str, env_kwargs: Mapping[str, Any], num_steps: int, seeds: np.random.SeedSequence
) -> TransitionDataset:
    """Record like `record_random`; returns the dataset only."""
    return record_random(env_id, env_kwargs, num_steps, seeds).dataset


def noisy_policy(algorithm: Algorithm[Any], epsilon: float, noise: float, seed: int) -> Act:
    """The deterministic policy with Gaussian noise on Box actions, and random actions with probability `epsilon`.

    Random numbers come from the algorithm's generator, which is reseeded with `seed`.
    """
    algorithm.generator.manual_seed(seed)

    def act(obs: Tensor, state: Tensor | None, mask: Tensor | None) -> ActResult:
        acted = algorithm.act(obs, state, explore=False, mask=mask)
        actions = acted.actions
        if noise:
            actions = algorithm.add_exploration_noise(actions, noise, mask)
        return acted._replace(
            actions=algorithm.replace_at_random(actions, epsilon, mask) if epsilon else actions
        )

    return act

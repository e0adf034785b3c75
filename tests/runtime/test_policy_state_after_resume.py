"""The policy state after a resume: restored with the episodes, and begun anew where new episodes begin."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from rl_training.algorithms.base import ActResult
from rl_training.envs.factory import EnvSource
from rl_training.envs.given.vector_env import make_given_vector
from rl_training.envs.parallel.vector import TrainingEnv
from rl_training.replay.rollout_buffer import RolloutBuffer
from rl_training.runtime.collector import Collector
from rl_training.runtime.trainer import TrainerState
from rl_training.spaces.spec import describe_spaces

CPU = torch.device("cpu")


class Still(VectorEnv):
    """Two environments in which nothing happens; their state cannot be saved."""

    num_envs = 2
    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    single_observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    single_action_space = gym.spaces.Discrete(2)
    observation_space = gym.vector.utils.batch_space(single_observation_space, 2)
    action_space = gym.vector.utils.batch_space(single_action_space, 2)

    def reset(self, *, seed=None, options=None):
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions):
        return np.zeros((2, 1), np.float32), np.zeros(2), np.zeros(2, bool), np.zeros(2, bool), {}


def make_envs(kind: str) -> TrainingEnv:
    if kind == "vector":
        return make_given_vector(Still(), 2, (), None)
    return EnvSource.parse("CartPole-v1").make_vector(2)


def states_seen(collector: Collector, num_steps: int, size: int) -> list[float]:
    """The policy state before each step, of a policy that adds 1 to it."""
    seen: list[float] = []

    def act(obs: Tensor, state: Tensor | None, mask: Tensor | None) -> ActResult:
        assert state is not None
        seen.append(float(state[0, 0]))
        return ActResult(torch.zeros(2, dtype=torch.int64), state + 1.0)

    spaces = describe_spaces(gym.spaces.Box(-np.inf, np.inf, (size,)), gym.spaces.Discrete(2))
    buffer = RolloutBuffer(spaces, num_steps, 2, device=CPU)
    collector.collect(act, buffer, num_steps, TrainerState(SimpleNamespace(), Path()))  # type: ignore[arg-type]
    return seen


@pytest.mark.parametrize(("kind", "expected"), [("sync", [3.0, 4.0]), ("vector", [0.0, 1.0])])
def test_the_policy_state_is_restored_unless_new_episodes_begin(
    kind: str, expected: list[float]
) -> None:
    first = torch.zeros(2, 4)
    envs = make_envs(kind)
    (size,) = envs.spaces.obs.shape
    collector = Collector(envs, envs.spaces, CPU, first)
    collector.reset([0, 1])
    assert states_seen(collector, 3, size) == [0.0, 1.0, 2.0]
    envs = make_envs(kind)
    resumed = Collector(envs, envs.spaces, CPU, first)
    reasons = resumed.load_state_dict(collector.state_dict())
    assert bool(reasons) is (kind == "vector")
    assert states_seen(resumed, 2, size) == expected
    for one in (collector, resumed):
        one.close()

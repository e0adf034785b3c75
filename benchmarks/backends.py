"""How fast each backend steps CartPole-v1, as a ratio to `sync` within the same round.

    python benchmarks/backends.py

Alone: random actions into the environments. With a policy: what training collects, with PPO's network of 64 by 64.
EnvPool is measured where it is installed.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import torch

from rl_training.algorithms.base import Resources
from rl_training.algorithms.ppo import PPOAlgorithm, PPOConfig
from rl_training.envs.factory import make_vector_env
from rl_training.replay.rollout_buffer import RolloutBuffer
from rl_training.runtime.collector import Collector
from rl_training.runtime.trainer import TrainerState
from rl_training.spaces.spec import describe_spaces

BACKENDS = [
    "sync",
    "async",
    "vector",
    *(["envpool"] if importlib.util.find_spec("envpool") else []),
]
ROUNDS = 5
STEPS = {8: 1500, 64: 400}


def steps_alone(backend: str, num_envs: int) -> float:
    """Random steps a second."""
    with closing(make_vector_env("CartPole-v1", {"backend": backend}, num_envs=num_envs)) as envs:
        actions = np.random.default_rng(0).integers(0, 2, (STEPS[num_envs], num_envs))
        envs.reset(seed=0)
        return actions.size / _seconds(lambda: [envs.step(row) for row in actions])


def steps_with_policy(backend: str, num_envs: int) -> float:
    """Steps a second of the collector."""
    device, num_steps = torch.device("cpu"), STEPS[num_envs]
    with closing(make_vector_env("CartPole-v1", {"backend": backend}, num_envs=num_envs)) as envs:
        spaces = describe_spaces(envs.single_observation_space, envs.single_action_space)
        generator = torch.Generator().manual_seed(0)
        policy = PPOAlgorithm(
            PPOConfig(hidden_sizes=(64, 64)), spaces, Resources(device, generator, num_envs, False)
        )
        collector, store = (
            Collector(envs, spaces, device),
            RolloutBuffer(spaces, num_steps, num_envs, device),
        )
        collector.reset(list(range(num_envs)))
        state = TrainerState(policy, Path())
        act = lambda obs, *_: policy.act(obs, explore=True)  # noqa: E731
        return (
            num_steps * num_envs / _seconds(lambda: collector.collect(act, store, num_steps, state))
        )


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    torch.set_num_threads(1)
    for measure in (steps_alone, steps_with_policy):
        for num_envs in STEPS:
            # 64 processes are more than a small machine can start in good time.
            backends = [backend for backend in BACKENDS if backend != "async" or num_envs <= 8]
            rounds = [
                {backend: measure(backend, num_envs) for backend in backends} for _ in range(ROUNDS)
            ]
            ratios = {
                backend: statistics.median(speeds[backend] / speeds["sync"] for speeds in rounds)
                for backend in backends
            }
            base = statistics.median(speeds["sync"] for speeds in rounds)
            words = "  ".join(f"{backend} {ratio:.2f}" for backend, ratio in ratios.items())
            print(
                f"{measure.__name__:<18} {num_envs:>3} environments: {words}  (sync: {base:,.0f} steps a second)"
            )


if __name__ == "__main__":
    main()

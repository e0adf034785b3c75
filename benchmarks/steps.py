"""Microseconds that this package adds to an environment step: collection without a policy, less the environments' own.

    python benchmarks/steps.py                     1, 8 and 64 CartPoles in this process, 64 and 1,000 as one simulator
    python benchmarks/steps.py --repeats 9

The environments' own time is a loop over `gymnasium.make(...).step`, with resets; for `vector` Gymnasium's vectorized
form. Counted is processor time, so other processes disturb it little; the contenders take turns, medians are printed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rl_training.algorithms.base import ActResult
from rl_training.envs.factory import EnvSource
from rl_training.replay.rollout_buffer import RolloutBuffer
from rl_training.runtime.collector import Collector
from rl_training.runtime.trainer import TrainerState

CASES = (("sync", 1), ("sync", 8), ("sync", 64), ("vector", 64), ("vector", 1000))
STEPS = {1: 4000, 8: 800, 64: 120, 1000: 60}


def our_collection(backend: str, num_envs: int) -> Callable[[int], None]:
    """Collect with actions that no policy computes."""
    envs = EnvSource.parse("CartPole-v1", {"backend": backend}).make_vector(num_envs)
    collector = Collector(envs, envs.spaces, torch.device("cpu"))
    collector.reset(list(range(num_envs)))
    buffer = RolloutBuffer(envs.spaces, STEPS[num_envs], num_envs, torch.device("cpu"))
    actions = torch.arange(num_envs) % 2
    algorithm: Any = None
    state = TrainerState(algorithm, Path())

    def act(*_: Any) -> ActResult:
        return ActResult(actions)

    def run(steps: int) -> None:
        collector.collect(act, buffer, steps, state)
        buffer.rollout()

    return run


def plain_loop(num_envs: int) -> Callable[[int], None]:
    """Step every environment by itself."""
    envs = [gym.make("CartPole-v1") for _ in range(num_envs)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
    actions = [index % 2 for index in range(num_envs)]

    def run(steps: int) -> None:
        for _ in range(steps):
            for env, action in zip(envs, actions, strict=True):
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()

    return run


def plain_vector(num_envs: int) -> Callable[[int], None]:
    """Step Gymnasium's vectorized form, which resets by itself."""
    env = gym.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point")
    env.reset(seed=0)
    actions = np.arange(num_envs) % 2

    def run(steps: int) -> None:
        for _ in range(steps):
            env.step(actions)

    return run


def microseconds(run: Callable[[int], None], num_envs: int) -> float:
    """Processor time of one step of all environments."""
    started = time.process_time()
    run(STEPS[num_envs])
    return (time.process_time() - started) / STEPS[num_envs] * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    print("| environments | their own step, µs | with ours, µs | ours, µs | ours for each |")
    print("|---|---|---|---|---|")
    for backend, num_envs in CASES:
        ours = our_collection(backend, num_envs)
        plain = plain_loop(num_envs) if backend == "sync" else plain_vector(num_envs)
        ours(STEPS[num_envs])
        plain(STEPS[num_envs])
        pairs = [
            (microseconds(plain, num_envs), microseconds(ours, num_envs)) for _ in range(repeats)
        ]
        own, both = (statistics.median(times) for times in zip(*pairs, strict=True))
        added = statistics.median(with_ours - alone for alone, with_ours in pairs)
        print(
            f"| {num_envs:,} {backend} | {own:.0f} | {both:.0f} | {added:.0f} | {added / num_envs:.1f} |"
        )


if __name__ == "__main__":
    main()

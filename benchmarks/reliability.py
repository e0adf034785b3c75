"""What the promises cost: the guards' share of a run, and the bytes that a checkpoint writes.

    python benchmarks/reliability.py

The guards' share is measured within one run (time inside the guards over time inside the loop), so that a noisy machine
disturbs it little. Bytes are counted as blocks that the second checkpoint does not share with the first.
"""

from __future__ import annotations

import contextlib
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box

from rl_training import TrainConfig
from rl_training.algorithms.base import Resources
from rl_training.algorithms.sac import SACAlgorithm, SACConfig
from rl_training.experiment.checkpointing import CheckpointState, save_checkpoint, verify_checkpoint
from rl_training.experiment.config import load_config_file
from rl_training.experiment.presets import find_preset
from rl_training.replay.replay_buffer import ReplayBuffer
from rl_training.replay.transitions import FIELDS
from rl_training.runtime import run as runs
from rl_training.runtime.collector import Collector
from rl_training.runtime.metrics import MetricAccumulator, ParameterGuard
from rl_training.spaces.spec import describe_spaces

RUNS = (
    ("ppo", "CartPole-v1", 20_480),
    ("dqn", "CartPole-v1", 12_000),
    ("sac", "Pendulum-v1", 2_000),
)
ROUNDS = 3


class Stopwatch:
    """Adds up the time inside some methods."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start

        return timed


def guard_share(algo: str, env_id: str, steps: int, compile_updates: bool) -> float:
    """Time in the guards as a share of the loop's time."""
    preset = find_preset(algo, env_id)
    assert preset is not None
    values = load_config_file(preset)
    values |= {
        "total_timesteps": steps,
        "log_interval": steps,
        "checkpoint_interval": 10 * steps,
        "num_threads": 1,
        "compile": compile_updates,
        "output_dir": tempfile.mkdtemp(),
        "eval_episodes": 1,
    }
    values["algo_kwargs"] = {**values["algo_kwargs"], "eval_interval": 10 * steps}
    guards, loop = Stopwatch(), Stopwatch()
    kept = ParameterGuard.check, Collector._check_finite, MetricAccumulator.check
    loops = dict(runs.LOOPS)
    ParameterGuard.check = guards.around(kept[0])  # type: ignore[method-assign]
    Collector._check_finite = guards.around(kept[1])  # type: ignore[method-assign]
    MetricAccumulator.check = guards.around(kept[2])  # type: ignore[method-assign]
    for key, run in loops.items():
        runs.LOOPS[key] = run._replace(train=loop.around(run.train))
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            runs.run_training(TrainConfig(**values))
    finally:
        ParameterGuard.check, Collector._check_finite, MetricAccumulator.check = kept  # type: ignore[method-assign]
        runs.LOOPS.update(loops)
    return guards.seconds / loop.seconds


def checkpoint_bytes() -> dict[str, float]:
    """Sizes and seconds of a first checkpoint of a full replay and of a second one 10,000 steps later."""
    spaces = describe_spaces(Box(-np.inf, np.inf, (17,), np.float32), Box(-1, 1, (6,), np.float32))
    device = torch.device("cpu")
    buffer = ReplayBuffer(spaces, 1_000_000, 1, rng=np.random.default_rng(0), device=device)
    algorithm = SACAlgorithm(
        SACConfig(), spaces, Resources(device, torch.Generator().manual_seed(0))
    )
    rng = np.random.default_rng(1)

    def add(count: int) -> None:
        obs = rng.normal(size=(count, 1, 17)).astype(np.float32)
        actions = rng.uniform(-1, 1, (count, 1, 6)).astype(np.float32)
        for row in range(count):
            step = obs[row], actions[row], 0.5, obs[row], False, False
            buffer.add(dict(zip(FIELDS, step, strict=True)))  # type: ignore[arg-type]

    def save(name: str, base: Path | None) -> tuple[Path, float]:
        state = CheckpointState(algorithm.state_dict(), buffer.state_dict(), {}, {})
        start = time.perf_counter()
        path = save_checkpoint(Path(folder) / name, state, base=base)
        return path, time.perf_counter() - start

    with tempfile.TemporaryDirectory(dir=".") as folder:
        for _ in range(10):
            add(100_000)
        first, first_seconds = save("first", None)
        add(10_000)
        second, second_seconds = save("second", first)
        verify_checkpoint(second)
        inodes = {path.stat().st_ino for path in first.iterdir()}
        first_bytes = sum(path.stat().st_size for path in first.iterdir())
        new_bytes = sum(
            path.stat().st_size for path in second.iterdir() if path.stat().st_ino not in inodes
        )
    return {
        "first_bytes": first_bytes,
        "second_bytes": new_bytes,
        "share": new_bytes / first_bytes,
        "first_seconds": first_seconds,
        "second_seconds": second_seconds,
    }


def main() -> None:
    sizes = checkpoint_bytes()
    print(json.dumps({"checkpoint of 1M transitions, then of 10,000 more": sizes}), flush=True)
    for algo, env_id, steps in RUNS:
        for compile_updates in (False, True):
            shares = [guard_share(algo, env_id, steps, compile_updates) for _ in range(ROUNDS)]
            result = {
                "guards": f"{algo} {env_id}{' compiled' if compile_updates else ''}",
                "share": round(statistics.median(shares), 4),
                "all": [round(share, 4) for share in shares],
            }
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

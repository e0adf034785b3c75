"""Speed of a bundle: `act` of a 64x64 policy in NumPy against `predict` of torch, and the time to load and prove it.

python benchmarks/bundle.py
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training import TrainConfig
from rl_training.bundle import load
from rl_training.bundle.exporting.export import export_bundle
from rl_training.evaluation.prediction import predict
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import load_algorithm

CASES = (("ppo", "CartPole-v1"), ("sac", "Pendulum-v1"))
CALLS = 2000
TARGET_LOAD_MS = 50.0


def main() -> None:
    """Print one row for each policy: medians over alternating repeats."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    print(
        "| policy (64x64) | predict, torch | act, NumPy | torch / NumPy | load and prove | target |"
    )
    print("|---|---|---|---|---|---|")
    for algo, env_id in CASES:
        with tempfile.TemporaryDirectory() as folder:
            print(measure(algo, env_id, Path(folder), repeats))


def measure(algo: str, env_id: str, folder: Path, repeats: int) -> str:
    """One row of the table."""
    config = TrainConfig(
        algo=algo,
        env_id=env_id,
        seed=0,
        total_timesteps=512,
        output_dir=folder,
        device="cpu",
        compile=False,
        algo_kwargs={"hidden_sizes": [64, 64]},
    )
    with contextlib.redirect_stderr(io.StringIO()):
        run_dir = run_training(config).run_dir
        export_bundle(run_dir, folder / "policy.rlp")
    _, algorithm, _ = load_algorithm(run_dir, device="cpu")
    policy = load(folder / "policy.rlp")
    obs = np.zeros(policy.spaces.observation[0].shape, np.float32)
    torch_times, numpy_times, load_times = [], [], []
    for _ in range(repeats):  # alternating, so that a busy machine slows all of them
        torch_times.append(seconds_per_call(lambda: predict(algorithm, obs), CALLS))
        numpy_times.append(seconds_per_call(lambda: policy.act(obs), CALLS))
        load_times.append(seconds_per_call(lambda: load(folder / "policy.rlp"), 20))
    ratios = [slow / fast for slow, fast in zip(torch_times, numpy_times, strict=True)]
    cells = [
        f"{algo} {env_id}",
        f"{1e6 * statistics.median(torch_times):.0f} µs",
        f"{1e6 * statistics.median(numpy_times):.0f} µs",
        f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        f"{1e3 * statistics.median(load_times):.1f} ms",
        "reached"
        if statistics.median(ratios) > 1.0 and 1e3 * max(load_times) < TARGET_LOAD_MS
        else "missed",
    ]
    return f"| {' | '.join(cells)} |"


def seconds_per_call(call: Callable[[], Any], count: int) -> float:
    """Mean time of a call."""
    call()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


if __name__ == "__main__":
    main()

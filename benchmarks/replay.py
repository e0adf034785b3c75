"""How long a draw from a full replay buffer takes, and how much memory a replay of images does.

    python benchmarks/replay.py

Vectors: 256 of a million transitions of HalfCheetah's size, drawn uniformly and by priority, and errors given back.
Images: 100,000 transitions of four frames of 84x84, of which each frame is stored once. The figures go to
benchmarks/results/replay.json, and from there to docs/speed.md (`benchmarks/speed.py`).
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from rl_training.replay.frame_replay import FrameReplayBuffer
from rl_training.replay.replay_buffer import ReplayBuffer
from rl_training.replay.transitions import FIELDS
from rl_training.spaces.spec import describe_spaces

RAW = Path(__file__).parent / "results" / "replay.json"
CAPACITY, NUM_ENVS, BATCH = 1_000_000, 1_000, 256
FRAMES = 100_000
ROUNDS, CALLS = 15, 100


def filled(priority_alpha: float | None) -> ReplayBuffer:
    spaces = describe_spaces(Box(-np.inf, np.inf, (17,)), Box(-1.0, 1.0, (6,)))
    options: dict[str, Any] = {"rng": np.random.default_rng(0), "device": torch.device("cpu")}
    buffer = ReplayBuffer(spaces, CAPACITY, NUM_ENVS, priority_alpha=priority_alpha, **options)
    rng, never = np.random.default_rng(1), np.zeros(NUM_ENVS, np.bool_)
    for _ in range(CAPACITY // NUM_ENVS):
        obs, actions = rng.normal(size=(NUM_ENVS, 17)), rng.uniform(-1, 1, (NUM_ENVS, 6))
        buffer.add(dict(zip(FIELDS, (obs, actions, obs[:, 0], obs, never, never), strict=True)))
    if priority_alpha is not None:
        for _ in range(CAPACITY // BATCH):
            buffer.update_priorities(
                buffer.sample(BATCH), torch.from_numpy(rng.exponential(size=BATCH))
            )
    return buffer


def milliseconds(call: Callable[[], Any]) -> float:
    """The median round's mean."""
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        rounds.append((time.perf_counter() - start) / CALLS * 1e3)
    return round(statistics.median(rounds), 3)


def resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return (
        int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))
        * 1024
    )


def image_replay() -> dict[str, float]:
    before = resident_bytes()
    spaces = describe_spaces(Box(0, 255, (4, 84, 84), np.uint8), Discrete(4))
    buffer = FrameReplayBuffer(
        spaces, FRAMES, 1, rng=np.random.default_rng(0), device=torch.device("cpu")
    )
    rng, no = np.random.default_rng(1), np.zeros(1, np.bool_)
    frames = rng.integers(0, 255, (4, 84, 84), dtype=np.uint8)
    for step in range(FRAMES):
        is_over = step % 1000 == 999
        following = np.concatenate([frames[1:], rng.integers(0, 255, (1, 84, 84), dtype=np.uint8)])
        step = frames[None], np.zeros(1), np.zeros(1), following[None], no | is_over, no
        buffer.add(dict(zip(FIELDS, step, strict=True)))
        frames = np.repeat(following[-1:], 4, 0) if is_over else following
    grown = resident_bytes() - before
    return {
        "image_gigabytes": round(buffer.nbytes / 1e9, 3),
        "resident_gigabytes": round(grown / 1e9, 3),
    }


def section() -> list[str]:
    """The figures, for docs/speed.md."""
    if not RAW.is_file():
        return []
    record = json.loads(RAW.read_text())
    return [
        "| on one thread | median | target |",
        "|---|---|---|",
        f"| sampling {BATCH} of {CAPACITY:,} transitions of 17+6 dimensions, uniformly |"
        f" {record['uniform_draw']} ms | |",
        f"| the same, prioritized | {record['prioritized_draw']} ms | 1 ms |",
        f"| updating the priorities of such a batch | {record['update_priorities']} ms | |",
        f"| memory of {FRAMES:,} transitions of images of 84x84x4 | {record['image_gigabytes']} GB, of which"
        f" {record['resident_gigabytes']} GB are resident when it is full | 0.8 GB |",
        "",
        "Made by `python benchmarks/replay.py`.",
    ]


def main() -> None:
    torch.set_num_threads(1)
    record = image_replay()
    uniform, prioritized = filled(None), filled(0.6)
    batch, errors = prioritized.sample(BATCH), torch.ones(BATCH)
    record["uniform_draw"] = milliseconds(lambda: uniform.sample(BATCH))
    record["prioritized_draw"] = milliseconds(lambda: prioritized.sample(BATCH))
    record["update_priorities"] = milliseconds(lambda: prioritized.update_priorities(batch, errors))
    RAW.write_text(json.dumps(record, indent=1) + "\n")
    print(record)


if __name__ == "__main__":
    main()

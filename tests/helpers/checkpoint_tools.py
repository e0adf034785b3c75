"""What tests need to look into checkpoints, to damage them and to forge them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from conftest import small_config

from rl_training.experiment.checkpointing import _checksum
from rl_training.runtime.run import run_training


def stored_rows(buffer_state: dict[str, Any]) -> dict[str, np.ndarray]:
    """The rows of a replay buffer's state, its segments joined."""
    segments = buffer_state["segments"]
    return {
        name: np.concatenate([segment.arrays[name] for segment in segments])
        for name in segments[0].arrays
    }


def forge_manifest(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest and sign it again, as someone would who means harm."""
    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest.pop("checksum", None)
    change(manifest)
    manifest["checksum"] = _checksum(manifest)
    path.write_text(json.dumps(manifest))


def make_run(algo: str, output_dir: Path, **changes: Any) -> Path:
    """A finished run of 96 steps with a few checkpoints; its folder."""
    values = {"total_timesteps": 96, "checkpoint_interval": 32, "num_envs": 2, **changes}
    values["algo_kwargs"] = {"eval_interval": 32, **values.get("algo_kwargs", {})}
    return run_training(small_config(algo, output_dir, **values)).run_dir


def truncations(data: bytes, count: int) -> list[bytes]:
    """`data` cut at `count` places spread over it, the first of which leaves nothing."""
    return [data[: len(data) * index // count] for index in range(count)]


def bit_flips(data: bytes, count: int, seed: int = 0) -> list[bytes]:
    """`data` with one bit turned, at `count` places of which half lie near the beginning."""
    rng = np.random.default_rng(seed)
    flipped = []
    for index in range(count):
        end = min(len(data), 400) if index % 2 else len(data)
        copy = bytearray(data)
        copy[rng.integers(end)] ^= 1 << rng.integers(8)
        flipped.append(bytes(copy))
    return flipped

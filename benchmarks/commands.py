"""Calls of the command line in processes of their own, on one thread each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
"""The environment of a process that shares the machine with another one."""


def call(*words: str) -> dict[str, Any]:
    """What a command prints as JSON."""
    command = [sys.executable, "-m", "rl_training", *words, "--json"]
    answer = subprocess.run(command, capture_output=True, text=True, env=ONE_THREAD, check=False)
    if answer.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{answer.stderr[-2000:]}")
    return dict(json.loads(answer.stdout))


def train(preset: str, seed: int, folder: str) -> tuple[Path, int]:
    """Train a preset; returns its run folder and the seconds from start to end."""
    start = time.monotonic()
    path = str(ROOT / "configs" / f"{preset}.yaml")
    result = call(
        "train", "--config", path, "--seed", str(seed), "--output-dir", folder, "num_threads=1"
    )
    return Path(result["run_dir"]), round(time.monotonic() - start)

"""A disk that is full, read-only or fails: an error that names the path, and nothing of what was saved is lost."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import TESTS, small_config
from test_conformance import assert_same_end

from rl_training.errors import CheckpointError, RLTrainingError
from rl_training.experiment import files
from rl_training.experiment.checkpointing import list_checkpoints, resolve_checkpoint, verify_checkpoint
from rl_training.experiment.logging import JsonlSink, TensorboardSink, read_metrics
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run_utils import serialize_train_config
from rl_training.runtime.trainer import TrainerState, TrainResult
from rl_training.runtime.training import run_training
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training

DISK_BYTES = 4 << 20
RUN: dict[str, Any] = {
    "total_timesteps": 96,
    "log_interval": 16,
    "checkpoint_interval": 32,
    "eval_episodes": 1,
    "env_kwargs": {"max_episode_steps": 20},
    "algo_kwargs": {"eval_interval": 64},
}


def mount(folder: Path, options: str) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if not mount(folder, f"size={DISK_BYTES}"):
        pytest.skip("mounting a small disk is not permitted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


class FillAt(Callback):
    """Fills the disk with one file when a step is reached, up to a number of bytes that are left free."""

    def __init__(self, disk: Path, step: int, event: str = "collect", leave_bytes: int = 0) -> None:
        self.ballast, self.step, self.event, self.leave_bytes = disk / "ballast", step, event, leave_bytes

    def on_collect_end(self, trainer: TrainerState, result: object) -> None:
        if self.event == "collect" and trainer.global_step >= self.step and not self.ballast.exists():
            fill(self.ballast, self.leave_bytes)

    def on_eval_end(self, trainer: TrainerState, metrics: object) -> None:
        if self.event == "eval" and trainer.global_step >= self.step and not self.ballast.exists():
            fill(self.ballast, self.leave_bytes)


def fill(ballast: Path, leave_bytes: int = 0) -> None:
    """Write until nothing more fits, then give a little back."""
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    os.truncate(ballast, max(0, ballast.stat().st_size - leave_bytes))


def assert_nothing_lost(run_dir: Path) -> None:
    """What was saved is whole, and no draft is left."""
    verify_checkpoint(resolve_checkpoint(run_dir))
    for checkpoint in list_checkpoints(run_dir / "checkpoints"):
        verify_checkpoint(checkpoint)
    assert [*run_dir.glob(".*"), *run_dir.glob("checkpoints/.*")] == []
    steps = [line["global_step"] for line in read_metrics(run_dir / "metrics.jsonl")]
    assert steps == sorted(set(steps))
    assert (run_dir / "metrics.jsonl").read_bytes().endswith(b"}\n")


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
@pytest.mark.parametrize(
    ("leave_bytes", "event", "named"),
    [(0, "collect", r"metrics\.jsonl"), (0, "eval", r"metrics\.jsonl|tfevents"), (8192, "collect", "checkpoints/step_")],
)
def test_a_full_disk_ends_the_run_which_goes_on_once_there_is_room(
    algo: str, leave_bytes: int, event: str, named: str, disk: Path, tmp_path: Path
) -> None:
    whole = run_training(small_config(algo, tmp_path / "whole", **RUN))
    # The first line after the disk is full needs a new page: files of a tmpfs grow by pages.
    changes = {**RUN, "algo_kwargs": {**RUN["algo_kwargs"], "hidden_sizes": [8, 8]}}
    fill_at = FillAt(disk, 40, event, leave_bytes)
    with pytest.raises(RLTrainingError, match=rf"cannot write .*({named}|checkpoints/).*: No space left on device"):
        run_training(small_config(algo, disk, **changes), callbacks=[fill_at])
    (run_dir,) = disk.glob("*__*")
    assert_nothing_lost(run_dir)
    with pytest.raises(RLTrainingError, match="No space left on device"):
        resume_training(run_dir)
    assert_nothing_lost(run_dir)
    fill_at.ballast.unlink()
    assert_same_end(whole, resume_training(run_dir))

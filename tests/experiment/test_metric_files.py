"""Metric files: TensorBoard reads them, and a failed resume removes nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from conftest import small_config
from run_tools import StopAt, contents

from rl_training.errors import CheckpointError
from rl_training.experiment.logs import read_metrics
from rl_training.runtime import run
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import resume_training
from rl_training.terminal.progress import ProgressView

RUN: dict[str, Any] = {"total_timesteps": 128, "log_interval": 16, "checkpoint_interval": 32}
KWARGS = {"eval_interval": 64}


def test_tensorboard_shows_the_curves_that_the_lines_have(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    stopped = run_training(
        small_config("ppo", tmp_path, **RUN, algo_kwargs=KWARGS), callbacks=[StopAt(64, "eval")]
    )
    resume_training(stopped.run_dir)
    events = accumulator.EventAccumulator(str(stopped.run_dir / "tensorboard"))
    events.Reload()
    lines = list(read_metrics(stopped.run_dir / "metrics.jsonl"))
    assert {"train/policy_loss", "eval/eval_return_mean"} <= set(events.Tags()["scalars"])
    for tag, name in (
        ("train/policy_loss", "policy_loss"),
        ("eval/eval_return_mean", "eval_return_mean"),
    ):
        expected = [
            (line["global_step"], pytest.approx(line[name])) for line in lines if name in line
        ]
        assert [(event.step, event.value) for event in events.Scalars(tag)] == expected


def test_a_resume_that_fails_takes_nothing_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = run_training(small_config("ppo", tmp_path, **RUN, algo_kwargs=KWARGS)).run_dir

    def fail(*args: Any) -> None:
        raise CheckpointError("does not fit")

    monkeypatch.setattr(run, "restore", fail)
    before = contents(run_dir)
    with pytest.raises(CheckpointError, match="does not fit"):
        resume_training(run_dir / "checkpoints" / "step_000000000096", rewind=True)
    after = contents(run_dir)
    changed = ("metadata.json", "config.yaml", "run.log", "owner/")
    kept = [
        {name: data for name, data in files.items() if not name.startswith(changed)}
        for files in (before, after)
    ]
    assert kept[0] == kept[1]


def test_a_log_on_a_full_disk_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with open(os.open("/dev/full", os.O_WRONLY), "w", buffering=1) as full:  # noqa: PTH123
        monkeypatch.setattr("sys.stderr", full)
        view = ProgressView()
        view.message("a line")
        view.update(1, 2, {"loss": 1.0})
        monkeypatch.undo()
        with pytest.raises(OSError, match="No space"):
            full.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())

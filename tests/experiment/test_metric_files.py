"""Metric files: TensorBoard reads them, and a failed resume removes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import small_config
from run_tools import StopAt, contents

from rl_training.errors import CheckpointError
from rl_training.experiment.logs import read_lines
from rl_training.runtime import run
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import resume_training

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
    lines = read_lines(stopped.run_dir / "metrics.jsonl")
    times = read_lines(stopped.run_dir / "timing.jsonl")
    for tag, source in (
        ("train/policy_loss", lines),
        ("train/learning_rate", lines),
        ("eval/eval_return_mean", lines),
        ("time/steps_per_second", times),
    ):
        name = tag.partition("/")[2]
        expected = [
            (line["global_step"], pytest.approx(line[name])) for line in source if line.get(name)
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

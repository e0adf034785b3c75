"""What tests of studies share: a small study in a file, its runs trained one by one, and the processes of its runs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import warm
from run_tools import assert_same_checkpoint, contents

from rl_training.experiment.logs import read_metrics
from rl_training.experiment.ownership import is_alive, read_owner
from rl_training.experiment.yaml_text import dump_yaml
from rl_training.runtime.run import run_training
from rl_training.studies.launching.study import Study
from rl_training.studies.plan import PlannedRun

PPO = {
    "num_steps": 32,
    "minibatch_size": 32,
    "update_epochs": 4,
    "hidden_sizes": [8, 8],
    "eval_interval": 1000,
}
DQN = {
    "buffer_capacity": 500,
    "batch_size": 16,
    "learning_starts": 64,
    "hidden_sizes": [8, 8],
    "eval_interval": 1000,
}
SETTINGS = [{"algo": "ppo", "algo_kwargs": PPO}, {"algo": "dqn", "algo_kwargs": DQN}]
BASE = {
    "env_id": "CartPole-v1",
    "total_timesteps": 1500,
    "checkpoint_interval": 128,
    "eval_episodes": 1,
    "device": "cpu",
    "compile": False,
}


def write_study(folder: Path, name: str = "small", **changes: Any) -> Path:
    """A study file; its study goes to `runs` in the same folder."""
    values = {
        "name": name,
        "base": BASE,
        "vary": SETTINGS,
        "seeds": "0..2",
        "output_dir": str(folder / "runs"),
    }
    path = folder / f"{name}.yaml"
    path.write_text(
        dump_yaml({key: value for key, value in {**values, **changes}.items() if value is not None})
    )
    return path


def start(words: list[str], folder: Path, **environment: str) -> subprocess.Popen[str]:
    """Start the command line."""
    return warm.start(words, folder, workers=True, **environment)


def start_fresh(words: list[str], folder: Path) -> subprocess.Popen[str]:
    """Start the command line in a fresh interpreter, which starts others as its workers."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        [sys.executable, "-m", "rl_training", *words], cwd=folder, text=True, **pipes
    )


def live_workers(study: Study) -> dict[Path, int]:
    """The processes that train runs of a study, by run folder."""
    found = {}
    for run in study.runs():
        owner = read_owner(run.run_dir)
        if owner is not None and is_alive(run.run_dir, owner):
            found[run.run_dir] = owner.pid
    return found


def train_alone(runs: list[PlannedRun], folder: Path) -> dict[str, Path]:
    """Train each run as a single command would; the folders by run name."""
    results = {}
    for run in runs:
        config = run.config.replace(output_dir=folder, num_threads=1)
        results[run.run_dir.name] = run_training(config, run_suffix=run.suffix).run_dir
    return results


def assert_same_study(study: Study, alone: dict[str, Path]) -> None:
    """Every run of the study ended as the same run trained alone, tensor by tensor and line by line."""
    for run in study.runs():
        reference = alone[run.run_dir.name]
        assert_same_checkpoint(run.run_dir, reference)
        metrics = [
            list(read_metrics(folder / "metrics.jsonl")) for folder in (run.run_dir, reference)
        ]
        assert metrics[0] == metrics[1]
        assert (run.run_dir / "evaluations.jsonl").read_bytes() == (
            reference / "evaluations.jsonl"
        ).read_bytes()


def assert_replaces_a_suspended_worker(driver: Any, study: Study, alone: dict[str, Path]) -> None:
    """A worker of the driver's study that is suspended is replaced, and changes nothing when it wakes up."""
    run_dir, pid = warm.wait_until(lambda: list(live_workers(study).items()), driver)[0]
    os.kill(pid, signal.SIGSTOP)
    try:
        code, _, error = warm.finish(driver)
        assert code == 0, error
        assert "has given no heartbeat for" in error
        owner = read_owner(run_dir)
        assert owner is not None
        assert owner.attempt >= 2
        before = contents(run_dir)
    finally:
        with contextlib.suppress(ProcessLookupError):  # it was ended, which is as good
            os.kill(pid, signal.SIGCONT)
    warm.wait_until(lambda: not Path(f"/proc/{pid}").exists())
    assert contents(run_dir) == before
    assert_same_study(study, alone)

"""Runs that fail, and commands on runs that are over: the message, the exit code, and the command that resumes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import HELPERS, small_config

from rl_training.cli import main
from rl_training.errors import ConfigError, EnvError
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import plan_resume, resume_training

CALLBACK = """
class Broken:
    def on_log(self, trainer, metrics):
        if trainer.global_step >= 64:
            self.divide(trainer)

    def divide(self, trainer):
        return 1 / 0
"""
WORDS = (
    *(
        "ppo",
        "CartPole-v1",
        "total_timesteps=128",
        "num_envs=2",
        "algo_kwargs.num_steps=8",
        "eval_episodes=1",
    ),
    *(
        "algo_kwargs.minibatch_size=16",
        "algo_kwargs.update_epochs=1",
        "num_threads=1",
        "compile=false",
    ),
    *("checkpoint_interval=32", "log_interval=16", "algo_kwargs.eval_interval=1000"),
)


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_collect_end(self, trainer: Any, result: Any) -> None:
        if trainer.global_step >= self.step:
            trainer.request_stop("half")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = small_config("ppo", tmp_path_factory.mktemp("stopped"))
    return run_training(config, callbacks=[StopAt(64)]).run_dir


@pytest.fixture
def stopped_run(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / stopped.name))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_training(
        small_config("ppo", tmp_path_factory.mktemp("finished"), total_timesteps=32)
    ).run_dir


def test_a_run_cannot_end_before_the_step_it_has_reached(stopped_run: Path, capsys: Any) -> None:
    message = "the run is at step 64 already; --total-timesteps counts from the start of the run"
    with pytest.raises(ConfigError, match=message):
        resume_training(stopped_run, total_timesteps=63)
    assert main(["resume", str(stopped_run), "--total-timesteps", "40"]) == 2
    assert message in capsys.readouterr().err


def test_a_run_may_end_at_the_step_it_has_reached(stopped_run: Path, capsys: Any) -> None:
    result = resume_training(stopped_run, total_timesteps=64)
    assert (result.metrics["global_step"], result.stop_reason) == (64, None)
    assert "spread over" not in capsys.readouterr().err
    assert json.loads((stopped_run / "metadata.json").read_text())["status"] == "finished"
    plan = plan_resume(stopped_run)
    assert plan.is_finished
    assert plan.config.total_timesteps == 64


def test_a_setting_of_a_finished_run_is_refused_unless_it_is_extended(
    finished: Path, capsys: Any
) -> None:
    assert main(["resume", str(finished), "algo_kwargs.learning_rate=1e-4"]) == 2
    error = capsys.readouterr().err
    assert (
        "the run is finished at step 32, so algo_kwargs.learning_rate would have no effect" in error
    )
    assert "only with a larger --total-timesteps" in error
    with pytest.raises(ConfigError, match="takes effect only with a larger"):
        resume_training(finished, changes={"algo_kwargs": {"learning_rate": 1e-4}})
    plan = plan_resume(
        finished, total_timesteps=64, changes={"algo_kwargs": {"learning_rate": 1e-4}}
    )
    assert not plan.is_over


@pytest.mark.parametrize("rate", [1e-3, {"kind": "linear", "start": 1e-3, "end": 1e-4}])
def test_schedules_are_spoken_of_where_there_are_some(
    rate: Any, tmp_path: Path, capsys: Any
) -> None:
    config = small_config("ppo", tmp_path, total_timesteps=16, algo_kwargs={"learning_rate": rate})
    first = run_training(config)
    capsys.readouterr()
    resume_training(first.run_dir, total_timesteps=32)
    error = capsys.readouterr().err
    assert "the run now ends at step 32" in error
    assert ("each schedule" in error) == isinstance(rate, dict)


def test_an_exception_in_a_callback_shows_the_users_lines_and_how_to_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.py").write_text(CALLBACK)
    assert main(["train", *WORDS, "--callback", "broken.py:Broken", "--run-suffix", "x", "-q"]) == 2
    error = capsys.readouterr().err
    assert (
        "error: callback Broken in on_log raised ZeroDivisionError: division by zero\nits own traceback:\n"
        in error
    )
    assert "in divide" in error
    assert "site-packages" not in error
    assert "callbacks.py" not in error
    run = Path("runs/ppo__CartPole-v1__seed0__x")
    assert "the last checkpoint is of step 32; after fixing the cause, resume:\n" in error
    assert f"rl_training resume {run} --callback broken.py:Broken" in " ".join(
        error.replace("\\\n", " ").split()
    )
    assert json.loads((run / "metadata.json").read_text())["status"] == "failed"
    assert main(["resume", str(run), "-q"]) == 0


def test_a_failed_environment_says_how_to_resume(tmp_path: Path, capsys: Any) -> None:
    place = f"{HELPERS / 'toy_envs.py'}:FaultyEnv"
    words = ["ppo", place, *WORDS[2:], "env_kwargs.fault=raise", "env_kwargs.after=20"]
    assert main(["train", *words, "--output-dir", str(tmp_path), "-q"]) == 2
    error = capsys.readouterr().err
    assert "the last checkpoint is of step" in error
    assert f"--plugin {HELPERS / 'toy_envs.py'}" in error


def test_the_traceback_of_an_environment_begins_with_its_own_code(tmp_path: Path) -> None:
    config = small_config(
        "ppo",
        tmp_path,
        env_id=f"{HELPERS / 'toy_envs.py'}:FaultyEnv",
        env_kwargs={"fault": "raise", "backend": "sync"},
    )
    with pytest.raises(EnvError) as caught:
        run_training(config)
    trace = str(caught.value).partition("its own traceback:\n")[2].splitlines()
    assert trace[0] == "Traceback (most recent call last):"
    assert "toy_envs.py" in trace[1]

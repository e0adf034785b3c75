"""Ctrl-C and SIGTERM at any moment: the run is saved, and the command it prints goes on as if nothing had been."""

from __future__ import annotations

import json
import os
import shlex
import signal as signals
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
import warm
from conftest import HELPERS, TRY_ALL, small_config
from run_tools import assert_same_end
from test_kill import assert_same_folders, processes_marked
from warm import finish, wait_until

from rl_training.experiment.checkpointing import resolve_checkpoint, verify_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.controls import stop_on_signals
from rl_training.runtime.run import run_training
from rl_training.runtime.run_utils import serialize_train_config
from rl_training.runtime.trainer import TrainerState, TrainResult
from rl_training.runtime.workflows import resume_training

CODES = {"SIGHUP": 129, "SIGINT": 130, "SIGTERM": 143}
RUN: dict[str, Any] = {
    "total_timesteps": 128,
    "log_interval": 16,
    "checkpoint_interval": 32,
    "eval_episodes": 1,
    "num_envs": 2,
    "algo_kwargs": {"eval_interval": 64, "num_steps": 8},
}


def config_for(folder: Path, backend: str) -> TrainConfig:
    return small_config(
        "ppo", folder, **RUN, env_kwargs={"backend": backend, "max_episode_steps": 20}
    )


def command_of(pid: int) -> bytes:
    """The command line of a process; nothing if it has ended, which it may between two looks at it."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def interrupt(
    config: TrainConfig, folder: Path, kind: str, count: int, signal: str, times: int = 1
) -> Any:
    """Train in a process group of its own, to the whole of which the signal is sent, as a terminal does."""
    mark = str(uuid.uuid4())
    order = {
        "config": serialize_train_config(config),
        "suffix": "x",
        "kill": [kind, count],
        "signal": signal,
        "to_group": True,
        "times": times,
    }
    words, target = [json.dumps(order)], "killed_run:main_of_order"
    process = warm.start(words, folder, target, start_new_session=True, RL_TRAINING_TEST=mark)
    answer = finish(process)
    if sys.platform.startswith("linux"):
        wait_until(lambda: not processes_marked(f"RL_TRAINING_TEST={mark}"))
    return answer


SIGNALED = [
    ("sync", "eval", 3, "SIGINT"),
    ("sync", "file", 44, "SIGTERM"),
    ("sync", "collect", 9, "SIGHUP"),
    ("async", "collect", 19, "SIGTERM"),
    ("async", "update", 5, "SIGINT"),
]
"""Every signal, every kind of instant, and both backends."""
OTHERS_SIGNALED = [
    ("sync", "collect", 19, "SIGINT"),
    ("sync", "update", 5, "SIGTERM"),
    ("async", "eval", 3, "SIGTERM"),
    ("async", "file", 44, "SIGINT"),
]
SIGNALED_TWICE = [("sync", "file", 66), ("async", "collect", 19)]
OTHERS_SIGNALED_TWICE = [("sync", "collect", 19), ("sync", "eval", 3)]


@pytest.mark.parametrize(
    ("backend", "kind", "count", "signal"), SIGNALED + OTHERS_SIGNALED if TRY_ALL else SIGNALED
)
def test_a_signal_saves_the_run_and_the_printed_command_goes_on(
    backend: str, kind: str, count: int, signal: str, tmp_path: Path
) -> None:
    code, out, error = interrupt(
        config_for(tmp_path / "runs", backend), tmp_path, kind, count, signal
    )
    assert code == CODES[signal], error
    assert "Traceback" not in error
    assert f"stop_reason=interrupted by {signal}" in out
    assert "eval_return_mean" not in out, "an evaluation is left before its end"
    (run_dir,) = (tmp_path / "runs").glob("*__x")
    verify_checkpoint(resolve_checkpoint(run_dir))
    (command,) = [line for line in error.replace("\\\n", "").splitlines() if " resume " in line]
    resumed = warm.run(shlex.split(command)[3:], tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    whole = run_training(config_for(tmp_path / "whole", "sync"))
    assert shlex.split(command)[-1] == str(run_dir)
    assert_same_end(whole, TrainResult(run_dir, resolve_checkpoint(run_dir), {}))
    assert_same_folders(whole.run_dir, run_dir)


@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM"] if TRY_ALL else ["SIGTERM"])
def test_a_signal_while_a_worker_is_restarted_saves_the_run(signal: str, tmp_path: Path) -> None:
    env_id, once = f"{HELPERS / 'toy_envs.py'}:FaultyEnv", str(tmp_path / "failed")
    kwargs = {"backend": "async", "fault": "exit", "after": 9, "once": once, "max_restarts": 1}
    config = small_config("ppo", tmp_path / "runs", **RUN, env_id=env_id, env_kwargs=kwargs)
    code, out, error = interrupt(
        config, tmp_path, "worker", 3, signal
    )  # after the two of the beginning
    assert code == CODES[signal], error
    assert "an environment failed and was recreated" in error
    assert f"stop_reason=interrupted by {signal}" in out
    (run_dir,) = (tmp_path / "runs").glob("*__x")
    verify_checkpoint(resolve_checkpoint(run_dir))


@pytest.mark.skipif(not hasattr(signals, "SIGHUP"), reason="there is no such signal")
def test_an_ignored_hang_up_stays_ignored(tmp_path: Path) -> None:
    state = TrainerState(None, tmp_path)  # type: ignore[arg-type]
    before = signals.signal(signals.SIGHUP, signals.SIG_IGN)
    try:
        with stop_on_signals(state):
            os.kill(os.getpid(), signals.SIGHUP)
            assert not state.should_stop
    finally:
        signals.signal(signals.SIGHUP, before)


def test_a_signal_leaves_the_closing_evaluation_and_resume_makes_it(tmp_path: Path) -> None:
    values = {
        **RUN,
        "env_kwargs": {"max_episode_steps": 20},
        "algo_kwargs": {"eval_interval": 1000, "num_steps": 8},
    }
    code, out, error = interrupt(
        small_config("ppo", tmp_path / "runs", **values), tmp_path, "eval", 3, "SIGINT"
    )
    assert (code, "eval_return_mean" in out) == (130, False), error
    (run_dir,) = (tmp_path / "runs").glob("*__x")
    whole, resumed = (
        run_training(small_config("ppo", tmp_path / "whole", **values)),
        resume_training(run_dir),
    )
    assert resumed.metrics["eval_return_mean"] == whole.metrics["eval_return_mean"]
    assert_same_end(whole, resumed)
    assert_same_folders(whole.run_dir, run_dir)


@pytest.mark.parametrize(
    ("backend", "kind", "count"),
    SIGNALED_TWICE + OTHERS_SIGNALED_TWICE if TRY_ALL else SIGNALED_TWICE,
)
def test_a_second_ctrl_c_leaves_at_once_and_loses_no_checkpoint(
    backend: str, kind: str, count: int, tmp_path: Path
) -> None:
    code, out, error = interrupt(
        config_for(tmp_path / "runs", backend), tmp_path, kind, count, "SIGINT", times=2
    )
    assert (code, out) == (130, ""), error
    assert "interrupted again" in error
    assert "Traceback" not in error
    (run_dir,) = (tmp_path / "runs").glob("*__x")
    verify_checkpoint(resolve_checkpoint(run_dir))
    whole = run_training(config_for(tmp_path / "whole", "sync"))
    assert_same_end(whole, resume_training(run_dir))
    assert_same_folders(whole.run_dir, run_dir)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for the compiler in /proc")
@pytest.mark.skipif(
    not TRY_ALL, reason="half a minute of compiling: RL_TRAINING_TEST_ALL=1 runs it"
)
@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM"])
def test_a_signal_that_reaches_the_compiler_too_does_not_end_it(
    signal: str, tmp_path: Path
) -> None:
    mark = str(uuid.uuid4())
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "rl_training",
            "train",
            "dqn",
            "CartPole-v1",
            "compile=true",
            "--run-suffix",
            "x",
        ],
        cwd=tmp_path,
        env={
            **os.environ,
            "RL_TRAINING_TEST": mark,
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "graphs"),
        },
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def is_compiling() -> bool:
        return any(
            b".main.cpp" in command_of(pid) for pid in processes_marked(f"RL_TRAINING_TEST={mark}")
        )

    wait_until(is_compiling, process)
    os.killpg(process.pid, getattr(signals, signal))
    code, out, error = finish(process)
    assert code == CODES[signal], error
    assert f"stop_reason=interrupted by {signal}" in out
    assert "Traceback" not in error
    (run_dir,) = (tmp_path / "runs").glob("*__x")
    verify_checkpoint(resolve_checkpoint(run_dir))
    wait_until(lambda: not processes_marked(f"RL_TRAINING_TEST={mark}"))

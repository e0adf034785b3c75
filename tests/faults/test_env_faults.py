"""Environments that raise, exit, crash or hang: what the user is told, what is left behind, and restarts."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_tools import stored_rows
from conftest import HELPERS, small_config

from rl_training.algorithms.base import ActResult
from rl_training.envs.factory import make_vector_env
from rl_training.errors import EnvError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.logs import read_metrics
from rl_training.replay.replay_buffer import ReplayBuffer
from rl_training.replay.rollout_buffer import RolloutBuffer
from rl_training.runtime.collector import Collector
from rl_training.runtime.run import run_training
from rl_training.runtime.trainer import TrainerState
from rl_training.spaces.spec import describe_spaces

TOYS = HELPERS / "toy_envs.py"
FAULTY, SLOW = f"{TOYS}:FaultyEnv", f"{TOYS}:SlowEnv"


def faulty(backend: str, fault: str, **options: Any) -> dict[str, Any]:
    return {"backend": backend, "fault": fault, "worker_timeout": 2.0, **options}


def run_into(fault: str, backend: str) -> str:
    """Step until the fault; returns the message, after seeing that no process is left."""
    envs = make_vector_env(FAULTY, faulty(backend, fault), num_envs=3)
    envs.reset(seed=[11, 22, 33])
    with pytest.raises(EnvError) as caught:
        _ = [envs.step(np.zeros(3, np.int64)) for _ in range(10)]
    envs.close()
    assert not multiprocessing.active_children()
    return str(caught.value)


TRACE = "its own traceback"
EXPLODED = (
    "failed in step: it raised ZeroDivisionError: the simulator exploded",
    "its seed: 11",
    "its last action: 0",
    TRACE,
    'toy_envs.py", line',
    'raise ZeroDivisionError("the simulator exploded")',
)
EVERYWHERE: dict[str, tuple[str, ...]] = {
    "raise": EXPLODED,
    "raise in reset": ("failed in reset: it raised ZeroDivisionError: nothing to begin with",),
    "raise base": ("failed in step: it raised SimulatorStopped: the simulator stopped",),
    "sys.exit": ("failed in step: it raised SystemExit: enough",),
}
IN_WORKERS: dict[str, tuple[str, ...]] = {
    "exit": ("failed in step: its process exited with code 3", "its seed: 11"),
    "crash": ("its process exited with code -11", "its seed: 11", TRACE, "in step"),
    "hang": (
        "it hung: no answer in 2 seconds (env_kwargs.worker_timeout)",
        TRACE,
        "in wait_for_ever",
    ),
}


@pytest.mark.parametrize(
    ("fault", "backend"),
    [
        *itertools.product(EVERYWHERE, ["sync", "async"]),
        *itertools.product(IN_WORKERS, ["async"]),
    ],
)
def test_a_fault_is_named_with_its_environment_seed_action_and_line(
    fault: str, backend: str
) -> None:
    rest = run_into(fault, backend)
    assert rest.startswith("environment 0 of 3 failed in ")
    for words in {**EVERYWHERE, **IN_WORKERS}[fault]:
        _, found, rest = rest.partition(words)
        assert found, words


def test_a_worker_that_cannot_start_shows_why() -> None:
    with pytest.raises(EnvError, match=r"failed in starting.*\n.*\n.*\n(.*\n)*.*only in a worker"):
        make_vector_env(
            f"{TOYS}:OnlyHereEnv",
            {"backend": "async", "pid": os.getpid()},
            num_envs=2,
        )
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
@pytest.mark.parametrize(
    ("backend", "fault"), [("sync", "raise"), ("async", "raise"), ("async", "exit")]
)
def test_restarts_are_bounded_and_counted(
    algo: str, backend: str, fault: str, tmp_path: Path
) -> None:
    kwargs = faulty(backend, fault, after=40, once=str(tmp_path / "failed"), max_restarts=2)
    result = run_training(
        small_config(algo, tmp_path / "runs", env_id=FAULTY, env_kwargs=kwargs, num_envs=2)
    )
    assert result.metrics["env_restarts"] == 1
    assert result.metrics["global_step"] == 128
    lines = list(read_metrics(result.run_dir / "metrics.jsonl"))
    assert "env_restarts" not in lines[0]
    assert lines[-1]["env_restarts"] == 1


def test_when_the_restarts_are_used_up_the_fault_ends_the_run(tmp_path: Path) -> None:
    kwargs = faulty("sync", "raise", max_restarts=3)
    with pytest.raises(EnvError, match=r"restarts used: 3 of 3 \(env_kwargs.max_restarts\)"):
        run_training(small_config("dqn", tmp_path, env_id=FAULTY, env_kwargs=kwargs))


@pytest.mark.parametrize("buffer_class", [ReplayBuffer, RolloutBuffer])
def test_the_step_that_was_lost_is_not_stored_and_what_came_before_is_cut(
    buffer_class: type, tmp_path: Path
) -> None:
    kwargs = faulty("sync", "raise", after=4, once=str(tmp_path / "failed"), max_restarts=1)
    envs = make_vector_env(FAULTY, kwargs, num_envs=2)
    spaces = describe_spaces(envs.single_observation_space, envs.single_action_space)
    device = torch.device("cpu")
    if buffer_class is ReplayBuffer:
        buffer = ReplayBuffer(spaces, 24, 2, rng=np.random.default_rng(0), device=device)
    else:
        buffer = RolloutBuffer(spaces, 12, 2, device)
    collector = Collector(envs, spaces, device)
    collector.reset([0, 1])
    state = TrainerState(None, tmp_path)  # type: ignore[arg-type]
    result = collector.collect(
        lambda obs, *_: ActResult(torch.zeros(len(obs), dtype=torch.int64)), buffer, 12, state
    )
    assert result.steps == 24
    assert result.env_restarts == 1
    saved = buffer.state_dict()
    rows = stored_rows(saved) if "segments" in saved else saved["storage"]
    ended = rows["terminated"] | rows["truncated"]
    assert ended[2].all()  # the fourth step was lost
    continues = (rows["next_obs"][:-1] == rows["obs"][1:]).all(-1)
    assert (continues | ended[:-1]).all()


def test_a_restarted_run_is_resumed_with_its_count(tmp_path: Path) -> None:
    kwargs = faulty("sync", "raise", after=40, once=str(tmp_path / "failed"), max_restarts=2)
    result = run_training(small_config("dqn", tmp_path / "runs", env_id=FAULTY, env_kwargs=kwargs))
    assert load_checkpoint(result.run_dir).trainer_state["collector"]["envs"]["num_restarts"] == 1


def test_a_pause_of_the_whole_job_is_no_hang() -> None:
    """Stopped for longer than the time limit while a step is awaited, as Ctrl-Z or a closed laptop does."""
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    job = context.Process(target=_step_slowly, args=(theirs,))
    job.start()
    workers = ours.recv()
    assert ours.recv() == "stepping"
    processes = [pid for pid in (job.pid, *workers) if pid is not None]
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2.0)
    for pid in processes:
        os.kill(pid, signal.SIGCONT)
    assert ours.recv() == "done"
    job.join()


def _step_slowly(connection: Any) -> None:
    kwargs = {"backend": "async", "seconds": 0.5, "worker_timeout": 1.5}
    envs = make_vector_env(SLOW, kwargs, num_envs=1)
    envs.reset(seed=0)
    connection.send(envs.pool.process_ids)  # type: ignore[attr-defined]
    connection.send("stepping")
    envs.step(np.zeros(1, np.int64))
    connection.send("done")
    envs.close()


def test_a_restore_may_take_longer_than_the_limit_of_a_step_but_not_hang() -> None:
    kwargs = {"backend": "async", "seconds": 0.05, "worker_timeout": 0.6}
    envs = make_vector_env(SLOW, kwargs, num_envs=1)
    envs.reset(seed=0)
    for _ in range(20):
        envs.step(np.zeros(1, np.int64))
    state = envs.state()
    envs.close()
    again = make_vector_env(SLOW, kwargs, num_envs=1)
    assert again.restore(state)[1] == []
    again.close()
    hanging = make_vector_env(SLOW, {**kwargs, "hangs_at": 5}, num_envs=1)
    with pytest.raises(EnvError, match=r"failed in restore: it hung: no answer in 0.6 seconds"):
        hanging.restore(state)
    hanging.close()


def test_workers_leave_when_the_main_process_is_gone(tmp_path: Path) -> None:
    """A worker stuck in a step cannot hear its pipe close; it must notice that its parent died."""
    context = multiprocessing.get_context("forkserver")
    pids = tmp_path / "pids"
    parent = context.Process(target=_start_and_hang, args=(str(pids),))
    parent.start()
    wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    workers = [int(word) for word in pids.read_text().split()]
    parent.kill()
    parent.join()
    wait_until(lambda: not any(map(_is_alive, workers)))


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _start_and_hang(pids: str) -> None:
    kwargs = {"backend": "async", "fault": "hang", "after": 2, "worker_timeout": 600.0}
    envs = make_vector_env(FAULTY, kwargs, num_envs=2)
    envs.reset(seed=[0, 1])
    workers = [str(pid) for pid in envs.pool.process_ids]  # type: ignore[attr-defined]
    envs.step(np.zeros(2, np.int64))
    Path(pids).write_text(" ".join(workers))
    envs.step(np.zeros(2, np.int64))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:1]

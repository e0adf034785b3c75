"""Studies on one machine under kills, stops, suspensions and failing runs: what ends equals what was not disturbed."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from conftest import TRY_ALL
from study_tools import (
    BASE,
    PPO,
    assert_replaces_a_suspended_worker,
    assert_same_study,
    live_workers,
    start,
    start_fresh,
    train_alone,
    write_study,
)
from warm import finish, wait_until

from rl_training.studies.catalog import read_run
from rl_training.studies.launching.study import Study

NUM_KILLS = 20 if TRY_ALL else 5
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The runs of the small study, each trained by itself."""
    folder = tmp_path_factory.mktemp("alone")
    return train_alone(Study.from_file(write_study(folder)).runs(), folder / "runs")


def test_one_and_two_jobs_give_the_runs_of_single_commands(
    tmp_path: Path, alone: dict[str, Path]
) -> None:
    """Takes more than ten seconds: the workers of one of its studies are fresh interpreters."""
    for jobs, seeds, num_runs in (("1", "0", 2), ("2", "0,1", 4)):
        folder = tmp_path / jobs
        folder.mkdir()
        path = write_study(folder, seeds=seeds)
        words = ["study", "run", str(path), "--jobs", jobs]
        code, out, error = finish(
            start(words, folder) if jobs == "1" else start_fresh(words, folder)
        )
        assert code == 0, error
        assert f"{num_runs} of {num_runs} runs finished" in out
        assert_same_study(Study.from_file(path), alone)


def test_kills_of_workers_and_drivers_change_nothing(
    tmp_path: Path, alone: dict[str, Path]
) -> None:
    """Takes more than ten seconds: six runs, begun again after each kill."""
    chance = random.Random(7)
    path = write_study(tmp_path)
    study = Study.from_file(path)
    command = ["study", "run", str(path), "--jobs", "2"]
    driver = start(command, tmp_path)
    num_kills = 0
    while num_kills < NUM_KILLS:
        wait_until(lambda process=driver: live_workers(study) or process.poll() is not None)
        time.sleep(chance.uniform(0.0, 0.4))
        workers = [*live_workers(study).values()]
        # It had to give up a run that was killed three times without progress.
        has_given_up = driver.poll() is not None
        if has_given_up or chance.random() < 0.3:
            driver.kill()
            code, _, error = finish(driver)
            assert not has_given_up or code == 1, error
            driver = start(command, tmp_path)
            num_kills += not has_given_up
        elif workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(workers), signal.SIGKILL)
                num_kills += 1
    finish(driver)
    code, out, error = finish(start(command, tmp_path))
    assert code == 0, error
    assert "6 of 6 runs finished" in out
    assert_same_study(study, alone)


def test_two_drivers_share_the_work(tmp_path: Path, alone: dict[str, Path]) -> None:
    path = write_study(tmp_path, seeds="0,1")
    command = ["study", "run", str(path), "--jobs", "1"]
    drivers = [start([*command, *words], tmp_path) for words in ([], ["--shard", "2/2"])]
    ends = [finish(driver) for driver in drivers]
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert "4 of 4 runs finished" in ends[0][1]
    assert "2 of 2 runs finished" in ends[1][1]
    study = Study.from_file(path)
    assert {read_run(run.run_dir).attempt for run in study.runs()} == {1}
    assert_same_study(study, alone)


def test_ctrl_c_stops_all_runs_saved_and_the_printed_command_continues(
    tmp_path: Path, alone: dict[str, Path]
) -> None:
    path = write_study(tmp_path, seeds="0,1")
    study = Study.from_file(path)
    driver = start(["study", "run", str(path), "--jobs", "2"], tmp_path)
    wait_until(lambda: len(live_workers(study)) == 2, driver)
    driver.send_signal(signal.SIGINT)
    code, _, error = finish(driver)
    assert code == 130, error
    assert "stopped, all runs saved; to continue:" in error
    assert f"study run {study.path} --jobs 2" in error.replace("\\\n", "").replace(
        "    ", " "
    ).replace("  ", " ")
    assert live_workers(study) == {}
    states = [read_run(run.run_dir).state for run in study.runs() if run.run_dir.is_dir()]
    assert states
    assert set(states) <= {"stopped", "finished"}
    code, _, error = finish(start(["study", "run", str(study.path), "--jobs", "2"], tmp_path))
    assert code == 0, error
    assert_same_study(study, alone)


def test_the_workers_of_a_killed_driver_save_and_end(tmp_path: Path) -> None:
    path = write_study(tmp_path, base={**BASE, "total_timesteps": 1_000_000})
    study = Study.from_file(path)
    driver = start(["study", "run", str(path), "--jobs", "2"], tmp_path)
    wait_until(lambda: len(live_workers(study)) == 2, driver)
    driver.kill()
    finish(driver)
    wait_until(lambda: not live_workers(study))
    states = [read_run(run.run_dir) for run in study.runs() if run.run_dir.is_dir()]
    assert {(info.state, info.reason) for info in states} == {("stopped", "interrupted by SIGTERM")}


def test_a_suspended_worker_is_replaced_and_cannot_disturb_the_winner(
    tmp_path: Path, alone: dict[str, Path]
) -> None:
    path = write_study(tmp_path, seeds="0")
    study = Study.from_file(path)
    driver = start(
        ["study", "run", str(path), "--jobs", "2"], tmp_path, RL_TRAINING_STALE_SECONDS="2"
    )
    assert_replaces_a_suspended_worker(driver, study, alone)


def test_the_folder_of_another_run_is_no_run_of_the_plan(tmp_path: Path) -> None:
    base = {**BASE, "algo": "ppo", "algo_kwargs": PPO, "total_timesteps": 256}
    path = write_study(tmp_path, base=base, vary=None, seeds="0,1")
    assert finish(start(["study", "run", str(path)], tmp_path))[0] == 0
    first, second = (run.run_dir for run in Study.from_file(path).runs())
    shutil.rmtree(first)
    shutil.copytree(second, first)
    code, out, error = finish(start(["study", "run", str(path)], tmp_path))
    assert code == 1, error
    assert "failed: seed 0: its folder holds another run: seed is 1 there and 0 in the plan" in out
    assert "(1 run, 1 missing)" in out


class TestFailingRuns:
    def test_a_run_that_fails_is_named_and_the_others_go_on(self, tmp_path: Path) -> None:
        good = {"algo_kwargs": PPO}
        bad = {"env_id": f"{tmp_path / 'env.py'}:FailingEnv", "algo_kwargs": PPO}
        base = {**BASE, "algo": "ppo", "total_timesteps": 512}
        (tmp_path / "env.py").write_text(FAILING_ENV)
        path = write_study(tmp_path, base=base, vary=[bad, good], seeds="0")
        code, out, error = finish(start(["study", "run", str(path), "--jobs", "1"], tmp_path))
        assert code == 1, error
        assert "1 of 2 runs finished" in out
        assert out.count("the wheels came off") == 1
        states = [read_run(run.run_dir).state for run in Study.from_file(path).runs()]
        assert states == ["failed", "finished"]

    def test_a_run_whose_process_always_dies_is_given_up(self, tmp_path: Path) -> None:
        (tmp_path / "env.py").write_text(
            FAILING_ENV.replace('raise RuntimeError("the wheels came off")', "os._exit(7)")
        )
        base = {
            **BASE,
            "algo": "ppo",
            "algo_kwargs": PPO,
            "env_id": f"{tmp_path / 'env.py'}:FailingEnv",
        }
        path = write_study(tmp_path, base=base, vary=None, seeds="0")
        code, out, error = finish(start(["study", "run", str(path)], tmp_path))
        assert code == 1, error
        assert error.count("died (its process ended with exit code 7): trying again") == 2
        assert (
            "given up: seed 0: its process ended with exit code 7, 3 times without a new checkpoint"
            in out
        )


FAILING_ENV = """
import os

import gymnasium as gym
import numpy as np


class FailingEnv(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        FailingEnv.steps += 1
        if FailingEnv.steps > 100:
            raise RuntimeError("the wheels came off")
        return np.zeros(2, np.float32), 1.0, False, False, {}
"""

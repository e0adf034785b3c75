"""The driver of a study under clocks that differ and pauses of the whole job, with workers that the test plays."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from finished_studies import own, release

from rl_training.experiment.yaml_text import dump_yaml
from rl_training.studies.launching import driver as driver_module
from rl_training.studies.launching.driver import Driver, Listener, Outcome
from rl_training.studies.launching.launchers import Exit
from rl_training.studies.launching.orders import Order
from rl_training.studies.plan import PlannedRun, StudyFolder, make_plan, store_plan

BASE = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 100, "num_threads": 1}
STALE = 60.0


class Worker:
    """A worker process of another machine: it owns its run, beats when the test says so, and counts its deaths."""

    threads_per_run, may_queue = 1, False

    def __init__(self) -> None:
        self.kills, self.has_ended, self.run_dir = 0, False, Path()

    def capacity(self) -> int:
        return 1

    def can_start(self, run: PlannedRun) -> bool:
        return True

    def start(self, order: Order) -> Worker:
        self.run_dir = order.run.run_dir
        if not self.run_dir.exists():
            (self.run_dir / "checkpoints").mkdir(parents=True)
            (self.run_dir / "config.yaml").write_text(dump_yaml({**BASE, "seed": 0}))
        self.workspace = own(self.run_dir, len(list((self.run_dir / "owner").glob("*.json"))) + 1)
        return self

    def beat(self, at: float) -> None:
        os.utime(self.workspace / "heartbeat", (at, at))

    def finish(self) -> None:
        release(self.workspace)
        metadata = {"status": "finished", "attempt": int(self.workspace.name)}
        (self.run_dir / "metadata.json").write_text(json.dumps(metadata))
        self.has_ended = True

    def poll(self) -> Exit | None:
        return Exit(0, "it ended") if self.has_ended else None

    def kill(self) -> None:
        self.kills += 1

    def close(self) -> None:
        pass


Drive = Callable[[Callable[[Worker, int], None]], Worker]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudyFolder:
    for name in ("SECONDS_BETWEEN_LOOKS", "SECONDS_BETWEEN_POLLS"):
        monkeypatch.setattr(driver_module, name, 0.0)
    monkeypatch.setenv("RL_TRAINING_STALE_SECONDS", str(STALE))
    return store_plan(make_plan("small", [BASE]), tmp_path / "small")


def drive(study: StudyFolder, on_look: Callable[[Worker, int], None]) -> Worker:
    """Drive the only run until it is over; `on_look` is called after each look at it, with a worker and a count."""
    worker, looks = Worker(), [0]
    driver = Driver(study.runs(), worker, Listener(), study)

    def look() -> None:
        if worker.run_dir.name and not worker.has_ended:
            looks[0] += 1
            on_look(worker, looks[0])

    driver.on_look = look
    (task,) = driver.run()
    assert task.outcome is Outcome.DONE
    return worker


def test_a_clock_ahead_of_the_file_systems_kills_nobody(
    study: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 10 * STALE)

    def end(worker: Worker, look: int) -> None:
        if look == 3:
            worker.finish()

    assert drive(study, end).kills == 0


@pytest.mark.parametrize("wakes_up", [True, False])
def test_after_a_pause_of_the_whole_job_every_run_has_a_full_period(
    study: StudyFolder, monkeypatch: pytest.MonkeyPatch, wakes_up: bool
) -> None:
    """Only a run that stays silent for a period after the driver woke up is replaced."""
    clock = [1000.0]
    monkeypatch.setattr(driver_module, "file_clock", lambda folder: clock[0])

    def pause(worker: Worker, look: int) -> None:
        if look == 1:
            worker.beat(clock[0])
            clock[0] += 10 * STALE
        elif worker.kills or clock[0] > 1000 + 11 * STALE + 5:
            assert worker.kills == (not wakes_up)
            assert wakes_up or clock[0] > 1000 + 11 * STALE
            worker.finish()
        else:
            clock[0] += STALE / 4
            if wakes_up:
                worker.beat(clock[0])

    drive(study, pause)

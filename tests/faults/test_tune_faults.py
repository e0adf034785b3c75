"""Tuning in real processes, killed and stopped: what ends equals what was not disturbed."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import TRY_ALL
from study_tools import start, write_study
from tune_tools import BASE, SMALL, InlineLauncher, outcome
from warm import finish, wait_until

from rl_training.experiment.ownership import is_alive, read_owner
from rl_training.studies.catalog import find_run_folders
from rl_training.studies.tuning.tune_plan import TunePlan, find_plan
from rl_training.studies.tuning.tuner import Tuning

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
KILLS = (0.0, 0.7) if not TRY_ALL else tuple(0.15 * number for number in range(10))
"""Seconds after the first worker began at which the tuner is killed."""
SLOW = {**BASE, "env_kwargs": {"pay": 1.0, "seconds": 0.005}, "checkpoint_interval": 8}


def write_tuning(folder: Path) -> Path:
    """A study file with a tune block; its tuning goes to `runs/small` in the same folder."""
    tune = {
        **SMALL,
        "trials": 12 if TRY_ALL else 3,
        "final_seeds": 1,
        "space": {"env_kwargs.pay": "0.5..2.0"},
    }
    return write_study(folder, base=SLOW, tune=tune, vary=None, seeds=None)


def workers(path: Path) -> list[int]:
    """The processes that train runs of a tuning."""
    found = [(run_dir, read_owner(run_dir)) for run_dir in find_run_folders(path)]
    return [owner.pid for run_dir, owner in found if owner is not None and is_alive(run_dir, owner)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The outcome of the tuning without any other process."""
    wanted, parent = TunePlan.from_file(write_tuning(tmp_path_factory.mktemp("undisturbed")))
    path = parent / wanted.study.name
    assert Tuning(find_plan(wanted, path), path).run(InlineLauncher()) is not None
    return outcome(path)


def test_kills_of_the_tuner_and_its_workers_change_nothing(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    file, path = write_tuning(tmp_path), tmp_path / "runs" / "small"
    command = ["tune", str(file), "--jobs", "2"]
    num_kills = 0
    for delay in KILLS:
        tuner = start(command, tmp_path)
        wait_until(lambda process=tuner: workers(path) or process.poll() is not None)
        time.sleep(delay)
        if delay:
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(workers(path)[0], signal.SIGKILL)
        num_kills += tuner.poll() is None
        tuner.kill()
        finish(tuner)
    assert num_kills == len(KILLS)
    journal = path / "journal.log"
    journal.write_bytes(journal.read_bytes()[:-7])  # torn
    code, _, error = finish(start(command, tmp_path))
    assert code == 0, error
    assert "Warning" not in error
    assert outcome(path) == undisturbed


def test_ctrl_c_saves_all_runs_and_a_second_tuner_is_refused(tmp_path: Path) -> None:
    file, path = write_tuning(tmp_path), tmp_path / "runs" / "small"
    tuner = start(["tune", str(file), "--jobs", "1"], tmp_path)
    wait_until(lambda: workers(path), tuner)
    code, _, error = finish(start(["tune", str(file)], tmp_path))  # a second one at the same time
    assert code == 2
    assert f"tuning '{path}' is driven by process {tuner.pid}" in error
    tuner.send_signal(signal.SIGINT)
    code, out, error = finish(tuner)
    assert (code, out) == (130, "")
    assert "stopped, all runs saved; to continue:" in error
    assert workers(path) == []
    words = error.rpartition("to continue:")[2].replace("\\\n", " ").split()
    code, out, error = finish(start([*words[words.index("tune") :], "--dry-run"], tmp_path))
    assert code == 0, error
    assert f"tuning {path}: 3 trials" in out

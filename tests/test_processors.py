"""Processors that a process may use, and how its threads wait."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rl_training import TrainConfig, processors
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.processors import SPIN_VARIABLE, SPINS, limit_spinning, usable_processors
from rl_training.runtime import execution
from rl_training.runtime.execution import Execution

FIRST = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
needs_affinity = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")


@pytest.fixture(autouse=True)
def _no_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Four processors, and neither a limit of threads nor a quota."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(processors, "CGROUPS", tmp_path)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)


def test_without_limits_all_are_usable() -> None:
    assert usable_processors() == 4


def test_affinity_limits_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 3})
    assert usable_processors() == 2


@pytest.mark.parametrize(
    ("text", "expected"), [("3", 3), ("1", 1), ("2,1", 2), ("64", 4), ("x", 4), ("", 4), ("0", 1)]
)
def test_the_variable_of_openmp_limits_them(
    text: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert usable_processors() == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, 4),
        ({"cpu.cfs_quota_us": "300000\n", "cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu.max": "damaged"}, 4),
    ],
)
def test_the_quota_of_a_container_limits_them(
    files: dict[str, str], expected: int, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert usable_processors() == expected


@pytest.mark.parametrize(("usable", "threads"), [(1, 1), (2, 2), (64, 4)])
def test_auto_takes_at_most_four_of_them_and_only_for_large_networks(
    usable: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "usable_processors", lambda: usable)
    for sizes, expected in (([256, 256], threads), ([8, 8], 1)):
        config = TrainConfig(
            algo="sac", env_id="Pendulum-v1", compile=False, algo_kwargs={"hidden_sizes": sizes}
        )
        algo_config = get_algorithm_spec("sac").parse_kwargs(config.algo_kwargs)
        assert Execution.choose(config, algo_config).num_threads == expected


def test_threads_spin_shortly_unless_the_user_chose_otherwise() -> None:
    for chosen in ({SPIN_VARIABLE: "5"}, {"OMP_WAIT_POLICY": "ACTIVE"}):
        variables = dict(chosen)
        limit_spinning(variables)
        assert variables == chosen
    variables = {}
    limit_spinning(variables)
    assert variables == {SPIN_VARIABLE: str(SPINS)}


def test_the_variable_is_set_before_torch_is_imported() -> None:
    code = (
        f"import rl_training, os, sys; print(os.environ['{SPIN_VARIABLE}'], 'torch' in sys.modules)"
    )
    names = (SPIN_VARIABLE, "OMP_WAIT_POLICY")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    answer = subprocess.run(
        [sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == [str(SPINS), "False"]


@needs_affinity
def test_a_process_bound_to_one_processor_counts_one() -> None:
    code = (
        f"import os; os.sched_setaffinity(0, {{{FIRST}}})\n"
        "from rl_training.processors import usable_processors; print(usable_processors())"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "1"

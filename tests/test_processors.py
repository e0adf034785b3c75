"""Processors that a process may use, and how its threads wait."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rl_training import TrainConfig, processors
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.processors import usable_processors
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

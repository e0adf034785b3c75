"""Memory: what many runs leave behind in one process, and a replay that cannot fit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TESTS, TRY_ALL, small_config

from rl_training.data.spaces import describe_spaces
from rl_training.data.transitions import storage_bytes
from rl_training.envs.factory import make_env
from rl_training.errors import ConfigError
from rl_training.runtime import memory
from rl_training.runtime.training import run_training

NUM_RUNS = 200 if TRY_ALL else 60
MAX_GROWTH_MB = 8 if TRY_ALL else 4
SCRIPT = """
import gc, json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from conftest import small_config
from rl_training.experiment.registry import list_algorithm_specs
from rl_training.runtime.training import run_training

def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

names = [spec.name for spec in list_algorithm_specs()]
sizes = []
for index in range(int(sys.argv[3])):
    config = small_config(names[index % len(names)], Path(sys.argv[2]), total_timesteps=48, eval_episodes=1, seed=index)
    run_training(config)
    sizes.append(resident())
print(json.dumps(sizes))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_many_runs_in_one_process_do_not_grow(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(TESTS), str(tmp_path), str(NUM_RUNS)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    sizes = json.loads(answer.stdout)
    grown = (sizes[-1] - sizes[19]) / 1e6
    print(f"grew by {grown:.1f} MB over {NUM_RUNS - 20} runs after the first 20")
    assert grown < MAX_GROWTH_MB


def test_a_replay_that_cannot_fit_is_refused_with_the_figure(tmp_path: Path) -> None:
    options = {"buffer_capacity": 10**12, "learning_starts": 10}
    config = small_config("dqn", tmp_path / "runs", total_timesteps=10**12, algo_kwargs=options)
    with pytest.raises(
        ConfigError, match=r"1,000,000,000,000 transitions needs 46,000\.00 GB .*buffer_capacity to [\d,]+"
    ):
        run_training(config)
    assert not (tmp_path / "runs").exists()


def test_only_what_the_run_will_fill_is_counted(tmp_path: Path) -> None:
    run_training(small_config("dqn", tmp_path, algo_kwargs={"buffer_capacity": 10**9}))


def test_the_estimate_is_what_the_arrays_take() -> None:
    env = make_env("Pendulum-v1")
    spaces = describe_spaces(env.observation_space, env.action_space)
    assert storage_bytes(spaces, 1000) == 1000 * (3 * 4 + 1 * 4 + 4 + 3 * 4 + 2)


def test_the_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "max").write_text("5000000\n")
    (tmp_path / "current").write_text("2000000\n")
    monkeypatch.setattr(memory, "CGROUP_FILES", ((str(tmp_path / "max"), str(tmp_path / "current")),))
    assert memory.available_memory() == 3_000_000
    (tmp_path / "max").write_text("max\n")
    assert memory.available_memory() != 3_000_000

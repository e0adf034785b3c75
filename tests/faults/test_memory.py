"""Memory: what many runs leave behind in one process, and a replay that cannot fit."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import TESTS, TRY_ALL, small_config

from rl_training import memory
from rl_training.data.dataset_loaders import load_transition_dataset
from rl_training.data.minari_datasets import write_minari
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.envs.factory import make_env
from rl_training.errors import ConfigError, DatasetError
from rl_training.replay.transitions import storage_bytes
from rl_training.runtime.run import run_training
from rl_training.spaces.spec import describe_spaces

NUM_RUNS = 200 if TRY_ALL else 36
MAX_GROWTH_MB = 4 if TRY_ALL else 2
SCRIPT = """
import contextlib, ctypes, gc, json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from conftest import small_config
from rl_training.experiment.registry import list_algorithm_specs
from rl_training.runtime.run import run_training

def resident():
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):  # glibc keeps what was freed until it is asked to return it
        ctypes.CDLL("libc.so.6").malloc_trim(0)
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
    """Takes more than ten seconds: memory is known to be flat only after many runs."""
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
        ConfigError,
        match=r"1,000,000,000,000 transitions needs 46,000\.00 GB .*buffer_capacity to [\d,]+",
    ):
        run_training(config)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("key", ["hidden_sizes", "critic_hidden_sizes"])
def test_networks_that_cannot_fit_are_refused_with_the_figure(tmp_path: Path, key: str) -> None:
    config = small_config("sac", tmp_path / "runs", algo_kwargs={key: [2_000_000, 2_000_000]})
    with pytest.raises(
        ConfigError, match=rf"4,0\d\d,\d+,\d+,\d+ .*needs 64,\d+\.\d+ GB .*algo_kwargs\.{key} "
    ):
        run_training(config)
    assert not (tmp_path / "runs").exists()


def test_only_what_the_run_will_fill_is_counted(tmp_path: Path) -> None:
    run_training(small_config("dqn", tmp_path, algo_kwargs={"buffer_capacity": 10**9}))


def test_the_estimate_is_what_the_arrays_take() -> None:
    env = make_env("Pendulum-v1")
    spaces = describe_spaces(env.observation_space, env.action_space)
    assert storage_bytes(spaces, 1000) == 1000 * (3 * 4 + 1 * 4 + 4 + 3 * 4 + 2)


@pytest.fixture
def three_megabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that has so much memory left."""
    (tmp_path / "max").write_text("5000000\n")
    (tmp_path / "current").write_text("2000000\n")
    monkeypatch.setattr(
        memory, "CGROUP_FILES", ((str(tmp_path / "max"), str(tmp_path / "current")),)
    )


NEEDS = r"needs [\d,.]+ GB of memory and 0\.00 GB are free: "


@pytest.mark.usefixtures("three_megabytes")
class TestLittleMemory:
    def test_a_rollout_is_refused_with_the_key_to_lower(self, tmp_path: Path) -> None:
        config = small_config(
            "ppo", tmp_path / "runs", num_envs=4, algo_kwargs={"num_steps": 40_000}
        )
        words = rf"a rollout of 4 x 40,000 transitions {NEEDS}set algo_kwargs\.num_steps to 1\d,\d+ or less"
        with pytest.raises(ConfigError, match=words):
            run_training(config)
        assert not (tmp_path / "runs").exists()

    def test_priorities_count(self, tmp_path: Path) -> None:
        values = {"buffer_capacity": 60_000, "replay": {"kind": "prioritized"}}
        config = small_config("dqn", tmp_path, total_timesteps=10**6, algo_kwargs=values)
        with pytest.raises(ConfigError, match=rf"a replay of 60,000 transitions {NEEDS}"):
            run_training(config)  # 2.8 MB of transitions and 0.5 MB of priorities

    def test_the_replay_of_an_online_stage_is_refused_with_its_key(self, tmp_path: Path) -> None:
        online = {"after_updates": 10, "buffer_capacity": 10**6}
        config = small_config(
            "iql", tmp_path, total_timesteps=10**6, algo_kwargs={"online": online}
        )
        with pytest.raises(
            ConfigError, match=rf"{NEEDS}set algo_kwargs\.online\.buffer_capacity to"
        ):
            run_training(config)

    def test_a_recording_is_refused(self, tmp_path: Path) -> None:
        config = small_config("bc", tmp_path, algo_kwargs={"dataset_size": 10**6})
        with pytest.raises(DatasetError, match=rf"1,000,000 transitions {NEEDS}.*dataset_size"):
            run_training(config)

    @pytest.mark.parametrize("save", [np.savez_compressed, np.savez])
    @pytest.mark.parametrize("obs_dtype", [np.float32, np.float64])
    def test_a_file_that_would_be_read_is_refused_and_one_that_is_mapped_is_not(
        self, save: Any, obs_dtype: Any, tmp_path: Path
    ) -> None:
        fields = many_rows(obs_dtype)
        save(tmp_path / "data.npz", **fields)
        if save is np.savez and obs_dtype is np.float32:
            assert (
                len(load_transition_dataset("npz", dataset_path=tmp_path / "data.npz")) == 100_000
            )
            del fields["next_obs"]
            save(tmp_path / "data.npz", **fields)
        with pytest.raises(DatasetError, match=rf"data\.npz' {NEEDS}save it with numpy\.savez"):
            load_transition_dataset("npz", dataset_path=tmp_path / "data.npz")

    @pytest.mark.parametrize("form", ["mapped", "converted", "old"])
    def test_a_torch_file_likewise(self, form: str, tmp_path: Path) -> None:
        path = tmp_path / "data.pt"
        fields = many_rows(np.float64 if form == "converted" else np.float32)
        tensors = {name: torch.from_numpy(array) for name, array in fields.items()}
        torch.save(tensors, path, _use_new_zipfile_serialization=form != "old")
        if form == "mapped":
            assert len(load_transition_dataset("pt", dataset_path=path)) == 100_000
        else:
            with pytest.raises(DatasetError, match=rf"data\.pt' {NEEDS}keep fewer"):
                load_transition_dataset("pt", dataset_path=path)

    def test_minari_data_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("minari")
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
        fields = {name: array[:50] for name, array in many_rows(np.float32).items()}
        fields["truncated"][-1] = True
        box = gym.spaces.Box(-1, 1, (8,), np.float32)
        write_minari("small-v0", TransitionDataset.from_dict(fields), box, gym.spaces.Discrete(2))
        assert len(load_transition_dataset("minari", dataset_id="small-v0")) == 50
        (tmp_path / "max").write_text("2000100\n")
        with pytest.raises(DatasetError, match=rf"small-v0' of 50 steps {NEEDS}"):
            load_transition_dataset("minari", dataset_id="small-v0")


def test_a_compressed_file_that_promises_too_much_is_refused_before_it_is_unpacked(
    tmp_path: Path,
) -> None:
    path = tmp_path / "bomb.npz"
    count = 10**11
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({count}, 100), }}"
    member = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header.encode() + b"\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("obs", "actions", "rewards", "next_obs", "terminated"):
            archive.writestr(f"{name}.npy", member)
    data, size = path.read_bytes(), len(member) + count * 400
    with zipfile.ZipFile(path, "a") as archive:
        for info in archive.infolist():
            info.file_size = size
        archive._didModify = True  # type: ignore[attr-defined]
    assert path.read_bytes() != data
    with pytest.raises(DatasetError, match=r"needs 170,000\.00 GB"):
        load_transition_dataset("npz", dataset_path=path)


def many_rows(obs_dtype: Any) -> dict[str, np.ndarray]:
    """100,000 transitions: 3.2 MB for each kind of observation, if it is float32."""
    rows = 100_000
    return {
        "obs": np.zeros((rows, 8), obs_dtype),
        "actions": np.zeros(rows, np.int64),
        "rewards": np.zeros(rows, np.float32),
        "next_obs": np.zeros((rows, 8), obs_dtype),
        "terminated": np.zeros(rows, np.bool_),
        "truncated": np.zeros(rows, np.bool_),
    }


def test_the_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "max").write_text("5000000\n")
    (tmp_path / "current").write_text("2000000\n")
    monkeypatch.setattr(
        memory, "CGROUP_FILES", ((str(tmp_path / "max"), str(tmp_path / "current")),)
    )
    assert memory.available_memory() == 3_000_000
    (tmp_path / "max").write_text("max\n")
    assert memory.available_memory() != 3_000_000

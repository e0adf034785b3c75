"""A missing package is named by the extra of ours that installs it, wherever it is needed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import gymnasium as gym
import pytest

from rl_training.cli import main
from rl_training.data.dataset_loaders import load_transition_dataset
from rl_training.diagnostics.env_doctor import check_environment
from rl_training.envs.factory import make_env, make_vector_env
from rl_training.errors import DatasetError, EnvError, RLTrainingError
from rl_training.views.plotting import plot_learning_curve


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Let a package be missing: it, and what has imported it, are imported again and then not found."""
    removed = {}

    def without(package: str, *users: str) -> None:
        for name in list(sys.modules):
            if any(name == top or name.startswith(f"{top}.") for top in (package, *users)):
                monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)
        for env_id, spec in list(gym.registry.items()):
            if str(spec.entry_point).startswith(package):
                removed[env_id] = gym.registry.pop(env_id)

    yield without
    gym.registry.update(removed)


ROBOTS = ("FetchPush-v4", "HandReach-v3", "AdroitHandDoor-v1", "FrankaKitchen-v1")
MAZES = ("PointMaze_UMaze-v3", "AntMaze_Large-v5")
OLD_ATARI = ("PongNoFrameskip-v4", "Breakout-v4", "SpaceInvadersDeterministic-v4")
NEEDS = {
    "mujoco": ("mujoco", ("HalfCheetah-v5", "Hopper-v4", "InvertedPendulum-v5")),
    "Box2D": ("box2d", ("LunarLander-v3", "BipedalWalker-v3", "CarRacing-v3")),
    "ale_py": ("atari", ("ALE/Pong-v5", *OLD_ATARI)),
    "gymnasium_robotics": ("robotics", (*ROBOTS, *MAZES)),
}


@pytest.mark.parametrize("package", NEEDS)
def test_of_an_environment(without, package: str) -> None:
    extra, env_ids = NEEDS[package]
    without(package, f"gymnasium.envs.{extra}")
    for env_id in env_ids:
        with pytest.raises(EnvError) as caught:
            make_env(env_id)
        message = str(caught.value)
        assert f"'{env_id}' needs " in message
        assert message.endswith(f': pip install "rl-training[{extra}]"')
        assert "gymnasium[" not in message
    (finding,) = check_environment(env_ids[0]).findings
    assert finding.found.endswith(f': pip install "rl-training[{extra}]"')


@pytest.mark.parametrize("backend", ["sync", "async", "vector"])
def test_in_every_backend(without, backend: str) -> None:
    without("ale_py")
    with pytest.raises(EnvError, match=r'pip install "rl-training\[atari\]"'):
        make_vector_env("ALE/Pong-v5", {"backend": backend}, num_envs=2)


def test_on_the_command_line(without, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without("mujoco", "gymnasium.envs.mujoco")
    out = str(tmp_path / "data.npz")
    for words in (
        ["train", "ppo", "Hopper-v5", "output_dir=" + str(tmp_path / "runs")],
        ["data", "collect", "--env", "Hopper-v5", "--steps", "3", "--out", out],
    ):
        assert main(words) == 2
        err = capsys.readouterr().err
        assert (
            "error: environment 'Hopper-v5' needs MuJoCo: pip install \"rl-training[mujoco]\""
            in err
        )
    assert not list(tmp_path.iterdir())


def test_retired_and_foreign_environments_say_what_to_do() -> None:
    with pytest.raises(
        EnvError, match=r"needs the retired mujoco-py: use 'HalfCheetah-v5' \(pip install \"rl-t"
    ):
        make_env("HalfCheetah-v3")
    if find_spec("jax") is None:
        with pytest.raises(
            EnvError,
            match="'phys2d/CartPole-v1' needs jax, which is not installed: none of our extras",
        ):
            make_env("phys2d/CartPole-v1")
    with pytest.raises(EnvError, match="'GymV21Environment-v0' needs a package"):
        make_env("GymV21Environment-v0")


def test_of_envpool_minari_and_matplotlib(without, tmp_path: Path) -> None:
    without("envpool")
    with pytest.raises(EnvError, match=r'pip install "rl-training\[envpool\]"'):
        make_vector_env("CartPole-v1", {"backend": "envpool"})
    without("minari")
    with pytest.raises(DatasetError, match=r'pip install "rl-training\[offline\]"'):
        load_transition_dataset("minari", dataset_id="D4RL/door/human-v2")
    without("matplotlib")
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(RLTrainingError, match=r'pip install "rl-training\[plot\]"'):
        plot_learning_curve(tmp_path)


def test_a_users_file_that_imports_it(without, tmp_path: Path) -> None:
    without("mujoco")
    (tmp_path / "with_mujoco.py").write_text("import mujoco\n")
    with pytest.raises(EnvError, match=r'mujoco.* \(pip install "rl-training\[mujoco\]"\)'):
        make_env(f"{tmp_path / 'with_mujoco.py'}:Env")


def test_of_opencv(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ale_py")
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(
        EnvError, match=r'wrappers\.atari needs OpenCV: pip install "rl-training\[atari\]"'
    ):
        make_env("ALE/Pong-v5", {"wrappers": {"atari": {}}})

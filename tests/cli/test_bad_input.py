"""Mistakes on the command line: exit code 2, one clear message, no traceback, and nothing left behind.

What is wrong with a configuration, a damaged checkpoint or a dataset is said by its room and tested there; here is one
of each kind, and what the command line alone knows.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from checkpoint_tools import forge_manifest
from study_tools import start_fresh
from warm import finish

from rl_training.api.algorithms import PPO
from rl_training.cli import main

PAIR = ["ppo", "CartPole-v1"]
SMALL = [
    *("num_threads=1", "compile=false", "total_timesteps=32", "eval_episodes=1", "output_dir=out"),
    *("num_envs=2", "algo_kwargs.num_steps=8", "algo_kwargs.update_epochs=1"),
]
TRAIN = ["train", *PAIR, *SMALL]
OFF_POLICY = [
    "num_threads=1",
    "compile=false",
    "total_timesteps=32",
    "eval_episodes=1",
    "output_dir=out",
]
RESUME = ["resume", "--checkpoint", "run", "--total-timesteps", "64"]

ENVS = """
import gymnasium as gym


class Texts(gym.Env):
    observation_space = gym.spaces.Text(3, charset="a")
    action_space = gym.spaces.Discrete(2)
"""

Refuse = Callable[..., str]


@pytest.fixture
def refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Refuse:
    """Run the command line, check that it refuses as it should, and return its message."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "envs.py").write_text(ENVS)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")

    def refuse(*args: str | Path) -> str:
        before = tree(tmp_path)
        capsys.readouterr()
        code = main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        assert code == 2, err
        assert out == ""
        assert tree(tmp_path) == before
        return message_of(err)

    return refuse


def tree(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder."""
    return {
        str(path): path.read_bytes() if path.is_file() and os.access(path, os.R_OK) else None
        for path in folder.rglob("*")
    }


def message_of(err: str) -> str:
    """The one message, which may follow the note about the preset."""
    lines = [line for line in err.splitlines() if not line.startswith("using preset ")]
    assert "Traceback" not in err
    assert lines[0].startswith("error: ")
    assert err.count("error: ") == 1
    return "\n".join(lines)[len("error: ") :]


TOO_FEW = "missing arguments: give ALGO ENV_ID (train ppo CartPole-v1) or --config FILE"
PPP = "unknown algorithm 'ppp': did you mean 'ppo'?"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "ppp", "CartPole-v1"], PPP),
        (["train", "algo=ppp", "env_id=CartPole-v1"], PPP),
        (["algos", "ppp"], PPP),
        (
            ["train", "CartPole-v1", "ppo"],
            "'CartPole-v1' is no algorithm: name the algorithm first, `ppo CartPole-v1`",
        ),
        (
            ["doctor", "CartPole-v1"],
            "'CartPole-v1' is no option and sets nothing of an environment",
        ),
        ([*TRAIN, "algo_kwargs.Gamma=0.1"], "unknown key 'Gamma' for ppo: did you mean 'gamma'?"),
        (
            [*TRAIN, "batch_size=3"],
            "unknown key 'batch_size' for ppo: did you mean 'minibatch_size'?",
        ),
        (
            [*TRAIN, "--lr"],
            "unknown option --lr: write the setting as learning_rate=VALUE (see --help)",
        ),
        (
            [*TRAIN, "--learning-rate=3"],
            "unknown option --learning-rate: write the setting as learning_rate=VALUE",
        ),
        (
            [*TRAIN, "seed=100k"],
            "bad value '100k' for 'seed' of the configuration: should be a number: write 100000",
        ),
        (
            ["config", *PAIR, "env_kwargs.wrappers.reward.scal=3"],
            "unknown key 'wrappers.reward.scal' for env_kwargs",
        ),
        ([*TRAIN, "seed.deep=2"], "bad value {'deep': 2} for 'seed' of the configuration"),
        ([*TRAIN, "env_kwargs.backend=asinc"], "bad value 'asinc' for 'backend' of env_kwargs"),
        (
            [*TRAIN, "env_kwargs.max_episode_steps=0"],
            "bad value 0 for 'max_episode_steps' of env_kwargs",
        ),
        ([*TRAIN, "--device", "cuda:99"], "device 'cuda:99' cannot be used: "),
        ([*TRAIN, "--seed"], "Option '--seed' requires"),
        ([*TRAIN, "--sed", "3"], "No such option: --sed (Possible options: --seed"),
        (
            [*TRAIN, "--total-timesteps", "many"],
            "Invalid value for '--total-timesteps': 'many' is not a whole number: write an integer",
        ),
        (["trian", *PAIR], "No such command 'trian'. Did you mean 'train'?"),
        (["train"], TOO_FEW),
        (["config", "ppo", "seed=3"], TOO_FEW),
        (["train", *PAIR, "a", "b"], "too many arguments 'ppo CartPole-v1 a b'"),
        (
            ["train", "ppo", "cartpole-v1", *SMALL],
            "unknown environment 'cartpole-v1': did you mean 'CartPole-v1'?",
        ),
        (
            ["train", "ppo", "Qqqq-v0", *SMALL],
            "unknown environment 'Qqqq-v0' (use a Gymnasium id, module:ClassName",
        ),
        (
            ["train", "ppo", "nothing.py:Missing", *SMALL],
            "file 'nothing.py' does not exist (looked from ",
        ),
        (
            ["train", "ppo", "FrozenLake-v1", *SMALL, "env_kwargs.map_name=9x9"],
            "environment 'FrozenLake-v1' refuses its env_kwargs {'map_name': '9x9'}: ",
        ),
        (
            ["train", "ppo", "envs.py:Texts", *SMALL],
            "observation space Text(1, 3, charset=a) is not supported: use Box, Discrete",
        ),
        ([*TRAIN, "--plugin", "nothing.py"], "file 'nothing.py' does not exist (looked from "),
        (["train", *PAIR, "output_dir=file"], "cannot create run folder 'file/"),
        (["train", "--config", "folder"], "config file 'folder' cannot be read: "),
        (["plot", "nowhere"], "'nowhere' is no run, study or folder of runs here or in 'runs'"),
        (["plot", "."], "'.' is no run folder, and holds none"),
        (["eval", "--checkpoint", "nowhere"], "'nowhere' does not exist (looked from "),
        (
            ["resume", "--checkpoint", "envs.py"],
            "'envs.py' is neither a checkpoint nor a run folder with one",
        ),
    ],
    ids=lambda value: " ".join(value)[-40:] if isinstance(value, list) else "",
)
def test_a_mistake_is_one_message(refuse: Refuse, words: list[str], message: str) -> None:
    assert refuse(*words).startswith(message)


@pytest.mark.skipif(find_spec("gymnasium_robotics") is not None, reason="its ids are known")
def test_a_robot_without_its_package(refuse: Refuse) -> None:
    message = refuse("train", "her", "FetchPush-v4", *OFF_POLICY)
    assert message.endswith('needs gymnasium-robotics: pip install "rl-training[robotics]"')


class TestOutput:
    def test_existing_run_folder_is_left_alone(self, refuse: Refuse) -> None:
        assert main([*TRAIN, "--run-suffix", "a"]) == 0
        message = refuse(*TRAIN, "--run-suffix", "a")
        assert message.startswith(
            "run folder 'out/ppo__CartPole-v1__seed0__a' exists already: add --resume-or-start"
        )

    def test_picture_that_cannot_be_written(self, refuse: Refuse, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "metrics.jsonl").write_text(
            '{"global_step": 1, "train_return_mean": 1.0}\n'
        )
        (tmp_path / "folder.png").mkdir()
        (tmp_path / "mine.png").write_text("mine")
        assert "nowhere/x.png" in refuse("plot", "run", "--out", "nowhere/x.png")
        assert refuse("plot", "run", "--out", "x.abc").endswith(
            "its name should end in .png, .svg, .pdf or .csv"
        )
        assert "it is a folder" in refuse("plot", "run", "--out", "folder.png")
        assert "rl-training did not make it" in refuse("plot", "run", "--out", "mine.png")
        assert "use steps, time, updates" in refuse("plot", "run", "--x", "hours")
        assert "did you mean 'train_return_mean'?" in refuse(
            "plot", "run", "--metric", "train_retun_mean"
        )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    words = [word for word in TRAIN if not word.startswith("output_dir=")]
    assert main([*words, "--output-dir", str(folder), "--run-suffix", "a"]) == 0
    return folder / "ppo__CartPole-v1__seed0__a"


class TestCheckpoint:
    @pytest.fixture
    def run(self, trained: Path, tmp_path: Path) -> Path:
        """A copy of a finished run of 32 steps."""
        return Path(shutil.copytree(trained, tmp_path / "run"))

    @pytest.mark.parametrize(
        ("config", "part"),
        [
            (None, "manifest.json'"),
            ({"algo": "ppp", "env_id": "CartPole-v1"}, "unknown algorithm 'ppp'"),
        ],
    )
    @pytest.mark.parametrize(
        "words", [["eval", "--checkpoint", "run"], RESUME], ids=["eval", "resume"]
    )
    def test_damaged(
        self, refuse: Refuse, run: Path, words: list[str], config: Any, part: str
    ) -> None:
        checkpoint = run / "checkpoints" / "step_000000000032"
        forge_manifest(checkpoint, lambda manifest: manifest.update(config=config))
        assert part in refuse(*words)

    def test_that_cannot_be_used_so(self, refuse: Refuse, run: Path, tmp_path: Path) -> None:
        PPO.load(run).save(tmp_path / "policy")
        assert "holds a policy only" in refuse(
            *RESUME[:1], "--checkpoint", "policy", "--total-timesteps", "64"
        )
        assert "bad value -3 for 'total_timesteps'" in refuse(*RESUME[:-1], "-3")
        assert "bad value 0 for" in refuse("eval", "--checkpoint", "run", "--eval-episodes", "0")
        assert refuse(*RESUME, "--device", "gpu").startswith("device 'gpu' cannot be used: ")
        assert refuse("eval", "--checkpoint", "run", "--device", "gpu").startswith(
            "device 'gpu' cannot be used: "
        )
        assert "'envs.py" in refuse(*RESUME, "--output-dir", "envs.py")


def test_a_real_process_fails_the_same_way(tmp_path: Path) -> None:
    code, out, error = finish(start_fresh(["train", "ppo", "CartPoll-v1", *SMALL], tmp_path))
    assert (code, out) == (2, "")
    assert message_of(error) == "unknown environment 'CartPoll-v1': did you mean 'CartPole-v1'?"
    assert list(tmp_path.iterdir()) == []

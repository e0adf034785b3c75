"""Mistakes on the command line: exit code 2, one clear message, no traceback, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from checkpoint_tools import forge_manifest
from conftest import TRY_ALL

from rl_training.api.algorithms import PPO
from rl_training.cli import main
from rl_training.runtime.workflows import load_algorithm

PAIR = ["ppo", "CartPole-v1"]
SMALL = [
    *("num_threads=1", "compile=false", "total_timesteps=32", "eval_episodes=1", "output_dir=out"),
    *("num_envs=2", "algo_kwargs.num_steps=8", "algo_kwargs.update_epochs=1"),
]
OFF_POLICY = ["num_threads=1", "compile=false", "total_timesteps=32", "eval_episodes=1", "output_dir=out"]

ENVS = """
import gymnasium as gym
import numpy as np


class Unbounded(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def __init__(self, size=1):
        if size < 1:
            raise ValueError(f"size {size} is too small")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, True, {}


class Texts(Unbounded):
    observation_space = gym.spaces.Text(3)


class Several(Unbounded):
    action_space = gym.spaces.MultiDiscrete([2, 3])


class NotAnEnvironment:
    pass
"""

Refuse = Callable[..., str]


def small_with(word: str) -> list[str]:
    """`SMALL` with one more word, without the words whose keys it sets or has a part of."""
    key = word.partition("=")[0]
    return [*(known for known in SMALL if not known.partition("=")[0].startswith(key)), word]


@pytest.fixture
def refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refuse:
    """Run the command line, check that it refuses as it should, and return its message."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "envs.py").write_text(ENVS)

    def refuse(*args: str | Path, num_lines: int | None = 1) -> str:
        before = tree(tmp_path)
        capsys.readouterr()
        code = main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        assert code == 2, err
        assert out == ""
        assert tree(tmp_path) == before
        return message_of(err, num_lines)

    return refuse


def tree(folder: Path) -> dict[str, bytes | None]:
    """Everything below a folder."""
    return {
        str(path): path.read_bytes() if path.is_file() and os.access(path, os.R_OK) else None
        for path in folder.rglob("*")
    }


def message_of(err: str, num_lines: int | None) -> str:
    """The one message, which may follow the note about the preset."""
    lines = [line for line in err.splitlines() if not line.startswith("using preset ")]
    assert "Traceback" not in err
    assert lines[0].startswith("error: ")
    assert err.count("error: ") == 1
    assert num_lines is None or len(lines) == num_lines, err
    return "\n".join(lines)[len("error: ") :]


class TestAlgorithm:
    @pytest.mark.parametrize(
        "words", [["ppp", "CartPole-v1"], ["algo=ppp", "env_id=CartPole-v1"], ["ppp", "env_id=CartPole-v1"]]
    )
    def test_unknown(self, refuse: Refuse, words: list[str]) -> None:
        assert refuse("train", *words, *OFF_POLICY) == "unknown algorithm 'ppp': did you mean 'ppo'?"

    def test_unlike_any(self, refuse: Refuse) -> None:
        message = refuse("train", "zzzzzz", "CartPole-v1", *SMALL)
        assert message.startswith("unknown algorithm 'zzzzzz' (known: ")
        assert {"dqn", "ppo", "sac"} <= set(message.partition("known: ")[2].rstrip(")").split(", "))

    @pytest.mark.parametrize("command", [["algos", "ppp"], ["config", "ppp", "CartPole-v1"]])
    def test_other_commands(self, refuse: Refuse, command: list[str]) -> None:
        assert refuse(*command) == "unknown algorithm 'ppp': did you mean 'ppo'?"


class TestUnknownKey:
    @pytest.mark.parametrize(
        ("word", "message"),
        [
            ("totl_timesteps=3", "unknown key 'totl_timesteps' for the configuration: did you mean 'total_timesteps'?"),
            ("algo_kwargs.clip_coeff=0.1", "unknown key 'clip_coeff' for ppo: did you mean 'clip_coef'?"),
            (
                "env_kwargs.wrappers.reward.scal=2",
                "unknown key 'wrappers.reward.scal' for env_kwargs: did you mean 'scale'?",
            ),
            (
                "env_kwargs.wrappers.rewards.scale=2",
                "unknown key 'wrappers.rewards' for env_kwargs: did you mean 'reward'?",
            ),
            ("batch_size=3", "unknown key 'batch_size' for ppo: did you mean 'minibatch_size'?"),
            ("--lr", "unknown option --lr: write the setting as learning_rate=VALUE (see --help)"),
            (
                "--learning-rate=3",
                "unknown option --learning-rate: write the setting as learning_rate=VALUE (see --help)",
            ),
            ("seed=100k", "bad value '100k' for 'seed' of the configuration: should be a number: write 100000"),
        ],
    )
    def test_names_the_nearest(self, refuse: Refuse, word: str, message: str) -> None:
        assert refuse("train", *PAIR, *SMALL, word) == message

    def test_in_a_file(self, refuse: Refuse, tmp_path: Path) -> None:
        (tmp_path / "c.yaml").write_text("algo: ppo\nenv_id: CartPole-v1\nsede: 3\n")
        message = refuse("train", "--config", "c.yaml", *SMALL)
        assert message == "unknown key 'sede' for the configuration: did you mean 'seed'?"

    def test_metric_of_early_stopping(self, refuse: Refuse) -> None:
        message = refuse("train", *PAIR, *SMALL, "algo_kwargs.early_stopping.metric=eval_retrun_mean")
        assert "'eval_retrun_mean'" in message
        assert "did you mean 'eval_return_mean'?" in message


class TestBadValue:
    @pytest.mark.parametrize(
        ("word", "value", "key"),
        [
            ("seed=abc", "'abc'", "'seed'"),
            ("seed=", "None", "'seed'"),
            ("seed.deep=2", "{'deep': 2}", "'seed'"),
            ("algo_kwargs.num_steps=0", "0", "'num_steps'"),
            ("algo_kwargs.gamma=.nan", "nan", "'gamma'"),
            ("env_kwargs.backend=asinc", "'asinc'", "'backend'"),
            ("env_kwargs.max_episode_steps=0", "0", "'max_episode_steps'"),
            ("env_kwargs.max_episode_steps=-1", "-1", "'max_episode_steps'"),
            ("env_kwargs.wrappers.reward.scale=big", "'big'", "'wrappers.reward.scale'"),
        ],
    )
    def test_names_the_value_and_the_key(self, refuse: Refuse, word: str, value: str, key: str) -> None:
        assert refuse("train", *PAIR, *small_with(word)).startswith(f"bad value {value} for {key} of ")

    @pytest.mark.parametrize("flag", ["--total-timesteps", "--num-envs"])
    def test_of_a_flag(self, refuse: Refuse, flag: str) -> None:
        key = flag.removeprefix("--").replace("-", "_")
        words = [word for word in SMALL if not word.startswith(f"{key}=")]
        assert f"bad value 0 for '{key}'" in refuse("train", *PAIR, *words, flag, "0")
        assert f"bad value -2 for '{key}'" in refuse("train", *PAIR, *words, flag, "-2")
        message = refuse("train", *PAIR, *words, flag, "many")
        assert flag in message
        assert "integer" in message

    def test_clip_bounds_the_wrong_way_round(self, refuse: Refuse) -> None:
        message = refuse("train", *PAIR, *SMALL, "env_kwargs.wrappers.reward.clip=[1, 0]")
        assert "lower clip bound 1.0 is above the upper one 0.0" in message

    @pytest.mark.parametrize("device", ["gpu", "cuda:99"])
    def test_device(self, refuse: Refuse, device: str) -> None:
        message = refuse("train", *PAIR, *SMALL, "--device", device)
        assert message.startswith(f"device '{device}' cannot be used: ")
        assert message.endswith("; use auto or cpu")


class TestWords:
    @pytest.mark.parametrize("words", [[], ["ppo", "seed=3"]])
    @pytest.mark.parametrize("command", ["train", "config"])
    def test_too_few(self, refuse: Refuse, command: str, words: list[str]) -> None:
        message = refuse(command, *words)
        assert message == "missing arguments: give ALGO ENV_ID (train ppo CartPole-v1) or --config FILE"

    def test_none_at_all_shows_the_commands(self, refuse: Refuse, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([]) == 0
        shown = "".join(capsys.readouterr())
        assert "Traceback" not in shown
        assert all(command in shown for command in ("train", "eval", "resume", "config", "algos"))

    @pytest.mark.parametrize("extra", [["seed"], ["Pendulum-v1"], ["a", "b"]])
    def test_too_many(self, refuse: Refuse, extra: list[str]) -> None:
        message = refuse("train", *PAIR, *extra, *SMALL)
        assert message.startswith("too many arguments 'ppo CartPole-v1 ")
        assert all(word in message for word in extra)

    @pytest.mark.parametrize(
        ("word", "part"),
        [
            ("=3", "'=3' is not of the form key=value"),
            ("algo_kwargs.ent_coef.deep=2", "bad value {'deep': 2} for 'ent_coef' of ppo"),
            ("algo_kwargs.num_steps.deep=2", "sets a key within one that already has a value"),
        ],
    )
    def test_malformed(self, refuse: Refuse, word: str, part: str) -> None:
        assert part in refuse("train", *PAIR, *SMALL, word)

    def test_value_that_is_not_yaml(self, refuse: Refuse) -> None:
        message = refuse("train", *PAIR, *SMALL, "tags=[a", num_lines=None)
        assert message.startswith("the value of 'tags' is not valid YAML")

    def test_unknown_command(self, refuse: Refuse) -> None:
        message = refuse("trian", *PAIR)
        assert "'trian'" in message
        assert "Did you mean 'train'?" in message

    def test_unknown_option(self, refuse: Refuse) -> None:
        message = refuse("train", *PAIR, *SMALL, "--sed", "3")
        assert "--sed" in message
        assert "--seed" in message

    def test_option_without_value(self, refuse: Refuse) -> None:
        assert "'--seed'" in refuse("train", *PAIR, *SMALL, "--seed")

    @pytest.mark.parametrize("command", ["eval", "resume"])
    def test_no_checkpoint(self, refuse: Refuse, command: str) -> None:
        assert refuse(command).startswith("missing argument RUN (or --checkpoint)")


class TestEnvironment:
    @pytest.mark.parametrize("env_id", ["CartPoll-v1", "cartpole-v1", "CartPole-v9"])
    def test_unknown(self, refuse: Refuse, env_id: str) -> None:
        assert refuse("train", "ppo", env_id, *SMALL) == f"unknown environment '{env_id}': did you mean 'CartPole-v1'?"

    def test_unlike_any(self, refuse: Refuse) -> None:
        message = refuse("train", "ppo", "Qqqqqqqq-v0", *SMALL)
        assert message.startswith("unknown environment 'Qqqqqqqq-v0' (use a Gymnasium id, module:ClassName or ")

    @pytest.mark.skipif(find_spec("gymnasium_robotics") is not None, reason="its ids are known")
    def test_robot_without_its_package(self, refuse: Refuse) -> None:
        message = refuse("train", "her", "FetchPush-v4", *OFF_POLICY)
        assert message.endswith('needs gymnasium-robotics: pip install "rl-training[robotics]"')

    @pytest.mark.parametrize(
        ("env_id", "words"),
        [
            ("envs.py:Missing", ["'envs.py' has no environment class 'Missing'", "known: Several, Texts, Unbounded"]),
            ("envs.py:Unbouned", ["'Unbouned'", "did you mean 'Unbounded'?"]),
            ("envs.py:NotAnEnvironment", ["'envs.py' has no environment class 'NotAnEnvironment'"]),
            ("nothing.py:Missing", ["file 'nothing.py' does not exist (looked from "]),
            ("no_such_module:Missing", ["cannot import 'no_such_module'"]),
        ],
    )
    def test_class_that_is_not_there(self, refuse: Refuse, env_id: str, words: list[str]) -> None:
        message = refuse("train", "ppo", env_id, *SMALL)
        assert all(word in message for word in words)

    def test_module_without_environments_says_so(self, refuse: Refuse) -> None:
        message = refuse("train", "ppo", "json:JSONDecoder", *SMALL)
        assert "'json' has no environment class 'JSONDecoder'" in message
        assert "(known: )" not in message

    @pytest.mark.parametrize("env_id", ["CartPole-v1", "envs.py:Unbounded"])
    def test_refuses_an_argument(self, refuse: Refuse, env_id: str) -> None:
        message = refuse("train", "ppo", env_id, *SMALL, "env_kwargs.nonsense=1")
        assert message.startswith(f"environment '{env_id}' refuses its env_kwargs {{'nonsense': 1}}: ")

    @pytest.mark.parametrize(
        ("env_id", "word", "value"),
        [
            ("envs.py:Unbounded", "env_kwargs.size=0", "size 0 is too small"),
            ("FrozenLake-v1", "env_kwargs.map_name=9x9", "9x9"),
        ],
    )
    def test_refuses_a_value(self, refuse: Refuse, env_id: str, word: str, value: str) -> None:
        message = refuse("train", "ppo", env_id, *SMALL, word, num_lines=None)
        assert f"'{env_id}'" in message
        assert value in message.splitlines()[0]

    @pytest.mark.parametrize(
        ("algo", "env_id", "words"),
        [
            ("td3", "CartPole-v1", ["TD3 needs Box actions, not Discrete", "for these spaces: a2c, c51, dqn, ppo"]),
            ("sac", "envs.py:Unbounded", ["SAC needs Box actions with finite bounds", "for these spaces: a2c, ppo"]),
            ("ppo", "envs.py:Texts", ["observation space Text(", "is not supported: use Box, Discrete"]),
        ],
    )
    def test_spaces_that_do_not_fit(self, refuse: Refuse, algo: str, env_id: str, words: list[str]) -> None:
        message = refuse("train", algo, env_id, *OFF_POLICY)
        assert all(word in message for word in words)

    @pytest.mark.parametrize("place", ["nothing.py", "no_such_module"])
    def test_plugin_that_is_not_there(self, refuse: Refuse, place: str) -> None:
        assert f"'{place}'" in refuse("train", *PAIR, *SMALL, "--plugin", place)


class TestConfigFile:
    def test_with_bad_content(self, refuse: Refuse, tmp_path: Path) -> None:
        (tmp_path / "c.yaml").write_text("algo: ppo\n env_id: [\n")
        message = refuse("train", "--config", "c.yaml", *SMALL, num_lines=None)
        assert all(word in message for word in ("config file 'c.yaml'", "is not valid YAML", "line 2"))

    def test_missing(self, refuse: Refuse, tmp_path: Path) -> None:
        message = refuse("train", "--config", "none.yaml", *SMALL)
        assert message == f"config file 'none.yaml' does not exist (looked from {tmp_path})"

    def test_that_is_a_folder(self, refuse: Refuse, tmp_path: Path) -> None:
        (tmp_path / "folder").mkdir()
        assert refuse("train", "--config", "folder", *SMALL).startswith("config file 'folder' cannot be read: ")

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_unreadable(self, refuse: Refuse, tmp_path: Path) -> None:
        (tmp_path / "c.yaml").touch(0o000)
        assert refuse("train", "--config", "c.yaml", *SMALL).startswith("config file 'c.yaml' cannot be read: ")

    def test_without_an_environment(self, refuse: Refuse, tmp_path: Path) -> None:
        (tmp_path / "c.yaml").write_text("algo: ppo\n")
        assert refuse("train", "--config", "c.yaml", *SMALL) == "missing key 'env_id' for the configuration"


class TestOutput:
    def test_existing_run_folder_is_left_alone(self, refuse: Refuse) -> None:
        assert main(["train", *PAIR, *SMALL, "--run-suffix", "a"]) == 0
        message = refuse("train", *PAIR, *SMALL, "--run-suffix", "a")
        assert message.startswith("run folder 'out/ppo__CartPole-v1__seed0__a' exists already: add --resume-or-start")

    @pytest.mark.parametrize("place", ["file", "file/below"])
    def test_folder_that_is_a_file(self, refuse: Refuse, tmp_path: Path, place: str) -> None:
        (tmp_path / "file").write_text("mine")
        message = refuse("train", *PAIR, *small_with(f"output_dir={place}"))
        assert f"'{place}" in message
        assert "folder" in message

    def test_picture_that_cannot_be_written(self, refuse: Refuse, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        run = tmp_path / "run"
        run.mkdir()
        (run / "metrics.jsonl").write_text('{"global_step": 1, "train_return_mean": 1.0}\n')
        (tmp_path / "folder.png").mkdir()
        (tmp_path / "mine.png").write_text("mine")
        assert "nowhere/x.png" in refuse("plot", "run", "--out", "nowhere/x.png")
        assert refuse("plot", "run", "--out", "x.abc").endswith("its name should end in .png, .svg, .pdf or .csv")
        assert "it is a folder" in refuse("plot", "run", "--out", "folder.png")
        assert "rl-training did not make it" in refuse("plot", "run", "--out", "mine.png")
        assert (tmp_path / "mine.png").read_text() == "mine"
        assert "use steps, time, updates" in refuse("plot", "run", "--x", "hours")
        assert "did you mean 'train_return_mean'?" in refuse("plot", "run", "--metric", "train_retun_mean")

    def test_picture_of_what_is_no_run(self, refuse: Refuse) -> None:
        assert refuse("plot", "nowhere").startswith("'nowhere' is no run, study or folder of runs here or in 'runs'")
        assert refuse("plot", ".").startswith("'.' is no run folder, and holds none")


def edit_manifest(**changes: Any) -> Callable[[Path], None]:
    return lambda checkpoint: forge_manifest(checkpoint, lambda manifest: manifest.update(changes))


def edit_section(**changes: Any) -> Callable[[Path], None]:
    return lambda checkpoint: forge_manifest(checkpoint, lambda m: m["sections"]["algorithm"].update(changes))


def drop_section(checkpoint: Path) -> None:
    forge_manifest(checkpoint, lambda manifest: manifest["sections"].pop("algorithm"))


def flip_a_bit(checkpoint: Path) -> None:
    path = checkpoint / "algorithm.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated": (lambda c: os.truncate(c / "algorithm.safetensors", 100), "algorithm.safetensors' is damaged"),
    "flipped": (flip_a_bit, "algorithm.safetensors' is damaged"),
    "gone": (lambda c: (c / "algorithm.safetensors").unlink(), "algorithm.safetensors'"),
    "manifest cut": (lambda c: os.truncate(c / "manifest.json", 50), "manifest.json' is damaged"),
    "manifest empty": (lambda c: os.truncate(c / "manifest.json", 0), "manifest.json' is damaged"),
    "manifest list": (lambda c: (c / "manifest.json").write_text("[]"), "manifest.json'"),
    "newer schema": (edit_manifest(schema_version=99), "schema version 99"),
    "no sections": (edit_manifest(sections=None), "manifest.json'"),
    "no algorithm": (drop_section, "manifest.json'"),
    "no sizes": (edit_section(bytes=None), "the size and checksum of algorithm.safetensors"),
    "no tree": (edit_section(plain=None), "is damaged"),
    "no config": (edit_manifest(config=None), "manifest.json'"),
    "no metadata": (edit_manifest(metadata=None), "manifest.json'"),
    "other algorithm": (edit_manifest(config={"algo": "ppp", "env_id": "CartPole-v1"}), "unknown algorithm 'ppp'"),
    "pointer astray": (lambda c: (c.parent / "last").write_text("step_9"), "last' points at 'step_9'"),
    "pointer outside": (lambda c: (c.parent / "last").write_text("../../x"), "last' points at '../../x'"),
    "pointer binary": (lambda c: (c.parent / "last").write_bytes(b"\xff\xfe"), "last'"),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    words = [word for word in SMALL if not word.startswith("output_dir=")]
    assert main(["train", *PAIR, *words, "--output-dir", str(folder), "--run-suffix", "a"]) == 0
    return folder / "ppo__CartPole-v1__seed0__a"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of a finished run of 32 steps."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


class TestCheckpoint:
    @pytest.mark.parametrize("command", ["eval", "resume"])
    def test_missing(self, refuse: Refuse, tmp_path: Path, command: str) -> None:
        message = refuse(command, "--checkpoint", "nowhere")
        assert message == (
            f"'nowhere' does not exist (looked from {tmp_path}), and no run folder in 'runs' has a name that begins so:"
            " `rl-training runs` lists the runs"
        )

    @pytest.mark.parametrize("command", ["eval", "resume"])
    def test_that_is_something_else(self, refuse: Refuse, tmp_path: Path, command: str) -> None:
        (tmp_path / "folder").mkdir()
        for place in ("folder", "envs.py"):
            message = refuse(command, "--checkpoint", place)
            assert message == f"'{place}' is neither a checkpoint nor a run folder with one"

    @pytest.mark.parametrize("damage", DAMAGE)
    @pytest.mark.parametrize("words", [["eval"], ["resume", "--total-timesteps", "64"]], ids=["eval", "resume"])
    def test_damaged(self, refuse: Refuse, run: Path, words: list[str], damage: str) -> None:
        spoil, part = DAMAGE[damage]
        spoil(run / "checkpoints" / "step_000000000032")
        assert part in refuse(*words, "--checkpoint", "run")

    def test_that_holds_a_policy_only_cannot_go_on(self, refuse: Refuse, run: Path, tmp_path: Path) -> None:
        PPO.load(run).save(tmp_path / "policy")
        assert "holds a policy only" in refuse("resume", "--checkpoint", "policy", "--total-timesteps", "64")

    @pytest.mark.parametrize("steps", ["0", "-3"])
    def test_resumed_to_an_impossible_length(self, refuse: Refuse, run: Path, steps: str) -> None:
        message = refuse("resume", "--checkpoint", "run", "--total-timesteps", steps)
        assert f"bad value {steps} for 'total_timesteps'" in message

    def test_evaluated_on_no_episode(self, refuse: Refuse, run: Path) -> None:
        assert "bad value 0 for" in refuse("eval", "--checkpoint", "run", "--eval-episodes", "0")

    @pytest.mark.parametrize("words", [["eval"], ["resume", "--total-timesteps", "64"]], ids=["eval", "resume"])
    def test_on_a_bad_device(self, refuse: Refuse, run: Path, words: list[str]) -> None:
        assert refuse(*words, "--checkpoint", "run", "--device", "gpu").startswith("device 'gpu' cannot be used: ")

    def test_resumed_into_a_file(self, refuse: Refuse, run: Path) -> None:
        message = refuse("resume", "--checkpoint", "run", "--total-timesteps", "64", "--output-dir", "envs.py")
        assert "'envs.py" in message

    def test_undamaged_is_accepted(self, run: Path) -> None:
        """The checkpoint that the tests above damage is intact before."""
        config, _, _ = load_algorithm(run)
        assert config.algo == "ppo"


FAILING_PROCESSES = {
    "environment": (["train", "ppo", "CartPoll-v1", *SMALL], "did you mean 'CartPole-v1'?"),
    "key": (["train", *PAIR, *SMALL, "algo_kwargs.clip_coeff=1"], "did you mean 'clip_coef'?"),
    "checkpoint": (["eval", "--checkpoint", "nowhere"], "'nowhere' does not exist"),
}


@pytest.mark.parametrize("name", FAILING_PROCESSES if TRY_ALL else ["environment"])
def test_a_real_process_fails_the_same_way(tmp_path: Path, name: str) -> None:
    words, part = FAILING_PROCESSES[name]
    process = subprocess.run(
        [sys.executable, "-m", "rl_training", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 2
    assert process.stdout == ""
    assert part in message_of(process.stderr, 1)
    assert list(tmp_path.iterdir()) == []

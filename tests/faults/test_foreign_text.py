"""What a stranger's checkpoint or file says: its paths need the user's word, and its text is shown escaped."""

from __future__ import annotations

import json
import shlex
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import warm
from checkpoint_tools import forge_manifest
from conftest import small_config
from run_tools import StopAt

from rl_training.api.algorithms import PPO
from rl_training.cli import main
from rl_training.envs.needs import env_needs
from rl_training.errors import EnvError
from rl_training.experiment.checkpointing import resolve_checkpoint
from rl_training.plugins import gate
from rl_training.plugins.gate import allow_path
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import (
    evaluate_checkpoint,
    plan_resume,
    record_checkpoint,
    resume_training,
)
from rl_training.terminal.progress import LiveView
from rl_training.terminal.streams import printable, tell
from rl_training.views.findings import render_report


class FileEnv(gym.Env[Any, Any]):
    """Opens the file that it is told to."""

    def __init__(self, file: str, mode: str = "easy", interrupts: bool = False) -> None:
        self.observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        Path(file).read_text()
        self.interrupts = interrupts

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.interrupts:
            signal.raise_signal(signal.SIGINT)
        return np.zeros(1, np.float32), 0.0, False, bool(self.np_random.random() < 0.3), {}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stopped run whose environment reads a file, as another process would find it."""
    (tmp_path / "level one.txt").write_text("")
    kwargs = {"file": str(tmp_path / "level one.txt")}
    config = small_config("ppo", tmp_path / "runs", env_id=f"{__name__}:FileEnv", env_kwargs=kwargs)
    result = run_training(config, callbacks=[StopAt(48, "collect")])
    monkeypatch.setattr(gate, "_paths", set())
    return result.run_dir


def test_a_path_in_a_checkpoint_needs_the_users_word(run: Path, tmp_path: Path) -> None:
    flag = rf"env_kwargs\.file .*--allow-path '{tmp_path}/level one.txt'"
    for use in (
        evaluate_checkpoint,
        plan_resume,
        lambda path: record_checkpoint(path, 10),
        lambda path: PPO.load(path).evaluate(),
    ):
        with pytest.raises(EnvError, match=flag):
            use(run)
    PPO.load(run).predict(np.zeros(1))  # makes no environment
    allow_path(tmp_path / "level one.txt")
    evaluate_checkpoint(run, num_episodes=1)
    assert resume_training(run, total_timesteps=80).metrics["global_step"] == 80


def test_the_flag_that_the_error_prints_is_enough(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["eval", str(run)], ["resume", str(run), "--total-timesteps", "96"]):
        gate._paths.clear()
        assert main(words) == 2
        error = capsys.readouterr().err
        flags = shlex.split(error.partition("then pass ")[2].partition(" (in Python")[0])
        assert main([*words, *flags]) == 0
        capsys.readouterr()
    gate._paths.clear()
    out = str(tmp_path / "a.npz")
    assert main(["data", "collect", str(run), "--steps", "5", "--out", out, *flags]) == 0
    gate._paths.clear()
    assert main(["eval", str(run), "--allow-path", str(tmp_path)]) == 0  # the folder it lies in
    gate._paths.clear()
    assert main(["eval", str(run), "--allow-path", str(run)]) == 2  # another one


def test_a_path_that_was_changed_is_not_opened(run: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("")
    forge_manifest(
        resolve_checkpoint(run), lambda m: m["config"]["env_kwargs"].update(file=str(secret))
    )
    allow_path(tmp_path / "level one.txt")
    with pytest.raises(EnvError, match=r"secret"):
        evaluate_checkpoint(run)


def test_ones_own_run_is_evaluated_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "level.txt").write_text("")
    kwargs = {"file": str(tmp_path / "level.txt")}
    api = PPO(
        small_config("ppo", tmp_path / "runs", env_id=f"{__name__}:FileEnv", env_kwargs=kwargs)
    )
    api.learn()
    api.evaluate(1)


PATHS = ("/etc/passwd", "a/b", "..\\x", "~root", "C:secret", "ant.xml", "LEVEL.JSON", "there")
NESTED_PATHS = (b"/etc/passwd", ["x", {"y": ("/a",)}], {"/a": 1})


@pytest.mark.parametrize(
    ("values", "are_paths"),
    [((*PATHS, *NESTED_PATHS), True), (("hard", "v1.5", "a\0b", "", 3), False)],
)
def test_what_looks_like_a_path(
    values: tuple[Any, ...], are_paths: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").touch()
    (tmp_path / "sync").touch()
    for value in values:
        assert bool(env_needs(None, {"x": value, "backend": "sync"})) is are_paths, value


def test_the_command_that_an_interrupted_run_prints_has_the_flags(tmp_path: Path) -> None:
    (tmp_path / "level one.txt").write_text("")
    words = [
        "train",
        "ppo",
        "test_foreign_text:FileEnv",
        "env_kwargs.file=level one.txt",
        "env_kwargs.interrupts=true",
    ]
    words += ["total_timesteps=64", "num_threads=1", "compile=false"]
    process = warm.run(words, tmp_path)
    assert process.returncode == 130, process.stderr
    stderr = process.stderr.replace("\\\n", "")  # a long command continues after a backslash
    (command,) = [line for line in stderr.splitlines() if " resume " in line]
    assert shlex.split(command)[-2:] == ["--allow-path", "level one.txt"]


# Text

NASTY = "a\x1b[31mb\x9bc\u202ed\u2066e\rf\x07g\u200bh\ud800i\x7fj"
SHOWN = r"a\x1b[31mb\x9bc\u202ed\u2066e\rf\x07g\u200bh\ud800i\x7fj"


def test_control_characters_are_escaped() -> None:
    assert printable(NASTY) == SHOWN
    assert printable("one\n\ttwo é 漢 😀") == "one\n\ttwo é 漢 😀"


def test_no_way_to_the_terminal_lets_them_through(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(NASTY)
    LiveView().message(NASTY)
    bad = resolve_checkpoint(run)
    allow_path(tmp_path)
    forge_manifest(bad, lambda m: m["config"]["env_kwargs"].update(mode=NASTY, file=f"/{NASTY}"))
    assert main(["eval", str(run)]) == 2
    forge_manifest(bad, lambda m: m["config"].update(env_id=f"CartPole{NASTY}-v1"))
    assert main(["eval", str(run)]) == 2
    assert main(["resume", str(run)]) == 2
    forge_manifest(bad, lambda m: m["config"].update({NASTY: 1}))
    assert main(["eval", str(run)]) == 2
    assert main(["config", "ppo", "x", f"tags=['{NASTY.encode('unicode_escape').decode()}']"]) in (
        0,
        2,
    )
    np.savez(tmp_path / "data.npz", **{"\x1b[31mobs": np.zeros(2)})
    assert main(["data", "check", str(tmp_path / "data.npz")]) == 2
    shown = capsys.readouterr()
    assert r"\x1b[31m" in shown.err
    for text in (shown.out, shown.err):
        assert not set(text) & set("\x1b\x9b\u202e\u2066\r\x07\u200b\ud800\x7f")


def test_a_report_in_a_table_is_escaped_too() -> None:
    from rich.console import Console

    from rl_training.data.dataset_checks import check_dataset
    from rl_training.data.offline_dataset import TransitionDataset

    rows = np.zeros((4, 1), np.float32)
    data = TransitionDataset(rows, rows, rows[:, 0], rows, rows[:, 0], rows[:, 0], notes=(NASTY,))
    console = Console(width=200, no_color=True)
    with console.capture() as captured:
        console.print(render_report(check_dataset(data)))
    assert SHOWN in captured.get()


def test_json_stays_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "ppo", "CartPole-v1", 'env_kwargs.a="\\e\\x7f"', "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["env_kwargs.a"]["value"] == "\x1b\x7f"

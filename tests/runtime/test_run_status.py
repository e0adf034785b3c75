"""Status, message and exit code of a run when user code exits or the terminal closes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import pytest
from conftest import HELPERS, small_config

from rl_training.cli import main
from rl_training.errors import RLTrainingError
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import run_training

ENDS = f"{HELPERS / 'faulty_envs.py'}:Ends"
SHORT = ["total_timesteps=20", "eval_episodes=1", "seed=1"]


def status_of(folder: Path) -> str:
    (path,) = folder.glob("*/metadata.json")
    return json.loads(path.read_text())["status"]


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize("place", ["__init__", "reset", "step"])
def test_sys_exit_in_an_environment_is_an_error(
    place: str, backend: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = [f"env_kwargs.place={place}", f"env_kwargs.backend={backend}"]
    assert main(["train", "dqn", ENDS, "--output-dir", str(tmp_path), *settings, *SHORT]) == 2
    error = capfd.readouterr().err
    assert "SystemExit: 0" in error or "sys.exit(0)" in error
    assert not list(tmp_path.glob("*")) or status_of(tmp_path) == "failed"


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize("leaves", [True, False])
def test_an_environment_that_fails_to_close_ends_no_run(
    leaves: bool, backend: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kwargs = {"place": "close", "leaves": leaves, "backend": backend}
    config = small_config("dqn", tmp_path, env_id=ENDS, env_kwargs=kwargs, num_envs=2)
    result = run_training(config)
    error = capfd.readouterr().err
    assert (
        "environment 0 of 2 failed in close: it raised "
        + ("SystemExit" if leaves else "RuntimeError")
        in error
    )
    assert "an evaluation environment failed in close" in error
    assert status_of(tmp_path) == "finished"
    if backend == "sync":
        assert main(["eval", str(result.run_dir)]) == 0
        assert "closing failed" in capfd.readouterr().err


def test_sys_exit_in_a_plugin_is_an_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text("import sys\nsys.exit(0)\n")
    assert main(["doctor", "--plugin", str(plugin)]) == 2
    assert "error: " in capfd.readouterr().err


def test_sys_exit_in_a_callback_is_an_error(tmp_path: Path) -> None:
    class Leaving(Callback):
        def on_collect_end(self, trainer: Any, result: Any) -> None:
            sys.exit(0)

    with pytest.raises(RLTrainingError, match=r"sys\.exit\(0\)"):
        run_training(small_config("dqn", tmp_path), callbacks=[Leaving()])
    assert status_of(tmp_path) == "failed"


def closed_stream() -> TextIO:
    with Path(os.devnull).open("w", encoding="utf-8") as stream:
        return stream


def full_disk() -> TextIO:
    return Path("/dev/full").open("w", encoding="utf-8", buffering=1)


def vanished_terminal() -> TextIO:
    ours, theirs = os.openpty()
    stream = os.fdopen(theirs, "w", encoding="utf-8", buffering=1)
    os.close(ours)
    return stream


class VanishingTerminal:
    """A terminal that closes after the first lines of a run."""

    def __init__(self) -> None:
        self.ours, theirs = os.openpty()
        self.stream = os.fdopen(theirs, "w", encoding="utf-8", buffering=1)
        self.is_open = True

    def write(self, text: str) -> int:
        if self.is_open:
            self.is_open = False
            os.close(self.ours)
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such devices")
@pytest.mark.parametrize(
    "make",
    [lambda: None, closed_stream, full_disk, vanished_terminal, VanishingTerminal],
)
def test_no_standard_error_ends_a_run(
    make: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", make())
    code = main(
        [
            "train",
            "dqn",
            "CartPole-v1",
            "--output-dir",
            str(tmp_path),
            *SHORT,
            "algo_kwargs.hidden_sizes=[8]",
        ]
    )
    monkeypatch.undo()
    assert code == 0
    assert status_of(tmp_path) == "finished"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /dev/full")
def test_a_log_that_cannot_be_written_does_not_change_the_exit_code(tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "rl_training",
        "train",
        "dqn",
        "CartPole-v1",
        "--output-dir",
        "runs",
        *SHORT,
    ]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            words, cwd=tmp_path, stderr=full, stdout=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 0
    assert "run_dir=" in done.stdout
    assert status_of(tmp_path / "runs") == "finished"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /dev/full")
def test_a_result_that_cannot_be_written_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", full_disk())
    assert main(["config", "ppo", "CartPole-v1"]) == 2
    monkeypatch.undo()
    assert "cannot write the result to standard output: No space left" in capfd.readouterr().err

"""A disk that is full, read-only or fails: an error that names the path, and nothing of what was saved is lost."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import small_config
from run_tools import StopAt, assert_same_end

from rl_training import files
from rl_training.cli import main
from rl_training.errors import RLTrainingError
from rl_training.experiment import checkpointing
from rl_training.experiment.checkpoint_folder import list_checkpoints
from rl_training.experiment.checkpointing import resolve_checkpoint, verify_checkpoint
from rl_training.experiment.logs import JsonlSink, TensorboardSink, read_metrics
from rl_training.experiment.yaml_text import dump_yaml
from rl_training.plugins import user_code
from rl_training.runtime.run import run_training
from rl_training.runtime.run_utils import create_training_run, serialize_train_config
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training

DISK_BYTES = 4 << 20
RUN: dict[str, Any] = {
    "total_timesteps": 96,
    "log_interval": 16,
    "checkpoint_interval": 32,
    "eval_episodes": 1,
    "env_kwargs": {"max_episode_steps": 20},
    "algo_kwargs": {"eval_interval": 48},
}


def mount(folder: Path, options: str) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if not mount(folder, f"size={DISK_BYTES}"):
        pytest.skip("mounting a small disk is not permitted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


class FillAt(StopAt):
    """Fills the disk with one file when a step is reached, up to a number of bytes that are left free."""

    def __init__(self, disk: Path, step: int, event: str = "collect", leave_bytes: int = 0) -> None:
        super().__init__(step, event)
        self.ballast, self.leave_bytes = disk / "ballast", leave_bytes

    def _check(self, trainer: TrainerState, event: str) -> None:
        is_due = event == self.event and trainer.global_step >= self.step
        if is_due and not self.ballast.exists():
            fill(self.ballast, self.leave_bytes)


def fill(ballast: Path, leave_bytes: int = 0) -> None:
    """Write until nothing more fits, then give a little back."""
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    os.truncate(ballast, max(0, ballast.stat().st_size - leave_bytes))


def assert_nothing_lost(run_dir: Path) -> None:
    """The checkpoint is intact, and no temporary file is left."""
    verify_checkpoint(resolve_checkpoint(run_dir))
    for checkpoint in list_checkpoints(run_dir / "checkpoints"):
        verify_checkpoint(checkpoint)
    assert [*run_dir.glob(".*"), *run_dir.glob("checkpoints/.*")] == []
    steps = [line["global_step"] for line in read_metrics(run_dir / "metrics.jsonl")]
    assert steps == sorted(set(steps))
    assert (run_dir / "metrics.jsonl").read_bytes().endswith(b"}\n")


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
@pytest.mark.parametrize(
    ("leave_bytes", "event", "named"),
    [
        (0, "collect", r"(metrics|evaluations)\.jsonl"),
        (0, "eval", r"(metrics|evaluations)\.jsonl|tfevents"),
        (8192, "collect", "checkpoints/step_"),
    ],
)
def test_a_full_disk_ends_the_run_which_goes_on_once_there_is_room(
    algo: str, leave_bytes: int, event: str, named: str, disk: Path, tmp_path: Path
) -> None:
    whole = run_training(small_config(algo, tmp_path / "whole", **RUN))
    fill_at = FillAt(disk, 40, event, leave_bytes)
    # A line may still fit in the last page of its file, and then it is the checkpoint that does not.
    with pytest.raises(
        RLTrainingError, match=rf"cannot write .*({named}|checkpoints/).*: No space left on device"
    ):
        run_training(small_config(algo, disk, **RUN), callbacks=[fill_at])
    (run_dir,) = disk.glob("*__*")
    assert_nothing_lost(run_dir)
    with pytest.raises(RLTrainingError, match="No space left on device"):
        resume_training(run_dir)
    assert_nothing_lost(run_dir)
    fill_at.ballast.unlink()
    assert_same_end(whole, resume_training(run_dir))


def fill_before(
    monkeypatch: pytest.MonkeyPatch, disk: Path, is_meant: Callable[[Path], bool], count: int = 1
) -> Path:
    """Fill the disk just before the `count`-th write of a file that is meant."""
    calls = 0
    write = files.write_new

    def write_on_full_disk(path: Path, data: bytes) -> None:
        nonlocal calls
        calls += is_meant(path)
        if calls == count and is_meant(path):
            fill(disk / "ballast")
        write(path, data)

    monkeypatch.setattr(files, "write_new", write_on_full_disk)
    monkeypatch.setattr(checkpointing, "write_new", write_on_full_disk)
    return disk / "ballast"


@pytest.mark.parametrize(
    ("file", "count", "named"),
    [
        ("algorithm.safetensors", 2, r"checkpoints/step_\d+'"),
        ("trainer.safetensors", 3, r"checkpoints/step_\d+'"),
        ("manifest.json", 2, r"checkpoints/step_\d+'"),
        (".last.", 2, "checkpoints/last'"),
        (".best.", 1, "checkpoints/best'"),
        (".metadata.json.", 2, r"metadata\.json'"),
    ],
)
def test_a_disk_that_is_full_when_this_file_is_written(
    file: str, count: int, named: str, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_training(small_config("ppo", tmp_path / "whole", **RUN))
    with monkeypatch.context() as patch:
        ballast = fill_before(patch, disk, lambda path: path.name.startswith(file), count)
        with pytest.raises(
            RLTrainingError, match=f"cannot write .*{named}: No space left on device"
        ):
            run_training(small_config("ppo", disk, **RUN))
    (run_dir,) = disk.glob("*__*")
    assert_nothing_lost(run_dir)
    ballast.unlink()
    assert_same_end(whole, resume_training(run_dir))
    assert json.loads((run_dir / "metadata.json").read_text())["status"] == "finished"


@pytest.mark.parametrize("file", ["config.yaml", "metadata.json"])
def test_a_disk_that_is_full_from_the_start_is_left_as_it_was(
    file: str, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_before(monkeypatch, disk, lambda path: path.name.startswith(f".{file}."))
    with pytest.raises(RLTrainingError, match=rf"cannot write .*{file}': No space left on device"):
        run_training(small_config("ppo", disk, **RUN))
    assert [path.name for path in disk.iterdir()] == ["ballast"]


def test_a_line_of_the_log_that_does_not_fit_is_an_error_and_taken_back(disk: Path) -> None:
    run = create_training_run(small_config("ppo", disk, **RUN))
    before = (run.run_dir / "run.log").read_bytes()
    fill(disk / "ballast")
    with pytest.raises(RLTrainingError, match=r"cannot write .*run\.log': No space left on device"):
        run.logger.info("x" * 10_000)
    assert (run.run_dir / "run.log").read_bytes() == before


@pytest.mark.parametrize("kind", ["jsonl", "tensorboard"])
def test_a_line_that_does_not_fit_is_taken_back(kind: str, disk: Path) -> None:
    sink: Any = JsonlSink(disk / "metrics.jsonl")
    if kind == "tensorboard":
        sink = TensorboardSink(disk / "tensorboard")
    fill(disk / "ballast")
    file = sink.path
    line = {f"metric_{index}": float(index) for index in range(20)}
    sizes = [file.stat().st_size]
    for step in range(100):
        with contextlib.suppress(RLTrainingError):
            sink.write({"global_step": step, **line})
            sizes.append(file.stat().st_size)
    with pytest.raises(RLTrainingError, match=f"cannot write '{file}': No space left on device"):
        sink.write({"global_step": 100, **line})
    assert file.stat().st_size == sizes[-1]
    (disk / "ballast").unlink()
    sink.write({"global_step": len(sizes), **line})
    sink.close()
    if kind == "jsonl":
        assert len(list(read_metrics(file))) == len(sizes)


def test_what_failed_first_is_what_is_told(disk: Path) -> None:
    class Fail(FillAt):
        def on_collect_end(self, trainer: TrainerState, result: object) -> None:
            super().on_collect_end(trainer, result)
            if self.ballast.exists():
                raise ZeroDivisionError("the first error")

    with pytest.raises(ZeroDivisionError, match="the first error"):
        run_training(small_config("ppo", disk, **RUN), callbacks=[Fail(disk, 40)])
    (run_dir,) = disk.glob("*__*")
    assert_nothing_lost(run_dir)


def test_a_read_only_disk_is_named_and_can_still_be_read(
    disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run_training(small_config("ppo", tmp_path / "whole", **RUN))
    stopped = run_training(small_config("ppo", disk, **RUN), callbacks=[StopAt(40, "collect")])
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert main(["resume", "--checkpoint", str(stopped.run_dir)]) == 2
    assert (
        f"error: cannot write '{stopped.run_dir}/owner': Read-only file system"
        in capsys.readouterr().err
    )
    assert main(["train", "ppo", "CartPole-v1", "--output-dir", str(disk)]) == 2
    assert "Read-only file system" in capsys.readouterr().err
    assert evaluate_checkpoint(stopped.run_dir)["global_step"] == stopped.metrics["global_step"]
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    assert_same_end(whole, resume_training(stopped.run_dir))


@contextlib.contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """No file may grow beyond this size: the second way to a disk that refuses, without a disk of one's own."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("num_bytes", "named", "changes"),
    [
        (64, "owner", {}),
        (
            2500,
            r"(metrics|evaluations)\.jsonl|tfevents",
            {"checkpoint_interval": 1000, "total_timesteps": 1000},
        ),
        (2000, r"checkpoints/step_\d+", {}),
    ],
)
def test_files_that_may_not_grow_are_an_error_of_the_command_line(
    num_bytes: int,
    named: str,
    changes: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What this process was started with and has loaded stands in metadata.json, which must fit here.
    monkeypatch.setattr(sys, "argv", ["rl-training"])
    monkeypatch.setattr(user_code, "_loaded", {})
    config = small_config(
        "ppo", tmp_path / "runs", **{**RUN, **changes, "algo_kwargs": {"eval_interval": 1000}}
    )
    (tmp_path / "run.yaml").write_text(dump_yaml(serialize_train_config(config)))
    with largest_file(num_bytes):
        code = main(["train", "--config", str(tmp_path / "run.yaml")])
    assert code == 2
    assert re.search(
        rf"^error: cannot write .*({named}).*': File too large$",
        capsys.readouterr().err,
        re.MULTILINE,
    )
    assert not list((tmp_path / "runs").glob("*/checkpoints/.*"))


@pytest.mark.parametrize(
    "operation", ["fsync", "mkdir", "rename", "replace", "rmdir", "unlink", "open"]
)
def test_whichever_operation_fails_the_error_is_ours_and_the_run_goes_on_exactly(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_training(small_config("ppo", tmp_path / "whole", **RUN))
    original = getattr(os, operation)
    messages: list[str] = []
    for count in range(1, 200, 4):
        calls = 0

        def failing(*args: Any, at: int = count, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                raise OSError(errno.EIO, "Input/output error")
            return original(*args, **kwargs)

        folder = tmp_path / str(count)
        with monkeypatch.context() as patch:
            patch.setattr(os, operation, failing)
            try:
                run_training(small_config("ppo", folder, **RUN))
            except RLTrainingError as error:
                messages.append(str(error))
        if calls < count:
            break
        for pointer in folder.glob("*/checkpoints/last"):
            run_dir = pointer.parent.parent
            assert_same_end(whole, resume_training(run_dir))
            assert [*run_dir.glob(".*"), *run_dir.glob("checkpoints/.*")] == []
    assert messages
    assert all(str(tmp_path) in message and "Input/output error" in message for message in messages)

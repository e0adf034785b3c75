"""One owner of a run folder: who is refused, who is replaced, and that a replaced process writes nothing any more."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import warm
from conftest import small_config
from run_tools import StopAt, assert_same_checkpoint, contents

from rl_training.cli import main
from rl_training.errors import ReplacedError, RLTrainingError, RunExistsError, RunOwnedError
from rl_training.experiment.checkpoint_folder import CheckpointFolder
from rl_training.experiment.config import serialize_train_config
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.ownership import (
    Lease,
    Owner,
    acquire,
    heartbeat_age,
    is_alive,
    process_status,
    read_heartbeat,
    read_owner,
    refuse_owned,
    this_machine,
)
from rl_training.experiment.run_folder import is_interruption, run_name
from rl_training.experiment.yaml_text import dump_yaml
from rl_training.files import AppendedFile, replace_synced
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import resume_training

STALE = "RL_TRAINING_STALE_SECONDS"


@pytest.fixture
def lease(tmp_path: Path) -> Iterator[Lease]:
    lease = acquire(tmp_path)
    yield lease
    lease.release()


def pretend(run_dir: Path, attempt: int = 1, **values: object) -> Path:
    """The folder of a run that another process owns, with a heartbeat of now."""
    own = {
        "host": "elsewhere",
        "pid": 17,
        "machine": "elsewhere",
        "started": "1",
        "since": "then",
        **values,
    }
    workspace = run_dir / "owner" / str(attempt)
    workspace.mkdir(parents=True)
    (run_dir / "owner" / f"{attempt}.json").write_text(json.dumps(own))
    (workspace / "heartbeat").write_text("{}")
    return workspace


def make_stale(workspace: Path) -> None:
    for path in (workspace / "heartbeat", workspace.with_suffix(".json")):
        os.utime(path, (0, 0))


def at_once(count: int, refusals: Any, function: Callable[[], Any]) -> list[Any]:
    """What the calls in `count` threads return, without those that are refused."""
    with ThreadPoolExecutor(count) as pool:
        calls = [pool.submit(function) for _ in range(count)]
    return [call.result() for call in calls if not isinstance(call.exception(), refusals)]


class TestAcquire:
    def test_the_owner_is_this_process_and_its_heartbeat_tells_the_step(
        self, lease: Lease, tmp_path: Path
    ) -> None:
        owner = read_owner(tmp_path)
        assert owner is not None
        assert (owner.attempt, owner.host, owner.pid) == (1, socket.gethostname(), os.getpid())
        assert is_alive(tmp_path, owner)
        lease.read_progress = lambda: {"step": 5, "total": 10}
        lease.beat()
        assert read_heartbeat(tmp_path, owner) == {"step": 5, "total": 10}
        assert heartbeat_age(tmp_path, owner) < 5

    def test_a_second_one_is_refused_and_told_who_owns_it(
        self, lease: Lease, tmp_path: Path
    ) -> None:
        for refused in (acquire, refuse_owned):
            with pytest.raises(
                RunOwnedError,
                match=rf"process {os.getpid()} on {socket.gethostname()} since .*\(att",
            ):
                refused(tmp_path)

    def test_a_released_run_is_free_and_attempts_are_counted(self, tmp_path: Path) -> None:
        for attempt in (1, 2, 3):
            lease = acquire(tmp_path)
            assert lease.attempt == attempt
            lease.release()
            owner = read_owner(tmp_path)
            assert owner is not None
            assert owner.has_ended
            assert not is_alive(tmp_path, owner)
        assert [path.name for path in (tmp_path / "owner").iterdir()] == ["3.ended.json"]

    def test_of_many_at_once_one_wins(self, tmp_path: Path) -> None:
        workspace = pretend(tmp_path)
        make_stale(workspace)
        (lease,) = at_once(12, RunOwnedError, lambda: acquire(tmp_path))
        lease.release()

    def test_another_machines_owner_is_judged_by_its_heartbeat(self, tmp_path: Path) -> None:
        workspace = pretend(tmp_path)
        with pytest.raises(RunOwnedError, match="process 17 on elsewhere since then"):
            acquire(tmp_path)
        make_stale(workspace)
        lease = acquire(tmp_path)
        assert lease.attempt == 2
        assert not workspace.exists()
        lease.release()

    def test_a_dead_process_of_this_machine_is_replaced_at_once(self, tmp_path: Path) -> None:
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        _, started = process_status(process.pid)
        pretend(tmp_path, pid=process.pid, started=started, machine=this_machine())
        assert is_alive(tmp_path, read_owner(tmp_path))
        process.communicate(b"\n")
        assert not is_alive(tmp_path, read_owner(tmp_path))
        acquire(tmp_path).release()

    def test_a_copy_of_a_live_runs_folder_is_free_and_a_moved_folder_is_not(
        self, tmp_path: Path
    ) -> None:
        original = tmp_path / "original"
        original.mkdir()
        lease = acquire(original)
        copy = shutil.copytree(original, tmp_path / "copy")
        (tmp_path / "link").symlink_to(original)
        owners = {name: read_owner(tmp_path / name) for name in ("original", "copy", "link")}
        assert {name for name, owner in owners.items() if owner is not None and owner.is_gone} == {
            "copy"
        }
        own = acquire(copy)
        assert own.attempt == 2
        lease.check()
        own.release()
        original.rename(tmp_path / "moved")
        with pytest.raises(RunOwnedError):
            refuse_owned(tmp_path / "moved")
        with pytest.raises(
            ReplacedError, match="moved or removed while this process trained it"
        ) as caught:
            lease.check()
        assert "continues there" not in str(caught.value)
        lease.release()

    def test_a_process_id_that_is_used_again_is_another_process(self, tmp_path: Path) -> None:
        pretend(tmp_path, pid=os.getpid(), started="1", machine=this_machine())
        assert not is_alive(tmp_path, read_owner(tmp_path))

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x", "host": 5}', "[" * 10_000])
    def test_a_damaged_file_is_an_unknown_owner(self, text: str, tmp_path: Path) -> None:
        workspace = pretend(tmp_path)
        (tmp_path / "owner" / "1.json").write_text(text)
        assert read_owner(tmp_path) == Owner(1)
        assert is_alive(tmp_path, read_owner(tmp_path))
        make_stale(workspace)
        acquire(tmp_path).release()


class TestReplaced:
    """What a process can still do after another one has taken its run."""

    @pytest.fixture
    def replaced(self, tmp_path: Path) -> Iterator[Lease]:
        old = acquire(tmp_path)
        old._is_over.set()  # its heartbeat stops, as in a suspended process
        old._thread.join()
        make_stale(old.workspace)
        (tmp_path / "owner" / "1.json").write_text(json.dumps({"machine": "elsewhere"}))
        make_stale(old.workspace)
        new = acquire(tmp_path)
        yield old
        new.release()

    def test_it_notices(self, replaced: Lease, tmp_path: Path) -> None:
        with pytest.raises(
            ReplacedError,
            match=rf"attempt 1\) was replaced by process {os.getpid()} on .*attempt 2",
        ):
            replaced.check()
        reasons: list[str] = []
        replaced.on_request = reasons.append
        replaced.beat()
        assert reasons == ["another process"]
        assert is_interruption("interrupted by another process")

    def test_it_completes_no_write(self, replaced: Lease, tmp_path: Path) -> None:
        (tmp_path / "checkpoints").mkdir()
        (tmp_path / "checkpoints" / "step_000000000001").mkdir()
        before = contents(tmp_path)
        with pytest.raises(FileNotFoundError):
            replace_synced(tmp_path / "config.yaml", b"late", replaced.workspace)
        with pytest.raises(RLTrainingError):
            AppendedFile(tmp_path / "run.log", workspace=replaced.workspace)
        folder = CheckpointFolder(tmp_path / "checkpoints", workspace=replaced.workspace)
        with pytest.raises(RLTrainingError):
            folder.offer_best(tmp_path / "checkpoints" / "step_000000000001", 1.0)
        with pytest.raises(FileNotFoundError):
            folder._remove(tmp_path / "checkpoints" / "step_000000000001")
        assert contents(tmp_path) == before
        assert (tmp_path / "checkpoints" / "step_000000000001").is_dir()

    def test_its_release_changes_nothing(self, replaced: Lease, tmp_path: Path) -> None:
        replaced.release()
        owner = read_owner(tmp_path)
        assert owner is not None
        assert owner.attempt == 2
        assert is_alive(tmp_path, owner)


def test_what_a_file_held_open_is_appended_to_is_not_the_new_owners_file(tmp_path: Path) -> None:
    old = AppendedFile(tmp_path / "lines")
    old.append(b"one\n")
    new = AppendedFile(tmp_path / "lines", keep_bytes=4)
    old.append(b"late\n")
    new.append(b"two\n")
    assert (tmp_path / "lines").read_text() == "one\ntwo\n"


class TestRuns:
    def test_a_run_that_is_being_trained_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        result = run_training(small_config("ppo", tmp_path), callbacks=[StopAt(64, "collect")])
        lease = acquire(result.run_dir)
        before = contents(result.run_dir)
        with pytest.raises(RunOwnedError):
            resume_training(result.run_dir)
        assert main(["resume", str(result.run_dir)]) == 2
        assert f"belongs to process {os.getpid()} on" in capsys.readouterr().err
        assert contents(result.run_dir) == before
        lease.release()
        assert resume_training(result.run_dir).metrics["global_step"] == 128

    def test_resume_or_start_at_the_same_moment_trains_once(self, tmp_path: Path) -> None:
        config = small_config("ppo", tmp_path)
        manager = DefaultExperimentManager()
        assert at_once(
            3,
            (RunOwnedError, RunExistsError),
            lambda: manager.resume_or_start(config, run_suffix="x").train(),
        )
        (run_dir,) = tmp_path.iterdir()
        reference = run_training(
            config.replace(output_dir=tmp_path.parent / f"{tmp_path.name}-whole")
        )
        assert_same_checkpoint(run_dir, reference.run_dir)

    def test_a_stop_file_ends_a_run_which_resumes_exactly(self, tmp_path: Path) -> None:
        config = small_config("dqn", tmp_path / "stopped", total_timesteps=4096)

        class AskToStop(StopAt):
            def _check(self, trainer, event):  # type: ignore[no-untyped-def]
                if (
                    event == "collect"
                    and trainer.global_step >= self.step
                    and not trainer.should_stop
                ):
                    (trainer.run_dir / "stop").touch()
                    warm.wait_until(lambda: trainer.should_stop)

        stopped = run_training(config, callbacks=[AskToStop(100, "collect")])
        assert stopped.stop_reason == "interrupted by a stop file"
        assert stopped.metrics["global_step"] < 4096
        resumed = resume_training(stopped.run_dir)
        assert not (stopped.run_dir / "stop").exists()
        whole = run_training(config.replace(output_dir=tmp_path / "whole"))
        assert_same_checkpoint(resumed.checkpoint_path, whole.checkpoint_path)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_suspended_process_that_was_replaced_wakes_up_and_leaves_without_a_trace(
    tmp_path: Path,
) -> None:
    """Takes more than ten seconds: it waits until a heartbeat counts as stale."""
    config = small_config(
        "ppo", tmp_path / "runs", total_timesteps=8_000, checkpoint_interval=256, log_interval=64
    )
    (tmp_path / "config.yaml").write_text(dump_yaml(serialize_train_config(config)))
    train = ["train", "--config", "config.yaml", "--run-suffix", "x"]
    first = warm.start(train, tmp_path, **{STALE: "2"})
    run_dir = config.output_dir / run_name(config, "x")
    try:
        warm.wait_until(lambda: (run_dir / "checkpoints" / "last").exists())
        first.send_signal(signal.SIGSTOP)
        refused = warm.run(["resume", str(run_dir)], tmp_path, **{STALE: "2"})
        if (
            refused.returncode == 2
        ):  # within two seconds of its last heartbeat it still counts as alive
            assert (
                f"belongs to process {first.pid} on {socket.gethostname()} since" in refused.stderr
            )
            warm.wait_until(lambda: heartbeat_age(run_dir, read_owner(run_dir)) > 2.1)
        second = warm.run(["resume", str(run_dir)], tmp_path, **{STALE: "2"})
        assert second.returncode == 0, second.stderr
        before = contents(run_dir)
        first.send_signal(signal.SIGCONT)
        code, _, error = warm.finish(first)
        assert code == 2, error
        assert "was replaced by process" in error
        assert contents(run_dir) == before
    finally:
        first.kill()
        first.wait()
    whole = run_training(config.replace(output_dir=tmp_path / "whole"))
    assert_same_checkpoint(run_dir, whole.run_dir)

"""The owner of a run folder: one process at a time writes it, on one machine and across machines.

`owner/7.json` names the process of the run's seventh attempt; the highest number is the owner. Creating that file is
atomic, so of two processes that replace the same stale owner one wins. Everything an attempt writes is prepared in its
own folder, `owner/7/`, and renamed from there to its place. The next attempt removes that folder before it reads the
run. So a process that was suspended and wakes up after it was replaced cannot complete any write: its renames fail,
and the log files that it holds open are no longer those of the run, since each attempt opens copies of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rl_training.errors import ReplacedError, RLTrainingError, RunOwnedError
from rl_training.experiment.owner import (
    HEARTBEAT,
    OWNER_FOLDER,
    Owner,
    file_clock,
    is_alive,
    owner_file,
    owner_files,
    process_status,
    read_owner,
    stale_seconds,
    this_machine,
    workspace_of,
)
from rl_training.files import remove, translate_write_errors, write_new

STOP_FILE = "stop"
"""A file of this name in a run folder asks the run to save and stop."""
STOP_REQUEST, REPLACED = "a stop file", "another process"
"""What interrupts a run beside a signal."""
SECONDS_BETWEEN_HEARTBEATS = 2.0
WINDOW_SECONDS = 20.0
"""Steps per second are measured over the last this many seconds."""


class Lease:
    """The right of this process to write a run folder, until it is released or another process takes it."""

    def __init__(self, run_dir: Path, attempt: int) -> None:
        self.run_dir, self.attempt = run_dir, attempt
        self.workspace = workspace_of(run_dir, attempt)
        """Folder in which this attempt prepares its files."""
        self.is_lost = False
        self.is_released = False
        self.read_progress: Callable[[], Mapping[str, Any]] = dict
        """Step and total of the run, for the heartbeat."""
        self.on_request: Callable[[str], None] = lambda reason: None
        """Called from the heartbeat's thread with what interrupts the run: a stop file, or the process that took it."""
        self._marks: deque[tuple[float, int]] = deque()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat_until_over, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start the heartbeat."""
        self.beat()
        self._thread.start()

    def check(self) -> None:
        """Raise a `ReplacedError` if another process owns the run now."""
        newest = max(owner_files(self.run_dir / OWNER_FOLDER), default=self.attempt)
        if self.is_lost or newest > self.attempt or not self.workspace.is_dir():
            self.is_lost = True
            owner = read_owner(self.run_dir)
            if owner is None or owner.attempt <= self.attempt:
                raise ReplacedError(
                    f"the folder of run '{self.run_dir}' was moved or removed while this process trained it: this"
                    " process ends; if the folder was moved, resume it where it is now"
                )
            raise ReplacedError(
                f"this process (attempt {self.attempt}) was replaced by {owner}: run '{self.run_dir}' continues there,"
                " and this process leaves it unchanged"
            )

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Raise a failed write of the block as a `ReplacedError` if it failed because the lease is lost."""
        try:
            yield
        except (RLTrainingError, OSError):
            self.check()
            raise

    def beat(self) -> None:
        """Write the heartbeat, and look for a request to stop."""
        path = self.workspace / HEARTBEAT
        try:
            path.write_text(json.dumps(self._progress()), encoding="utf-8")
        except FileNotFoundError:
            self.is_lost = True
            self.on_request(REPLACED)
        except OSError:  # a full disk or a lost network: the write that matters will report it
            with contextlib.suppress(OSError):
                os.utime(path)
        if (self.run_dir / STOP_FILE).exists():
            self.on_request(STOP_REQUEST)

    def release(self) -> None:
        """End the heartbeat and record that the run has no owner; never fails."""
        self.is_released = True
        self._is_over.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        with contextlib.suppress(OSError):
            # A rename needs no space on a full disk, and fails if another process owns the run.
            path = owner_file(self.run_dir, self.attempt)
            path.rename(path.with_suffix(".ended.json"))
        with contextlib.suppress(OSError):
            remove(self.workspace)

    def _beat_until_over(self) -> None:
        interval = min(SECONDS_BETWEEN_HEARTBEATS, stale_seconds() / 4)
        while not self._is_over.wait(interval):
            self.beat()

    def _progress(self) -> dict[str, Any]:
        values = dict(self.read_progress())
        step, now = values.get("step"), time.monotonic()
        if isinstance(step, int):
            self._marks.append((now, step))
            while len(self._marks) > 2 and self._marks[1][0] < now - WINDOW_SECONDS:
                self._marks.popleft()
            (first, first_step), (last, last_step) = self._marks[0], self._marks[-1]
            if last > first:
                values["rate"] = (last_step - first_step) / (last - first)
        return values


def acquire(run_dir: Path) -> Lease:
    """Become the owner of a run folder; a `RunOwnedError` if a live process is.

    A stale owner is replaced: when this returns, it cannot complete another write.
    """
    folder = run_dir / OWNER_FOLDER
    with translate_write_errors(folder):
        folder.mkdir(exist_ok=True)
        while True:
            before = read_owner(run_dir)
            if before is not None and is_alive(run_dir, before, file_clock(folder)):
                raise RunOwnedError(run_dir, before)
            attempt = 1 if before is None else before.attempt + 1
            path = owner_file(run_dir, attempt)
            try:
                write_new(path, json.dumps(_this_process(run_dir, attempt)).encode())
            except FileExistsError:
                continue  # another process was faster: look at it
            except OSError:
                path.unlink(missing_ok=True)
                raise
            lease = Lease(run_dir, attempt)
            lease.workspace.mkdir()
            if max(owner_files(folder)) == attempt:
                break
            remove(lease.workspace)  # suspended between the two, and replaced
        _fence(run_dir, lease, before)
    lease.start()
    return lease


def _fence(run_dir: Path, lease: Lease, before: Owner | None) -> None:
    """Remove the folders of earlier attempts, and give the run copies of the files that they may still hold open."""
    for path in (run_dir / OWNER_FOLDER).iterdir():
        name = path.name.partition(".")[0]
        if name.isdigit() and int(name) < lease.attempt:
            # Renamed first: from a half-removed folder, a file could still be renamed to its place.
            remove(path.rename(lease.workspace / f"replaced-{path.name}"))
    if before is not None and not before.is_gone:
        for path in [run_dir / "run.log", *(run_dir / "tensorboard").glob("events*")]:
            if path.is_file() and not path.is_symlink():
                draft = lease.workspace / path.name
                shutil.copyfile(path, draft)
                draft.replace(path)
    (run_dir / STOP_FILE).unlink(missing_ok=True)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _this_process(run_dir: Path, attempt: int) -> dict[str, Any]:
    """What the file of an owner says of this process."""
    values = {"attempt": attempt, "host": socket.gethostname(), "pid": os.getpid(), "machine": this_machine()}
    _, started = process_status(os.getpid())
    return {**values, "started": started, "since": _now(), "folder": str(run_dir.absolute())}

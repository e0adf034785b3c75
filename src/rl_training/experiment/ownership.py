"""The owner of a run folder: one process at a time writes it, on one machine and across machines.

`owner/7.json` names the process of the run's seventh attempt; the highest number is the owner. Creating that file is
atomic, so of two processes that replace the same stale owner one wins. Everything an attempt writes is prepared in its
own folder, `owner/7/`, and renamed from there to its place. The next attempt removes that folder before it reads the
run. So a process that was suspended and wakes up after it was replaced cannot complete any write: its renames fail,
and each attempt opens its own copies of the log files, so writes to the old ones are lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import re
import shutil
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rl_training.errors import ReplacedError, RLTrainingError, RunOwnedError
from rl_training.files import read_object, remove, translate_write_errors, write_new

OWNER_FOLDER = "owner"
HEARTBEAT = "heartbeat"
STALE_VARIABLE = "RL_TRAINING_STALE_SECONDS"
SECONDS_BETWEEN_LOOKS = 0.2
MAX_BYTES = 1 << 16
OWNER_FILE = re.compile(r"([0-9]{1,9})(\.ended)?\.json")
ENDED_STATES = "ZX"
SUSPENDED_STATES = "Tt"


@dataclasses.dataclass(frozen=True)
class Owner:
    """The process that writes a run folder, or wrote it last."""

    attempt: int
    host: str = "an unknown host"
    pid: int = 0
    machine: str = ""
    """Host, boot and process namespace: within one, process ids can be compared."""
    started: str = ""
    """When the process started, in the kernel's clock: a process id can be used again."""
    since: str = "an unknown time"
    folder: str = ""
    """Absolute path of the run folder when the process took it."""
    has_ended: bool = False
    """Whether it has released the run."""
    is_of_original: bool = False
    """Whether the folder in which this was read is a copy: the process writes the original."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since} (attempt {self.attempt})"

    @property
    def is_gone(self) -> bool:
        """Whether it has released the run, writes another folder, or is a process of this machine that has ended."""
        return self.has_ended or self.is_of_original or self.state in ("", *ENDED_STATES)

    @property
    def state(self) -> str | None:
        """State of the process in the kernel's letters; empty: it does not exist; None: on another machine."""
        if not self.machine or self.machine != this_machine():
            return None
        state, started = process_status(self.pid)
        return state if started == self.started else ""


STORED = {
    "host": str,
    "pid": int,
    "machine": str,
    "started": str,
    "since": str,
    "folder": str,
}
"""What the file of an owner says of its process, and the types."""


def stale_seconds() -> float:
    """Seconds without a heartbeat after which an owner counts as dead: 60, or RL_TRAINING_STALE_SECONDS."""
    with contextlib.suppress(KeyError, ValueError):
        return max(0.5, float(os.environ[STALE_VARIABLE]))
    return 60.0


def read_owner(run_dir: Path) -> Owner | None:
    """The newest owner of a run folder; None if it never had one."""
    files = owner_files(run_dir / OWNER_FOLDER)
    if not files:
        return None
    attempt = max(files)
    known = read_object(files[attempt], MAX_BYTES)
    found: dict[str, Any] = {
        name: known[name] for name, kind in STORED.items() if isinstance(known.get(name), kind)
    }
    is_copy = _is_copy(run_dir, files[attempt], found)
    return Owner(
        attempt, **found, has_ended=".ended" in files[attempt].name, is_of_original=is_copy
    )


def _is_copy(run_dir: Path, file: Path, owner: Mapping[str, Any]) -> bool:
    """Whether a run folder was copied from one of this machine that still has the same owner; a moved one was not."""
    original = Path(owner.get("folder") or run_dir)
    if owner.get("machine") != this_machine() or original == run_dir:
        return False
    with contextlib.suppress(OSError, ValueError):
        is_other = not original.samefile(run_dir)
        return is_other and (original / OWNER_FOLDER / file.name).read_bytes() == file.read_bytes()
    return False


def file_clock(folder: Path) -> float:
    """The current time on the clock that dates files in `folder`, which may be another machine's.

    Where no file can be written, this machine's clock.
    """
    probe = folder / f".clock-{uuid.uuid4().hex}"
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:
        return time.time()
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def is_alive(run_dir: Path, owner: Owner | None, now: float | None = None) -> bool:
    """Whether the owner still writes the run.

    A process of this machine is alive while it exists, unless it is suspended and its heartbeat is stale. Of another
    machine's process only the heartbeat is known. `now` is the time on the clock that dates the files.
    """
    if owner is None or owner.is_gone:
        return False
    if owner.state is not None and owner.state not in SUSPENDED_STATES:
        return True
    return heartbeat_age(run_dir, owner, now) <= stale_seconds()


def heartbeat_age(run_dir: Path, owner: Owner, now: float | None = None) -> float:
    """Seconds since the owner's last heartbeat, or since it took the run if it has given none."""
    for path in (
        workspace_of(run_dir, owner.attempt) / HEARTBEAT,
        owner_file(run_dir, owner.attempt),
    ):
        with contextlib.suppress(OSError):
            return max(0.0, (time.time() if now is None else now) - path.stat().st_mtime)
    return float("inf")


def read_heartbeat(run_dir: Path, owner: Owner) -> dict[str, Any]:
    """Step, total and steps per second in the owner's last heartbeat; empty if there is none."""
    return read_object(workspace_of(run_dir, owner.attempt) / HEARTBEAT, MAX_BYTES)


def refuse_owned(run_dir: Path) -> None:
    """Raise a `RunOwnedError` if a live process owns the run."""
    owner = read_owner(run_dir)
    if (
        owner is not None
        and not owner.is_gone
        and is_alive(run_dir, owner, file_clock(run_dir / OWNER_FOLDER))
    ):
        raise RunOwnedError(run_dir, owner)


def wait_until_free(run_dir: Path, seconds: float, last_attempt: int) -> None:
    """Wait until the owner of attempt `last_attempt` is gone.

    A `RunOwnedError` if that takes longer than `seconds`, or at once if another process has taken the run since.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return refuse_owned(run_dir)
        except RunOwnedError:
            owner = read_owner(run_dir)
            if time.monotonic() > deadline or (owner is not None and owner.attempt > last_attempt):
                raise
            time.sleep(SECONDS_BETWEEN_LOOKS)


def owner_files(folder: Path) -> dict[int, Path]:
    """The files that name owners, by attempt."""
    with contextlib.suppress(OSError):
        return {
            int(match[1]): path
            for path in folder.iterdir()
            if (match := OWNER_FILE.fullmatch(path.name))
        }
    return {}


def owner_file(run_dir: Path, attempt: int) -> Path:
    """The file that names the owner of an attempt, while it has not ended."""
    return run_dir / OWNER_FOLDER / f"{attempt}.json"


def workspace_of(run_dir: Path, attempt: int) -> Path:
    """The folder in which an attempt prepares its files."""
    return run_dir / OWNER_FOLDER / str(attempt)


@functools.cache
def this_machine() -> str:
    """Identity of this machine's processes: host, boot and process namespace."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


def process_status(pid: int) -> tuple[str, str]:
    """State of a process of this machine in the kernel's letters (empty: there is none), and when it started."""
    if not Path("/proc/self/stat").exists():  # not Linux
        with contextlib.suppress(ProcessLookupError, OverflowError):
            with contextlib.suppress(PermissionError):
                os.kill(pid, 0)
            return "R", ""
        return "", ""
    with contextlib.suppress(OSError, IndexError):
        # The name, in parentheses, may contain spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[0], fields[19]
    return "", ""


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


def _this_process(run_dir: Path, attempt: int) -> dict[str, Any]:
    """What the file of an owner says of this process."""
    pid, folder = os.getpid(), str(run_dir.absolute())
    _, started = process_status(pid)
    since = datetime.now(timezone.utc).isoformat(timespec="seconds")
    values = (socket.gethostname(), pid, this_machine(), started, since, folder)
    return {"attempt": attempt, **dict(zip(STORED, values, strict=True))}

"""The owner of a run folder, as others see it: which process it is, and whether it is alive."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import re
import socket
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError, RunOwnedError
from rl_training.files import read_limited

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
    values: Any = None
    with contextlib.suppress(CheckpointError, ValueError, RecursionError):  # being written, or damaged
        values = json.loads(read_limited(files[attempt], MAX_BYTES))
    types = {"host": str, "pid": int, "machine": str, "started": str, "since": str, "folder": str}
    known = values if isinstance(values, dict) else {}
    found: dict[str, Any] = {name: known[name] for name, kind in types.items() if isinstance(known.get(name), kind)}
    is_copy = _is_copy(run_dir, files[attempt], found)
    return Owner(attempt, **found, has_ended=".ended" in files[attempt].name, is_of_original=is_copy)


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
    for path in (workspace_of(run_dir, owner.attempt) / HEARTBEAT, owner_file(run_dir, owner.attempt)):
        with contextlib.suppress(OSError):
            return max(0.0, (time.time() if now is None else now) - path.stat().st_mtime)
    return float("inf")


def read_heartbeat(run_dir: Path, owner: Owner) -> dict[str, Any]:
    """Step, total and steps per second in the owner's last heartbeat; empty if there is none."""
    with contextlib.suppress(CheckpointError, ValueError, RecursionError):
        values = json.loads(read_limited(workspace_of(run_dir, owner.attempt) / HEARTBEAT, MAX_BYTES))
        if isinstance(values, dict):
            return values
    return {}


def refuse_owned(run_dir: Path) -> None:
    """Raise a `RunOwnedError` if a live process owns the run."""
    owner = read_owner(run_dir)
    if owner is not None and not owner.is_gone and is_alive(run_dir, owner, file_clock(run_dir / OWNER_FOLDER)):
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
        return {int(match[1]): path for path in folder.iterdir() if (match := OWNER_FILE.fullmatch(path.name))}
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

"""Processes that begin with everything imported: real ones, without the seconds that importing torch takes.

The first `start` begins a server, which imports and trains nothing; each process is a fork of it. A test that needs
a fresh interpreter (environment variables that are read at import, a terminal, the time of a start) starts its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

PR_SET_PDEATHSIG = 1
LAUNCHING = "rl_training.studies.launching"
COMMAND_LINE = "rl_training.cli:run"
SCRIPT = "warm:run_script"
IMPORTED = (
    *(
        "rl_training.runtime.workflows",
        "rl_training.experiment.default_manager",
        "rl_training.cli.program",
    ),
    *(
        "tensorboard.summary.writer.record_writer",
        "gymnasium.envs.classic_control",
        "gymnasium.wrappers",
        "torch",
    ),
    *(
        "rl_training.algorithms.ppo",
        "rl_training.algorithms.dqn",
        "rl_training.algorithms.sac",
        "killed_run",
    ),
    *("rl_training.algorithms.iql", "rl_training.studies.launching.worker", "toy_envs"),
)
SIGNALS = {
    "SIGINT": signal.default_int_handler,
    "SIGTERM": signal.SIG_DFL,
    "SIGHUP": signal.SIG_DFL,
}
CAN_FORK = sys.platform.startswith("linux")
LONGEST_REQUEST = 1 << 17
PATIENCE_SECONDS = 240.0


def run_script() -> None:
    """Run the program that is the first argument as `python PROGRAM` does."""
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


class WarmProcess:
    """A process as `subprocess.Popen` describes one."""

    def __init__(self, request: dict[str, Any], fds: Sequence[int]) -> None:
        """Start it with these descriptors as standard input, output and error."""
        self.stdin: Any = None
        self.stdout: Any = None
        self.stderr: Any = None
        self.returncode: int | None = None
        self._report, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = {
            "environment": dict(os.environ),
            "new_session": False,
            "workers": False,
            **request,
        }
        socket.send_fds(_server(), [json.dumps(request).encode()], [*fds, remote.fileno()])
        remote.close()
        self.pid = int(self._report.recv(64))

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; returns the exit code, which is negative for a signal."""
        if self.returncode is None:
            self._report.settimeout(timeout)
            try:
                code = self._report.recv(64)
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired("a warm process", timeout or 0.0) from None
            self.returncode = int(code or -signal.SIGKILL)
            self._report.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end; returns what it wrote to the files of its output and of its errors."""
        self.wait(timeout)
        for file in (self.stdout, self.stderr):
            file.seek(0)
        return self.stdout.read(), self.stderr.read()

    def send_signal(self, number: int) -> None:
        """Send a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


def start(
    words: Sequence[str],
    folder: Path,
    target: str = COMMAND_LINE,
    start_new_session: bool = False,
    workers: bool = False,
    **environment: str,
) -> Any:
    """Start a process that calls a function (`module:name`) with `words` as arguments of the program.

    `workers`: the workers that it starts, of a study, are warm processes, too.
    """
    if not CAN_FORK:
        module, _, name = target.partition(":")
        return subprocess.Popen(
            [sys.executable, "-c", f"from {module} import {name}; {name}()", *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
            start_new_session=start_new_session,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    request = {"words": list(words), "folder": str(folder), "target": target, "workers": workers}
    request |= {"environment": {**os.environ, **environment}, "new_session": start_new_session}
    out, error = (tempfile.TemporaryFile("w+") for _ in range(2))  # noqa: SIM115
    with Path(os.devnull).open() as nothing:
        process = WarmProcess(request, [nothing.fileno(), out.fileno(), error.fileno()])
    process.stdout, process.stderr = out, error
    return process


def start_worker(output: int | None = None) -> Any:
    """Start a worker process of a study, as `launchers.start_worker` does."""
    words = {
        "words": [],
        "folder": str(Path.cwd()),
        "target": f"{LAUNCHING}.worker:main",
        "new_session": True,
    }
    order, stdin = os.pipe()
    answers, out = os.pipe() if output == subprocess.PIPE else (None, os.dup(2))
    process = WarmProcess(words, [order, out, 2])
    process.stdin = os.fdopen(stdin, "wb")
    process.stdout = None if answers is None else os.fdopen(answers, "rb")
    for fd in (order, out):
        os.close(fd)
    return process


def take_over_workers() -> None:
    """Let the studies of this process start their workers as warm processes."""
    if CAN_FORK:
        importlib.import_module(f"{LAUNCHING}.launchers").start_worker = start_worker  # type: ignore[attr-defined]


def run(words: Sequence[str], folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a process to its end."""
    process = start(words, folder, **options)
    out, error = process.communicate()
    return subprocess.CompletedProcess(list(words), process.returncode, out, error)


def finish(process: Any) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a process."""
    try:
        out, error = process.communicate(timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out, error


def wait_until(condition: Callable[[], Any], process: Any = None) -> Any:
    """Wait for a condition, while a process is alive; returns what the condition gave."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        if time.monotonic() > deadline or (process is not None and process.poll() is not None):
            pytest.fail("it ended, or took too long" + (f": {finish(process)}" if process else ""))
        time.sleep(0.02)
    return found


_servers: dict[int, tuple[socket.socket, subprocess.Popen[bytes] | None]] = {}


def close() -> None:
    """End the server and wait for it, so that the processor time of its processes is counted as this process's."""
    connection, process = _servers.pop(os.getpid(), (None, None))
    if connection is not None:
        connection.close()
    if process is not None:
        process.wait()


def _server() -> socket.socket:
    """The connection to the server of this process, which ends when this process does."""
    if os.getpid() not in _servers:
        ours, remote = _connection()
        words = [sys.executable, __file__, str(remote.fileno()), json.dumps(sys.path)]
        fds = [remote.fileno()]
        server = subprocess.Popen(
            words, pass_fds=fds, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        remote.close()
        _servers[os.getpid()] = ours, server
    return _servers[os.getpid()][0]


def _connection() -> tuple[socket.socket, socket.socket]:
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * LONGEST_REQUEST)
    return ends


def serve(control: socket.socket) -> Callable[[], object]:
    """Fork a process for each request; returns only in such a process, what it is to call."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    while True:
        data, fds, _, _ = socket.recv_fds(control, LONGEST_REQUEST, 4)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, 0 if not data else os.WNOHANG)[0]:
                pass
        if not data:
            os._exit(0)
        if os.fork() == 0:
            control.close()
            return _live(json.loads(data), *fds)
        for fd in fds:
            os.close(fd)


def _live(
    request: Mapping[str, Any], given: int, out: int, error: int, report: int
) -> Callable[[], object]:
    """Become the process of a request, as the child of one that reports its id and its end."""
    child = os.fork()
    if child:
        _end_with_parent()  # and the worker of a study notices that its parent has gone
        for fd in (given, out, error):
            os.close(fd)
        os.write(report, str(child).encode())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with contextlib.suppress(OSError):
            os.write(report, str(code).encode())
        os._exit(0)
    if request["new_session"]:
        os.setsid()
    for number, fd in enumerate((given, out, error)):
        os.dup2(fd, number)
    for fd in (given, out, error, report):
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    for name, handler in SIGNALS.items():
        signal.signal(getattr(signal, name), handler)
    tempfile.tempdir = None
    module, _, name = request["target"].partition(":")
    sys.path[0], sys.argv = request["folder"], [module, *request["words"]]
    if request["workers"]:
        ours, remote = _connection()
        if os.fork() == 0:
            ours.close()
            _end_with_parent()
            return serve(remote)
        remote.close()
        _servers[os.getpid()] = ours, None
        take_over_workers()
    function: Callable[[], object] = getattr(importlib.import_module(module), name)
    return function


def _end_with_parent() -> None:
    """Be killed when the parent of this process ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.path[1:] = json.loads(sys.argv[2])
    call = serve(socket.socket(fileno=int(sys.argv[1])))
    kept, sys.modules["__main__"] = sys.modules["__main__"], types.ModuleType("__main__")
    sys.exit(call())  # type: ignore[arg-type]

"""The pool of worker processes: a worker that raises, exits or hangs is reported and can be replaced."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import multiprocessing
import multiprocessing.connection
import os
import selectors
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from rl_training.envs.parallel.pools import Arguments, Fault, MakeMember, Member, Pool, faults_in
from rl_training.errors import EnvError

SECONDS_TO_START = 120.0
SECONDS_TO_CLOSE = 5.0
SECONDS_FOR_A_TRACE = 2.0
SECONDS_AT_ONCE = 0.25
"""Waiting time is counted in slices of at most this length, so a pause of the whole job adds only one slice."""
SECONDS_BETWEEN_SIGNS = 0.05
LONG_COMMANDS = ("restore",)
"""Commands that may replay a whole episode. Their last argument is a progress callback; each call restarts the
timeout."""
STOP_SIGNALS = {
    signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
}
ANSWER, SIGN_OF_LIFE, GONE = "answer", "sign of life", "gone"


class AsyncPool(Pool):
    """One worker process per member."""

    def __init__(self, make: MakeMember, size: int, timeout_seconds: float = 120.0) -> None:
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise EnvError(
                "a worker process is importing the script that started it, which starts workers again:"
                " put the call that trains under `if __name__ == '__main__':`"
            )
        self.size = size
        self._make = make
        self._timeout_seconds = timeout_seconds
        self._selector = selectors.DefaultSelector()
        self._workers: dict[int, _Worker] = {}
        self._lost: set[int] = set()
        """Workers that hung or exited, already reported."""

    @property
    def process_ids(self) -> list[int | None]:
        """Process ids of the workers."""
        return [worker.process_id for worker in self._workers.values()]

    def start(self) -> list[tuple[int, Fault]]:
        """Start the workers and make their members; returns the failures by index."""
        return faults_in(self._start(set(range(self.size))))

    def run(self, command: str, arguments: Arguments, seconds: float | None = None) -> list[Any]:
        """Run a command in the members concurrently."""
        asked = set()
        for index, values in enumerate(arguments):
            if values is not None:
                asked.add(index)
                with contextlib.suppress(
                    OSError
                ):  # a worker that exited is noticed when its answer is collected
                    self._workers[index].connection.send((command, values))
        return self._collect(asked, self._timeout_seconds if seconds is None else seconds)

    def replace(self, index: int) -> Fault | None:
        """Kill a worker and start another."""
        self._selector.unregister(self._workers[index].connection)
        self._workers.pop(index).end(at_once=True)
        fault: Fault | None = self._start({index})[index]
        return fault

    def close(self) -> list[tuple[int, Fault]]:
        """Ask the workers to close; kill those that do not."""
        arguments: Arguments = [
            () if index in self._workers.keys() - self._lost else None for index in range(self.size)
        ]
        answers = self.run("close", arguments, SECONDS_TO_CLOSE)
        for index, worker in self._workers.items():
            worker.end(at_once=index in self._lost)
        self._workers.clear()
        self._selector.close()
        return faults_in(answers)

    def _collect(self, awaited: set[int], timeout_seconds: float) -> list[Any]:
        """Wait for one answer of each awaited worker."""
        answers: list[Any] = [None] * self.size
        waited = dict.fromkeys(awaited, 0.0)
        while waited:
            start = time.monotonic()
            ready = self._selector.select(min(SECONDS_AT_ONCE, timeout_seconds))
            elapsed = min(time.monotonic() - start, SECONDS_AT_ONCE)
            for key, _ in ready:
                if key.data not in waited:
                    continue  # a worker that exited after its answer
                kind, value = self._workers[key.data].receive()
                if kind == SIGN_OF_LIFE:
                    waited[key.data] = 0.0
                    continue
                del waited[key.data]
                answers[key.data] = value
                if kind == GONE:
                    self._lost.add(key.data)
            for index in list(waited):
                waited[index] += elapsed
                if waited[index] >= timeout_seconds:
                    del waited[index]
                    self._lost.add(index)
                    what = f"it hung: no answer in {timeout_seconds:g} seconds"
                    if timeout_seconds == self._timeout_seconds:
                        what += " (env_kwargs.worker_timeout)"
                    answers[index] = Fault(what, self._workers[index].trace_of_hang())
        return answers

    def _start(self, indices: set[int]) -> list[Any]:
        for index in indices:
            self._lost.discard(index)
            self._workers[index] = _Worker(self._make)
            self._selector.register(self._workers[index].connection, selectors.EVENT_READ, index)
        return self._collect(indices, SECONDS_TO_START)


class _Worker:
    """Handle of one worker in the main process."""

    def __init__(self, make: MakeMember) -> None:
        # Forking a process with threads is unsafe, so workers fork from a server process on Linux.
        context: Any = multiprocessing.get_context(
            "forkserver" if sys.platform == "linux" else "spawn"
        )
        if sys.platform == "linux":
            context.set_forkserver_preload(["__main__", __name__, *sorted(_modules_of(make))])
        handle, path = tempfile.mkstemp(prefix="rl_training_worker_", suffix=".txt")
        os.close(handle)
        self._trace = Path(path)
        self.connection, theirs = context.Pipe()
        # A worker starts in the current directory, so that relative paths resolve as in this process.
        arguments = (theirs, make, path, str(Path.cwd()))
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        with _stop_signals_blocked():
            self._process.start()
        theirs.close()

    @property
    def process_id(self) -> int | None:
        """Process id."""
        pid: int | None = self._process.pid
        return pid

    def receive(self) -> tuple[str, Any]:
        """Receive one message; if the process has exited, a `Fault`."""
        try:
            message: tuple[str, Any] = self.connection.recv()
            return message
        except (EOFError, OSError):
            self._process.join(SECONDS_FOR_A_TRACE)
            what = f"its process exited with code {self._process.exitcode}"
            return GONE, Fault(what, self._read_trace())

    def trace_of_hang(self) -> str:
        """Traceback of a hung process."""
        if (
            self._process.pid is None
            or not self._process.is_alive()
            or not hasattr(signal, "SIGUSR1")
        ):
            return self._read_trace()
        os.kill(self._process.pid, signal.SIGUSR1)
        deadline = time.monotonic() + SECONDS_FOR_A_TRACE
        while not (trace := self._read_trace()) and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.1)  # until the rest of it is written
        return self._read_trace() or trace

    def end(self, *, at_once: bool = False) -> None:
        """Wait until the process exits, then kill it; `at_once` does not wait."""
        self._process.join(0.0 if at_once else SECONDS_TO_CLOSE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()
        self.connection.close()
        self._trace.unlink(missing_ok=True)

    def _read_trace(self) -> str:
        with contextlib.suppress(OSError):
            return self._trace.read_text(encoding="utf-8", errors="replace")
        return ""


@contextlib.contextmanager
def _stop_signals_blocked() -> Iterator[None]:
    """Block Ctrl-C, which reaches every process of a terminal, until a new worker ignores it itself.

    Processes started within the block, including the fork server, inherit the blocked signals.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # if started within the block, it would unblock the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(
    connection: multiprocessing.connection.Connection[Any, Any],
    make: MakeMember,
    trace_path: str,
    folder: str,
) -> None:
    """Main function of a worker: run commands until `close`."""
    os.chdir(folder)
    # The main process handles stop signals: it finishes its step, saves, and closes the workers.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(trace_path,), daemon=True).start()
    with Path(trace_path).open("w", encoding="utf-8") as trace:
        faulthandler.enable(trace)
        if hasattr(faulthandler, "register"):
            faulthandler.register(signal.SIGUSR1, trace)
        member = _carry_out(connection, make)
        while member is not None:
            try:
                command, values = connection.recv()
            except EOFError:  # the main process has exited, and cannot remove the file
                Path(trace_path).unlink(missing_ok=True)
                return
            if command in LONG_COMMANDS:
                values = (*values, _SignOfLife(connection))
            _carry_out(connection, functools.partial(getattr(member, command), *values), member)
            if command == "close":
                return


class _SignOfLife:
    """Progress callback of a long command; sends at most one message per `SECONDS_BETWEEN_SIGNS`."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._next_time = 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if now >= self._next_time:
            self._next_time = now + SECONDS_BETWEEN_SIGNS
            self._connection.send((SIGN_OF_LIFE, None))


def _carry_out(connection: Any, call: Callable[[], Any], member: Member | None = None) -> Any:
    """Send the result of a call or its `Fault`; without `member` the call makes the member, and None is sent."""
    try:
        result = call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # The error itself may not be picklable.
        connection.send((ANSWER, replace(Fault.from_error(error, member), cause=None)))
        return None
    try:
        connection.send((ANSWER, None if member is None else result))
    except Exception as error:  # it cannot be pickled
        what = f"its result cannot be sent from its process: {error}"
        connection.send((ANSWER, Fault(what, traceback.format_exc())))
    return result


def _end_with_parent(trace_path: str) -> None:
    """Exit when the main process has exited, even within a step that hangs."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        Path(trace_path).unlink(missing_ok=True)
        os._exit(1)


def _modules_of(make: object) -> set[str]:
    """The modules of this package that define what a function, or a `partial` of functions, calls."""
    if isinstance(make, functools.partial):
        return {name for part in (make.func, *make.args) for name in _modules_of(part)}
    name = str(getattr(make, "__module__", ""))
    return {name} if name.partition(".")[0] == "rl_training" else set()

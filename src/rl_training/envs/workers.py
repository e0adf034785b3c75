"""Environments in processes of their own: a fault in one is seen, named, and outlived."""

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
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from rl_training.envs.pools import Arguments, Fault, MakeMember, Member, Pool
from rl_training.errors import EnvError

SECONDS_TO_START = 120.0
SECONDS_TO_CLOSE = 5.0
SECONDS_FOR_A_TRACE = 2.0
SECONDS_AT_ONCE = 0.25
"""Waiting is counted in pieces of this length, so that a pause of the whole job counts as no more than one piece."""
SECONDS_BETWEEN_SIGNS = 0.05
LONG_COMMANDS = ("restore",)
"""Commands that may replay a whole episode. Their last argument is a function to call now and then: the time limit
holds from one call to the next."""
STOP_SIGNALS = {signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)}
PRELOADED = ["__main__", "rl_training.envs.workers", "rl_training.envs.factory"]
ANSWER, FAULT, SIGN_OF_LIFE, GONE = "answer", "fault", "sign of life", "gone"


class AsyncPool(Pool):
    """Each member in a process of its own."""

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
        """Workers that hung or whose process ended; this has been told."""

    @property
    def process_ids(self) -> list[int | None]:
        """The processes of the members."""
        return [worker.process_id for worker in self._workers.values()]

    def start(self) -> list[tuple[int, Fault]]:
        """Start the processes and make the members; returns those that failed."""
        return [(index, fault) for index, fault in enumerate(self._start(set(range(self.size)))) if fault is not None]

    def run(self, command: str, arguments: Arguments, seconds: float | None = None) -> list[Any]:
        """Let the members carry out a command at the same time."""
        asked = set()
        for index, values in enumerate(arguments):
            if values is not None:
                asked.add(index)
                with contextlib.suppress(OSError):  # a worker that has ended is noticed when its answer is awaited
                    self._workers[index].connection.send((command, values))
        return self._collect(asked, self._timeout_seconds if seconds is None else seconds)

    def replace(self, index: int) -> Fault | None:
        """End a process at once, and start another."""
        self._selector.unregister(self._workers[index].connection)
        self._workers.pop(index).end(at_once=True)
        fault: Fault | None = self._start({index})[index]
        return fault

    def close(self) -> list[tuple[int, Fault]]:
        """End the processes: ask them, then make them."""
        arguments: Arguments = [
            () if index in self._workers.keys() - self._lost else None for index in range(self.size)
        ]
        answers = self.run("close", arguments, SECONDS_TO_CLOSE)
        for index, worker in self._workers.items():
            worker.end(at_once=index in self._lost)
        self._workers.clear()
        self._selector.close()
        return [(index, answer) for index, answer in enumerate(answers) if isinstance(answer, Fault)]

    def _collect(self, awaited: set[int], timeout_seconds: float) -> list[Any]:
        """One answer of each awaited worker."""
        answers: list[Any] = [None] * self.size
        waited = dict.fromkeys(awaited, 0.0)
        while waited:
            start = time.monotonic()
            ready = self._selector.select(min(SECONDS_AT_ONCE, timeout_seconds))
            elapsed = min(time.monotonic() - start, SECONDS_AT_ONCE)
            for key, _ in ready:
                if key.data not in waited:
                    continue  # a process that ended after its answer
                kind, value = self._workers[key.data].receive()
                if kind == SIGN_OF_LIFE:
                    waited[key.data] = 0.0
                else:
                    del waited[key.data]
                    answers[key.data] = value
                    if kind == GONE:
                        self._lost.add(key.data)
            for index in list(waited):
                waited[index] += elapsed
                if waited[index] >= timeout_seconds:
                    del waited[index]
                    self._lost.add(index)
                    setting = " (env_kwargs.worker_timeout)" if timeout_seconds == self._timeout_seconds else ""
                    what = f"it hung: no answer in {timeout_seconds:g} seconds{setting}"
                    answers[index] = Fault(what, self._workers[index].trace_of_hang())
        return answers

    def _start(self, indices: set[int]) -> list[Any]:
        for index in indices:
            self._lost.discard(index)
            self._workers[index] = _Worker(self._make)
            self._selector.register(self._workers[index].connection, selectors.EVENT_READ, index)
        return self._collect(indices, SECONDS_TO_START)


class _Worker:
    """The main process's end of one worker."""

    def __init__(self, make: MakeMember) -> None:
        # Workers come from a clean server process where there is one: forking a process with threads is unsafe.
        context: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
        if sys.platform == "linux":
            context.set_forkserver_preload(PRELOADED)
        handle, path = tempfile.mkstemp(prefix="rl_training_worker_", suffix=".txt")
        os.close(handle)
        self._trace = Path(path)
        self.connection, theirs = context.Pipe()
        # Not where this process was started: a relative path must mean the same in the worker as it does here.
        arguments = (theirs, make, path, str(Path.cwd()))
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        with _stop_signals_blocked():
            self._process.start()
        theirs.close()

    @property
    def process_id(self) -> int | None:
        """The process."""
        pid: int | None = self._process.pid
        return pid

    def receive(self) -> tuple[str, Any]:
        """The message that has arrived, or the fault that ended the process."""
        try:
            kind, value = self.connection.recv()
        except (EOFError, OSError):
            self._process.join(SECONDS_FOR_A_TRACE)
            return GONE, Fault(f"its process exited with code {self._process.exitcode}", self._read_trace())
        return kind, Fault(**value) if kind == FAULT else value

    def trace_of_hang(self) -> str:
        """Where the process is stuck."""
        if self._process.pid is None or not self._process.is_alive() or not hasattr(signal, "SIGUSR1"):
            return self._read_trace()
        os.kill(self._process.pid, signal.SIGUSR1)
        deadline = time.monotonic() + SECONDS_FOR_A_TRACE
        while not (trace := self._read_trace()) and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.1)  # until the rest of it is written
        return self._read_trace() or trace

    def end(self, *, at_once: bool = False) -> None:
        """See the process gone."""
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
    """Keep Ctrl-C, which goes to every process of a terminal, from a process that cannot ignore it yet.

    What is blocked here stays blocked in the processes that are started meanwhile, the server of workers included.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # else it is started within the block, and unblocks the signals at its end
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(
    connection: multiprocessing.connection.Connection[Any, Any], make: MakeMember, trace_path: str, folder: str
) -> None:
    """The life of a worker: carry out what it is told until it is told to close."""
    os.chdir(folder)
    # The main process decides when to end: it finishes its step, saves, and closes the workers.
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
            except EOFError:  # the main process is gone, and cannot remove the file any more
                Path(trace_path).unlink(missing_ok=True)
                return
            if command in LONG_COMMANDS:
                values = (*values, _SignOfLife(connection))
            _carry_out(connection, functools.partial(getattr(member, command), *values), member)
            if command == "close":
                return


class _SignOfLife:
    """Tells the main process that a long command goes on, not too often."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._next_time = 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if now >= self._next_time:
            self._next_time = now + SECONDS_BETWEEN_SIGNS
            self._connection.send((SIGN_OF_LIFE, None))


def _carry_out(connection: Any, call: Callable[[], Any], member: Member | None = None) -> Any:
    """Send what a call returns, or how it failed; of the call that makes the `member`, only that it is done."""
    try:
        result = call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        fault = Fault.from_error(error, member)
        connection.send((FAULT, {"what": fault.what, "trace": fault.trace, "call": fault.call}))
        return None
    try:
        connection.send((ANSWER, None if member is None else result))
    except Exception as error:  # it cannot be pickled
        what = f"it returned something that cannot be sent from its process: {error}"
        connection.send((FAULT, {"what": what, "trace": traceback.format_exc()}))
    return result


def _end_with_parent(trace_path: str) -> None:
    """Leave when the main process is gone, even from within a step that never ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        Path(trace_path).unlink(missing_ok=True)
        os._exit(1)

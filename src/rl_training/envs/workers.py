"""Training environments in processes of their own: a fault in one is seen, named, and outlived."""

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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rl_training.envs.resumable import ResumableEnv
from rl_training.envs.vector import Fault, MakeEnv, MemberVectorEnv, describe_error
from rl_training.errors import EnvError

SECONDS_TO_START = 120.0
SECONDS_FOR_A_TRACE = 2.0


class WorkerVectorEnv(MemberVectorEnv):
    """Each environment in a process of its own."""

    def __init__(self, make: MakeEnv, num_envs: int, max_restarts: int = 0, timeout_seconds: float = 120.0) -> None:
        example = make()  # here, so that a bad id or argument is reported from here
        super().__init__(example, num_envs, max_restarts)
        example.close()
        if getattr(multiprocessing.current_process(), "_inheriting", False):
            raise EnvError(
                "a worker process is importing the script that started it, which starts workers again:"
                " put the call that trains under `if __name__ == '__main__':`"
            )
        self._make = make
        self._timeout_seconds = timeout_seconds
        self._selector = selectors.DefaultSelector()
        self._workers: dict[int, _Worker] = {}
        try:
            self._start(set(range(num_envs)), "starting")
        except BaseException:
            self.close()
            raise

    def close_extras(self, **kwargs: Any) -> None:
        """End the processes: ask them, then make them."""
        for worker in self._workers.values():
            with contextlib.suppress(OSError):
                worker.connection.send(("close", ()))
        for worker in self._workers.values():
            worker.end()
        self._selector.close()

    def _run(self, command: str, arguments: Sequence[tuple[Any, ...] | None]) -> list[Any]:
        asked = set()
        for index, values in enumerate(arguments):
            if values is not None:
                asked.add(index)
                with contextlib.suppress(OSError):  # a worker that has ended is noticed when its answer is awaited
                    self._workers[index].connection.send((command, values))
        # Bringing an environment back may replay a whole episode.
        return self._collect(asked, self._timeout_seconds if command != "restore" else None)

    def _collect(self, awaited: set[int], timeout_seconds: float | None) -> list[Any]:
        """One answer of each awaited worker."""
        answers: list[Any] = [None] * self.num_envs
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while awaited:
            left = None if deadline is None else deadline - time.monotonic()
            ready = [] if left is not None and left <= 0 else self._selector.select(left)
            for key, _ in ready:
                if key.data not in awaited:
                    continue  # a process that ended after its answer
                answers[key.data] = self._workers[key.data].answer()
                awaited.discard(key.data)
            if not ready:
                for index in awaited:
                    what = f"it hung: no answer in {timeout_seconds:g} seconds (env_kwargs.worker_timeout)"
                    answers[index] = Fault(what, self._workers[index].trace_of_hang())
                break
        return answers

    def _replace(self, index: int) -> None:
        self._selector.unregister(self._workers[index].connection)
        self._workers.pop(index).end(at_once=True)
        self._start({index}, "starting anew")

    def _start(self, indices: set[int], what: str) -> None:
        for index in indices:
            self._workers[index] = _Worker(self._make)
            self._selector.register(self._workers[index].connection, selectors.EVENT_READ, index)
        for index, answer in enumerate(self._collect(indices, SECONDS_TO_START)):
            if isinstance(answer, Fault):
                raise self._error(index, answer, what)


class _Worker:
    """The main process's end of one worker."""

    def __init__(self, make: MakeEnv) -> None:
        # Workers come from a clean server process where there is one: forking a process with threads is unsafe.
        context: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
        handle, path = tempfile.mkstemp(prefix="rl_training_worker_", suffix=".txt")
        os.close(handle)
        self._trace = Path(path)
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, path), daemon=True)
        self._process.start()
        theirs.close()

    def answer(self) -> Any:
        """The answer that has arrived, or the fault that ended the process."""
        try:
            is_fault, value = self.connection.recv()
        except (EOFError, OSError):
            self._process.join(SECONDS_FOR_A_TRACE)
            return Fault(f"its process exited with code {self._process.exitcode}", self._read_trace())
        return Fault(*value) if is_fault else value

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
        self._process.join(0.0 if at_once else 5.0)
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


def _serve(connection: multiprocessing.connection.Connection[Any, Any], make: MakeEnv, trace_path: str) -> None:
    """The life of a worker: carry out what it is told until it is told to close."""
    # The main process decides when to end: it finishes its step, saves, and closes the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(trace_path,), daemon=True).start()
    with Path(trace_path).open("w", encoding="utf-8") as trace:
        faulthandler.enable(trace)
        if hasattr(faulthandler, "register"):
            faulthandler.register(signal.SIGUSR1, trace)
        env = _carry_out(connection, lambda: ResumableEnv(make()), send_result=False)
        while env is not None:
            try:
                command, values = connection.recv()
            except EOFError:  # the main process is gone, and cannot remove the file any more
                Path(trace_path).unlink(missing_ok=True)
                return
            if command == "close":
                env.close()
                return
            _carry_out(connection, functools.partial(getattr(env, command), *values))


def _carry_out(connection: Any, call: Callable[[], Any], *, send_result: bool = True) -> Any:
    """Send what a call returns, or how it failed."""
    try:
        result = call()
    except (Exception, SystemExit) as error:
        connection.send((True, (describe_error(error), traceback.format_exc())))
        return None
    connection.send((False, result if send_result else None))
    return result


def _end_with_parent(trace_path: str) -> None:
    """Leave when the main process is gone, even from within a step that never ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        Path(trace_path).unlink(missing_ok=True)
        os._exit(1)

"""How the threads of one computation wait for each other: spinning on a quiet machine, asleep on a busy one.

OpenMP's threads wait for each other after every operation. Spinning is fastest while every thread has a processor;
beside other busy processes a spinning thread takes the processor from the thread it waits for. GNU's OpenMP, which
torch brings on Linux, spins for 3 ms, or hardly at all while it manages more threads than there are processors. So this
module starts idle threads while the machine is busy, and ends them when it is quiet again: no result depends on it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch

STATISTICS = Path("/proc/stat")
SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_OF_FIRST_LOOK = 0.2
CROWDED = 0.2
"""Processors that other processes may use of those that this one needs before its threads wait asleep."""
MAX_IDLE_THREADS = 8
"""Where more would be needed, on machines of many processors, threads go on spinning."""
PARALLEL_SIZE = 2**17
"""Elements of a tensor whose operations run on several threads."""
CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
"""Environment variables by which a user chooses how OpenMP waits."""


@contextlib.contextmanager
def adaptive_waiting(num_threads: int) -> Iterator[None]:
    """Let the threads of this process wait as the load of the machine asks for, inside the block."""
    is_chosen = any(name in os.environ for name in CHOICES)
    if num_threads == 1 or is_chosen or busy_seconds() is None:
        yield
        return
    watch = LoadWatch(num_threads)
    try:
        yield
    finally:
        watch.close()


class LoadWatch:
    """A thread that looks once a second at how busy other processes keep the machine."""

    def __init__(self, num_threads: int) -> None:
        self._num_processors = os.cpu_count() or 1
        self._num_threads = num_threads
        self._is_over = threading.Event()
        self._idle: IdleThreads | None = None
        self._thread = threading.Thread(target=self._watch, name="load-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the watch and the idle threads."""
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        seconds, before = SECONDS_OF_FIRST_LOOK, _looks()
        while not self._is_over.wait(seconds):
            seconds, now = SECONDS_BETWEEN_LOOKS, _looks()
            elapsed, busy, own = (new - old for new, old in zip(now, before, strict=True))
            before = now
            self._adapt(is_crowded(busy - own, elapsed, self._num_threads, self._num_processors))
        self._adapt(False)

    def _adapt(self, crowded: bool) -> None:
        count = self._num_processors - self._num_threads + 1
        if crowded and self._idle is None and 0 < count <= MAX_IDLE_THREADS:
            self._idle = IdleThreads(count)
        elif not crowded and self._idle is not None:
            self._idle.close()
            self._idle = None


class IdleThreads:
    """Threads that OpenMP manages and that do nothing: with them it manages more threads than there are processors."""

    def __init__(self, count: int) -> None:
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._hold, name="idle-team", daemon=True) for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the threads."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _hold(self) -> None:
        torch.ones(PARALLEL_SIZE).sqrt_()  # makes OpenMP start a thread beside this one
        self._is_over.wait()


def is_crowded(
    others_seconds: float, elapsed: float, num_threads: int, num_processors: int
) -> bool:
    """Whether other processes use processors that `num_threads` threads of this one need."""
    return others_seconds / elapsed > num_processors - num_threads + CROWDED


def busy_seconds() -> float | None:
    """Processor time of all processes since the start of the machine, a host's `steal` included; None if unknown."""
    try:
        _, *fields = STATISTICS.read_text().partition("\n")[0].split()
        user, nice, system, _, _, irq, soft_irq, steal = map(int, fields[:8])
    except (OSError, ValueError):
        return None
    return (user + nice + system + irq + soft_irq + steal) / os.sysconf("SC_CLK_TCK")


def _looks() -> tuple[float, float, float]:
    """Wall time, processor time of all processes, and of this one."""
    return time.monotonic(), busy_seconds() or 0.0, time.process_time()

"""How a run computes: its threads, whether it compiles, and what becomes of the memory it frees."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from rl_training.algorithms.config import AlgorithmConfig
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.config import MAX_THREADS, TrainConfig
from rl_training.models.encoders import IMAGE_FEATURES

WORK_FOR_TWO_THREADS = 8_000_000
"""Multiplications in the widest layer of one update above which threads beat their own overhead."""
STEPS_FOR_COMPILING = 20_000
"""Gradient steps above which a compiled update wins back the seconds that compiling takes."""
OMP_PAUSE_HARD = 2
"""Of `omp_pause_resource_all` (OpenMP 5.0): give up the threads."""
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
LARGEST_KEPT_BYTES = 32 * 1024 * 1024
"""The most the C library accepts; larger pieces still go back to the system at once."""


@dataclasses.dataclass(frozen=True)
class Execution:
    """How a run computes. Results depend on it to the last bit, so it stays with the run."""

    num_threads: int
    compile: bool

    @classmethod
    def choose(cls, config: TrainConfig, algo_config: AlgorithmConfig) -> Execution:
        """Fill in what the configuration leaves to `auto`."""
        if config.num_threads == "auto":
            widest = max(algo_config.hidden_sizes, default=IMAGE_FEATURES)
            is_large = algo_config.samples_per_update() * widest**2 >= WORK_FOR_TWO_THREADS
            num_threads = min(os.cpu_count() or 1, 4) if is_large else 1
        else:
            num_threads = int(config.num_threads)
        compile_updates = config.compile
        if compile_updates == "auto":
            steps = algo_config.gradient_steps_in(config.total_timesteps, config.num_envs)
            compile_updates = steps is not None and steps >= STEPS_FOR_COMPILING and has_compiler()
        elif compile_updates and not has_compiler():
            raise ConfigError("compile: true needs a C++ compiler (g++ or clang++) on the path; use auto or false")
        return cls(num_threads, compile_updates)

    @classmethod
    def from_metadata(cls, values: Any) -> Execution:
        """As a checkpoint has it."""
        match values:
            case {"num_threads": int(threads), "compile": bool(compiled)} if 1 <= threads <= MAX_THREADS:
                return cls(threads, compiled)
        raise CheckpointError(f"the checkpoint's execution is not a number of threads and a choice: {values!r:.100}")

    def describe(self) -> str:
        """The choices in words."""
        threads = "1 thread" if self.num_threads == 1 else f"{self.num_threads} threads"
        return f"{threads}, {'compiled' if self.compile else 'not compiled'}"

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Use this number of threads inside the block, and flush denormals to zero in each of them.

        Adam's moments of inactive units decay into denormals, on which a processor is slow.
        """
        threads_before, flushes_before = torch.get_num_threads(), flushes_denormals()
        keep_freed_memory()
        torch.set_num_threads(self.num_threads)
        flush_denormals(True)
        try:
            yield
        finally:
            torch.set_num_threads(threads_before)
            flush_denormals(flushes_before)


def flushes_denormals() -> bool:
    """Whether this thread counts numbers below 1e-38 as 0."""
    return bool(torch.full((1,), 1e-30).mul_(1e-10) == 0.0)


def flush_denormals(wanted: bool) -> None:
    """Choose it for this thread and for the helper threads that compute with it.

    The choice is the processor's, thread by thread, and a new thread inherits it. So the OpenMP threads that earlier
    computations started are ended, and the next computation starts others.
    """
    torch.set_flush_denormal(wanted)
    end_openmp_threads()


def end_openmp_threads() -> bool:
    """End the idle OpenMP threads of this thread; returns whether the OpenMP library could be asked to.

    torch loads its libraries for all (RTLD_GLOBAL), so that the symbol is found in the process itself.
    """
    pause = getattr(ctypes.CDLL(None), "omp_pause_resource_all", None) if os.name == "posix" else None
    return pause is not None and pause(OMP_PAUSE_HARD) == 0


@contextlib.contextmanager
def watch_compilation(tell: Callable[[bool], None]) -> Iterator[None]:
    """Call `tell` with True whenever torch begins to compile inside the block, and with False when it is done."""
    from torch._dynamo.callback import callback_handler

    def start(_: Any) -> None:
        tell(True)

    def end(_: Any) -> None:
        tell(False)

    callback_handler.register_start_callback(start)
    callback_handler.register_end_callback(end)
    try:
        yield
    finally:
        callback_handler.remove_start_callback(start)
        callback_handler.remove_end_callback(end)


def has_compiler() -> bool:
    """Whether torch can compile for the CPU here."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def keep_freed_memory() -> bool:
    """Let this process keep what its tensors free; returns whether the C library can be told so.

    By default glibc hands memory back after every update and takes it again in the next, a page fault for each 4 kB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    return bool(mallopt(TRIM_THRESHOLD, 2**31 - 1) and mallopt(MMAP_THRESHOLD, LARGEST_KEPT_BYTES))

"""How and where a run computes: threads, compilation, memory allocator, and the machine its exact bits depend on."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from rl_training.algorithms.config import AlgorithmConfig
from rl_training.envs.wrapping.wrapper_list import listed_wrappers
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpointing import CheckpointState
from rl_training.experiment.config import MAX_THREADS, TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models.encoders import IMAGE_FEATURES
from rl_training.models.products import LIBRARIES, Library, is_available, products_by
from rl_training.plugins.user_code import fingerprints
from rl_training.processors import processor_field, usable_processors
from rl_training.runtime.waiting import adaptive_waiting

WORK_FOR_TWO_THREADS = 8_000_000
"""Multiplications in the widest layer per update above which several threads are faster than one."""
MAX_AUTO_THREADS = 4
STEPS_FOR_COMPILING = 10_000
"""Gradient steps above which compiled updates save more time than compiling takes."""
OMP_PAUSE_HARD = 2
"""Argument of `omp_pause_resource_all` (OpenMP 5.0): release the threads."""
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's `mallopt`."""
LARGEST_KEPT_BYTES = 32 * 1024 * 1024
"""The largest `MMAP_THRESHOLD` that glibc accepts; larger blocks are returned to the system when freed."""
KERNEL_VARIABLES = (
    *("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR"),
    *("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "OPENBLAS_CORETYPE"),
)
"""Environment variables that select the kernels of torch and its libraries."""


@dataclasses.dataclass(frozen=True)
class Execution:
    """Threads, compilation and library of matrix products, on which exact bits depend: checkpoints store them."""

    num_threads: int
    compile: bool
    products: Library = "blas"

    @classmethod
    def choose(cls, config: TrainConfig, algo_config: AlgorithmConfig) -> Execution:
        """Resolve `num_threads` and `compile` of the configuration where they are `auto`."""
        if config.num_threads == "auto":
            sizes = algo_config.network_sizes().values()
            widest = max((width for layers in sizes for width in layers), default=IMAGE_FEATURES)
            is_large = algo_config.samples_per_update() * widest**2 >= WORK_FOR_TWO_THREADS
            num_threads = min(usable_processors(), MAX_AUTO_THREADS) if is_large else 1
        else:
            num_threads = int(config.num_threads)
        compile_updates = config.compile
        if compile_updates == "auto":
            steps = algo_config.gradient_steps_in(config.total_timesteps, config.num_envs)
            compile_updates = steps is not None and steps >= STEPS_FOR_COMPILING and has_compiler()
        elif compile_updates and not has_compiler():
            raise ConfigError(
                "compile: true needs a C++ compiler (g++ or clang++) on the PATH: install one, or use auto or false"
            )
        return cls(num_threads, compile_updates, faster_products())

    @classmethod
    def from_metadata(cls, values: Any) -> Execution:
        """Read the `execution` entry of a checkpoint's metadata."""
        values = {"products": "blas", **values} if isinstance(values, Mapping) else values
        match values:
            case {
                "num_threads": int(threads),
                "compile": bool(compiled),
                "products": ("blas" | "onednn") as products,
            } if 1 <= threads <= MAX_THREADS:
                return cls(threads, compiled, products)
        raise CheckpointError(
            f"bad value {values!r:.100} for the checkpoint's 'execution': should be num_threads (1 to"
            f" {MAX_THREADS}), compile (true or false) and products ({' or '.join(LIBRARIES)})"
        )

    def describe(self) -> str:
        """For the first line of a run: `2 threads, compiled`."""
        threads = "1 thread" if self.num_threads == 1 else f"{self.num_threads} threads"
        return f"{threads}, {'compiled' if self.compile else 'not compiled'}"

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Use these threads and products inside the block, and flush denormals to zero in each thread.

        Adam's moments of inactive units decay into denormals, which are slow to compute with.
        """
        threads_before, flushes_before = torch.get_num_threads(), flushes_denormals()
        keep_freed_memory()
        torch.set_num_threads(self.num_threads)
        flush_denormals(True)
        products = self.products if is_available(self.products) else "blas"
        try:
            with products_by(products), adaptive_waiting(self.num_threads):
                yield
        finally:
            torch.set_num_threads(threads_before)
            flush_denormals(flushes_before)


def faster_products() -> Library:
    """The faster library of matrix products, by the kind of processor, so that every run decides alike."""
    is_limited = "ONEDNN_MAX_CPU_ISA" in os.environ or "DNNL_MAX_CPU_ISA" in os.environ
    has_wide_vectors = torch.backends.cpu.get_cpu_capability() == "AVX512" and not is_limited
    is_faster = has_wide_vectors and processor_field("vendor_id") != "GenuineIntel"
    return "onednn" if is_faster and is_available("onednn") else "blas"


def choose_execution(
    config: TrainConfig, checkpoint_state: CheckpointState | None, algo_config: Any = None
) -> Execution:
    """Threads and compilation as in the checkpoint, or as configured."""
    if algo_config is None:
        algo_config = get_algorithm_spec(config.algo).parse_kwargs(config.algo_kwargs)
    if checkpoint_state is None or "execution" not in checkpoint_state.metadata:
        return Execution.choose(config, algo_config)
    saved = Execution.from_metadata(checkpoint_state.metadata["execution"])
    before = TrainConfig(**checkpoint_state.config)
    changed = [
        name
        for name in ("num_threads", "compile")
        if getattr(before, name) != getattr(config, name)
    ]
    chosen = Execution.choose(config, algo_config) if changed else saved
    return dataclasses.replace(saved, **{name: getattr(chosen, name) for name in changed})


def flushes_denormals() -> bool:
    """Whether this thread flushes denormals (numbers below 1e-38) to zero."""
    return bool(torch.full((1,), 1e-30).mul_(1e-10) == 0.0)


def flush_denormals(wanted: bool) -> None:
    """Turn flushing of denormals on or off for this thread and its OpenMP threads.

    The flag is a processor register of each thread, inherited by new threads. So the existing OpenMP threads are
    ended, and the next computation starts new ones.
    """
    torch.set_flush_denormal(wanted)
    end_openmp_threads()


def end_openmp_threads() -> bool:
    """End the idle OpenMP threads of this thread; returns whether the OpenMP library supports it.

    torch loads its libraries with RTLD_GLOBAL, so the symbol is found in the process itself.
    """
    pause = (
        getattr(ctypes.CDLL(None), "omp_pause_resource_all", None) if os.name == "posix" else None
    )
    return pause is not None and pause(OMP_PAUSE_HARD) == 0


@contextlib.contextmanager
def watch_compilation(on_compiling: Callable[[bool], None]) -> Iterator[None]:
    """Call `on_compiling` with True when torch starts to compile inside the block, and with False when it is done."""
    from torch._dynamo.callback import callback_handler

    def start(_: Any) -> None:
        on_compiling(True)

    def end(_: Any) -> None:
        on_compiling(False)

    callback_handler.register_start_callback(start)
    callback_handler.register_end_callback(end)
    try:
        yield
    finally:
        callback_handler.remove_start_callback(start)
        callback_handler.remove_end_callback(end)


def has_compiler() -> bool:
    """Whether a C++ compiler for `torch.compile` is on the PATH."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


def keep_freed_memory() -> bool:
    """Keep freed memory in this process instead of returning it to the system; returns whether glibc accepted it.

    By default glibc returns memory after every update and requests it again in the next: a page fault per 4 kB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    return bool(mallopt(TRIM_THRESHOLD, 2**31 - 1) and mallopt(MMAP_THRESHOLD, LARGEST_KEPT_BYTES))


def machine_facts(device: torch.device) -> dict[str, str]:
    """Processor, instruction set and library versions, on which the exact bits of results depend."""
    facts = {
        "processor": _processor_name(),
        "instruction set": torch.backends.cpu.get_cpu_capability(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }
    facts |= {name: os.environ[name] for name in KERNEL_VARIABLES if name in os.environ}
    if device.type == "cuda":
        facts["accelerator"] = torch.cuda.get_device_name(device)
    return facts


def machine_differences(saved: Mapping[str, object], now: Mapping[str, str]) -> list[str]:
    """The facts in which two machines differ, as reasons why a resumed run is not bit-exact."""
    names = dict.fromkeys([*saved, *now])
    return [
        f"another machine: {name} was {saved.get(name, 'not set')!s:.100} and is {now.get(name, 'not set')}"
        for name in names
        if saved.get(name) != now.get(name)
    ]


def code_facts(config: TrainConfig) -> dict[str, str]:
    """Checksums of the files that define the environment, its wrappers and the network, by their names."""
    wrappers = [call.name for call in listed_wrappers(config.env_kwargs)]
    network = config.algo_kwargs.get("network")
    names = [config.env_id, network if isinstance(network, str) else None, *wrappers]
    return fingerprints(name for name in names if name is not None)


def code_differences(saved: object, now: Mapping[str, str]) -> list[str]:
    """The code that is not the same as when the checkpoint was written, as reasons why a run is not bit-exact."""
    known = saved if isinstance(saved, Mapping) else {}
    changed = [name for name in now if name in known and known[name] != now[name]]
    return [
        f"other code: the file of '{name}' has changed since the checkpoint" for name in changed
    ]


def _processor_name() -> str:
    words = [processor_field("model name") or platform.processor() or platform.machine()]
    if processor_field("model"):
        kind = f"family {processor_field('cpu family')} model {processor_field('model')}"
        words.append(f"({processor_field('vendor_id')} {kind})")
    return " ".join(words)

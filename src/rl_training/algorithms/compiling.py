"""Compilation of an update into one graph, with a kernel cache per processor and a check against the eager update."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor

from rl_training.errors import CompilationError
from rl_training.processors import processor_field

ResultT = TypeVar("ResultT")
CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
FOLDER_PREFIX = "rl_training-"
RELATIVE_TOLERANCE = 0.01
TRIED_INSTRUCTIONS = "instructions_tried"
ABSOLUTE_TOLERANCE = 1e-6
"""Root mean square below which a difference is rounding, whatever the size of the tensors."""


STOP_SIGNALS = {
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
}


def compiled(step: Callable[..., ResultT], enabled: bool) -> Callable[..., ResultT]:
    """Compile a method that is a whole update (loss, gradient, optimizer) into one graph, if `enabled`."""
    if not enabled:
        return step
    import torch._dynamo

    use_cache_of_this_machine()
    torch._dynamo.config.trace_autograd_ops = True
    assert isinstance(step, MethodType)
    shared = step.__func__
    # torch.compile caches a few graphs per code object: a copy of the code gives every object its own cache.
    own = FunctionType(
        shared.__code__.replace(), shared.__globals__, shared.__name__, closure=shared.__closure__
    )
    graph = torch.compile(MethodType(own, step.__self__), fullgraph=True, dynamic=False)
    return checked(step, _block_signals(_translate_compiler_errors(graph)))


def checked(step: Callable[..., ResultT], graph: Callable[..., ResultT]) -> Callable[..., ResultT]:
    """Compare the compiled step with the eager one at the first call for each set of non-tensor arguments.

    The state that the eager call changed is restored before the compiled call, so the check changes no result.
    """
    owner = step.__self__ if isinstance(step, MethodType) else None
    kinds_seen: set[tuple[Any, ...]] = set()

    def call(*arguments: Any) -> ResultT:
        kind = tuple(value for value in arguments if isinstance(value, (bool, int, str)))
        if kind in kinds_seen:
            return graph(*arguments)
        before = _snapshot(owner)
        expected = step(*arguments)
        after = _snapshot(owner)
        for tensor, saved in zip(_tensors(owner), before, strict=True):
            tensor.detach().copy_(saved)
        actual = graph(*arguments)
        _compare("its results", _flatten(actual), _flatten(expected))
        for (name, tensors), wanted in zip(_state(owner), _grouped(owner, after), strict=True):
            _compare(f"'{name}'", tensors, wanted)
        kinds_seen.add(kind)
        return actual

    return call


def use_cache_of_this_machine() -> None:
    """Keep compiled kernels in a folder of this torch version and instruction set.

    The keys of torch's own cache name neither: kernels generated for one vector width would be compiled for another
    and compute wrong numbers.
    """
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    parts = Path(os.environ.get(CACHE_VARIABLE) or default_cache_dir()).absolute().parts
    base = Path(*(part for part in parts if not part.startswith(FOLDER_PREFIX)))
    os.environ[CACHE_VARIABLE] = str(base / _cache_folder())
    if try_instructions(Path(os.environ[CACHE_VARIABLE])):
        torch._inductor.config.cpp.vec_isa_ok = (
            True  # part of the key of a graph: from the first process on
        )


def try_instructions(folder: Path) -> bool:
    """Whether the compiler can use every instruction set of the processor; a mark in the cache keeps a yes.

    torch tries them by programs of its own, which takes .7 s in each process.
    """
    from torch._inductor import cpu_vec_isa

    mark = folder / TRIED_INSTRUCTIONS
    if mark.exists():
        return True
    known = {*cpu_vec_isa.x86_isa_checker()}
    claimed = [isa for isa in cpu_vec_isa.supported_vec_isa_list if {*str(isa).split()} <= known]
    works = bool(claimed) and len(cpu_vec_isa.valid_vec_isa_list()) == len(claimed)
    if works:
        with contextlib.suppress(OSError):  # the cache may be read-only
            folder.mkdir(parents=True, exist_ok=True)
            mark.touch()
    return works


def _cache_folder() -> str:
    instructions = torch.backends.cpu.get_cpu_capability()
    # The compiler is told to use what this processor has (`-march=native`).
    flags = processor_field("flags") or processor_field("Features") or platform.processor()
    chosen = os.environ.get("ATEN_CPU_CAPABILITY", "")
    digest = hashlib.sha256(f"{platform.machine()} {flags} {chosen}".encode()).hexdigest()[:8]
    return f"{FOLDER_PREFIX}torch{torch.__version__}-{instructions.replace(' ', '')}-{digest}"


def _compare(what: str, actual: list[Tensor], expected: list[Tensor]) -> None:
    """Raise unless the tensors differ by rounding only."""
    pairs = [
        (a.detach().double(), e.detach().double()) for a, e in zip(actual, expected, strict=True)
    ]
    difference = sum(float((a - e).square().sum()) for a, e in pairs) ** 0.5
    size = sum(float(e.square().sum()) for _, e in pairs) ** 0.5
    allowed = (
        RELATIVE_TOLERANCE * size + ABSOLUTE_TOLERANCE * sum(e.numel() for _, e in pairs) ** 0.5
    )
    are_finite = all(bool(e.isfinite().all()) for _, e in pairs)
    if are_finite and not difference <= allowed:
        raise CompilationError(
            f"the compiled update computes something else than the eager one: {what} differ by {difference:.3g},"
            f" where {allowed:.3g} is allowed. Remove the folder of compiled kernels, '{os.environ[CACHE_VARIABLE]}',"
            " or set compile=false"
        )


def _state(owner: Any) -> Iterator[tuple[str, list[Tensor]]]:
    """The tensors of each network and of each list of moments, with its name."""
    for name, part in (
        owner.stateful_members().items() if hasattr(owner, "stateful_members") else ()
    ):
        state = part.state_dict()
        yield name, [value for value in state.values() if isinstance(value, Tensor)]
        for key, value in state.items():
            if isinstance(value, list):
                yield f"{name}.{key}", value


def _tensors(owner: Any) -> list[Tensor]:
    return [tensor for _, tensors in _state(owner) for tensor in tensors]


def _snapshot(owner: Any) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in _tensors(owner)]


def _grouped(owner: Any, values: list[Tensor]) -> Iterator[list[Tensor]]:
    """`values` in the groups of `_state`."""
    rest = iter(values)
    for _, tensors in _state(owner):
        yield [next(rest) for _ in tensors]


def _flatten(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return (
        [tensor for item in result for tensor in _flatten(item)]
        if isinstance(result, tuple)
        else []
    )


def _translate_compiler_errors(graph: Callable[..., ResultT]) -> Callable[..., ResultT]:
    from torch._dynamo.exc import TorchDynamoException

    def call(*arguments: Any) -> ResultT:
        try:
            return graph(*arguments)
        except TorchDynamoException as error:
            reason = next((line for line in str(error).splitlines() if line.strip()), "")
            raise CompilationError(
                f"the update cannot be compiled here: {type(error).__name__}: {reason:.300}. Set compile=false"
            ) from error

    return call


def _block_signals(graph: Callable[..., ResultT]) -> Callable[..., ResultT]:
    """Block SIGINT, SIGTERM and SIGHUP during the call, so that Ctrl-C does not kill the C++ compiler it may start.

    Ctrl-C goes to a whole group of processes. The compiler inherits the mask; a signal that came meanwhile is handled
    when the call returns.
    """
    if not hasattr(signal, "pthread_sigmask"):
        return graph

    def call(*arguments: Any) -> ResultT:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            return graph(*arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    return call

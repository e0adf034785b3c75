"""The way of text to a terminal: what it shows is escaped, and a stream that is gone or full ends no run."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

_results: ContextVar[Any] = ContextVar("results", default=None)
_is_quiet: ContextVar[bool] = ContextVar("is_quiet", default=False)


class TolerantStream:
    """`sys.stderr` as it is when something is written; what cannot be written is dropped."""

    def write(self, text: str) -> int:
        """Write what can be written."""
        with contextlib.suppress(OSError, ValueError, AttributeError):  # it failed, was closed, or there is none
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush what can be flushed."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.flush()

    def __getattr__(self, name: str) -> Any:
        """All else is that of `sys.stderr`."""
        return getattr(sys.stderr, name)


@contextlib.contextmanager
def quieted() -> Iterator[None]:
    """Print no messages, warnings and progress inside the block; results and errors remain."""
    token = _is_quiet.set(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        _is_quiet.reset(token)


@contextlib.contextmanager
def results_alone() -> Iterator[None]:
    """Inside the block standard output has results only: what environments and callbacks print goes to stderr.

    So does what worker processes that are started meanwhile print, where standard output is that of the process.
    """
    results: Any = sys.stdout
    if results is None:  # closed: nothing is printed at all
        yield
        return
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a stream without a number
            if results.fileno() == 1 and sys.stderr.fileno() == 2:
                results.flush()
                results = stack.enter_context(_moved_standard_output())
        token = _results.set(results)
        stack.callback(_results.reset, token)
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield


@contextlib.contextmanager
def _moved_standard_output() -> Iterator[Any]:
    """Let number 1 mean standard error; gives a stream to what it meant."""
    kept = os.dup(1)
    os.dup2(2, 1)
    stream = os.fdopen(kept, "w", encoding="utf-8")
    try:
        yield stream
    finally:
        os.dup2(kept, 1)
        with contextlib.suppress(OSError):  # what could not be written has been told
            stream.close()


def results_stream() -> Any:
    """Where results are printed."""
    return _results.get() or sys.stdout


def is_quiet() -> bool:
    """Whether messages are suppressed here."""
    return _is_quiet.get()


def tell(text: str) -> None:
    """Print a line to standard error, if it can be had, unless messages are suppressed."""
    if is_quiet():
        return
    stream: Any = TolerantStream()
    print(printable(text), file=stream, flush=True)


def printable(text: str) -> str:
    """The text with control characters escaped, but for line breaks and tabs.

    Text from files (names, ids, messages) could otherwise move the cursor, recolour or reorder what is shown.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text)


def is_terminal(stream: Any) -> bool:
    """Whether a stream, which may be closed or missing, is a terminal."""
    try:
        return bool(stream.isatty())
    except (OSError, ValueError, AttributeError):
        return False


def drop_unwritten() -> None:
    """Let go of what standard error and output could not write, which would change the program's exit code."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, number)
                os.close(nowhere)

"""The way of text to a terminal: what it shows is escaped, and a stream that is gone or full ends no run."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

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

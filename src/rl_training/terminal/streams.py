"""Output to a terminal: control characters are escaped, and a closed or full stream does not end a run."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_results: ContextVar[Any] = ContextVar("results", default=None)
_is_quiet: ContextVar[bool] = ContextVar("is_quiet", default=False)


class TolerantStream:
    """The current `sys.stderr`; output that cannot be written is discarded."""

    def write(self, text: str) -> int:
        """Write `text`; a failure is ignored."""
        with contextlib.suppress(OSError, ValueError, AttributeError):  # failed, closed, or None
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush; a failure is ignored."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.flush()

    def __getattr__(self, name: str) -> Any:
        """Any other attribute of `sys.stderr`."""
        return getattr(sys.stderr, name)


@contextlib.contextmanager
def quieted() -> Iterator[None]:
    """Suppress messages, warnings and progress inside the block; results and errors are still printed."""
    token = _is_quiet.set(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        _is_quiet.reset(token)


@contextlib.contextmanager
def results_alone() -> Iterator[None]:
    """Reserve standard output for results inside the block: prints of environments and callbacks go to stderr.

    If standard output is file descriptor 1, prints of worker processes started in the block go to stderr too.
    """
    results: Any = sys.stdout
    if results is None:  # closed: nothing is printed
        yield
        return
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(
            OSError, ValueError, AttributeError
        ):  # a stream without a file descriptor
            if results.fileno() == 1 and sys.stderr.fileno() == 2:
                results.flush()
                results = stack.enter_context(_moved_standard_output())
        token = _results.set(results)
        stack.callback(_results.reset, token)
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield


@contextlib.contextmanager
def _moved_standard_output() -> Iterator[Any]:
    """Point file descriptor 1 at standard error; yield a stream to its former target."""
    kept = os.dup(1)
    os.dup2(2, 1)
    stream = os.fdopen(kept, "w", encoding="utf-8")
    try:
        yield stream
    finally:
        os.dup2(kept, 1)
        with contextlib.suppress(OSError):  # a failed write was reported before
            stream.close()


def results_stream() -> Any:
    """The stream for results."""
    return _results.get() or sys.stdout


def is_quiet() -> bool:
    """Whether messages are suppressed."""
    return _is_quiet.get()


def tell(text: str) -> None:
    """Print a line to standard error unless messages are suppressed; a failed write is ignored."""
    if is_quiet():
        return
    stream: Any = TolerantStream()
    print(printable(text), file=stream, flush=True)


LONG_NUMBER = re.compile(r"([0-9]{20})[0-9]{60,}")


def make_console() -> Console:
    """A Rich console on standard error."""
    from rich.console import Console

    stream: Any = TolerantStream()
    return Console(file=stream)


def printable(text: str) -> str:
    """The text with control characters escaped, except line breaks and tabs, and without most digits of long numbers.

    Text from files (names, ids, messages) could otherwise move the cursor or recolour the terminal.
    """
    text = LONG_NUMBER.sub(lambda found: f"{found[1]}… ({len(found[0]):,} digits)", text)
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text
    )


def is_terminal(stream: Any) -> bool:
    """Whether a stream is a terminal; False if it is closed or None."""
    try:
        return bool(stream.isatty())
    except (OSError, ValueError, AttributeError):
        return False


def drop_unwritten() -> None:
    """Discard output that could not be written; flushing it at exit would change the exit code."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, number)
                os.close(nowhere)

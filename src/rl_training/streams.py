"""Standard error as training uses it: a terminal that is gone, a full disk or a closed stream ends no run."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any


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


def tell(text: str) -> None:
    """Print a line to standard error, if it can be had."""
    stream: Any = TolerantStream()
    print(text, file=stream, flush=True)


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

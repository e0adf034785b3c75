"""A terminal that remembers what was drawn on it."""

from __future__ import annotations

import io
import re

import pytest


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """All that was ever drawn on a line, without colours and movements of the cursor."""
        return [
            line.rstrip()
            for line in re.split(
                r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", self.getvalue())
            )
        ]


def use_terminal(monkeypatch: pytest.MonkeyPatch, width: int = 80) -> Terminal:
    """Standard error becomes a terminal; only inside a test, since pytest replaces it before each."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    for name, value in {"TERM": "xterm", "NO_COLOR": "1", "COLUMNS": str(width)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("rl_training.terminal.progress.SECONDS_BETWEEN_DRAWINGS", 0.0)
    return terminal

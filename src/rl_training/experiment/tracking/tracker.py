"""What a tracker is told of a run, and what it must offer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

Line = Mapping[str, float | None]
"""One line of `metrics.jsonl`."""


@dataclass(frozen=True)
class TrackedRun:
    """A run as a tracker shows it."""

    id: str
    """Chosen here and kept in the run's metadata: a resumed run has the same."""
    name: str
    run_dir: Path
    group: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the run and all of its algorithm."""
    tags: Sequence[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Versions, commit, command and folder."""
    parent: str | None = None
    """Id of the tracked run that this one continues with other values (a fork, for example)."""


@dataclass(frozen=True)
class Outcome:
    """How a process of the run ended."""

    status: Literal["finished", "stopped", "interrupted", "failed", "replaced"]
    """`stopped`: early, as a callback asked; `interrupted`: by a signal; `replaced`: another process has the run."""
    reason: str | None = None


class Tracker(Protocol):
    """One tracked run. All calls come from one thread; an exception ends the tracking, not the run."""

    def start(self, run: TrackedRun) -> int | None:
        """Begin the tracked run, or continue the one with its id; returns the last step that it has."""

    def log(self, lines: Sequence[Line]) -> None:
        """Add lines; their steps rise, or repeat the last one with further values; all are after `start`'s answer."""

    def finish(self, outcome: Outcome) -> None:
        """End the tracked run."""

    @property
    def place(self) -> str | None:
        """Where people find the tracked run; None: nothing to tell."""


def finite_values(line: Line) -> dict[str, float]:
    """The values of a line that are numbers: null stands for NaN and infinity."""
    return {name: value for name, value in line.items() if value is not None and math.isfinite(value)}


def plain_values(value: Any) -> Any:
    """The value with text keys, lists, numbers and text only."""
    if isinstance(value, Mapping):
        return {str(key): plain_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain_values(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)

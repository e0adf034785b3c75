"""The interface of a tracker: the run that it shows, the rows that it gets, and how the run ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

Row = tuple[int, Mapping[str, float]]
"""Step and finite values of a line of `metrics.jsonl`."""


@dataclass(frozen=True)
class TrackedRun:
    """A run as a tracker shows it."""

    id: str
    """Chosen here and kept in the run's metadata: a resumed run has the same."""
    name: str
    run_dir: Path
    group: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the run and all of its algorithm, as JSON has them."""
    tags: Sequence[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Versions, commit, command and folder, as JSON has them."""
    parent: str | None = None
    """Id of the tracked run that this one continues with other values (a fork, for example)."""


@dataclass(frozen=True)
class Outcome:
    """How a process of the run ended."""

    status: Literal["finished", "stopped", "interrupted", "failed", "replaced"]
    """`stopped`: early, as a callback asked; `interrupted`: by a signal; `replaced`: another process has the run."""
    reason: str | None = None


class Tracker(Protocol):
    """One tracked run, begun or continued by the constructor, which takes the logger's settings and a `TrackedRun`.

    All calls come from one thread; an exception ends the tracking, not the run.
    """

    last_step: int
    """Last step that the tracked run had already; -1: none."""
    place: str
    """Address or command that shows the tracked run; empty: none."""

    def log(self, rows: Sequence[Row]) -> None:
        """Add rows. Steps do not decrease and are later than `last_step`; a repeated step has further values."""

    def finish(self, outcome: Outcome) -> None:
        """End the tracked run."""

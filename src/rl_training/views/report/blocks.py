"""The parts of a page as plain values: the page's script draws them, in a file and live alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Cell = str | dict[str, Any]
"""Text, or `{"text": …, "group": index, "state": …, "is_marked": true}`."""


@dataclass(frozen=True)
class Block:
    """One part of a section."""

    def as_dict(self) -> dict[str, Any]:
        """Its values and its kind."""
        return {"kind": type(self).__name__.lower(), **dataclasses.asdict(self)}


@dataclass(frozen=True)
class Text(Block):
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Verdict(Block):
    """The only group in a line: what was trained, and its score."""

    group: int
    facts: Sequence[str]
    score: str
    interval: str
    exactness: str


@dataclass(frozen=True)
class Table(Block):
    """A table; columns after the first `num_text_columns` are numbers, except the last if it `ends_in_text`."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    num_text_columns: int = 1
    ends_in_text: bool = False
    is_folded: bool = False


@dataclass(frozen=True)
class Plot(Block):
    """Curves of one metric in one facet."""

    metric: str
    table: str
    facet: int
    title: str
    note: str
    reference: str | None
    levels: Sequence[tuple[float, str]] = ()
    """Values that are drawn as dotted horizontal lines, with a word."""


@dataclass(frozen=True)
class Fold(Block):
    """Parts that are shown when they are opened."""

    title: str
    blocks: Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Strip(Block):
    """Scores of runs as dots, a row for each group, with their summary."""

    title: str
    rows: Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Bars(Block):
    """Shares of a whole, a bar for each row."""

    caption: str
    parts: Sequence[str]
    rows: Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Code(Block):
    """Commands to copy."""

    title: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Film(Block):
    """A film of a run, inside the page or beside it."""

    group: int
    title: str
    size: str
    media: str
    """Media type: `video/mp4` or `image/gif`."""
    source: str
    """The film as a data URI; empty if it is linked only."""
    link: str
    """Address of the file, relative to the page."""


@dataclass(frozen=True)
class Section:
    """A headed part of the page."""

    id: str
    title: str
    blocks: Sequence[Block]

    def as_dict(self) -> dict[str, Any]:
        """For the page."""
        return {"id": self.id, "title": self.title, "blocks": [block.as_dict() for block in self.blocks]}


def number(value: float | None, missing: str = "–") -> str:
    """A number for people: thousands separated, about four digits."""
    if value is None:
        return missing
    size = abs(value)
    if size >= 100:
        return f"{value:,.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3g}"


def duration(seconds: float | None) -> str:
    """A time span in one or two units."""
    if seconds is None:
        return "–"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"

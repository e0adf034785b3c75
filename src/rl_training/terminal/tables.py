"""Tables for people, all laid out by rich: as lines of text, or redrawn in place on a terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rl_training.terminal.streams import make_console, printable

if TYPE_CHECKING:
    from rich.table import Table

Rows = Sequence[Sequence[str]]
WIDTH = 80
UNLIMITED = 100_000
GAP = 2
"""Columns between two cells."""
SHORTEST_NAME = 24
LINES_BESIDE_ROWS = 5
"""Header, rule, summary and room for the prompt."""
JUSTIFY: dict[str, Any] = {"l": "left", "r": "right"}


def table_lines(
    rows: Rows,
    align: str = "lr",
    indent: str = "",
    *,
    width: int | None = None,
    widest: Sequence[int] = (),
) -> list[str]:
    """Rows as lines with aligned columns.

    `align` has a letter for each column, `l` or `r`; the last one counts for all further columns. Cells are wrapped to
    fit into `width` columns if it is given; `widest` limits the first columns.
    """
    from rich.console import Console

    if not rows:
        return []
    table = _make_table(len(rows[0]), align, is_wrapped=width is not None, widest=widest)
    for row in rows:
        table.add_row(*map(_cell, row))
    console = Console(
        file=io.StringIO(),
        width=(width or UNLIMITED) - len(indent),
        color_system=None,
        force_terminal=False,
    )
    with console.capture() as drawn:
        console.print(table)
    return [f"{indent}{line}".rstrip() for line in drawn.get().splitlines()]


def cell_lines(cells: Sequence[str], indent: str = "") -> list[str]:
    """Cells of equal width, as many a line as fit into 80 columns."""
    size = max(map(len, cells), default=0) + GAP
    count = max(1, (WIDTH - len(indent) + GAP) // size)
    padded = [f"{cell:<{size - GAP}}" for cell in cells] + [""] * (-len(cells) % count)
    return table_lines(
        [padded[start : start + count] for start in range(0, len(padded), count)], "l", indent
    )


def shorten_names(rows: Sequence[tuple[str, ...]], width: int) -> list[tuple[str, ...]]:
    """The rows with long names in the first column shortened, for lines of `width` columns; names stay different.

    First its folder and its environment give way, then the middle of a name, then its beginning.
    """
    others = sum(max(len(row[column]) for row in rows) + GAP for column in range(1, len(rows[0])))
    room = max(SHORTEST_NAME, width - others)
    names = [row[0] for row in rows]
    for shorten in (_shorten_env, _cut_middle, _cut_start):
        short = [name if len(name) <= room else shorten(name, room) for name in names]
        if len(set(short)) == len(set(names)) and max(map(len, short)) <= room:
            return [(name, *row[1:]) for name, row in zip(short, rows, strict=True)]
    return list(rows)


def _shorten_env(name: str, room: int) -> str:
    _, slash, last = name.rpartition("/")
    name = f"…/{last}" if slash else name
    head, *rest = name.split("__")
    if len(name) <= room:
        return name
    if len(rest) < 2:
        return _cut_middle(name, room)
    size = len(rest[0]) - (len(name) - room) - 1
    return "__".join([head, f"{rest[0][: max(0, size)]}…", *rest[1:]])


def _cut_middle(name: str, room: int) -> str:
    half = (room - 1) // 2
    return f"{name[: room - 1 - half]}…{name[-half:]}"


def _cut_start(name: str, room: int) -> str:
    return f"…{name[1 - room :]}"


def _make_table(
    count: int, align: str, *, is_wrapped: bool = False, widest: Sequence[int] = ()
) -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, GAP, 0, 0))
    for index in range(count):
        table.add_column(
            justify=JUSTIFY[align[min(index, len(align) - 1)]],
            no_wrap=not is_wrapped,
            overflow="fold",
            max_width=widest[index] if index < len(widest) else None,
        )
    return table


def _cell(text: str) -> Any:
    from rich.text import Text

    return Text(printable(text))


class LiveTable:
    """Redraws rows of text in place on standard error; lines can be printed above them."""

    def __init__(self, header: Sequence[str], align: str = "lr") -> None:
        from rich.live import Live

        self._header, self._align = header, align
        self._console = make_console()
        # Redrawn only by `draw`: a thread that redraws would cost more than the rest of a driver.
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._live.start()

    @property
    def num_rows_that_fit(self) -> int:
        """Rows that fit on the screen."""
        return max(1, self._console.height - LINES_BESIDE_ROWS)

    def draw(self, rows: Rows, summary: str) -> None:
        """Draw the rows that fit, and a line below them."""
        from rich import box
        from rich.console import Group

        shown = rows[: self.num_rows_that_fit]
        if len(shown) < len(rows):
            summary += f"; {len(rows) - len(shown):,} more rows"
        table = _make_table(len(self._header), self._align)
        table.box, table.show_header = box.SIMPLE_HEAD, True
        for index, (column, name) in enumerate(zip(table.columns, self._header, strict=True)):
            column.header, column.overflow = name, "ellipsis"
            if index and shown:  # only the first column gives way
                column.min_width = max(len(name), *(len(row[index]) for row in shown))
        for row in shown:
            table.add_row(*map(_cell, row))
        self._live.update(Group(table, _cell(summary)), refresh=True)

    def print_above(self, text: str) -> None:
        """Print a line above the table."""
        self._console.print(printable(text), markup=False, highlight=False)

    def close(self) -> None:
        """Stop redrawing; the last table stays."""
        self._live.stop()

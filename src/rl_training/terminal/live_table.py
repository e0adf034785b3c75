"""A table on a terminal that is redrawn in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_training.terminal.progress import make_console
from rl_training.terminal.streams import printable

LINES_BESIDE_ROWS = 5
"""Header, rule, summary and room for the prompt."""


class LiveTable:
    """Redraws rows of text in place on standard error; lines can be printed above them."""

    def __init__(self, header: Sequence[str], num_left_aligned: int = 1) -> None:
        from rich.live import Live

        self._header, self._num_left_aligned = header, num_left_aligned
        self._console = make_console()
        # Redrawn only by `draw`: a thread that redraws would cost more than the rest of a driver.
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._live.start()

    @property
    def num_rows_that_fit(self) -> int:
        """Rows that fit on the screen."""
        return max(1, self._console.height - LINES_BESIDE_ROWS)

    def draw(self, rows: Sequence[Sequence[str]], summary: str) -> None:
        """Draw the rows that fit, and a line below them."""
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        shown = rows[: self.num_rows_that_fit]
        if len(shown) < len(rows):
            summary += f"; {len(rows) - len(shown):,} more rows"
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for index, name in enumerate(self._header):
            is_left = index < self._num_left_aligned
            width = max(len(name), *(len(row[index]) for row in shown)) if index and shown else None
            justify: Any = "left" if is_left else "right"
            table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis", min_width=width)
        for row in shown:
            table.add_row(*(Text(printable(cell)) for cell in row))
        self._live.update(Group(table, Text(printable(summary))), refresh=True)

    def print_above(self, text: str) -> None:
        """Print a line above the table."""
        self._console.print(printable(text), markup=False, highlight=False)

    def close(self) -> None:
        """Stop redrawing; the last table stays."""
        self._live.stop()

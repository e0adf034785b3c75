"""Progress of a run in a notebook: one text that is replaced in place, as cells show no terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rl_training.terminal.progress import LARGEST_BAR, ProgressView, fit
from rl_training.terminal.streams import printable

SECONDS_BETWEEN_DRAWINGS = 0.25
CELL_WIDTH = 100
"""Characters of a line that the cells of common front ends show without wrapping."""


def is_notebook() -> bool:
    """Whether the code runs in a cell of a Jupyter kernel; IPython is not imported for it."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return getattr(shell, "kernel", None) is not None


class NotebookView(ProgressView):
    """Shows a bar with the last score; messages are printed above it, and evaluations only change it."""

    seconds_between_lines = SECONDS_BETWEEN_DRAWINGS

    def __init__(self, first_step: int = 0) -> None:
        super().__init__(first_step)
        self._handle: Any = None
        self._parts: list[str] = ["starting"]
        self._done, self._total = first_step, 0

    def evaluated(self, step: int, metrics: Mapping[str, float], *, is_best: bool) -> None:
        """Show the score in the bar."""
        self._pace.resume(was_evaluation=True)
        self._evaluation_start, self._next_time = None, 0.0
        self._parts = [f"{step:,}/{self._total:,}", f"eval {metrics['eval_return_mean']:.1f}"]
        self._draw()

    def compiling(self, is_compiling: bool) -> None:
        """Show compilation beside the bar."""
        (self._pace.pause if is_compiling else self._pace.resume)()
        if is_compiling:
            self._draw("compiling the update…")

    def _show(self, step: int, total: int, metrics: Mapping[str, float]) -> bool:
        self._done, self._total = step, total
        self._parts = [f"{step:,}/{total:,}", *self._facts(step, total, metrics)]
        self._draw()
        return True

    def _show_evaluation(self, text: str) -> None:
        self._draw(text)

    def _seconds_to_first_evaluation_line(self) -> float:
        return SECONDS_BETWEEN_DRAWINGS

    def _draw(self, activity: str | None = None) -> None:
        """Replace the text; the first one is a new output of the cell."""
        from IPython.display import display

        done = min(1.0, self._done / self._total) if self._total else 0.0
        bar = ("█" * round(done * LARGEST_BAR)).ljust(LARGEST_BAR, "░")
        parts = self._parts if activity is None else [*self._parts[:1], activity]
        text = f"{bar}  {fit([f'{done:4.0%}', *parts], CELL_WIDTH - LARGEST_BAR - 2)}"
        content = {"text/plain": printable(text)}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

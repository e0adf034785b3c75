"""The progress of a study for people: a table on a terminal, elsewhere a line for each event."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence

from rl_training.studies.catalog import RunInfo
from rl_training.studies.launching.driver import Listener, Outcome, Task
from rl_training.terminal.progress import format_seconds
from rl_training.terminal.streams import is_quiet, is_terminal, tell
from rl_training.terminal.tables import LiveTable

HEADER = ("run", "state", "done", "last eval", "steps/s", "left")
ROWS = list(Outcome)
"""Order of the rows in a table that does not fit."""


def make_listener() -> Listener:
    """A table on a terminal, lines elsewhere, nothing if messages are suppressed."""
    if is_quiet():
        return Listener()
    return TableListener() if is_terminal(sys.stderr) else LineListener()


class LineListener(Listener):
    """A line for each event."""

    def event(self, task: Task, text: str) -> None:
        """Print it."""
        tell(f"{task.run.label}: {text}")


class TableListener(Listener):
    """A table that is redrawn in place; failures are also printed above it."""

    def __init__(self) -> None:
        self._table = LiveTable(HEADER, "llr")
        self._begin = time.monotonic()

    def event(self, task: Task, text: str) -> None:
        """Print events that are no plain progress above the table."""
        if task.outcome not in (Outcome.ACTIVE, Outcome.DONE, Outcome.STOPPED):
            self._table.print_above(f"{task.run.label}: {text}")

    def look(self, tasks: Sequence[Task]) -> None:
        """Draw the table again."""
        if len(tasks) > self._table.num_rows_that_fit:
            tasks = sorted(tasks, key=lambda task: ROWS.index(task.outcome))
        rows = [table_row(task) for task in tasks]
        self._table.draw(rows, summary_line(tasks, time.monotonic() - self._begin))

    def close(self) -> None:
        """Leave the last table on the screen."""
        self._table.close()


def table_row(task: Task) -> tuple[str, ...]:
    """The row of one run."""
    return (task.run.label or "run", state_text(task), *progress_cells(task.info))


def progress_cells(info: RunInfo | None) -> tuple[str, str, str, str]:
    """Share done, last evaluation, steps per second and time left of a run."""
    if info is None:
        return "", "", "", ""
    share = "" if info.share is None else f"{info.share:.0%}"
    score = "" if info.last_eval is None else f"{info.last_eval:.1f}"
    rate = (
        "" if info.rate is None else f"{info.rate:,.0f}" if info.rate >= 10 else f"{info.rate:.2g}"
    )
    left = "" if info.seconds_left is None else format_seconds(info.seconds_left)
    return share, score, rate, left


def state_text(task: Task) -> str:
    """What a run is doing."""
    if task.outcome is Outcome.ACTIVE:
        state = None if task.info is None else task.info.state
        return "running" if state == "running" else "ending" if state == "finished" else "starting"
    if task.outcome is Outcome.DONE:
        is_approximate = task.info is not None and task.info.exactness == "approximate"
        return "finished (approximate)" if is_approximate else "finished"
    if task.outcome is Outcome.STOPPED and task.info is None:
        return "not started"
    return str(task.outcome.value)


def summary_line(tasks: Sequence[Task], seconds: float) -> str:
    """How many runs are in which state, and the time passed."""
    counts = Counter(
        "finished" if task.outcome is Outcome.DONE else task.outcome.value for task in tasks
    )
    texts = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    return f"{len(tasks):,} runs: {texts}; {format_seconds(seconds)}"

"""Progress of a run: a bar on a terminal or in a notebook, lines on standard error for files and pipes."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rl_training.terminal.pace import Pace, format_seconds
from rl_training.terminal.streams import TolerantStream, is_quiet, is_terminal, printable, tell

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

LOSS_NAMES = ("policy_loss", "actor_loss", "critic_loss", "loss")
LINE_WIDTH = 80
STOPPING = "stopping after this step; saving…"
COLUMNS_FOR_CTRL_C = 2
"""Columns left free at the end: the terminal echoes ^C there, and a wrapped line could not be redrawn."""
SMALLEST_BAR, LARGEST_BAR = 8, 30
SECONDS_BETWEEN_LINES = 1.0
SECONDS_BETWEEN_EVALUATION_LINES = 30.0
SECONDS_BETWEEN_DRAWINGS = 0.1
SECONDS_BETWEEN_COUNTS = 5.0
OF_AN_ENVIRONMENT = re.compile(r"environment (\d+): (.*)", re.DOTALL)


class ProgressView:
    """Prints a line when there are new metrics: for files and pipes."""

    seconds_between_lines = SECONDS_BETWEEN_LINES

    def __init__(self, first_step: int = 0) -> None:
        self._pace = Pace(first_step)
        self._next_time = 0.0
        self._last: dict[str, float] = {}
        self._evaluation_start: float | None = None

    def watch(self, read: Callable[[], tuple[int, int, Mapping[str, float]]]) -> None:
        """Take a function that returns step, last step and metrics, for views that redraw by themselves."""

    def update(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        """Show the current step and metrics, at most every `seconds_between_lines`."""
        now = time.monotonic()
        if now >= self._next_time or step >= total:
            self._pace.mark(step)
            if self._show(step, total, metrics):
                self._next_time = now + self.seconds_between_lines

    def evaluating(self, num_done: int, num_episodes: int) -> None:
        """Show the progress of an evaluation; called before each of its steps."""
        now = time.monotonic()
        if self._evaluation_start is None:
            self._pace.pause()
            self._evaluation_start = now
            self._next_time = now + self._seconds_to_first_evaluation_line()
        if now >= self._next_time:
            self._show_evaluation(
                f"evaluating: {describe_evaluation(num_done, num_episodes, now - self._evaluation_start)}"
            )
            self._next_time = now + max(self._seconds_to_first_evaluation_line(), SECONDS_BETWEEN_DRAWINGS)

    def evaluated(self, step: int, metrics: Mapping[str, float], *, is_best: bool) -> None:
        """Print a line with the score."""
        self._pace.resume(was_evaluation=True)
        self._evaluation_start, self._next_time = None, time.monotonic() + self.seconds_between_lines
        self.message(f"step {step:,}  {describe_score(metrics)}{'  best so far' if is_best else ''}")

    def compiling(self, is_compiling: bool) -> None:
        """Show that compilation of the update has started or ended."""
        if is_compiling:
            self._pace.pause()
            self.message("compiling the update…")
        else:
            self._pace.resume()

    def stopping(self) -> None:
        """Called by the signal handler when a signal requests a stop; must not print."""

    def stopped(self) -> None:
        """Print that the run stops; called after the step in which the signal arrived."""
        self.message(STOPPING)

    def message(self, text: str) -> None:
        """Print a line; a closed pipe or a full disk does not end the run."""
        tell(text)

    def close(self) -> None:
        """Stop showing progress."""

    def _show(self, step: int, total: int, metrics: Mapping[str, float]) -> bool:
        if metrics == self._last:
            return False
        self._last = dict(metrics)
        self.message(fit([f"step {step:,}/{total:,}", *self._facts(step, total, metrics)], LINE_WIDTH))
        return True

    def _show_evaluation(self, text: str) -> None:
        self.message(text)

    def _seconds_to_first_evaluation_line(self) -> float:
        return SECONDS_BETWEEN_EVALUATION_LINES

    def _facts(self, step: int, total: int, metrics: Mapping[str, float]) -> list[str]:
        """Rate, time left, returns and loss, most important first."""
        rate, left = self._pace.rate, self._pace.seconds_left(step, total)
        facts = [] if rate is None else [f"{rate:,.0f} steps/s" if rate >= 10 else f"{rate:.2g} steps/s"]
        facts += [] if left is None else [f"{format_seconds(left)} left"]
        loss = next((name for name in LOSS_NAMES if name in metrics), "loss")
        shown = {"eval": ("eval_return_mean", ".1f"), "return": ("train_return_mean", ".1f"), "loss": (loss, ".2g")}
        return facts + [f"{word} {metrics[name]:{form}}" for word, (name, form) in shown.items() if name in metrics]


class LiveView(ProgressView):
    """Redraws a progress bar in place and prints lines above it: for terminals."""

    seconds_between_lines = SECONDS_BETWEEN_DRAWINGS

    def __init__(self, first_step: int = 0) -> None:
        from rich.live import Live

        super().__init__(first_step)
        self._done, self._total = first_step, 0
        self._parts: list[str] = ["starting"]
        self._activity: str | None = None
        self._read: Callable[[], tuple[int, int, Mapping[str, float]]] | None = None
        self._console = make_console()
        self._live = Live(console=self._console, get_renderable=self._render, refresh_per_second=8)
        self._live.start()

    def watch(self, read: Callable[[], tuple[int, int, Mapping[str, float]]]) -> None:
        """Read the progress whenever the bar is redrawn, from the thread that redraws it."""
        self._read = read

    def update(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        """Show where the run is, unless the bar reads it by itself."""
        if self._read is None:
            super().update(step, total, metrics)

    def evaluated(self, step: int, metrics: Mapping[str, float], *, is_best: bool) -> None:
        """Print the score above the bar."""
        self._activity = None
        super().evaluated(step, metrics, is_best=is_best)

    def compiling(self, is_compiling: bool) -> None:
        """Show compilation beside the bar."""
        self._activity = "compiling the update…" if is_compiling else None
        (self._pace.pause if is_compiling else self._pace.resume)()
        self._live.refresh()

    def stopping(self) -> None:
        """Show the stop beside the bar from its next redraw until the step is done."""
        self._activity = STOPPING

    def stopped(self) -> None:
        """Print the stop above the bar."""
        self._activity = None
        super().stopped()

    def message(self, text: str) -> None:
        """Print the line above the bar."""
        self._console.print(printable(text), markup=False, highlight=False)

    def close(self) -> None:
        """Stop redrawing."""
        self._live.stop()

    def _show(self, step: int, total: int, metrics: Mapping[str, float]) -> bool:
        self._done, self._total = step, total
        self._parts = [f"{step:,}/{total:,}", *self._facts(step, total, metrics)]
        return True

    def _show_evaluation(self, text: str) -> None:
        self._activity = text
        self._live.refresh()

    def _seconds_to_first_evaluation_line(self) -> float:
        return 0.0

    def _render(self) -> Table:
        """The bar, the percentage done, and as many facts as fit beside them."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        if self._read is not None:
            super().update(*self._read())
        parts = list(self._parts)
        if self._activity is not None:
            parts = [*parts[: 1 if self._total else 0], self._activity]
        if self._total:
            parts = [f"{min(100, 100 * self._done // self._total):3}%", *parts]
        width = self._console.width - COLUMNS_FOR_CTRL_C
        text = fit(parts, width - SMALLEST_BAR - 2)
        size = max(SMALLEST_BAR, min(LARGEST_BAR, width - len(text) - 2))
        table = Table.grid(padding=(0, 2, 0, 0))
        bar = ProgressBar(total=self._total or None, completed=self._done, width=size, pulse=not self._total)
        table.add_row(bar, text)
        return table


class QuietView(ProgressView):
    """Shows nothing."""

    def update(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        """Show nothing."""

    def evaluating(self, num_done: int, num_episodes: int) -> None:
        """Show nothing."""


def make_view(first_step: int = 0) -> ProgressView:
    """A live bar on a terminal or in a notebook, lines elsewhere, nothing if messages are suppressed."""
    from rl_training.terminal.notebook import NotebookView, is_notebook

    if is_quiet():
        return QuietView(first_step)
    if is_notebook():
        return NotebookView(first_step)
    return (LiveView if is_terminal(sys.stderr) else ProgressView)(first_step)


def make_console() -> Console:
    """A Rich console on standard error."""
    from rich.console import Console

    stream: Any = TolerantStream()
    return Console(file=stream)


def fit(parts: Iterable[str], width: int) -> str:
    """Join the first part and as many further parts as fit into `width` characters."""
    text = ""
    for part in parts:
        if text and len(text) + 2 + len(part) > width:
            break
        text = f"{text}  {part}" if text else part
    return text


def describe_score(metrics: Mapping[str, float]) -> str:
    """Mean, standard deviation and number of episodes of an evaluation, and the success rate if reported."""
    count = int(metrics["eval_episodes"])
    text = f"eval {metrics['eval_return_mean']:.1f} ± {metrics['eval_return_std']:.1f}"
    text += f" over {count:,} episode{'' if count == 1 else 's'}"
    success = metrics.get("eval_success_rate")
    return text if success is None else f"{text}  success {success:.0%}"


def describe_evaluation(num_done: int, num_episodes: int, seconds: float) -> str:
    """Episodes done and time passed; the time shows progress while parallel episodes all still run."""
    return f"{num_done:,} of {num_episodes:,} episodes, {format_seconds(seconds)}"


def collapsed(notes: Iterable[str]) -> list[str]:
    """The notes without duplicates; those that differ only in the environment's index become one, with their count."""
    numbers: dict[str, list[str]] = {}
    for note in notes:
        match = OF_AN_ENVIRONMENT.fullmatch(note)
        text, number = (match[2], match[1]) if match else (note, "")
        numbers.setdefault(text, []).append(number)
    return [_with_environments(text, places) for text, places in numbers.items()]


def _with_environments(text: str, numbers: list[str]) -> str:
    if not numbers[0]:
        return text
    return f"environment {numbers[0]}: {text}" if len(numbers) == 1 else f"{len(numbers):,} environments: {text}"


@contextlib.contextmanager
def counter(total: int, label: str, unit: str = "", *, shows_time: bool = False) -> Iterator[Callable[[int], None]]:
    """Show a bar (elsewhere than on a terminal: lines) during the block; yield a function that sets how many are done.

    With `shows_time` the bar also shows the time since the start.
    """
    from rich.progress import BarColumn, Progress, TextColumn

    is_live = is_terminal(sys.stderr) and not is_quiet()
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=LARGEST_BAR))
    with Progress(*columns, console=make_console(), disable=not is_live, transient=True) as progress:
        task = progress.add_task(label, total=total)
        start = time.monotonic()
        next_time = 0.0 if is_live else start + SECONDS_BETWEEN_COUNTS

        def show(num_done: int) -> None:
            nonlocal next_time
            now = time.monotonic()
            if now < next_time:
                return
            next_time = now + (SECONDS_BETWEEN_DRAWINGS if is_live else SECONDS_BETWEEN_COUNTS)
            passed = f", {format_seconds(now - start)}" if shows_time else ""
            text = f"{label} {num_done:,} of {total:,} {unit}".rstrip() + passed
            if is_live:
                progress.update(task, completed=num_done, description=text, refresh=True)
            else:
                tell(text)

        yield show


def counting(total: int, label: str) -> Iterator[int]:
    """Iterate over `range(total)` with the bar of `counter`."""
    with counter(total, label) as show:
        for number in range(total):
            yield number
            show(number + 1)

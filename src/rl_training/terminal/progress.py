"""Progress of a run: a bar on a terminal or in a notebook, lines on standard error for files and pipes."""

from __future__ import annotations

import contextlib
import datetime
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rl_training.terminal.streams import is_quiet, is_terminal, make_console, printable, tell

if TYPE_CHECKING:
    from rich.table import Table

SHOWN_METRICS = (
    ("eval", ["eval_return_mean"], ".1f"),
    ("return", ["train_return_mean"], ".1f"),
    ("loss", ["policy_loss", "actor_loss", "critic_loss", "loss"], ".2g"),
)
"""Word, metrics of which the first known one is shown, and its format."""
ReadProgress = Callable[[], tuple[int, int, Mapping[str, float]]]
"""Returns step, last step and metrics."""
LINE_WIDTH = 80
STOPPING = "stopping after this step; saving…"
COLUMNS_FOR_CTRL_C = 2
"""Columns left free at the end: the terminal echoes ^C there, and a wrapped line could not be redrawn."""
SMALLEST_BAR, LARGEST_BAR = 8, 30
SECONDS_BETWEEN_LINES = 1.0
SECONDS_BETWEEN_EVALUATION_LINES = 30.0
SECONDS_BETWEEN_DRAWINGS = 0.1
SECONDS_BETWEEN_COUNTS = 5.0
SECONDS_BETWEEN_NOTEBOOK_DRAWINGS = 0.25
CELL_WIDTH = 100
"""Characters of a line that the cells of common notebook front ends show without wrapping."""
PACE_SECONDS = 10.0
"""Seconds over which the rate is measured."""
OF_AN_ENVIRONMENT = re.compile(r"environment \d+: (.*)", re.DOTALL)


class Pace:
    """Measures steps per second of training, excluding evaluations and compilation."""

    def __init__(self, step: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._marks: deque[tuple[float, int]] = deque([(0.0, step)])  # (seconds of training, step)
        self._start = clock()
        self._idle_seconds = 0.0
        self._evaluation_seconds = 0.0
        self._idle_since: float | None = None

    def pause(self) -> None:
        """Stop the clock of training, for an evaluation or compilation."""
        if self._idle_since is None:
            self._idle_since = self._clock()

    def resume(self, *, was_evaluation: bool = False) -> None:
        """Start the clock again. Evaluations recur, so their time counts towards the time left."""
        if self._idle_since is not None:
            idle = self._clock() - self._idle_since
            self._idle_since = None
            self._idle_seconds += idle
            self._evaluation_seconds += idle if was_evaluation else 0.0

    def mark(self, step: int) -> None:
        """Record that the run has reached `step`."""
        now = self._training_seconds()
        self._marks.append((now, step))
        while len(self._marks) > 2 and self._marks[1][0] < now - PACE_SECONDS:
            self._marks.popleft()

    @property
    def rate(self) -> float | None:
        """Steps per second over the last seconds; None before the first step."""
        (first_time, first_step), (last_time, last_step) = self._marks[0], self._marks[-1]
        return (
            (last_step - first_step) / (last_time - first_time) if last_step > first_step else None
        )

    def seconds_left(self, step: int, total: int) -> float | None:
        """Estimated seconds until step `total`, with evaluations as frequent as so far; None if unknown."""
        rate, training = self.rate, self._training_seconds()
        if rate is None or training <= 0:
            return None
        return max(0, total - step) / rate * (1.0 + self._evaluation_seconds / training)

    def _training_seconds(self) -> float:
        now = self._clock() if self._idle_since is None else self._idle_since
        return now - self._start - self._idle_seconds


def format_seconds(seconds: float) -> str:
    """Format seconds: 75 is 1:15, 4000 is 1:06:40."""
    text = str(datetime.timedelta(seconds=round(seconds)))
    return (
        text.removeprefix("0:").removeprefix("0")
        if text.startswith("0:0")
        else text.removeprefix("0:")
    )


class ProgressView:
    """Prints a line when there are new metrics: for files and pipes."""

    seconds_between_lines = SECONDS_BETWEEN_LINES
    evaluation_delay = SECONDS_BETWEEN_EVALUATION_LINES
    """Seconds until the first line of an evaluation."""

    def __init__(self, first_step: int = 0) -> None:
        self._pace = Pace(first_step)
        self._next_time = 0.0
        self._last: dict[str, float] = {}
        self._evaluation_start: float | None = None

    def watch(self, read: ReadProgress) -> None:
        """Take a function that reads the progress, for views that redraw by themselves."""

    def update(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        """Show the current step and metrics, at most every `seconds_between_lines`."""
        now = time.monotonic()
        if now >= self._next_time or step >= total:
            self._pace.mark(step)
            if self._show(step, total, metrics):
                self._next_time = now + self.seconds_between_lines

    def evaluating(self, num_done: int, num_episodes: int) -> None:
        """Show the progress of an evaluation; called before each of its steps.

        The time passed is shown too: it moves while parallel episodes all still run.
        """
        now = time.monotonic()
        if self._evaluation_start is None:
            self._pace.pause()
            self._evaluation_start = now
            self._next_time = now + self.evaluation_delay
        if now >= self._next_time:
            self._next_time = now + max(self.evaluation_delay, SECONDS_BETWEEN_DRAWINGS)
            passed = format_seconds(now - self._evaluation_start)
            self._show_activity(f"evaluating: {num_done:,} of {num_episodes:,} episodes, {passed}")

    def evaluated(self, step: int, metrics: Mapping[str, float], *, is_best: bool) -> None:
        """Show the score of an evaluation."""
        self._pace.resume(was_evaluation=True)
        self._evaluation_start = None
        self._next_time = time.monotonic() + self.seconds_between_lines
        self._show_score(step, metrics, is_best)

    def compiling(self, is_compiling: bool) -> None:
        """Show that compilation of the update has started or ended."""
        if is_compiling:
            self._pace.pause()
            self._show_activity("compiling the update…")
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
        """Show the progress; returns whether there was anything new."""
        if metrics == self._last:
            return False
        self._last = dict(metrics)
        self.message(
            fit([f"step {step:,}/{total:,}", *self._facts(step, total, metrics)], LINE_WIDTH)
        )
        return True

    def _show_activity(self, text: str) -> None:
        self.message(text)

    def _show_score(self, step: int, metrics: Mapping[str, float], is_best: bool) -> None:
        best = "  best so far" if is_best else ""
        self.message(f"step {step:,}  {describe_score(metrics)}{best}")

    def _facts(self, step: int, total: int, metrics: Mapping[str, float]) -> list[str]:
        """Rate, time left, returns and loss, most important first."""
        facts = []
        rate, left = self._pace.rate, self._pace.seconds_left(step, total)
        if rate is not None:
            facts.append(f"{rate:,.0f} steps/s" if rate >= 10 else f"{rate:.2g} steps/s")
        if left is not None:
            facts.append(f"{format_seconds(left)} left")
        for word, names, form in SHOWN_METRICS:
            known = [name for name in names if name in metrics]
            if known:
                facts.append(f"{word} {metrics[known[0]]:{form}}")
        return facts


class BarView(ProgressView):
    """A bar, facts, and what the run does meanwhile: in one text that is replaced in place."""

    def __init__(self, first_step: int = 0) -> None:
        super().__init__(first_step)
        self._done, self._total = first_step, 0
        self._parts: list[str] = ["starting"]
        self._activity: str | None = None

    def evaluated(self, step: int, metrics: Mapping[str, float], *, is_best: bool) -> None:
        """Show the score of an evaluation, and training again."""
        self._activity = None
        super().evaluated(step, metrics, is_best=is_best)

    def compiling(self, is_compiling: bool) -> None:
        """Show compilation beside the bar."""
        super().compiling(is_compiling)
        if not is_compiling:
            self._activity = None
            self._draw()

    def _show(self, step: int, total: int, metrics: Mapping[str, float]) -> bool:
        self._done, self._total = step, total
        self._parts = [f"{step:,}/{total:,}", *self._facts(step, total, metrics)]
        return True

    def _show_activity(self, text: str) -> None:
        self._activity = text
        self._draw()

    def _draw(self) -> None:
        """Replace what is shown."""
        raise NotImplementedError


class LiveView(BarView):
    """Redraws a progress bar in place and prints lines above it: for terminals."""

    seconds_between_lines = SECONDS_BETWEEN_DRAWINGS
    evaluation_delay = 0.0

    def __init__(self, first_step: int = 0) -> None:
        from rich.live import Live

        super().__init__(first_step)
        self._read: ReadProgress | None = None
        self._console = make_console()
        self._live = Live(console=self._console, get_renderable=self._render, refresh_per_second=8)
        self._live.start()

    def watch(self, read: ReadProgress) -> None:
        """Read the progress whenever the bar is redrawn, from the thread that redraws it."""
        self._read = read

    def update(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        """Show where the run is, unless the bar reads it by itself."""
        if self._read is None:
            super().update(step, total, metrics)

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

    def _draw(self) -> None:
        self._live.refresh()

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
        bar = ProgressBar(
            total=self._total or None, completed=self._done, width=size, pulse=not self._total
        )
        table.add_row(bar, text)
        return table


class NotebookView(BarView):
    """Shows a bar with the last score; messages are printed above it, and evaluations only change it."""

    seconds_between_lines = evaluation_delay = SECONDS_BETWEEN_NOTEBOOK_DRAWINGS
    _handle: Any = None

    def _show(self, step: int, total: int, metrics: Mapping[str, float]) -> bool:
        super()._show(step, total, metrics)
        self._activity = None
        self._draw()
        return True

    def _show_score(self, step: int, metrics: Mapping[str, float], is_best: bool) -> None:
        self._parts = [f"{step:,}/{self._total:,}", f"eval {metrics['eval_return_mean']:.1f}"]
        self._draw()

    def _draw(self) -> None:
        """Replace the text; the first one is a new output of the cell."""
        from IPython.display import display

        done = min(1.0, self._done / self._total) if self._total else 0.0
        bar = ("█" * round(done * LARGEST_BAR)).ljust(LARGEST_BAR, "░")
        parts = self._parts if self._activity is None else [*self._parts[:1], self._activity]
        text = f"{bar}  {fit([f'{done:4.0%}', *parts], CELL_WIDTH - LARGEST_BAR - 2)}"
        content = {"text/plain": printable(text)}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


def make_view(first_step: int = 0) -> ProgressView:
    """A live bar on a terminal or in a notebook, lines elsewhere; lines are not shown if messages are suppressed."""
    if is_quiet():
        return ProgressView(first_step)
    if is_notebook():
        return NotebookView(first_step)
    return (LiveView if is_terminal(sys.stderr) else ProgressView)(first_step)


def is_notebook() -> bool:
    """Whether the code runs in a cell of a Jupyter kernel; IPython is not imported for it."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return getattr(shell, "kernel", None) is not None


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


def collapsed(notes: Iterable[str]) -> list[str]:
    """The notes without duplicates; those that differ only in the environment's index become one, with their count."""
    alike: dict[str, list[str]] = {}
    for note in dict.fromkeys(notes):
        match = OF_AN_ENVIRONMENT.fullmatch(note)
        alike.setdefault(match[1] if match else note, []).append(note)
    return [
        found[0] if len(found) == 1 else f"{len(found):,} environments: {text}"
        for text, found in alike.items()
    ]


@contextlib.contextmanager
def counter(
    total: int, label: str, unit: str = "", *, shows_time: bool = False
) -> Iterator[Callable[[int], None]]:
    """Show a bar (elsewhere than on a terminal: lines) during the block; yield a function that sets how many are done.

    With `shows_time` the bar also shows the time since the start.
    """
    from rich.progress import BarColumn, Progress, TextColumn

    is_live = is_terminal(sys.stderr) and not is_quiet()
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=LARGEST_BAR))
    with Progress(
        *columns, console=make_console(), disable=not is_live, transient=True
    ) as progress:
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

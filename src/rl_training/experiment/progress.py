"""What a person watches while a run goes on: lines for files and pipes, a bar on a terminal."""

from __future__ import annotations

import contextlib
import datetime
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rl_training.streams import TolerantStream, is_terminal, printable, tell

LOSS_NAMES = ("policy_loss", "actor_loss", "critic_loss", "loss")


class ProgressView:
    """What a person watches while a run goes on: a line whenever there is something new, for files and pipes."""

    def __init__(self, first_step: int = 0) -> None:
        self._first_step = first_step
        self._start = time.monotonic()
        self._next_time = 0.0
        self._last: dict[str, float] = {}

    def update(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        """Show where the run is, not too often."""
        if time.monotonic() >= self._next_time or step >= total:
            self._show(step, total, metrics)

    def evaluating(self, num_done: int, num_episodes: int) -> None:
        """Show how far an evaluation is: nothing that is worth a line."""

    def message(self, text: str) -> None:
        """Print a line that stays; a reader that is gone, or a full disk under a log, is no reason to end a run."""
        tell(text)

    def close(self) -> None:
        """Leave the screen tidy."""

    def _show(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        if metrics != self._last:
            self._last = dict(metrics)
            self._next_time = time.monotonic() + 1.0
            self.message(f"step {step:,}/{total:,}  {self._describe(step, total, metrics)}")

    def _describe(self, step: int, total: int, metrics: Mapping[str, float]) -> str:
        loss = next((name for name in LOSS_NAMES if name in metrics), "loss")
        shown = {"return": ("train_return_mean", ".1f"), "eval": ("eval_return_mean", ".1f"), "loss": (loss, ".2g")}
        parts = [f"{word} {metrics[name]:{form}}" for word, (name, form) in shown.items() if name in metrics]
        rate = (step - self._first_step) / max(time.monotonic() - self._start, 1e-9)
        if rate > 0:
            left = str(datetime.timedelta(seconds=max(0, round((total - step) / rate)))).removeprefix("0:")
            parts += [f"{rate:,.0f} steps/s", f"{left} left"]
        return "  ".join(parts)


class LiveView(ProgressView):
    """A progress bar that is redrawn in place: for terminals."""

    def __init__(self, first_step: int = 0) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        super().__init__(first_step)
        stream: Any = TolerantStream()
        console = Console(file=stream)
        self._hidden = () if console.width >= 100 else ("eval_return_mean",)
        bar = BarColumn(bar_width=max(6, min(24, console.width - 90)))
        self._progress = Progress(bar, TextColumn("{task.description}"), console=console)
        self._place = "starting"
        self._task = self._progress.add_task(self._place, total=None)
        self._progress.start()

    def evaluating(self, num_done: int, num_episodes: int) -> None:
        """Show it behind the bar."""
        if time.monotonic() >= self._next_time:
            self._next_time = time.monotonic() + 0.1
            line = f"{self._place}  evaluating, {num_done:,} of {num_episodes:,} episodes"
            self._progress.update(self._task, description=line, refresh=True)

    def message(self, text: str) -> None:
        """Print the line above the bar."""
        self._progress.console.print(printable(text), markup=False, highlight=False)

    def close(self) -> None:
        """Stop redrawing."""
        self._progress.stop()

    def _show(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        self._next_time = time.monotonic() + 0.1
        shown = {key: value for key, value in metrics.items() if key not in self._hidden}
        self._place = f"{min(1.0, step / total):4.0%}  step {step:,}"
        line = f"{self._place}  {self._describe(step, total, shown)}"
        self._progress.update(self._task, completed=step, total=total, description=line)


def make_view(first_step: int = 0) -> ProgressView:
    """A live bar on a terminal, plain lines elsewhere."""
    return (LiveView if is_terminal(sys.stderr) else ProgressView)(first_step)


@contextlib.contextmanager
def counter(total: int, label: str) -> Iterator[Callable[[int], None]]:
    """What hears how many of `total` are done, and shows a bar on a terminal that is gone afterwards."""
    from rich.console import Console
    from rich.progress import Progress

    stream: Any = TolerantStream()
    with Progress(console=Console(file=stream), disable=not is_terminal(sys.stderr), transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda num_done: progress.update(task, completed=num_done)


def counting(total: int, label: str) -> Iterator[int]:
    """Count to `total` with such a bar."""
    with counter(total, label) as show:
        for number in range(total):
            yield number
            show(number + 1)

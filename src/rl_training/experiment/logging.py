"""Metrics: gathered between two log lines, then written to a file, to TensorBoard and to the screen."""

from __future__ import annotations

import contextlib
import io
import json
import math
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from rl_training.errors import RLTrainingError
from rl_training.experiment.files import AppendedFile, naming_write

EPISODE_WINDOW = 100
LOSS_NAMES = ("policy_loss", "actor_loss", "critic_loss", "loss")


class MetricSink(Protocol):
    """A place where a line of metrics goes."""

    def write(self, metrics: Mapping[str, float]) -> None:
        """Take one line; it always holds `global_step`."""

    def close(self) -> None:
        """No more lines will come."""


class MetricAccumulator:
    """Means of the updates since the last line, and of the last hundred episodes.

    Values stay tensors until `collect`: turning them into numbers earlier would make the device wait.
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._sums = torch.zeros(0, dtype=torch.float64)
        self._count = 0
        self._returns: deque[float] = deque(maxlen=EPISODE_WINDOW)
        self._lengths: deque[int] = deque(maxlen=EPISODE_WINDOW)

    def add_update(self, metrics: Mapping[str, Tensor]) -> bool:
        """Take in the metrics of one update; returns whether one is seen not to be finite.

        On the CPU the question is answered at once. Elsewhere it would make the device wait, so it is left to
        `find_non_finite`, which the end of a round asks.
        """
        names = tuple(metrics)
        values = torch.stack(tuple(metrics.values()))
        if self._names != names:
            self._names = names
            self._sums = torch.zeros(len(names), dtype=torch.float64, device=values.device)
            self._count = 0
        self._sums += values
        self._count += 1
        return values.device.type == "cpu" and not math.isfinite(values.sum().item())

    def find_non_finite(self) -> tuple[str, float] | None:
        """The first metric since the last line that is NaN or infinite."""
        sums = self._sums.tolist()
        return next((pair for pair in zip(self._names, sums, strict=True) if not math.isfinite(pair[1])), None)

    def add_episodes(self, returns: Sequence[float], lengths: Sequence[int]) -> None:
        """Take in finished episodes."""
        self._returns.extend(returns)
        self._lengths.extend(lengths)

    def peek(self) -> dict[str, float]:
        """The means as they stand."""
        sums = zip(self._names, self._sums.tolist(), strict=True)
        means = {name: total / self._count for name, total in sums if self._count}
        if self._returns:
            means["train_return_mean"] = sum(self._returns) / len(self._returns)
            means["train_length_mean"] = sum(self._lengths) / len(self._lengths)
        return means

    def collect(self) -> dict[str, float]:
        """The means, after which the updates begin anew."""
        means = self.peek()
        self._sums.zero_()
        self._count = 0
        return means

    def state_dict(self) -> dict[str, Any]:
        """What has been gathered so far."""
        return {
            "sums": dict(zip(self._names, self._sums.unbind(), strict=True)),
            "count": self._count,
            "returns": list(self._returns),
            "lengths": list(self._lengths),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._names = tuple(state["sums"])
        if self._names:
            self._sums = torch.stack(tuple(state["sums"].values()))
        self._count = state["count"]
        self._returns = deque(state["returns"], maxlen=EPISODE_WINDOW)
        self._lengths = deque(state["lengths"], maxlen=EPISODE_WINDOW)


class JsonlSink:
    """`metrics.jsonl`: one object a line, handed to the system line by line."""

    def __init__(self, path: Path, keep_bytes: int = 0) -> None:
        """Append to `path`, after cutting it to the lines a resumed run has already taken in."""
        if path.is_file():
            keep_bytes = path.read_bytes()[:keep_bytes].rfind(b"\n") + 1  # whole lines only
        self._file = AppendedFile(path, keep_bytes)

    @property
    def num_bytes(self) -> int:
        """Length of the file as it stands."""
        return self._file.num_bytes

    def write(self, metrics: Mapping[str, float]) -> None:
        """Append a line."""
        plain = {key: value if math.isfinite(value) else None for key, value in metrics.items()}
        self._file.append((json.dumps(plain) + "\n").encode())

    def sync(self) -> None:
        """Wait until every line is on the disk."""
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorboardSink:
    """Scalars for TensorBoard.

    The events are written from here and at once: TensorBoard's own writer does it in a thread, where a full disk is
    a traceback on the screen and no error.
    """

    def __init__(self, folder: Path, first_step: int = 0) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        with naming_write(folder):
            folder.mkdir(exist_ok=True)
        # TensorBoard reads the files of a run in the order of their names.
        self._file = AppendedFile(folder / f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}")
        self._append(Event(wall_time=time.time(), file_version="brain.Event:2"))
        if first_step:  # a resumed run hides the points of steps that it takes again
            start = SessionLog(status=SessionLog.START)
            self._append(Event(wall_time=time.time(), step=first_step + 1, session_log=start))

    def write(self, metrics: Mapping[str, float]) -> None:
        """Add one point to each curve."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        points = [
            Summary.Value(tag=f"{'eval' if name.startswith('eval_') else 'train'}/{name}", simple_value=value)
            for name, value in metrics.items()
            if name != "global_step"
        ]
        self._append(Event(wall_time=time.time(), step=int(metrics["global_step"]), summary=Summary(value=points)))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, event: Any) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        self._file.append(record.getvalue())


class ProgressView(Protocol):
    """What a person watches while a run goes on; it gets the time, and the latest metrics."""

    def update(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        """Show where the run is."""

    def message(self, text: str) -> None:
        """Show a line that stays."""

    def close(self) -> None:
        """Leave the screen tidy."""


class SilentView:
    """Shows nothing."""

    def update(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        """Ignore."""

    def message(self, text: str) -> None:
        """Ignore."""

    def close(self) -> None:
        """Nothing to tidy."""


class PlainView:
    """A line whenever there is something new: for files and pipes."""

    def __init__(self, first_step: int = 0) -> None:
        self._clock = _Clock(first_step)
        self._last: dict[str, float] = {}
        self._next_line = 0.0

    def update(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        """Print the state of the run if its metrics have changed, at most once a second."""
        now = time.monotonic()
        if dict(metrics) != self._last and (now >= self._next_line or step >= total):
            self._last = dict(metrics)
            self._next_line = now + 1.0
            self.message(f"step {step:,}/{total:,}  {_describe(metrics, self._clock.rate(step), step, total)}")

    def message(self, text: str) -> None:
        """Print the line; a reader that is gone, or a full disk under a log, is no reason to end a run."""
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing to tidy."""


class LiveView:
    """A progress bar that is redrawn in place: for terminals."""

    def __init__(self, first_step: int = 0) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._clock = _Clock(first_step)
        console = Console(stderr=True)
        self._hidden = () if console.width >= 100 else ("eval_return_mean",)
        bar = BarColumn(bar_width=max(6, min(24, console.width - 90)))
        self._progress = Progress(bar, TextColumn("{task.description}"), console=console)
        self._task = self._progress.add_task("starting", total=None)
        self._next_draw = 0.0
        self._progress.start()

    def update(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        """Redraw, at most ten times a second."""
        now = time.monotonic()
        if now < self._next_draw and step < total:
            return
        self._next_draw = now + 0.1
        share = min(1.0, step / total)
        shown = {key: value for key, value in metrics.items() if key not in self._hidden}
        line = f"{share:4.0%}  step {step:,}  {_describe(shown, self._clock.rate(step), step, total)}"
        self._progress.update(self._task, completed=step, total=total, description=line)

    def message(self, text: str) -> None:
        """Print the line above the bar."""
        self._progress.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Stop redrawing."""
        self._progress.stop()


def make_view(first_step: int = 0) -> ProgressView:
    """A live bar on a terminal, plain lines elsewhere."""
    return LiveView(first_step) if sys.stderr.isatty() else PlainView(first_step)


class _Clock:
    """Steps per second since the view was opened."""

    def __init__(self, first_step: int) -> None:
        self._first_step = first_step
        self._start = time.monotonic()

    def rate(self, step: int) -> float:
        return (step - self._first_step) / max(time.monotonic() - self._start, 1e-9)


def _describe(metrics: Mapping[str, float], rate: float, step: int, total: int) -> str:
    parts = []
    if "train_return_mean" in metrics:
        parts.append(f"return {metrics['train_return_mean']:.1f}")
    if "eval_return_mean" in metrics:
        parts.append(f"eval {metrics['eval_return_mean']:.1f}")
    loss = next((metrics[name] for name in LOSS_NAMES if name in metrics), None)
    if loss is not None:
        parts.append(f"loss {loss:.2g}")
    if rate > 0:
        parts.append(f"{rate:,.0f} steps/s")
        parts.append(f"{_clock_time((total - step) / rate)} left")
    return "  ".join(parts)


def _clock_time(seconds: float) -> str:
    minutes, seconds = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a `metrics.jsonl`; a last line that was cut off while being written is left out."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                metrics = json.loads(line)
            except (ValueError, RecursionError):
                metrics = None
            if not isinstance(metrics, dict) or not all(_is_metric(value) for value in metrics.values()):
                raise RLTrainingError(f"line {number} of '{path}' is damaged")
            yield metrics


def _is_metric(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))

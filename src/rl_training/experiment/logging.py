"""Log files of a run: metrics.jsonl, evaluations.jsonl and TensorBoard."""

from __future__ import annotations

import contextlib
import io
import json
import math
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rl_training.errors import RLTrainingError
from rl_training.files import AppendedFile, translate_write_errors

METRIC_TYPES = {int, float, type(None)}
LONGEST_NUMBER = 20
"""Digits of a whole number in a line of metrics, with its sign."""


class MetricSink(Protocol):
    """Destination of metrics."""

    def write(self, metrics: Mapping[str, float]) -> None:
        """Write the metrics of one step; they always include `global_step`."""


class JsonlFile(AppendedFile):
    """A JSON Lines file, written line by line without buffering."""

    def __init__(self, path: Path, keep_bytes: int = 0, workspace: Path | None = None) -> None:
        """Append to `path`, after truncating it to the full lines within its first `keep_bytes`."""
        self.num_lost_bytes = max(0, keep_bytes - (path.stat().st_size if path.is_file() else 0))
        """Bytes that the file was shorter than `keep_bytes`: lines that were lost since the checkpoint."""
        if path.is_file():
            keep_bytes = path.read_bytes()[:keep_bytes].rfind(b"\n") + 1  # full lines only
        super().__init__(path, keep_bytes, workspace)

    def append_line(self, values: Mapping[str, Any]) -> None:
        """Append an object as one line."""
        self.append((json.dumps(values) + "\n").encode())


class JsonlSink(JsonlFile):
    """`metrics.jsonl`: one line per logged step."""

    def write(self, metrics: Mapping[str, float]) -> None:
        """Append a line; NaN and infinity become null."""
        self.append_line({key: value if math.isfinite(value) else None for key, value in metrics.items()})


class EvaluationFile(JsonlFile):
    """`evaluations.jsonl`: one line per evaluation, with its episodes in the order of their seeds."""

    def write(
        self,
        step: int,
        seeds: Sequence[int],
        returns: Sequence[float],
        lengths: Sequence[int],
        successes: Sequence[bool | None],
    ) -> None:
        """Append an evaluation; `successes` is omitted if no episode reports success."""
        reported = {"successes": list(successes)} if any(success is not None for success in successes) else {}
        episodes = {"seeds": list(seeds), "returns": list(returns), "lengths": list(lengths), **reported}
        self.append_line({"global_step": step, **episodes})


class TensorboardSink(AppendedFile):
    """TensorBoard event file.

    Events are written synchronously: TensorBoard's own writer uses a thread, where a failed write raises no error.
    """

    def __init__(
        self,
        folder: Path,
        first_step: int = 0,
        workspace: Path | None = None,
        read_times: Callable[[], Mapping[str, float | None]] = dict,
    ) -> None:
        """Begin an event file in `folder`; `read_times` gives the times of the line that is being written."""
        from tensorboard.compat.proto.event_pb2 import SessionLog

        with translate_write_errors(folder):
            folder.mkdir(exist_ok=True)
        self._read_times = read_times
        # TensorBoard reads the files of a run sorted by name.
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}"
        super().__init__(folder / name, workspace=workspace)
        self._append_event(file_version="brain.Event:2")
        if first_step:  # hides the points after the checkpoint that was resumed
            self._append_event(step=first_step + 1, session_log=SessionLog(status=SessionLog.START))

    def write(self, metrics: Mapping[str, float]) -> None:
        """Add one point to each curve."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        points = [
            Summary.Value(tag=f"{'eval' if name.startswith('eval_') else 'train'}/{name}", simple_value=value)
            for name, value in metrics.items()
            if name != "global_step"
        ]
        times = self._read_times()
        shown = {name: times.get(name) for name in ("wall_time", "steps_per_second")}
        points += [
            Summary.Value(tag=f"time/{name}", simple_value=value) for name, value in shown.items() if value is not None
        ]
        self._append_event(step=int(metrics["global_step"]), summary=Summary(value=points))

    def _append_event(self, **values: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        record = io.BytesIO()
        RecordWriter(record).write(Event(wall_time=time.time(), **values).SerializeToString())
        self.append(record.getvalue())


def latest_metrics(path: Path) -> dict[str, float]:
    """Latest value of each metric in a `metrics.jsonl`, as far as it can be read, and `eval_step`."""
    found: dict[str, float] = {}
    with contextlib.suppress(OSError, RLTrainingError):
        for line in read_metrics(path):
            found |= {name: value for name, value in line.items() if value is not None}
            if "eval_return_mean" in line and "global_step" in line:
                found["eval_step"] = line["global_step"]
    return found


def _whole_number(text: str) -> int:
    """A whole number that a float holds too: a larger one is damage, and would end whoever divides by it."""
    if len(text) > LONGEST_NUMBER:
        raise ValueError
    return int(text)


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a `metrics.jsonl`; an incomplete last line is left out."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                metrics = json.loads(line, parse_int=_whole_number)
            except (ValueError, RecursionError):
                metrics = None
            if not isinstance(metrics, dict) or not {*map(type, metrics.values())} <= METRIC_TYPES:
                raise RLTrainingError(f"line {number} of '{path}' is damaged")
            yield metrics

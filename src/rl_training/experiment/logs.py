"""Files that a run writes line by line: metrics, evaluations, TensorBoard events, times, and `run.log`."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
        self.append_line(
            {key: value if math.isfinite(value) else None for key, value in metrics.items()}
        )


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
        line = {"global_step": step, "seeds": seeds, "returns": returns, "lengths": lengths}
        if any(success is not None for success in successes):
            line["successes"] = successes
        self.append_line(line)


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
            Summary.Value(
                tag=f"{'eval' if name.startswith('eval_') else 'train'}/{name}", simple_value=value
            )
            for name, value in metrics.items()
            if name != "global_step"
        ]
        times = self._read_times()
        shown = {name: times.get(name) for name in ("wall_time", "steps_per_second")}
        points += [
            Summary.Value(tag=f"time/{name}", simple_value=value)
            for name, value in shown.items()
            if value is not None
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


TIMING_NAME = "timing.jsonl"
PHASES = ("collect_seconds", "update_seconds", "eval_seconds", "save_seconds")
TIMES = ("wall_time", "steps_per_second", *PHASES)


@dataclass(slots=True)
class PhaseTimes:
    """Seconds of each phase so far, in all processes of the run; the loops add to them."""

    collect_seconds: float = 0.0
    update_seconds: float = 0.0
    eval_seconds: float = 0.0
    save_seconds: float = 0.0


class TimingFile(JsonlFile):
    """`timing.jsonl`: the time at each line of `metrics.jsonl`, in the same order."""

    def __init__(
        self, path: Path, metrics: Path, first_step: int = 0, workspace: Path | None = None
    ) -> None:
        """Continue `path` after as many lines as the file `metrics` has; time starts to count.

        Lines that are missing or damaged, as in a run that began without the file, are replaced by lines without times.
        """
        steps = [line.get("global_step") for line in read_lines(metrics)]
        kept, num_bytes = _matching_lines(path, steps)
        super().__init__(path, num_bytes, workspace)
        for step in steps[len(kept) :]:
            self.append_line({"global_step": step, **dict.fromkeys(TIMES)})
        last: dict[str, Any] = next(
            (line for line in reversed(kept) if line.get("wall_time") is not None), {}
        )
        self.times = PhaseTimes(**{name: last.get(name) or 0.0 for name in PHASES})
        self.latest: dict[str, float | None] = {}
        """The times of the last line that this process wrote."""
        self._started = time.perf_counter() - (last.get("wall_time") or 0.0)
        self._last_step, self._last_wall_time = first_step, last.get("wall_time") or 0.0

    def write(self, metrics: Mapping[str, float]) -> None:
        """Append the times at a line of metrics."""
        step, wall_time = int(metrics["global_step"]), time.perf_counter() - self._started
        seconds, steps = wall_time - self._last_wall_time, step - self._last_step
        phases = {name: round(getattr(self.times, name), 6) for name in PHASES}
        self.latest = {
            "wall_time": round(wall_time, 6),
            "steps_per_second": round(steps / seconds, 3) if steps > 0 and seconds > 0 else None,
            **phases,
        }
        self.append_line({"global_step": step, **self.latest})
        self._last_step, self._last_wall_time = step, wall_time


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a JSON Lines file; a damaged line is empty, and a missing file has none."""
    return [_parse(line) for line in _texts(path)]


def _matching_lines(path: Path, steps: Sequence[Any]) -> tuple[list[dict[str, Any]], int]:
    """The first lines of `path`, as long as they are of these steps, and their length in bytes."""
    found: list[dict[str, Any]] = []
    num_bytes = 0
    for text, step in zip(_texts(path), steps, strict=False):
        line = _parse(text)
        is_same = step is None or line.get("global_step") == step
        if not is_same or not all(_is_time(line.get(name)) for name in TIMES):
            break
        found.append(line)
        num_bytes += len(text) + 1
    return found, num_bytes


def _texts(path: Path) -> list[bytes]:
    with contextlib.suppress(OSError):
        return path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    return []


def _parse(line: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        values = json.loads(line)
        return values if isinstance(values, dict) else {}
    return {}


def _is_time(value: object) -> bool:
    """Whether a value is one that `TimingFile` writes: seconds, a rate, or None."""
    return value is None or (type(value) in (int, float) and 0 <= value < math.inf)  # type: ignore[operator]


LOG_NAME = "run.log"


class RunLogHandler(logging.Handler):
    """Appends each record to a file, opened with the first record; a failed write raises an error."""

    def __init__(self, path: Path, workspace: Path | None = None) -> None:
        super().__init__()
        self._path, self._workspace = path, workspace
        self._file: AppendedFile | None = None
        formatter = logging.Formatter(
            "%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S+00:00"
        )
        formatter.converter = time.gmtime
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        """Append one record."""
        if self._file is None:
            self._file = AppendedFile(self._path, workspace=self._workspace)
        self._file.append(f"{self.format(record)}\n".encode(errors="backslashreplace"))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
        super().close()


def make_run_logger(run_dir: Path, workspace: Path | None = None) -> logging.Logger:
    """A logger that writes to `run.log` only.

    It is not registered with `logging`, so neither the root logger nor another run's handlers receive its records.
    """
    logger = logging.Logger(f"rl_training.{run_dir.name}", logging.INFO)
    logger.addHandler(RunLogHandler(run_dir / LOG_NAME, workspace))
    return logger


def close_run_logger(logger: logging.Logger) -> None:
    """Detach the file; later records are discarded."""
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.addHandler(logging.NullHandler())  # without a handler, Python prints warnings to stderr

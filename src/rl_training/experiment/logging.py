"""Metrics: averaged between two log lines, then written to `metrics.jsonl` and TensorBoard."""

from __future__ import annotations

import contextlib
import io
import json
import math
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from rl_training.errors import RLTrainingError
from rl_training.files import AppendedFile, translate_write_errors

EPISODE_WINDOW = 100
METRIC_TYPES = {int, float, type(None)}


class MetricSink(Protocol):
    """Destination of metrics."""

    def write(self, metrics: Mapping[str, float]) -> None:
        """Write the metrics of one step; they always include `global_step`."""


class MetricAccumulator:
    """Means of the update metrics since the last log line, and of the last hundred episodes' returns and lengths.

    Values stay tensors until `collect`: converting them earlier would synchronize with the device.
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._sums = torch.zeros(0, dtype=torch.float64)
        self._count = 0
        self._returns: deque[float] = deque(maxlen=EPISODE_WINDOW)
        self._lengths: deque[int] = deque(maxlen=EPISODE_WINDOW)

    def add_update(self, metrics: Mapping[str, Tensor]) -> bool:
        """Add the metrics of one update; on the CPU, returns whether one of them is not finite.

        On other devices the check would synchronize, so it returns False there; `find_non_finite`, called at the end
        of an iteration, checks them.
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
        """The first metric since the last log line that is NaN or infinite; None if all are finite."""
        sums = self._sums.tolist()
        return next((pair for pair in zip(self._names, sums, strict=True) if not math.isfinite(pair[1])), None)

    def add_episodes(self, returns: Sequence[float], lengths: Sequence[int]) -> None:
        """Add finished episodes."""
        self._returns.extend(returns)
        self._lengths.extend(lengths)

    def collect(self) -> dict[str, float]:
        """Return the means, and reset those of the updates."""
        sums = zip(self._names, self._sums.tolist(), strict=True)
        means = {name: total / self._count for name, total in sums if self._count}
        if self._returns:
            means["train_return_mean"] = sum(self._returns) / len(self._returns)
            means["train_length_mean"] = sum(self._lengths) / len(self._lengths)
        self._sums.zero_()
        self._count = 0
        return means

    def state_dict(self) -> dict[str, Any]:
        """Sums and counts since the last log line, and the last hundred episodes."""
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


class JsonlFile(AppendedFile):
    """A JSON Lines file, written line by line without buffering."""

    def __init__(self, path: Path, keep_bytes: int = 0) -> None:
        """Append to `path`, after truncating it to the full lines within its first `keep_bytes`."""
        self.num_lost_bytes = max(0, keep_bytes - (path.stat().st_size if path.is_file() else 0))
        """Bytes that the file was shorter than `keep_bytes`: lines that were lost since the checkpoint."""
        if path.is_file():
            keep_bytes = path.read_bytes()[:keep_bytes].rfind(b"\n") + 1  # full lines only
        super().__init__(path, keep_bytes)

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

    def __init__(self, folder: Path, first_step: int = 0) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog

        with translate_write_errors(folder):
            folder.mkdir(exist_ok=True)
        # TensorBoard reads the files of a run sorted by name.
        super().__init__(folder / f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}")
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


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a `metrics.jsonl`; an incomplete last line is left out."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                metrics = json.loads(line)
            except (ValueError, RecursionError):
                metrics = None
            if not isinstance(metrics, dict) or not {*map(type, metrics.values())} <= METRIC_TYPES:
                raise RLTrainingError(f"line {number} of '{path}' is damaged")
            yield metrics

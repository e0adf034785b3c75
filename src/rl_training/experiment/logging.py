"""Metrics: gathered between two log lines, then written to a file and to TensorBoard."""

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
    """A place where a line of metrics goes."""

    def write(self, metrics: Mapping[str, float]) -> None:
        """Take one line; it always holds `global_step`."""


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

    def collect(self) -> dict[str, float]:
        """The means, after which the updates begin anew."""
        sums = zip(self._names, self._sums.tolist(), strict=True)
        means = {name: total / self._count for name, total in sums if self._count}
        if self._returns:
            means["train_return_mean"] = sum(self._returns) / len(self._returns)
            means["train_length_mean"] = sum(self._lengths) / len(self._lengths)
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


class JsonlFile(AppendedFile):
    """A file of one JSON object a line, handed to the system line by line."""

    def __init__(self, path: Path, keep_bytes: int = 0) -> None:
        """Append to `path`, after cutting it to the lines a resumed run has already taken in."""
        self.num_lost_bytes = max(0, keep_bytes - (path.stat().st_size if path.is_file() else 0))
        """By how much the file was shorter than the lines that the run had written."""
        if path.is_file():
            keep_bytes = path.read_bytes()[:keep_bytes].rfind(b"\n") + 1  # whole lines only
        super().__init__(path, keep_bytes)

    def append_line(self, values: Mapping[str, Any]) -> None:
        """Append an object."""
        self.append((json.dumps(values) + "\n").encode())


class JsonlSink(JsonlFile):
    """`metrics.jsonl`: the metrics of one step a line."""

    def write(self, metrics: Mapping[str, float]) -> None:
        """Append a line."""
        self.append_line({key: value if math.isfinite(value) else None for key, value in metrics.items()})


class EvaluationFile(JsonlFile):
    """`evaluations.jsonl`: the episodes of one evaluation a line, in the order of their seeds."""

    def write(
        self,
        step: int,
        seeds: Sequence[int],
        returns: Sequence[float],
        lengths: Sequence[int],
        successes: Sequence[bool | None],
    ) -> None:
        """Append an evaluation; successes are left out where no episode reports any."""
        reported = {"successes": list(successes)} if any(success is not None for success in successes) else {}
        episodes = {"seeds": list(seeds), "returns": list(returns), "lengths": list(lengths), **reported}
        self.append_line({"global_step": step, **episodes})


class TensorboardSink(AppendedFile):
    """Scalars for TensorBoard.

    The events are written from here and at once: TensorBoard's own writer does it in a thread, where a full disk is
    a traceback on the screen and no error.
    """

    def __init__(self, folder: Path, first_step: int = 0) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog

        with translate_write_errors(folder):
            folder.mkdir(exist_ok=True)
        # TensorBoard reads the files of a run in the order of their names.
        super().__init__(folder / f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}")
        self._append_event(file_version="brain.Event:2")
        if first_step:  # a resumed run hides the points of steps that it takes again
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
    """The latest value of each metric in a `metrics.jsonl`, as far as it can be read, and the evaluation's step."""
    found: dict[str, float] = {}
    with contextlib.suppress(OSError, RLTrainingError):
        for line in read_metrics(path):
            found |= {name: value for name, value in line.items() if value is not None}
            if "eval_return_mean" in line and "global_step" in line:
                found["eval_step"] = line["global_step"]
    return found


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
            if not isinstance(metrics, dict) or not {*map(type, metrics.values())} <= METRIC_TYPES:
                raise RLTrainingError(f"line {number} of '{path}' is damaged")
            yield metrics

"""The time of a run: seconds of each phase, and `timing.jsonl`, whose lines stand beside those of metrics.jsonl.

Times differ between equal runs, so they are in a file of their own, and checkpoints hold none of them.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.experiment.logging import JsonlFile

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

    def __init__(self, path: Path, metrics: Path, first_step: int = 0, workspace: Path | None = None) -> None:
        """Continue `path` after as many lines as the file `metrics` has; time starts to count.

        Lines that are missing or damaged, as in a run that began without the file, are replaced by lines without times.
        """
        steps = [line.get("global_step") for line in read_lines(metrics)]
        kept, num_bytes = _matching_lines(path, steps)
        super().__init__(path, num_bytes, workspace)
        for step in steps[len(kept) :]:
            self.append_line({"global_step": step, **dict.fromkeys(TIMES)})
        last: dict[str, Any] = next((line for line in reversed(kept) if line.get("wall_time") is not None), {})
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

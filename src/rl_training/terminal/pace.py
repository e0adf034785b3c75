"""Speed of a run: steps per second over the last seconds, and the estimated time left."""

from __future__ import annotations

import datetime
import time
from collections import deque
from collections.abc import Callable

WINDOW_SECONDS = 10.0


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
        while len(self._marks) > 2 and self._marks[1][0] < now - WINDOW_SECONDS:
            self._marks.popleft()

    @property
    def rate(self) -> float | None:
        """Steps per second over the last seconds; None before the first step."""
        (first_time, first_step), (last_time, last_step) = self._marks[0], self._marks[-1]
        return (last_step - first_step) / (last_time - first_time) if last_step > first_step else None

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
    return text.removeprefix("0:").removeprefix("0") if text.startswith("0:0") else text.removeprefix("0:")

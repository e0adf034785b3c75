"""What a tracker is told and must offer, and the thread that serves it: a slow or failing tracker holds no run up."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Literal, Protocol

Line = Mapping[str, float | None]
"""One line of `metrics.jsonl`."""


@dataclass(frozen=True)
class TrackedRun:
    """A run as a tracker shows it."""

    id: str
    """Chosen here and kept in the run's metadata: a resumed run has the same."""
    name: str
    run_dir: Path
    group: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the run and all of its algorithm."""
    tags: Sequence[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Versions, commit, command and folder."""
    parent: str | None = None
    """Id of the tracked run that this one continues with other values (a fork, for example)."""


@dataclass(frozen=True)
class Outcome:
    """How a process of the run ended."""

    status: Literal["finished", "stopped", "interrupted", "failed", "replaced"]
    """`stopped`: early, as a callback asked; `interrupted`: by a signal; `replaced`: another process has the run."""
    reason: str | None = None


class Tracker(Protocol):
    """One tracked run. All calls come from one thread; an exception ends the tracking, not the run."""

    def start(self, run: TrackedRun) -> int | None:
        """Begin the tracked run, or continue the one with its id; returns the last step that it has."""

    def log(self, lines: Sequence[Line]) -> None:
        """Add lines. Steps do not decrease; a repeated step adds values; all come after the one `start` returned."""

    def finish(self, outcome: Outcome) -> None:
        """End the tracked run."""

    @property
    def place(self) -> str | None:
        """Address or command that shows the tracked run; None: none."""


def finite_values(line: Line) -> dict[str, float]:
    """The numbers of a line; null is NaN or infinity."""
    return {
        name: value for name, value in line.items() if value is not None and math.isfinite(value)
    }


def plain_values(value: Any) -> Any:
    """The value with text keys, lists, numbers and text only."""
    if isinstance(value, Mapping):
        return {str(key): plain_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain_values(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


MAX_WAITING = 100_000
"""Lines that may wait for a slow tracker."""


@dataclass(frozen=True)
class Beginning:
    """The start of a tracked run, with the lines that it should have already."""

    run: TrackedRun
    lines: Sequence[Line]


class TrackerSink:
    """One tracker of a run. The first exception ends the tracking and is reported once.

    A resumed run repeats the lines after its checkpoint. If they are as before, the tracker, which has them already,
    does not get them again. If one differs, a new tracked run begins that has all lines of `metrics.jsonl`.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Tracker],
        beginning: Beginning,
        *,
        discarded: Iterable[Line] = (),
        is_held: Callable[[], bool] = lambda: False,
        renew: Callable[[], Beginning],
        report: Callable[[str], None],
    ) -> None:
        """Start the thread. `discarded` are lines of a process before that the run will repeat.

        Lines are not handed over while `is_held`. `renew` gives the beginning of another tracked run. `report` shows a
        message, in the thread of the run.
        """
        self._name, self._make, self._renew, self._report = name, make, renew, report
        self._is_held = is_held
        self._discarded = {line.get("global_step"): line for line in discarded}
        self._queue: SimpleQueue[Beginning | Line | Outcome] = SimpleQueue()
        self._queue.put(beginning)
        self._messages: SimpleQueue[str] = SimpleQueue()
        self._is_off = False
        self._tracker: Tracker | None = None
        self._last_step = -1
        self._last_names: set[str] = set()
        """Names of the values that this process has sent of the last step; empty: an earlier process sent them."""
        self._thread = threading.Thread(target=self._work, name=f"rl_training-{name}", daemon=True)
        self._thread.start()

    def write(self, metrics: Mapping[str, float]) -> None:
        """Hand a line over; returns at once."""
        self._show_messages()
        if self._is_off or self._is_held():
            return
        before = self._discarded.pop(metrics["global_step"], None)
        if before is not None and _differ(before, metrics):
            self._begin_again()
        else:
            self._queue.put(dict(metrics))
        if self._queue.qsize() > MAX_WAITING:
            self._fail("it is too slow")

    def end(self, outcome: Outcome) -> None:
        """Ask the tracker to finish, without waiting for it."""
        self._queue.put(outcome)

    def wait(self, seconds: float) -> None:
        """Wait until the tracker has finished, at most so long."""
        self._thread.join(seconds)
        if self._thread.is_alive() and not self._is_off:
            self._is_off = True
            self._messages.put(
                f"{self._name} did not finish in time (can its server be reached?): the run is complete, the tracked"
                " run may not be"
            )
        self._show_messages()

    def _begin_again(self) -> None:
        """Begin another tracked run, whose lines include the one that differs."""
        self._discarded.clear()
        try:
            self._queue.put(self._renew())
        except Exception as error:  # the metadata cannot be written, for example
            self._fail(f"{type(error).__name__}: {error}")

    def _work(self) -> None:
        """Serve the queue until the end or the first exception."""
        try:
            while not self._is_off:
                for item in self._take():
                    self._handle(item)
        except BaseException as error:  # SystemExit, too: no tracker ends a run
            text = f"{type(error).__name__}: {error}".splitlines()
            self._fail(text[0])

    def _take(self) -> list[Beginning | list[Line] | Outcome]:
        """Wait for something to do; returns all there is, lines that follow each other as one."""
        items = [self._queue.get()]
        with contextlib.suppress(Empty):
            while True:
                items.append(self._queue.get_nowait())
        taken: list[Beginning | list[Line] | Outcome] = []
        for item in items:
            if isinstance(item, (Beginning, Outcome)):
                taken.append(item)
            elif taken and isinstance(taken[-1], list):
                taken[-1].append(item)
            else:
                taken.append([item])
        return taken

    def _handle(self, item: Beginning | list[Line] | Outcome) -> None:
        if isinstance(item, list):
            self._log(item)
        elif isinstance(item, Beginning):
            if self._tracker is not None:
                self._tracker.finish(
                    Outcome(
                        "stopped", "the resumed run has other values: another tracked run has them"
                    )
                )
            self._tracker = self._make()
            known = self._tracker.start(item.run)
            self._last_step, self._last_names = -1 if known is None else known, set()
            if self._tracker.place is not None:
                self._messages.put(f"{self._name}: {self._tracker.place}")
            self._log(item.lines)
        else:
            if self._tracker is not None:
                self._tracker.finish(item)
            self._is_off = True

    def _log(self, lines: Iterable[Line]) -> None:
        """Hand over the lines that the tracker does not have; of a second line of one step, what is new in it."""
        new = []
        for line in lines:
            step = line.get("global_step")
            if step is None or step < self._last_step:
                continue
            if step > self._last_step:
                self._last_step, self._last_names = int(step), {"global_step"}
                new.append(line)
            elif (
                self._last_names and line.keys() - self._last_names
            ):  # the closing evaluation, for example
                names = {"global_step", *line.keys() - self._last_names}
                new.append({name: value for name, value in line.items() if name in names})
            self._last_names |= line.keys() if self._last_names else set()
        if new and self._tracker is not None:
            self._tracker.log(new)

    def _fail(self, reason: str) -> None:
        if not self._is_off:
            self._is_off = True
            self._messages.put(f"{self._name} failed, and the run goes on without it: {reason}")

    def _show_messages(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                self._report(self._messages.get_nowait())


def _differ(before: Line, metrics: Mapping[str, float]) -> bool:
    """Whether a value that both lines have is another; one of them may have an evaluation that the other lacks."""
    return any(
        before[name] != (value if math.isfinite(value) else None)
        for name, value in metrics.items()
        if name in before
    )

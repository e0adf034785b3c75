"""The driver of a study: starts its runs, watches their folders, and tries again what died.

It keeps nothing that cannot be read from the run folders: the same driver, started again, continues.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Any

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.ownership import (
    STOP_FILE,
    file_clock,
    heartbeat_age,
    read_owner,
    stale_seconds,
)
from rl_training.experiment.run_folder import TrainingRun
from rl_training.studies.catalog import RunInfo, is_complete, is_run_folder, read_run
from rl_training.studies.launching.launchers import Exit, Handle, Launcher, last_words
from rl_training.studies.launching.orders import OWNED, log_of, make_order
from rl_training.studies.plan import PlannedRun, StudyFolder

ATTEMPTS_WITHOUT_PROGRESS = 3
SECONDS_BETWEEN_POLLS = 0.1
SECONDS_TO_START = 60.0
"""Seconds, beside those after which a heartbeat is stale, within which a process has to own its run."""
SECONDS_BETWEEN_LOOKS = 1.0
"""Seconds between two looks at heartbeats, and at runs that other processes train."""


HANDLED = ("SIGINT", "SIGTERM", "SIGHUP")
NO_PLACE = (
    "no node of the cluster is like the one that trained it so far: add one, or leave out --like-nodes to resume it"
    " approximately"
)


class Outcome(Enum):
    """What has become of a run, as far as this driver is concerned; what needs attention stands first."""

    ACTIVE = "active"
    ELSEWHERE = "elsewhere"
    """Another process, not started by this driver, trains it."""
    FAILED = "failed"
    GIVEN_UP = "given up"
    STOPPED = "stopped"
    WAITING = "waiting"
    DONE = "done"
    PRUNED = "pruned"
    """Ended by `Driver.prune`."""


NOT_OVER = {Outcome.WAITING, Outcome.ACTIVE, Outcome.ELSEWHERE}


@dataclass
class Task:
    """One run of the plan and what has become of it."""

    run: PlannedRun
    outcome: Outcome = Outcome.WAITING
    reason: str | None = None
    """Why it failed, was given up or stopped."""
    info: RunInfo | None = None
    """What its folder said when it was last read; None: it has none yet."""
    handle: Handle | None = None
    pointer: bytes | None = None
    """The checkpoint from which the last attempt began."""
    attempt_before: int = 0
    """The run's last owner when the last attempt was started."""
    attempts_without_progress: int = 0
    not_before: float = 0.0
    started: float = 0.0

    @property
    def score(self) -> float | None:
        """Last evaluation; None if the run is not complete or was not evaluated."""
        return self.info.last_eval if self.info and self.outcome is Outcome.DONE else None

    def look(self, now: float) -> RunInfo | None:
        """Read the run folder again; `now` is the time on the clock that dates its files."""
        self.info = read_run(self.run.run_dir, now) if is_run_folder(self.run.run_dir) else None
        return self.info

    def as_dict(self) -> dict[str, Any]:
        """For `--json`: the folder's facts, the setting, and what has become of the run here."""
        values: dict[str, Any] = {"run_dir": str(self.run.run_dir), "seed": self.run.config.seed}
        values |= {"state": "planned"} if self.info is None else self.info.as_dict()
        return {
            **values,
            "setting": self.run.setting,
            "outcome": self.outcome.value,
            "reason": self.reason or values.get("reason"),
        }


class Listener:
    """Shows the progress of a study; this one shows nothing."""

    def event(self, task: Task, text: str) -> None:
        """Something happened to a run."""

    def look(self, tasks: Sequence[Task]) -> None:
        """The tasks, about once a second."""

    def close(self) -> None:
        """The study is over."""


class Driver:
    """Trains the runs of a study."""

    def __init__(
        self, runs: Sequence[PlannedRun], launcher: Launcher, listener: Listener, study: StudyFolder
    ) -> None:
        self.tasks = [Task(run) for run in runs]
        self._launcher, self._listener, self._study = launcher, listener, study
        self.interrupted_by: signal.Signals | None = None
        self.shard: str | None = None
        """The share of the plan that these runs are; None: all of it."""
        self.on_look: Callable[[], None] = lambda: None
        """Called about once a second, after the run folders were read; it may call `prune`."""
        self._next_look = 0.0
        self._now = self._awake_since = file_clock(study.path)
        """The clock that dates heartbeats, at the last look and when this process last woke up from a pause."""

    def run(self) -> list[Task]:
        """Train until every run is over, or until a signal asks all to stop at a step boundary."""
        for task in self.tasks:
            self._recall(task)
        with handling_signals(self._interrupt):
            try:
                while any(task.handle or task.outcome in NOT_OVER for task in self.tasks):
                    self._tick()
                    time.sleep(SECONDS_BETWEEN_POLLS)
            finally:
                for task in self.tasks:  # after an error of the driver itself, or a second signal
                    if task.handle is not None:
                        task.handle.kill()
        self._listener.look(self.tasks)
        return self.tasks

    def prune(self, task: Task, reason: str) -> None:
        """End a run that is not worth its remaining steps: it saves and stops, and is not tried again."""
        if task.outcome in NOT_OVER:
            task.outcome, task.reason = Outcome.PRUNED, reason
            ask_to_stop(task.run.run_dir)
            self._listener.event(task, f"pruned: {reason}")

    def _recall(self, task: Task) -> None:
        """Read from its folder whether a run is over."""
        info = task.look(self._now)
        other = None if info is None else other_run(info, task.run.config)
        if other is not None:
            self._fail(task, Outcome.FAILED, other)
        elif info is not None and is_complete(info):
            task.outcome = Outcome.DONE
        elif info is not None and info.state == "running":
            task.outcome = Outcome.ELSEWHERE
            self._listener.event(task, f"is trained by {info.owner}: waiting for it")

    def _tick(self) -> None:
        for task in self.tasks:
            if task.handle is not None and (ended := task.handle.poll()) is not None:
                self._end(task, ended)
        is_look_due = time.monotonic() >= self._next_look
        if is_look_due:
            self._next_look = time.monotonic() + min(SECONDS_BETWEEN_LOOKS, stale_seconds() / 4)
            self._read_clock()
            self._look()
            self.on_look()
        if self.interrupted_by is None:
            self._start_waiting()
        if is_look_due:
            self._listener.look(self.tasks)

    def _read_clock(self) -> None:
        """Read the clock that dates heartbeats. If this process was paused, so were its workers: all begin anew."""
        before, self._now = self._now, file_clock(self._study.path)
        if abs(self._now - before) > stale_seconds() / 2:
            self._awake_since = self._now

    def _look(self) -> None:
        is_stopping = self.interrupted_by is not None
        for task in self.tasks:
            if task.outcome is Outcome.ELSEWHERE:
                self._look_elsewhere(task)
            elif task.handle is not None:
                task.look(self._now)
                self._replace_if_hung(task, task.handle)
                if is_stopping or task.outcome is Outcome.PRUNED:
                    ask_to_stop(task.run.run_dir)
            if is_stopping and task.outcome in (Outcome.WAITING, Outcome.ELSEWHERE):
                task.outcome = Outcome.STOPPED
                task.reason = "not started" if task.info is None else "not continued"

    def _look_elsewhere(self, task: Task) -> None:
        info = task.look(self._now)
        if info is not None and is_complete(info):
            self._finish(task, info)
        elif info is None or info.owner is None or info.owner.is_gone:
            task.outcome = Outcome.WAITING
        elif info.state != "running" and self._now - self._awake_since > stale_seconds():
            task.outcome = Outcome.WAITING  # not paused with this process: its heartbeat is stale

    def _start_waiting(self) -> None:
        free = self._launcher.capacity() - sum(task.handle is not None for task in self.tasks)
        for task in self._waiting():
            is_due = free > 0 and time.monotonic() >= task.not_before
            if is_due and self._launcher.can_start(task.run):
                self._start(task)
                free -= task.handle is not None
        if any(task.handle is not None for task in self.tasks):
            return
        waiting = self._waiting()
        if not any(self._launcher.can_start(task.run) for task in waiting):
            for task in waiting:
                self._fail(task, Outcome.GIVEN_UP, NO_PLACE)

    def _waiting(self) -> list[Task]:
        return [task for task in self.tasks if task.outcome is Outcome.WAITING]

    def _start(self, task: Task) -> None:
        self._recall(task)  # another driver may have begun or finished it
        if task.outcome is not Outcome.WAITING:
            return
        owner = read_owner(task.run.run_dir)
        task.attempt_before = 0 if owner is None else owner.attempt
        task.pointer = TrainingRun(task.run.run_dir).read_pointer()
        order = make_order(task.run, self._study, task.attempt_before)
        task.handle, task.started = self._launcher.start(order), self._now
        if task.handle is None:
            task.not_before = time.monotonic() + SECONDS_BETWEEN_LOOKS
            return
        task.outcome = Outcome.ACTIVE
        text = "started"
        if task.info is not None and task.info.has_checkpoint:
            text = f"resumed at step {task.info.step:,}"
        self._listener.event(task, text)

    def _end(self, task: Task, ended: Exit) -> None:
        """Decide, from the run folder, what the end of a worker process means."""
        task.handle = None
        info = task.look(self._now)
        if task.outcome is Outcome.PRUNED:
            return
        if info is not None and is_complete(info):
            self._finish(task, info)
        elif self.interrupted_by is not None:
            task.outcome = Outcome.STOPPED
            task.reason = "not started" if info is None else "saved"
            step = "" if info is None else f" at step {info.step:,}, saved"
            self._listener.event(task, f"stopped{step}")
        elif ended.code == OWNED or (info is not None and info.state == "running"):
            task.outcome = Outcome.ELSEWHERE
            self._listener.event(task, "another process trains it: waiting for it")
        elif info is not None and info.state == "failed":
            self._fail(task, Outcome.FAILED, info.reason or ended.text)
        elif info is None and ended.code is not None and 0 < ended.code < 128:
            words = last_words(log_of(task.run, self._study))
            self._fail(task, Outcome.FAILED, words or ended.text)
        else:
            self._try_again(task, ended)

    def _try_again(self, task: Task, ended: Exit) -> None:
        """Another attempt for a run that died from outside, unless three made no progress."""
        if not ended.was_started:
            task.outcome = Outcome.WAITING
            task.not_before = time.monotonic() + SECONDS_BETWEEN_LOOKS
            return
        has_progress = TrainingRun(task.run.run_dir).read_pointer() != task.pointer
        task.attempts_without_progress = 0 if has_progress else task.attempts_without_progress + 1
        if task.attempts_without_progress >= ATTEMPTS_WITHOUT_PROGRESS:
            reason = f"{ended.text}, {ATTEMPTS_WITHOUT_PROGRESS} times without a new checkpoint"
            words = last_words(log_of(task.run, self._study))
            if words and ended.code != -signal.SIGKILL:
                reason += f"; its last words: {words}"
            self._fail(task, Outcome.GIVEN_UP, reason)
            return
        task.outcome = Outcome.WAITING
        # Not at once: what ended it, such as too little memory, may last a moment.
        task.not_before = time.monotonic() + task.attempts_without_progress
        self._listener.event(task, f"died ({ended.text}): trying again")

    def _replace_if_hung(self, task: Task, handle: Handle) -> None:
        """End a worker process whose heartbeat is stale: it is suspended, stuck, or cut off from its folder."""
        owner = read_owner(task.run.run_dir)
        awake = self._now - self._awake_since
        if owner is None or owner.attempt <= task.attempt_before:  # it does not own the run yet
            waited = min(awake, self._now - task.started)
            age = 0.0 if self._launcher.may_queue else waited - SECONDS_TO_START
        elif owner.is_gone:
            return
        else:
            age = min(awake, heartbeat_age(task.run.run_dir, owner, self._now))
        if age > stale_seconds():
            text = f"has given no heartbeat for {age:.0f} seconds: replacing its process"
            self._listener.event(task, text)
            handle.kill()
            self._end(task, Exit(None, "its heartbeat was stale"))
            # A process that still looks alive is fenced off by the next one.
            if task.outcome is Outcome.ELSEWHERE:
                task.outcome = Outcome.WAITING

    def _finish(self, task: Task, info: RunInfo) -> None:
        task.outcome = Outcome.DONE
        score = "" if info.last_eval is None else f", score {info.last_eval:.1f}"
        note = " (approximate)" if info.exactness == "approximate" else ""
        end = "finished" if info.state == "finished" else "finished early"
        self._listener.event(task, f"{end} at step {info.step:,}{score}{note}")

    def _fail(self, task: Task, outcome: Outcome, reason: str) -> None:
        task.outcome = outcome
        task.reason = reason.strip().partition("\n")[0]  # without the traceback
        self._listener.event(task, f"{outcome.value}: {task.reason}")

    def _interrupt(self, number: signal.Signals) -> None:
        """The first signal asks all runs to save and stop; the second ends them at once."""
        if self.interrupted_by is not None:
            raise KeyboardInterrupt
        self.interrupted_by, self._next_look = number, 0.0


def other_run(info: RunInfo, config: TrainConfig) -> str | None:
    """Why a folder does not hold the run that the plan has there; None if it does, as far as its metadata tell."""
    found = {
        "algo": info.algo,
        "env_id": info.env_id,
        "seed": info.seed,
        "total_timesteps": info.total,
    }
    planned = config.model_dump(include={*found})
    for key, value in found.items():
        if value is not None and value != planned[key]:
            return f"its folder holds another run: {key} is {value} there and {planned[key]} in the plan; move it away"
    return None


def ask_to_stop(run_dir: Path) -> None:
    """Ask a run, wherever it is trained, to save and stop at the next step boundary."""
    with contextlib.suppress(OSError):
        if run_dir.is_dir():
            (run_dir / STOP_FILE).touch()


@contextlib.contextmanager
def handling_signals(handle: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call `handle` on SIGINT, SIGTERM and SIGHUP within the block; does nothing outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        handle(signal.Signals(number))

    before: dict[signal.Signals, Callable[..., object] | int | None] = {
        number: signal.signal(number, on_signal)
        for number in signal.Signals
        if number.name in HANDLED and signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

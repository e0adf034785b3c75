"""The trackers of one run: opened with its files, served by a thread each, told of its end."""

from __future__ import annotations

import contextlib
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from rl_training.errors import ReplacedError, RLTrainingError
from rl_training.experiment.config import TrainConfig, serialize_train_config
from rl_training.experiment.loggers import (
    MlflowSettings,
    TrackerSettings,
    WandbSettings,
    parse_loggers,
)
from rl_training.experiment.logs import read_metrics
from rl_training.experiment.ownership import REPLACED
from rl_training.experiment.run_folder import INTERRUPTED, TrainingRun, is_interruption
from rl_training.experiment.tracking.mlflow_tracker import MlflowTracker
from rl_training.experiment.tracking.tracker import Outcome, Row, TrackedRun, Tracker
from rl_training.experiment.tracking.wandb_tracker import WandbTracker
from rl_training.terminal.streams import tell

MAX_WAITING = 100_000
"""Lines that may wait for a slow tracker."""
SECONDS_TO_FINISH = 30.0
"""How long the end of a run waits for its trackers."""
STUDY_FILE, TUNE_FILE = "study.yaml", "tune.yaml"
TRACKERS: dict[type[TrackerSettings], Callable[[Any, TrackedRun], Tracker]] = {
    WandbSettings: WandbTracker,
    MlflowSettings: MlflowTracker,
}
Line = Mapping[str, float | None]
"""One line of `metrics.jsonl`."""
RENEWED = Outcome("stopped", "the resumed run has other values: another tracked run has them")


class TrackerSink:
    """One tracker of a run, in a thread: a slow or failing tracker holds no run up.

    The first exception ends the tracking and is reported once. A resumed run repeats the lines after its checkpoint. If
    they are as before, the tracker, which has them already, does not get them again. If one differs, a new tracked run
    begins that has all lines of `metrics.jsonl`.
    """

    def __init__(
        self,
        tracking: Tracking,
        settings: TrackerSettings,
        run: TrackedRun,
        kept: list[Line],
        discarded: Iterable[Line],
    ) -> None:
        """Start the thread. The tracked run has the lines `kept`; the run will repeat the lines `discarded`."""
        self._tracking, self._settings, self._run = tracking, settings, run
        self._discarded = {line.get("global_step"): line for line in discarded}
        self._queue: SimpleQueue[TrackedRun | list[Line] | Outcome] = SimpleQueue()
        self._messages: SimpleQueue[str] = SimpleQueue()
        self._is_off = False
        self._tracker: Tracker | None = None
        self._step, self._names = 0, set[str]()
        """The step that the tracker got last, or the first that it lacks, and the values of it that it got."""
        self._queue.put(run)
        self._queue.put(kept)
        self._thread = threading.Thread(
            target=self._work, name=f"rl_training-{settings.logger}", daemon=True
        )
        self._thread.start()

    def write(self, metrics: Mapping[str, float]) -> None:
        """Hand a line over; returns at once."""
        self._show_messages()
        # The resumed run sends the complete line of an iteration that is being interrupted.
        if self._is_off or is_interruption(self._tracking.read_stop_reason()):
            return
        before = self._discarded.pop(metrics["global_step"], None)
        if before is not None and _differ(before, metrics):
            self._begin_again()
        else:
            self._queue.put([dict(metrics)])
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
                f"{self._settings.logger} did not finish in time (can its server be reached?): the run is complete,"
                " the tracked run may not be"
            )
        self._show_messages()

    def _begin_again(self) -> None:
        """Begin another tracked run, whose lines include the one that differs."""
        self._discarded.clear()
        try:
            self._run = replace(self._run, id=_new_id(), parent=self._run.id)
            self._tracking.save_ids({self._settings.logger: self._run.id})
            lines: list[Line] = list(read_metrics(self._tracking.metrics_path))
        except Exception as error:  # the metadata cannot be written, for example
            self._fail(f"{type(error).__name__}: {error}")
        else:
            self._queue.put(self._run)
            self._queue.put(lines)

    def _work(self) -> None:
        """Serve the queue until the end or the first exception."""
        try:
            lines: list[Line] = []
            while not self._is_off:
                item = self._queue.get()
                if isinstance(item, list):
                    lines += item
                    if not self._queue.empty():
                        continue  # lines that wait are sent at once
                self._log(lines)
                lines = []
                if not isinstance(item, list):
                    self._begin_or_end(item)
        except BaseException as error:  # SystemExit, too: no tracker ends a run
            self._fail(f"{type(error).__name__}: {error}".splitlines()[0])

    def _begin_or_end(self, item: TrackedRun | Outcome) -> None:
        if self._tracker is not None:
            self._tracker.finish(item if isinstance(item, Outcome) else RENEWED)
        if isinstance(item, Outcome):
            self._is_off = True
            return
        self._tracker = TRACKERS[type(self._settings)](self._settings, item)
        self._step, self._names = self._tracker.last_step + 1, set()
        if self._tracker.place:
            self._messages.put(f"{self._settings.logger}: {self._tracker.place}")

    def _log(self, lines: Iterable[Line]) -> None:
        """Hand over the lines that the tracker lacks; of a second line of one step, what is new in it."""
        rows: list[Row] = []
        for line in lines:
            step = line.get("global_step")
            if step is None or step < self._step:
                continue
            if step > self._step:
                self._step, self._names = int(step), set()
            new = {
                name: value
                for name, value in line.items()
                if name not in self._names and value is not None and math.isfinite(value)
            }
            if new:
                rows.append((int(step), new))
            self._names |= line.keys()
        if rows and self._tracker is not None:
            self._tracker.log(rows)

    def _fail(self, reason: str) -> None:
        if not self._is_off:
            self._is_off = True
            self._messages.put(
                f"{self._settings.logger} failed, and the run goes on without it: {reason}"
            )

    def _show_messages(self) -> None:
        while not self._messages.empty():
            self._tracking.warn(self._messages.get())


@dataclass
class Tracking:
    """The trackers that a configuration names; on exit of the block, reports the outcome to them."""

    config: TrainConfig
    folder: TrainingRun
    report: Callable[[str], None] = tell
    read_stop_reason: Callable[[], str | None] = lambda: None
    """While the run is being interrupted, lines are not sent: the resumed run sends the complete ones."""
    _sinks: list[TrackerSink] = field(default_factory=list)

    def open(
        self, algo_kwargs: Mapping[str, Any], keep_bytes: int, first_step: int
    ) -> list[TrackerSink]:
        """Start the trackers; call this before `metrics.jsonl` is truncated to `keep_bytes`.

        The run resumes at `first_step`. `algo_kwargs` are all settings of the algorithm, defaults included.
        """
        chosen = [
            item for item in parse_loggers(self.config.loggers) if isinstance(item, TrackerSettings)
        ]
        if not chosen:
            return []
        try:
            kept, discarded = _split_lines(self.metrics_path, keep_bytes)
            # The closing line of a process may be of an unfinished iteration: the repeated one may differ.
            discarded = [line for line in discarded if line.get("global_step") != first_step]
            known = _ids_in(self.folder.metadata())
            ids = {item.logger: known.get(item.logger) or _new_id() for item in chosen}
            if not ids.items() <= known.items():
                self.save_ids(ids)  # at once: a run that is killed finds them there
            for settings in chosen:
                run = self._tracked_run(settings, ids[settings.logger], algo_kwargs)
                self._sinks.append(TrackerSink(self, settings, run, kept, discarded))
        except Exception as error:  # a full disk, for example
            self.warn(f"the run goes on without trackers: {type(error).__name__}: {error}")
        return self._sinks

    def __enter__(self) -> Tracking:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._sinks:
            return
        self.report = tell  # the view of the run is closed
        outcome = self._outcome(error)
        for sink in self._sinks:
            sink.end(outcome)
        deadline = time.monotonic() + SECONDS_TO_FINISH
        try:
            for sink in self._sinks:
                sink.wait(max(0.0, deadline - time.monotonic()))
        except KeyboardInterrupt:  # the run is over and recorded: only the waiting is interrupted
            self.report("interrupted: not waiting for the trackers")

    @property
    def metrics_path(self) -> Path:
        """Path of `metrics.jsonl`."""
        return self.folder.run_dir / "metrics.jsonl"

    def warn(self, text: str) -> None:
        """Show a message, and keep it in `run.log`: a quiet run shows none."""
        self.folder.logger.warning(text)
        self.report(text)

    def save_ids(self, ids: Mapping[str, str]) -> None:
        """Keep ids of tracked runs, by logger, in the metadata."""
        self.folder.update_metadata(tracking={**_ids_in(self.folder.metadata()), **ids})

    def _tracked_run(
        self, settings: TrackerSettings, run_id: str, algo_kwargs: Mapping[str, Any]
    ) -> TrackedRun:
        metadata, run_dir = self.folder.metadata(), self.folder.run_dir
        config = {**serialize_train_config(self.config), "algo_kwargs": algo_kwargs}
        config.pop("loggers")
        facts = {key: metadata.get(key) for key in ("versions", "git_commit", "command", "created")}
        parent, parent_facts = _parent(metadata, settings.logger)
        return TrackedRun(
            id=run_id,
            name=settings.name or run_dir.name,
            run_dir=run_dir,
            group=settings.group or _study_of(run_dir.absolute().parent),
            config=config,
            tags=self.config.tags,
            facts={"folder": str(run_dir.absolute()), **facts, **parent_facts},
            parent=parent,
        )

    def _outcome(self, error: BaseException | None) -> Outcome:
        if isinstance(error, ReplacedError):
            return Outcome("replaced")
        if error is not None:
            return Outcome("failed", f"{type(error).__name__}: {error}")
        reason = self.folder.metadata().get("stop_reason")
        if reason == INTERRUPTED + REPLACED:
            return Outcome("replaced", reason)
        if is_interruption(reason):
            return Outcome("interrupted", reason)
        return Outcome("finished" if reason is None else "stopped", reason)


def _differ(before: Line, metrics: Mapping[str, float]) -> bool:
    """Whether a value that both lines have is another; one of them may have an evaluation that the other lacks."""
    return any(
        before[name] != (value if math.isfinite(value) else None)
        for name, value in metrics.items()
        if name in before
    )


def _new_id() -> str:
    return uuid.uuid4().hex[:16]


def _ids_in(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Ids of tracked runs by logger; a damaged file may hold anything."""
    known = metadata.get("tracking")
    pairs = known.items() if isinstance(known, dict) else ()
    return {name: value for name, value in pairs if isinstance(value, str) and value.isalnum()}


def _split_lines(path: Path, keep_bytes: int) -> tuple[list[Line], list[Line]]:
    """The lines of `metrics.jsonl` within its first bytes, and those after them, as far as they can be read."""
    lines: list[Line] = []
    with contextlib.suppress(OSError, RLTrainingError):
        lines.extend(read_metrics(path))
    num_kept = path.read_bytes()[:keep_bytes].count(b"\n") if path.is_file() else 0
    return lines[:num_kept], lines[num_kept:]


def _parent(metadata: Mapping[str, Any], logger: str) -> tuple[str | None, dict[str, Any]]:
    """Of a fork: the id of its parent's tracked run, if it has one, and facts about the parent."""
    match metadata.get("parent"):
        case {"checkpoint": str(checkpoint), "global_step": step}:
            folder = Path(checkpoint).parent.parent
            facts = {"parent_run": folder.name, "parent_step": step}
            return _ids_in(TrainingRun(folder).metadata()).get(logger), facts
    return None, {}


def _study_of(folder: Path) -> str | None:
    """The name of the study, or of the tuning and its stage, that a folder of runs belongs to."""
    if not (folder / STUDY_FILE).is_file():
        return None
    is_stage = (folder.parent / TUNE_FILE).is_file()
    return f"{folder.parent.name}/{folder.name}" if is_stage else folder.name

"""The trackers of one run: opened with its files, told of its end."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
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
from rl_training.experiment.tracking.sink import (
    Beginning,
    Line,
    Outcome,
    TrackedRun,
    Tracker,
    TrackerSink,
    plain_values,
)
from rl_training.experiment.tracking.wandb_tracker import WandbTracker
from rl_training.terminal.streams import tell

SECONDS_TO_FINISH = 30.0
"""How long the end of a run waits for its trackers."""
STUDY_FILE, TUNE_FILE = "study.yaml", "tune.yaml"
TRACKERS: dict[type[TrackerSettings], Callable[[Any], Tracker]] = {
    WandbSettings: WandbTracker,
    MlflowSettings: MlflowTracker,
}


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
            kept, discarded = _split_lines(self._metrics_path, keep_bytes)
            # The closing line of a process may be of an unfinished iteration: the repeated one may differ.
            discarded = [line for line in discarded if line.get("global_step") != first_step]
            ids = self._ids(chosen)
            for settings in chosen:
                run = self._tracked_run(settings, ids[settings.logger], algo_kwargs)
                self._sinks.append(self._open_one(settings, Beginning(run, kept), discarded))
        except Exception as error:  # a full disk, for example
            self._warn(f"the run goes on without trackers: {type(error).__name__}: {error}")
        return self._sinks

    def __enter__(self) -> Tracking:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
    def _metrics_path(self) -> Path:
        return self.folder.run_dir / "metrics.jsonl"

    def _open_one(
        self, settings: TrackerSettings, beginning: Beginning, discarded: Sequence[Line]
    ) -> TrackerSink:
        run = beginning.run

        def renew() -> Beginning:
            nonlocal run
            run = replace(run, id=_new_id(), parent=run.id)
            known = _ids_in(self.folder.metadata())
            self.folder.update_metadata(tracking={**known, settings.logger: run.id})
            return Beginning(run, list(read_metrics(self._metrics_path)))

        make = TRACKERS[type(settings)]
        return TrackerSink(
            settings.logger,
            lambda: make(settings),
            beginning,
            discarded=discarded,
            is_held=lambda: is_interruption(self.read_stop_reason()),
            renew=renew,
            report=self._warn,
        )

    def _warn(self, text: str) -> None:
        """Show a message, and keep it in `run.log`: a quiet run shows none."""
        self.folder.logger.warning(text)
        self.report(text)

    def _ids(self, chosen: Sequence[TrackerSettings]) -> dict[str, str]:
        """The id of each tracked run, in the metadata from its first moment on: a killed run finds it there."""
        metadata = self.folder.metadata()
        known = _ids_in(metadata)
        ids = {item.logger: known.get(item.logger) or _new_id() for item in chosen}
        if not ids.items() <= known.items():
            self.folder.update_metadata(tracking={**known, **ids})
        return ids

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
            config=plain_values(config),
            tags=self.config.tags,
            facts=plain_values({"folder": str(run_dir.absolute()), **facts, **parent_facts}),
            parent=parent,
        )

    def _outcome(self, error: BaseException | None) -> Outcome:
        if isinstance(error, ReplacedError):
            return Outcome("replaced")
        if error is not None:
            return Outcome("failed", f"{type(error).__name__}: {error}")
        metadata = self.folder.metadata()
        reason = metadata.get("stop_reason")
        if reason == INTERRUPTED + REPLACED:
            return Outcome("replaced", reason)
        if is_interruption(reason):
            return Outcome("interrupted", reason)
        return Outcome("finished" if reason is None else "stopped", reason)


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

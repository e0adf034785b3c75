"""From a checkpoint back to a run in motion: what is restored, what differs from there on, and the messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.envs.state.shared_changes import change_of_shared
from rl_training.experiment.checkpoint_folder import Best
from rl_training.experiment.checkpointing import CheckpointState
from rl_training.experiment.run_folder import TrainingRun
from rl_training.runtime.assembly import RunComponents
from rl_training.runtime.controls import Schedules
from rl_training.runtime.execution import machine_differences, machine_facts
from rl_training.runtime.resuming.changes import Change
from rl_training.runtime.resuming.saved_state import translate_state_errors
from rl_training.runtime.session import Session
from rl_training.terminal.progress import ProgressView, collapsed


@dataclass(frozen=True)
class Resumption:
    """From which checkpoint, in which folder and with which changes a run resumes."""

    checkpoint_path: Path
    run: TrainingRun | None
    """The run's own folder; None: a new one, a fork."""
    schedules: Schedules = "stretch"
    changes: Sequence[Change] = ()

    @property
    def name(self) -> str:
        """Of the checkpoint."""
        return self.checkpoint_path.resolve().name

    def metadata(self, global_step: int) -> dict[str, Any]:
        """What `metadata.json` of the resumed run says of the resume; earlier changes stay."""
        source = self.run or TrainingRun(self.checkpoint_path.resolve().parent.parent)
        known = source.metadata().get("changes", [])
        changes = [change.as_dict() for change in self.changes]
        values: dict[str, Any] = {"resumed": {"from_step": global_step, "schedules": self.schedules}}
        if self.run is None:
            values["parent"] = {"checkpoint": str(self.checkpoint_path.resolve()), "global_step": global_step}
        if known or changes:
            values["changes"] = [*known, *(change for change in changes if change not in known)]
        return values


def restore(
    checkpoint_state: CheckpointState,
    parts: RunComponents,
    session: Session,
    view: ProgressView,
    resumption: Resumption | None,
) -> None:
    """Load the state of every part, and say in what the run differs from one that was never stopped."""
    saved = checkpoint_state.trainer_state
    with translate_state_errors():
        parts.algorithm.load_state_dict(checkpoint_state.algorithm_state)
        parts.buffer.load_state_dict(checkpoint_state.buffer_state)
        session.load_state_dict(saved["session"], resumption.schedules if resumption else "stretch")
        inexact_reasons = []
        if parts.collector is not None:
            inexact_reasons = parts.collector.load_state_dict(saved["collector"])
            session.train_restarts = parts.collector.num_restarts
        session.state.env_restarts = session.num_restarts
    for name in session.callbacks.unclaimed:
        lost = f"the checkpoint holds the state of a callback {name!r:.80} that this run does not have"
        view.message(f"{lost}: it is dropped; to keep it, resume with that callback (callbacks=[...] or --callback)")
    if inexact_reasons:
        parts.buffer.truncate_newest()  # the next step may be of another episode
        view.message("exactness: approximate. The environments are not exactly where they were when the run stopped:")
        for reason in collapsed(inexact_reasons):
            view.message(f"  {reason}")
    reasons = _machine_reasons(checkpoint_state, parts)
    _tell_reasons("From here on the results differ in their last bits:", reasons, view)
    told = " ".join(inexact_reasons)
    changes = [change_of_shared(name) for name in saved["session"].get("shared_changes", ())]
    changes = [change for change in changes if change not in told]
    _tell_reasons("New environments, as each evaluation makes them, differ from those before the stop:", changes, view)
    reasons += changes
    reasons += _tell_changes(resumption.changes if resumption else (), view)
    session.inexact_reasons = list(dict.fromkeys([*session.inexact_reasons, *reasons]))
    if session.training_progress.state_dict() != {"to_progress": 1.0, **saved["session"]["training_progress"]}:
        view.message(session.training_progress.describe(parts.algorithm.config))


def _tell_reasons(effect: str, reasons: Sequence[str], view: ProgressView) -> None:
    if reasons:
        view.message(f"exactness: approximate. {effect}")
        for reason in collapsed(reasons):
            view.message(f"  {reason}")


def _tell_changes(changes: Sequence[Change], view: ProgressView) -> list[str]:
    """Say what has changed; returns what the results depend on."""
    for change in changes:
        view.message(str(change))
    reasons = [str(change) for change in changes if change.affects_results]
    if reasons:
        view.message("exactness: approximate. From here on the run differs from one without these changes")
    return reasons


def _machine_reasons(checkpoint_state: CheckpointState, parts: RunComponents) -> list[str]:
    saved = checkpoint_state.metadata.get("machine")
    return machine_differences(saved, machine_facts(parts.algorithm.device)) if isinstance(saved, dict) else []


def go_back(trainer_state: dict[str, Any], session: Session, resumption: Resumption) -> None:
    """Remove what came after the checkpoint that has been restored."""
    best = Best(**trainer_state["best"]) if trainer_state["best"] else None
    is_extended = trainer_state["session"]["training_progress"]["total"] != session.total_steps
    session.go_back(resumption.name, best, is_extended=is_extended, is_changed=bool(resumption.changes))

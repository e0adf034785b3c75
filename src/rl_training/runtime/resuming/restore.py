"""Restores a run from a checkpoint, and reports how it differs from a run that was never stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.algorithms.config import AlgorithmConfig, value_at
from rl_training.envs.state.shared_changes import change_of_shared
from rl_training.experiment.checkpoint_folder import Best
from rl_training.experiment.checkpointing import CheckpointState
from rl_training.experiment.run_folder import TrainingRun
from rl_training.runtime.assembly import RunComponents
from rl_training.runtime.controls import Schedules
from rl_training.runtime.execution import code_differences, code_facts, machine_differences, machine_facts
from rl_training.runtime.resuming.changes import Change
from rl_training.runtime.resuming.saved_state import translate_state_errors
from rl_training.runtime.session import Session, TrainingProgress
from rl_training.terminal.progress import ProgressView, collapsed


@dataclass(frozen=True)
class Resumption:
    """The checkpoint, folder and changes with which a run resumes."""

    checkpoint_path: Path
    run: TrainingRun | None
    """The run's own folder; None: a new folder (a fork)."""
    schedules: Schedules = "stretch"
    changes: Sequence[Change] = ()
    pointer: bytes | None = None
    """Content of the run's `last` file when the checkpoint was read."""

    @property
    def name(self) -> str:
        """Name of the checkpoint's folder."""
        return self.checkpoint_path.resolve().name

    @property
    def is_outdated(self) -> bool:
        """Whether another process has written a checkpoint since this one was read."""
        return self.run is not None and self.run.read_pointer() != self.pointer

    def metadata(self, global_step: int) -> dict[str, Any]:
        """Entries for `metadata.json` of the resumed run, which keep the changes of earlier resumes."""
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
    components: RunComponents,
    session: Session,
    view: ProgressView,
    resumption: Resumption | None,
) -> None:
    """Load the state of every component, and report why the run is not bit-exact from here on, if it is not."""
    saved = checkpoint_state.trainer_state["session"]
    schedules = resumption.schedules if resumption else "stretch"
    env_reasons, buffer_reasons = _load_state(checkpoint_state, components, session, schedules)
    for name in session.callbacks.unclaimed:
        lost = f"the checkpoint holds the state of a callback {name!r:.80} that this run does not have"
        view.message(f"{lost}: it is dropped; to keep it, resume with that callback (callbacks=[...] or --callback)")
    if env_reasons:
        components.buffer.truncate_newest()  # the next step may belong to another episode
    _report("The environments are not in the exact state in which the run stopped:", env_reasons, view)
    _report("The rollout begins again:", buffer_reasons, view)
    code_reasons = code_differences(checkpoint_state.metadata.get("code"), code_facts(session.config))
    _report("From here on the run may differ from one that was never stopped:", code_reasons, view)
    machine_reasons = _machine_reasons(checkpoint_state, components)
    _report("From here on the results differ in their last bits:", machine_reasons, view)
    shared_reasons = _shared_reasons(saved, env_reasons)
    _report("New environments, as each evaluation makes, differ from those before the stop:", shared_reasons, view)
    change_reasons = _report_changes(resumption.changes if resumption else (), view)
    reasons = [*session.inexact_reasons, *buffer_reasons, *code_reasons, *machine_reasons]
    reasons += [*shared_reasons, *change_reasons]
    session.inexact_reasons = list(dict.fromkeys(reasons))
    if session.training_progress.state_dict() != saved["training_progress"]:
        view.message(_describe_progress(session.training_progress, components.algorithm.config))


def _describe_progress(progress: TrainingProgress, config: AlgorithmConfig) -> str:
    """Message on resume: the last step, the course of the schedules, and learning rates that stay at 0."""
    first, last, left = progress.from_step, progress.total, progress.to_progress - progress.from_progress
    schedules = f"the remaining {left:.0%} of each schedule is spread over the steps left"
    if progress.from_progress == 0:
        schedules = "each schedule starts again and runs over the steps left"
    elif left == 0:
        schedules = f"each schedule stays at its {'final' if progress.from_progress == 1 else 'current'} value"
    text = f"the run now ends at step {last:,}"
    if first >= last or not config.has_schedules():
        return text
    text += f": from step {first:,} on, {schedules}"
    rates = [name for name in type(config).model_fields if name.endswith("learning_rate")]
    ends = progress.from_progress, progress.to_progress
    given = {name: getattr(config, name) for name in rates if getattr(config, name) is not None}
    zero = [name for name, rate in given.items() if not any(value_at(rate, end) for end in ends)]
    if zero:
        remedy = "use --schedules restart (in Python: schedules='restart')"
        effect = "nothing more is learned" if len(zero) == len(given) else "what it trains no longer changes"
        text += f"; {' and '.join(zero)} stays 0, so {effect}: {remedy}"
    return text


def _load_state(
    checkpoint_state: CheckpointState, components: RunComponents, session: Session, schedules: Schedules
) -> tuple[list[str], list[str]]:
    """Load every component; returns why the environments, and why the buffer, could not be restored exactly."""
    saved, env_reasons = checkpoint_state.trainer_state, []
    with translate_state_errors():
        components.algorithm.load_state_dict(checkpoint_state.algorithm_state)
        buffer_reasons = components.buffer.load_state_dict(checkpoint_state.buffer_state) or []
        session.load_state_dict(saved["session"], schedules)
        if components.collector is not None:
            env_reasons = components.collector.load_state_dict(saved["collector"])
            session.train_restarts = components.collector.num_restarts
        session.state.env_restarts = session.num_restarts
    return env_reasons, buffer_reasons


def _machine_reasons(checkpoint_state: CheckpointState, components: RunComponents) -> list[str]:
    saved = checkpoint_state.metadata.get("machine")
    return machine_differences(saved, machine_facts(components.algorithm.device)) if isinstance(saved, dict) else []


def _shared_reasons(session_state: dict[str, Any], reported: Sequence[str]) -> list[str]:
    """Changes of state shared between environments, except those that `reported` contains."""
    text = " ".join(reported)
    reasons = [change_of_shared(name) for name in session_state.get("shared_changes", ())]
    return [reason for reason in reasons if reason not in text]


def _report(effect: str, reasons: Sequence[str], view: ProgressView) -> None:
    if reasons:
        view.message(f"exactness: approximate. {effect}")
        for reason in collapsed(reasons):
            view.message(f"  {reason}")


def _report_changes(changes: Sequence[Change], view: ProgressView) -> list[str]:
    """Report the changed keys; returns those that affect the results."""
    for change in changes:
        view.message(str(change))
    reasons = [str(change) for change in changes if change.affects_results]
    if reasons:
        view.message("exactness: approximate. From here on the run differs from one without these changes")
    return reasons


def discard_newer(trainer_state: dict[str, Any], session: Session, resumption: Resumption) -> None:
    """Remove the checkpoints newer than the restored one, and restore `best`."""
    best = Best(**trainer_state["best"]) if trainer_state["best"] else None
    is_extended = trainer_state["session"]["training_progress"]["total"] != session.training_progress.total
    position = None if resumption.changes else session.position
    session.scores.discard_newer(resumption.name, position, best, is_extended=is_extended)

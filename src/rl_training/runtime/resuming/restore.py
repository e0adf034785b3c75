"""Restores a run from a checkpoint: its folder, the state of every component, and what differs from then on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_training.algorithms.config import AlgorithmConfig, value_at
from rl_training.envs.state.unsaved_state import change_of_shared
from rl_training.errors import RunChangedError
from rl_training.experiment.checkpoint_folder import Best
from rl_training.experiment.checkpointing import CheckpointState
from rl_training.experiment.run_folder import TrainingRun, is_interruption
from rl_training.runtime.assembly import RunComponents
from rl_training.runtime.controls import Schedules, TrainingProgress
from rl_training.runtime.execution import (
    code_differences,
    code_facts,
    machine_differences,
    machine_facts,
)
from rl_training.runtime.resuming.changes import Change
from rl_training.runtime.resuming.plan import ResumePlan
from rl_training.runtime.resuming.saved_state import translate_state_errors
from rl_training.runtime.session import Session
from rl_training.terminal.progress import ProgressView, collapsed


def continue_folder(plan: ResumePlan, run: TrainingRun) -> tuple[TrainingRun, str | None]:
    """The folder of the plan's run, owned by this process from here on; and the stop reason of a killed process.

    The reason is one that the process had saved and not yet recorded as the run's end.
    """
    folder = run.owned()
    try:
        if plan.is_outdated:
            raise RunChangedError(
                f"run '{folder.run_dir}' was continued meanwhile: repeat the command"
            )
        reason, metadata = _standing_reason(plan, folder), plan.metadata()
        metadata["resumed"]["stop_reason"] = reason
        folder.resume(plan.config, **metadata)
    except BaseException:
        folder.close()
        raise
    return folder, reason


def _standing_reason(plan: ResumePlan, run: TrainingRun) -> str | None:
    """Stop reason saved in the checkpoint, if the process was killed before it recorded the end."""
    if not run.was_cut_short:
        return None
    with translate_state_errors():
        session = plan.state.trainer_state["session"]
        reason: str | None = session["stop_reason"]
        is_extended = session["training_progress"]["total"] != plan.config.total_timesteps
    resumed = run.metadata().get("resumed")
    is_known = isinstance(resumed, dict) and resumed.get("from_step") == plan.global_step
    if isinstance(resumed, dict) and is_known and resumed.get("stop_reason") is None:
        return None  # the killed process had already resumed from this checkpoint and cleared the reason
    return None if is_extended or is_interruption(reason) else reason


def restore(plan: ResumePlan, session: Session) -> None:
    """Load the state of every component, and report why the run is not bit-exact from here on, if it is not.

    Only then are checkpoints removed that are newer than the restored one.
    """
    state, components, view = plan.state, session.components, session.view
    saved = state.trainer_state["session"]
    env_reasons, buffer_reasons = _load_state(state, components, session, plan.schedules)
    for name in session.callbacks.unclaimed:
        lost = (
            f"the checkpoint holds the state of a callback {name!r:.80} that this run does not have"
        )
        view.message(
            f"{lost}: it is dropped; to keep it, resume with that callback (callbacks=[...] or --callback)"
        )
    if env_reasons:
        components.buffer.truncate_newest()  # the next step may belong to another episode
    _report(
        "The environments are not in the exact state in which the run stopped:", env_reasons, view
    )
    _report("The rollout begins again:", buffer_reasons, view)
    code_reasons = code_differences(state.metadata.get("code"), code_facts(session.setup.config))
    _report("From here on the run may differ from one that was never stopped:", code_reasons, view)
    machine_reasons = _machine_reasons(state, components)
    _report("From here on the results differ in their last bits:", machine_reasons, view)
    shared_reasons = _shared_reasons(saved, env_reasons)
    _report(
        "New environments, as each evaluation makes, differ from those before the stop:",
        shared_reasons,
        view,
    )
    change_reasons = _report_changes(plan.changes, view)
    reasons = [*session.inexact_reasons, *buffer_reasons, *code_reasons, *machine_reasons]
    reasons += [*shared_reasons, *change_reasons]
    session.inexact_reasons = list(dict.fromkeys(reasons))
    if session.training_progress.state_dict() != saved["training_progress"]:
        view.message(_describe_progress(session.training_progress, components.algorithm.config))
    session.folder.update_metadata(exactness=session.exactness)
    if plan.run is None:
        session.forget_best()
    else:
        _discard_newer(plan, session)


def _describe_progress(progress: TrainingProgress, config: AlgorithmConfig) -> str:
    """Message on resume: the last step, the course of the schedules, and learning rates that stay at 0."""
    first, last, left = (
        progress.from_step,
        progress.total,
        progress.to_progress - progress.from_progress,
    )
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
        effect = (
            "nothing more is learned"
            if len(zero) == len(given)
            else "what it trains no longer changes"
        )
        text += f"; {' and '.join(zero)} stays 0, so {effect}: {remedy}"
    return text


def _load_state(
    checkpoint_state: CheckpointState,
    components: RunComponents,
    session: Session,
    schedules: Schedules,
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
    return (
        machine_differences(saved, machine_facts(components.algorithm.device))
        if isinstance(saved, dict)
        else []
    )


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
        view.message(
            "exactness: approximate. From here on the run differs from one without these changes"
        )
    return reasons


def _discard_newer(plan: ResumePlan, session: Session) -> None:
    """Make the restored checkpoint the last one, and restore `best` as of then.

    A resumed run drops the final evaluation made when it was stopped; an extended run keeps it.
    """
    saved, checkpoints = plan.state.trainer_state, session.checkpoints
    best = Best(**saved["best"]) if saved["best"] else None
    is_extended = saved["session"]["training_progress"]["total"] != session.training_progress.total
    now = checkpoints.best
    if (
        now is not None
        and not is_extended
        and (session.best_return is None or now.score > session.best_return)
    ):
        checkpoints.restore_best(best)
    position = None if plan.changes else session.position
    checkpoints.rewind_to(plan.checkpoint_path.resolve().name, position, best)
    kept = checkpoints.best
    if kept is not None and (session.best_return is None or kept.score > session.best_return):
        session.best_return = kept.score  # of the closing evaluation
    session.offer_restored()

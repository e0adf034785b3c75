"""A run in motion, from Enter to the last checkpoint: `run_training` takes its steps in order."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rl_training.envs.given.objects import EnvLike
from rl_training.errors import NonFiniteError, RLTrainingError, RunChangedError, failure_note
from rl_training.experiment.checkpoint_folder import CheckpointFolder
from rl_training.experiment.checkpointing import CheckpointState
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.logs import latest_metrics
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.experiment.run_folder import INTERRUPTED, TrainingRun, create_training_run
from rl_training.experiment.tracking.tracking import Tracking
from rl_training.plugins.gate import allow
from rl_training.runtime.assembly import RunComponents, RunSetup, check_watched_metric
from rl_training.runtime.callbacks import AnyCallback, CallbackList
from rl_training.runtime.controls import EarlyStoppingCallback, Schedules, stop_on_signals
from rl_training.runtime.execution import watch_compilation
from rl_training.runtime.loops import LOOPS
from rl_training.runtime.metrics import RunLog
from rl_training.runtime.resuming.initial_weights import InitialWeights, read_initial_weights
from rl_training.runtime.resuming.plan import ResumePlan, plan_resume
from rl_training.runtime.resuming.restore import continue_folder, restore
from rl_training.runtime.resuming.saved_state import try_saving
from rl_training.runtime.resuming.trust import needs_of, read_spaces
from rl_training.runtime.session import Session
from rl_training.runtime.trainer import TrainerState, TrainResult
from rl_training.terminal.progress import collapsed, make_view
from rl_training.terminal.streams import tell


def run_training(
    config: TrainConfig,
    *,
    run_suffix: str | None = None,
    checkpoint_state: CheckpointState | None = None,
    callbacks: Iterable[AnyCallback] | None = None,
    is_restart: bool = False,
) -> TrainResult:
    """Train with `config` in a new run folder, from the start or from `checkpoint_state`.

    Nothing is written before every component has been made, so an error in the configuration leaves nothing behind.
    With `is_restart`, the folder of a run that was killed before its first checkpoint is used again.
    """
    plan = None if checkpoint_state is None else ResumePlan(config, checkpoint_state)
    return _run(config, plan, CallbackList(callbacks), run_suffix=run_suffix, is_restart=is_restart)


def _run(
    config: TrainConfig,
    plan: ResumePlan | None,
    callbacks: CallbackList,
    *,
    run_suffix: str | None = None,
    is_restart: bool = False,
) -> TrainResult:
    """Train from the start or as planned: set up, own a folder, restore, train, record the end."""
    setup, first_step = _set_up(config, plan), plan.global_step if plan else 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(setup.execution.applied())
        components = assemble_run(setup)
        stack.callback(_close, components)
        is_given_weights = plan is None and config.init_from is not None
        weights = read_initial_weights(config, components.algorithm) if is_given_weights else None
        folder, stop_reason = _open_folder(config, plan, weights, run_suffix, is_restart=is_restart)
        stack.callback(folder.close)
        state = TrainerState(components.algorithm, folder.run_dir, config=config)
        view = make_view(first_step)
        tracking = stack.enter_context(
            Tracking(config, folder, view.message, lambda: state.stop_reason)
        )
        with _recording_failure(folder), contextlib.closing(view):
            if setup.execution.compile:
                stack.enter_context(watch_compilation(view.compiling))
            early_stopping = setup.algo_config.early_stopping
            callbacks = callbacks.after(
                [EarlyStoppingCallback(early_stopping)] if early_stopping else []
            )
            log = RunLog(setup, folder, view, tracking)
            session = Session(setup, components, folder, state, callbacks, view, log)
            _watch_ownership(session)
            started = time.monotonic()
            _announce(session, plan, weights)
            result = _train(session, plan, weights, stop_reason)
            seconds = time.monotonic() - started
            session.callbacks.on_train_end(state, result)
        # Before the environments are closed, which may fail or hang: the run is complete.
        status, rate = (
            "finished" if result.stop_reason is None else "stopped",
            _rate(state, first_step, seconds),
        )
        folder.finish(status, result.stop_reason, exactness=session.exactness, **rate)
    return result


def _rate(state: TrainerState, first_step: int, seconds: float) -> dict[str, float | None]:
    """What the metadata says of the speed of this process."""
    steps_per_second = round((state.global_step - first_step) / seconds, 3) if seconds > 0 else None
    return {"seconds": round(seconds, 3), "steps_per_second": steps_per_second}


def _set_up(config: TrainConfig, plan: ResumePlan | None) -> RunSetup:
    """The parsed configuration, whose paths and trackers are the user's own, or a checkpoint's that were checked."""
    allow(needs_of(config))
    if plan is None:
        return RunSetup.parse(config)
    warm_start_step = plan.state.trainer_state["session"].get("warm_start_step") or 0
    setup = dataclasses.replace(RunSetup.parse(config, plan.state), warm_start_step=warm_start_step)
    if setup.env is not None and not read_spaces(plan.state.algorithm_state).has_masks:
        return dataclasses.replace(
            setup, env=setup.env.without_masks()
        )  # it may have begun before masks were read
    return setup


def assemble_run(setup: RunSetup) -> RunComponents:
    """Make and check the components of a run; on an error, those that were made are closed."""
    assemble = LOOPS[get_algorithm_spec(setup.config.algo).loop].assemble
    with contextlib.ExitStack() as on_failure:
        components = assemble(setup, on_failure)
        check_watched_metric(setup.algo_config, components.evaluator)
        on_failure.pop_all()
    return components


def _open_folder(
    config: TrainConfig,
    plan: ResumePlan | None,
    weights: InitialWeights | None,
    run_suffix: str | None,
    *,
    is_restart: bool,
) -> tuple[TrainingRun, str | None]:
    """The run folder, which this process owns from here on, and the stop reason that a killed process had saved."""
    if plan is not None and plan.run is not None:
        return continue_folder(plan, plan.run)
    metadata = plan.metadata() if plan else {}
    if weights is not None:
        metadata["init_from"] = weights.metadata()
    return create_training_run(
        config, run_suffix=run_suffix, is_restart=is_restart, **metadata
    ), None


def _watch_ownership(session: Session) -> None:
    """Report the progress in the heartbeat, and stop when it finds a stop file or another owner."""
    lease, state = session.folder.lease, session.state
    if lease is None:
        return

    def interrupt(what: str) -> None:
        if not state.should_stop:
            session.view.stopping()
        state.request_stop(INTERRUPTED + what)

    lease.read_progress = lambda: {"step": state.global_step, "total": session.last_step}
    lease.on_request = interrupt


def _announce(session: Session, plan: ResumePlan | None, weights: InitialWeights | None) -> None:
    """Show where and how the run computes, and warnings about its settings."""
    setup, components, view = session.setup, session.components, session.view
    view.message(
        f"{session.folder.run_dir}: {components.algorithm.device}, {setup.execution.describe()}"
    )
    if plan is not None:
        first, total = f"{plan.global_step:,}", f"{setup.config.total_timesteps:,}"
        session.folder.logger.info("resumed at step %s of %s", first, total)
        view.message(f"resumed at step {first} of {total}")
        first_update = setup.warm_start_step + getattr(setup.algo_config, "learning_starts", 0)
        if setup.warm_start_step and plan.global_step < first_update:
            view.message(
                f"the policy refills the replay buffer until step {first_update:,}, where updates begin"
            )
    taken = weights.describe() if weights else []
    for note in collapsed([*taken, *setup.warnings(), *components.notes, *components.env_reasons]):
        view.message(note)


def _train(
    session: Session,
    plan: ResumePlan | None,
    weights: InitialWeights | None,
    stop_reason: str | None,
) -> TrainResult:
    """Train to the end; `stop_reason` ends the run at once, as its killed process had decided."""
    components, folder = session.components, session.folder
    is_fork = plan is not None and plan.run is None
    with stop_on_signals(session.state, session.view.stopping):
        if plan is None:
            components.begin(session.setup.seeds)
            if (
                weights is not None
            ):  # after `begin`: networks keep the normalizer they were trained with
                weights.load_into(components.algorithm)
                session.state.warm_start_step = 0 if weights.has_policy else None
        else:
            restore(plan, session)
        if components.dataset_facts:
            folder.update_metadata(dataset=dict(components.dataset_facts))
        kept: Mapping[str, Any] = (
            plan.state.trainer_state if plan is not None and not is_fork else {}
        )
        with session.log.opened(kept, session.state.global_step):
            if is_fork:  # a fork can be resumed from its first moment on
                session.offer_best(session.save())
            if stop_reason is not None:
                session.state.request_stop(stop_reason)
            session.begin(is_new=plan is None)
            try_saving(**session.checkpoint_values())
            with _naming_last_checkpoint(session.checkpoints):
                session.do_pending()
                train = LOOPS[get_algorithm_spec(session.setup.config.algo).loop].train
                train(session, components.algorithm, components.collector, components.buffer)
                return session.finish()


@contextlib.contextmanager
def _naming_last_checkpoint(checkpoints: CheckpointFolder) -> Iterator[None]:
    """Name the last good checkpoint in an error about a non-finite number."""
    try:
        yield
    except NonFiniteError as error:
        last = checkpoints.last
        where = (
            f"the last good checkpoint is '{last}'"
            if last
            else "no checkpoint had been written yet"
        )
        raise NonFiniteError(f"{error}; {where}") from error


@contextlib.contextmanager
def _recording_failure(folder: TrainingRun) -> Iterator[None]:
    """Record in the run's metadata why it failed, and in the error which run it was; `sys.exit` is a failure, too."""
    try:
        yield
    except BaseException as error:
        # On a full disk, for example, or if another process owns the run: the first error is the one to report.
        with contextlib.suppress(RLTrainingError):
            folder.finish("failed", f"{type(error).__name__}: {error}")
        if isinstance(error, SystemExit):
            told = RLTrainingError(
                f"the run did not finish: a callback or a package called sys.exit({error.code!r})"
            )
            failure_note(told).run_dir = folder.run_dir
            raise told from error
        failure_note(error).run_dir = folder.run_dir
        raise


def _close(components: RunComponents) -> None:
    for failure in components.close():
        tell(f"the run is over, but closing failed: {failure}")


def resume_training(
    path: str | Path,
    *,
    total_timesteps: int | None = None,
    output_dir: str | Path | None = None,
    eval_episodes: int | None = None,
    device: str | None = None,
    fall_back: bool = False,
    rewind: bool = False,
    schedules: Schedules | None = None,
    changes: Mapping[str, Any] | None = None,
    callbacks: Iterable[AnyCallback] | None = None,
    env: EnvLike | None = None,
    eval_env: EnvLike | None = None,
    run_suffix: str | None = None,
) -> TrainResult:
    """Resume training from a checkpoint or a run folder. A run that is over is returned as it ended.

    `changes` are further values of the configuration, such as {"algo_kwargs": {"learning_rate": 1e-4}}. `run_suffix`
    ends the name of a new run folder (with `output_dir`). `env` (and `eval_env`) give an environment again whose id
    begins with `python:`. `plan_resume` documents the other arguments.
    """
    flags: dict[str, Any] = {
        "total_timesteps": total_timesteps,
        "output_dir": output_dir,
        "device": device,
    }
    plan = plan_resume(
        path,
        fall_back=fall_back,
        rewind=rewind,
        schedules=schedules,
        changes=changes,
        eval_episodes=eval_episodes,
        env=env,
        eval_env=eval_env,
        run_suffix=run_suffix,
        **flags,
    )
    return run_plan(plan, callbacks=callbacks)


def run_plan(plan: ResumePlan, *, callbacks: Iterable[AnyCallback] | None = None) -> TrainResult:
    """Resume as planned. A run that is over is returned as it ended."""
    checked = CallbackList(callbacks)  # also if no step is left
    if plan.is_over:
        return _ended_result(plan)
    try:
        return _run(plan.config, plan, checked, run_suffix=plan.run_suffix)
    except RunChangedError:  # between reading the checkpoint and becoming the owner
        if plan.again is None:
            raise
        return run_plan(plan.again(), callbacks=checked)


def _ended_result(plan: ResumePlan) -> TrainResult:
    """The result of a run that is over, from its checkpoint and its logged metrics."""
    run_dir, session = plan.checkpoint_path.parent.parent, plan.state.trainer_state["session"]
    counts: dict[str, float] = {
        "global_step": plan.global_step,
        "gradient_steps": session["update_count"],
    }
    evaluated = (
        {**session["last_eval"], "eval_step": session["last_eval_step"]}
        if session["last_eval"]
        else {}
    )
    metrics = {**counts, **evaluated, **latest_metrics(run_dir / "metrics.jsonl"), **counts}
    best = CheckpointFolder(plan.checkpoint_path.parent).best
    if best is not None:
        metrics["best_eval_return_mean"] = best.score
    return TrainResult(
        run_dir, plan.checkpoint_path, metrics, None if plan.is_finished else plan.early_stop
    )

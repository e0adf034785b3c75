"""From a configuration to a finished run: makes the parts, and hands them to the loop the registry names."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.envs.foreign_paths import allow_paths_of
from rl_training.errors import ConfigError, NonFiniteError, RLTrainingError, failure_note
from rl_training.experiment.checkpoint_folder import CheckpointFolder
from rl_training.experiment.checkpointing import CheckpointState
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.logging import EvaluationFile, JsonlFile, JsonlSink, TensorboardSink, latest_metrics
from rl_training.experiment.registry import Loop, get_algorithm_spec
from rl_training.experiment.run_folder import TrainingRun, create_training_run, interrupting_signal
from rl_training.runtime.assembly import RunComponents, assemble_run
from rl_training.runtime.callbacks import AnyCallback, CallbackList
from rl_training.runtime.checks.preflight import learning_warnings
from rl_training.runtime.controls import EarlyStoppingCallback, TrainingProgress
from rl_training.runtime.execution import Execution, watch_compilation
from rl_training.runtime.interrupts import stop_on_signals
from rl_training.runtime.loops.off_policy import off_policy_loop
from rl_training.runtime.loops.offline import offline_loop
from rl_training.runtime.loops.on_policy import on_policy_loop
from rl_training.runtime.machine import machine_facts
from rl_training.runtime.resuming.restore import Resumption, go_back, restore
from rl_training.runtime.resuming.saved_state import translate_save_errors, translate_state_errors, try_saving
from rl_training.runtime.run_utils import RunSeeds, save_training_checkpoint
from rl_training.runtime.session import Session
from rl_training.runtime.trainer import TrainerState, TrainResult
from rl_training.terminal.progress import ProgressView, collapsed, make_view
from rl_training.terminal.streams import tell

LOOPS: dict[Loop, Callable[..., None]] = {
    Loop.ON_POLICY: on_policy_loop,
    Loop.OFF_POLICY: off_policy_loop,
    Loop.OFFLINE: offline_loop,
}


@dataclass(frozen=True)
class TrainFunction:
    """What `train_ppo` and its like are: `run_training` for a configuration that must name this algorithm."""

    algo: str

    @property
    def __name__(self) -> str:
        return f"train_{self.algo}"

    def __reduce__(self) -> tuple[Callable[[str], TrainFunction], tuple[str]]:
        return train_function, (self.algo,)

    def __call__(
        self,
        config: TrainConfig,
        *,
        run_suffix: str | None = None,
        checkpoint_state: CheckpointState | None = None,
        callbacks: Sequence[AnyCallback] | None = None,
    ) -> TrainResult:
        """Train as `config` says, from the start or from `checkpoint_state`."""
        if config.algo != self.algo:
            raise ConfigError(f"this trains '{self.algo}', but the configuration says algo: {config.algo}")
        return run_training(config, run_suffix=run_suffix, checkpoint_state=checkpoint_state, callbacks=callbacks)


@functools.cache
def train_function(algo: str) -> TrainFunction:
    """The function that trains an algorithm of that name: for each name one object."""
    return TrainFunction(algo)


def run_training(
    config: TrainConfig,
    *,
    run_suffix: str | None = None,
    checkpoint_state: CheckpointState | None = None,
    callbacks: Sequence[AnyCallback] | None = None,
    resumption: Resumption | None = None,
) -> TrainResult:
    """Train as `config` says, from the start or from `checkpoint_state`, in a new folder or in `resumption`'s.

    Nothing is written before every part has been made, so a mistake in the configuration leaves nothing behind.
    """
    callbacks = CallbackList(callbacks).callbacks  # a callback that cannot be called is refused here
    allow_paths_of(config.env_kwargs)  # the user's own, or those of a checkpoint that were checked
    execution = choose_execution(config, checkpoint_state)
    with contextlib.ExitStack() as stack:
        stack.enter_context(execution.applied())
        parts = assemble_run(config, execution)
        stack.callback(_close, parts)
        first_step = checkpoint_state.trainer_state["session"]["global_step"] if checkpoint_state else 0
        metadata = resumption.metadata(first_step) if resumption else {}
        stop_reason = None
        if resumption is None or resumption.run is None:
            run = create_training_run(config, run_suffix=run_suffix, **metadata)
        else:
            run = resumption.run
            stop_reason = _reason_that_stands(config, run, checkpoint_state)
            metadata["resumed"]["stop_reason"] = stop_reason
            run.resume(config, **metadata)
        with _recording_failure(run):
            if checkpoint_state is not None:
                run.logger.info("resumed at step %s of %s", f"{first_step:,}", f"{config.total_timesteps:,}")
            view = make_view(first_step)
            stack.callback(view.close)
            view.message(f"{run.run_dir}: {parts.algorithm.device}, {execution.describe()}")
            if checkpoint_state is not None:
                view.message(f"resumed at step {first_step:,} of {config.total_timesteps:,}")
            warnings = learning_warnings(config, parts.algorithm.config, len(parts.dataset) if parts.dataset else None)
            for note in collapsed(
                (*warnings, *parts.notes, *(parts.collector.inexact_reasons if parts.collector else ()))
            ):
                view.message(note)
            if execution.compile:
                stack.enter_context(watch_compilation(view.compiling))
            result = _run_session(config, parts, run, view, checkpoint_state, callbacks, resumption, stop_reason)
        # Before the environments are closed, which may fail or hang: the run has done its work.
        run.finish("finished" if result.stop_reason is None else "stopped", result.stop_reason)
    return result


@contextlib.contextmanager
def _recording_failure(run: TrainingRun) -> Iterator[None]:
    """Write in the run's metadata why it failed, and on the error which run it was; `sys.exit` is a failure, too."""
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(RLTrainingError):  # a full disk, say: the first error is the one to tell
            run.finish("failed", f"{type(error).__name__}: {error}")
        if isinstance(error, SystemExit):
            told = RLTrainingError(f"the run did not finish: a callback or a package called sys.exit({error.code!r})")
            failure_note(told).run_dir = run.run_dir
            raise told from error
        failure_note(error).run_dir = run.run_dir
        raise


def _close(parts: RunComponents) -> None:
    for failure in parts.close():
        tell(f"the run is over, but closing failed: {failure}")


def choose_execution(config: TrainConfig, checkpoint_state: CheckpointState | None) -> Execution:
    """Threads and compilation as the checkpoint had them, or as the configuration wants them."""
    algo_config = get_algorithm_spec(config.algo).parse_kwargs(config.algo_kwargs)
    if checkpoint_state is None or "execution" not in checkpoint_state.metadata:
        return Execution.choose(config, algo_config)
    saved = Execution.from_metadata(checkpoint_state.metadata["execution"])
    before = TrainConfig(**checkpoint_state.config)
    changed = [name for name in ("num_threads", "compile") if getattr(before, name) != getattr(config, name)]
    chosen = Execution.choose(config, algo_config) if changed else saved
    return dataclasses.replace(saved, **{name: getattr(chosen, name) for name in changed})


def _reason_that_stands(config: TrainConfig, run: TrainingRun, checkpoint_state: CheckpointState | None) -> str | None:
    """Why the run had decided to stop, if its process was killed before it could say so and end."""
    if checkpoint_state is None or not run.was_cut_short:
        return None
    with translate_state_errors():
        session = checkpoint_state.trainer_state["session"]
        reason: str | None = session["stop_reason"]
        is_extended = session["training_progress"]["total"] != config.total_timesteps
        step = session["global_step"]
    resumed = run.metadata().get("resumed")
    if isinstance(resumed, dict) and resumed.get("from_step") == step and resumed.get("stop_reason") is None:
        return None  # the process that was killed had already resumed from here, past that reason
    return None if is_extended or interrupting_signal(reason) is not None else reason


def _run_session(
    config: TrainConfig,
    parts: RunComponents,
    run: TrainingRun,
    view: ProgressView,
    checkpoint_state: CheckpointState | None,
    callbacks: Sequence[AnyCallback] | None,
    resumption: Resumption | None,
    stop_reason: str | None,
) -> TrainResult:
    trainer_state = checkpoint_state.trainer_state if checkpoint_state else None
    is_new_folder = resumption is None or resumption.run is None
    first_step = trainer_state["session"]["global_step"] if trainer_state else 0
    state = TrainerState(parts.algorithm, run.run_dir, config=config)
    checkpoints = CheckpointFolder(run.checkpoints_dir, config.keep)

    def save() -> Path:
        jsonl.sync()
        evaluations.sync()
        return checkpoints.save(session.position, lambda path, base: _write(path, base, parts, session, jsonl))

    early_stopping = parts.algorithm.config.early_stopping
    own = [EarlyStoppingCallback(early_stopping)] if early_stopping else []
    session = Session(
        config=config,
        state=state,
        training_progress=TrainingProgress(config.total_timesteps),
        callbacks=CallbackList([*own, *(callbacks or [])]),
        evaluator=parts.evaluator,
        checkpoints=checkpoints,
        sinks=(),
        view=view,
        save=save,
        eval_every_steps=parts.algorithm.config.eval_interval or max(1, config.total_timesteps // 10),
    )
    with contextlib.ExitStack() as stack, stop_on_signals(state, view.stopping):
        if checkpoint_state is None:
            parts.begin(RunSeeds.from_seed(config.seed))
        else:
            restore(checkpoint_state, parts, session, view, resumption)
        # Only now that the run is known to go on from this checkpoint is anything newer removed; and its metrics
        # after its checkpoints, which count on them.
        if is_new_folder:
            session.begin_best_anew()
        elif trainer_state is not None and resumption is not None:
            go_back(trainer_state, session, resumption)
        kept = {} if is_new_folder else trainer_state or {}
        jsonl = JsonlSink(run.run_dir / "metrics.jsonl", kept.get("metrics_bytes", 0))
        stack.enter_context(contextlib.closing(jsonl))
        tensorboard = stack.enter_context(contextlib.closing(TensorboardSink(run.run_dir / "tensorboard", first_step)))
        evaluations = EvaluationFile(run.run_dir / "evaluations.jsonl", kept.get("evaluations_bytes", 0))
        stack.enter_context(contextlib.closing(evaluations))
        _tell_lost_lines(view, jsonl, evaluations)
        session.sinks, session.evaluations = (jsonl, tensorboard), evaluations
        session.recall_metrics(latest_metrics(run.run_dir / "metrics.jsonl"))
        if checkpoint_state is not None and is_new_folder:  # a fork can be resumed from its first moment on
            save()
            session.offer_restored()
        if stop_reason is not None:
            state.request_stop(stop_reason)
        session.begin(None if checkpoint_state or parts.dataset is None else len(parts.dataset))
        try_saving(**_checkpoint_values(parts, session, jsonl))
        loop = LOOPS[get_algorithm_spec(config.algo).loop]
        try:
            session.close_iteration()
            loop(session, parts.algorithm, parts.collector, parts.buffer)
            result = session.finish()
            jsonl.sync()
            evaluations.sync()
        except NonFiniteError as error:
            last = checkpoints.last
            where = f"the last good checkpoint is '{last}'" if last else "no checkpoint had been written yet"
            raise NonFiniteError(f"{error}; {where}") from error
    session.callbacks.on_train_end(state, result)
    return result


def _tell_lost_lines(view: ProgressView, *files: JsonlFile) -> None:
    """Say which files were shortened since the checkpoint was written."""
    lost = [f"{file.path.name} ({file.num_lost_bytes:,} bytes)" for file in files if file.num_lost_bytes]
    if lost:
        view.message(f"lines that the run had written are missing in {' and '.join(lost)}: it goes on without them")


def _write(path: Path, base: Path | None, parts: RunComponents, session: Session, jsonl: JsonlSink) -> None:
    session.parameters.check_all(session.state.global_step)
    values = _checkpoint_values(parts, session, jsonl)
    with translate_save_errors():
        save_training_checkpoint(path, base=base, buffer_state=parts.buffer.state_dict(), **values)


def _checkpoint_values(parts: RunComponents, session: Session, jsonl: JsonlSink) -> dict[str, Any]:
    """What a checkpoint of the run as it is now holds besides the buffer."""
    reasons = [*session.inexact_reasons, *(parts.collector.inexact_reasons if parts.collector else ())]
    return {
        "config": session.config,
        "algorithm_state": parts.algorithm.state_dict(),
        "trainer_state": {
            "session": session.state_dict(),
            "collector": parts.collector.state_dict() if parts.collector else None,
            "metrics_bytes": jsonl.num_bytes,
            "evaluations_bytes": session.evaluations.num_bytes if session.evaluations else 0,
            "best": best._asdict() if (best := session.checkpoints.best) else None,
        },
        "metadata": {
            "execution": {"num_threads": parts.execution.num_threads, "compile": parts.execution.compile},
            "global_step": session.state.global_step,
            "machine": machine_facts(parts.algorithm.device),
            "exactness": "approximate" if reasons else "exact",
            "inexact_reasons": reasons,
        },
    }

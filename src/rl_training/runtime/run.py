"""A run in motion: from a configuration, or from a checkpoint, to its result."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rl_training.envs.factory import EnvSource
from rl_training.envs.foreign_paths import allow_paths_of
from rl_training.errors import NonFiniteError, RLTrainingError, failure_note
from rl_training.experiment.checkpoint_folder import CheckpointFolder
from rl_training.experiment.checkpointing import CheckpointState
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.logging import EvaluationFile, JsonlSink, MetricSink, TensorboardSink, latest_metrics
from rl_training.experiment.ownership import Lease
from rl_training.experiment.registry import Loop, get_algorithm_spec
from rl_training.experiment.run_folder import INTERRUPTED, TrainingRun
from rl_training.experiment.timing import TIMING_NAME, TimingFile
from rl_training.experiment.tracking.settings import check_installed
from rl_training.experiment.tracking.tracking import Tracking
from rl_training.experiment.tracking.trust import allow_trackers
from rl_training.runtime.assembly import RunComponents, RunSetup, check_watched_metric
from rl_training.runtime.callbacks import AnyCallback, CallbackList
from rl_training.runtime.checks.preflight import learning_warnings
from rl_training.runtime.controls import EarlyStoppingCallback, stop_on_signals
from rl_training.runtime.execution import choose_execution, code_facts, machine_facts, watch_compilation
from rl_training.runtime.loops.off_policy import assemble_off_policy, off_policy_loop
from rl_training.runtime.loops.offline import assemble_offline, offline_loop
from rl_training.runtime.loops.on_policy import assemble_on_policy, on_policy_loop
from rl_training.runtime.resuming.checkpoint_config import read_spaces
from rl_training.runtime.resuming.initial_weights import read_initial_weights
from rl_training.runtime.resuming.origin import Origin
from rl_training.runtime.resuming.restore import Resumption, discard_newer, restore
from rl_training.runtime.resuming.saved_state import translate_save_errors, try_saving
from rl_training.runtime.run_utils import RunSeeds, save_training_checkpoint
from rl_training.runtime.scores import Scores
from rl_training.runtime.session import Session, TrainingProgress
from rl_training.runtime.trainer import TrainerState, TrainResult
from rl_training.terminal.progress import ProgressView, collapsed, make_view
from rl_training.terminal.streams import tell


class LoopFunctions(NamedTuple):
    """How a loop's components are made, and how it trains with them."""

    assemble: Callable[[RunSetup, contextlib.ExitStack], RunComponents]
    train: Callable[..., None]


LOOPS = {
    Loop.ON_POLICY: LoopFunctions(assemble_on_policy, on_policy_loop),
    Loop.OFF_POLICY: LoopFunctions(assemble_off_policy, off_policy_loop),
    Loop.OFFLINE: LoopFunctions(assemble_offline, offline_loop),
}


def run_training(
    config: TrainConfig,
    *,
    run_suffix: str | None = None,
    checkpoint_state: CheckpointState | None = None,
    callbacks: Sequence[AnyCallback] | None = None,
    resumption: Resumption | None = None,
    is_restart: bool = False,
) -> TrainResult:
    """Train with `config`, from the start or from `checkpoint_state`, in a new folder or in that of `resumption`.

    Nothing is written before every component has been made, so an error in the configuration leaves nothing behind.
    With `is_restart`, the folder of a run that was killed before its first checkpoint is used again.
    """
    callbacks = CallbackList(callbacks).callbacks  # refuses a callback that cannot be called
    allow_paths_of(config.env_kwargs)  # the user's own, or a checkpoint's that were checked
    allow_trackers(config.loggers)
    check_installed(config.loggers)
    algo_config = get_algorithm_spec(config.algo).parse_kwargs(config.algo_kwargs)
    execution = choose_execution(config, checkpoint_state, algo_config)
    env = None if config.env_id is None else EnvSource.parse(config.env_id, config.env_kwargs)
    if env is not None and checkpoint_state and not read_spaces(checkpoint_state.algorithm_state).has_masks:
        env = env.without_masks()  # the run may have begun before masks were read
    setup = RunSetup(config, algo_config, env, RunSeeds.from_seed(config.seed), execution)
    with contextlib.ExitStack() as stack:
        stack.enter_context(execution.applied())
        components = assemble_run(setup)
        stack.callback(_close, components)
        weights = None if checkpoint_state else read_initial_weights(config, components.algorithm)
        origin = Origin(checkpoint_state, resumption, weights)
        folder, stop_reason = origin.open_folder(config, run_suffix, is_restart=is_restart)
        stack.callback(folder.close)
        tracking = stack.enter_context(Tracking(config, folder))
        with _recording_failure(folder):
            view = make_view(origin.first_step)
            stack.callback(view.close)
            if execution.compile:
                stack.enter_context(watch_compilation(view.compiling))
            run = Run(setup, components, folder, view, callbacks, origin, tracking)
            run.announce()
            result = run.train(stop_reason)
        # Before the environments are closed, which may fail or hang: the run is complete.
        folder.finish("finished" if result.stop_reason is None else "stopped", result.stop_reason, **run.summary())
    return result


def assemble_run(setup: RunSetup) -> RunComponents:
    """Make and check the components of a run; on an error, those that were made are closed."""
    assemble = LOOPS[get_algorithm_spec(setup.config.algo).loop].assemble
    with contextlib.ExitStack() as on_failure:
        components = assemble(setup, on_failure)
        check_watched_metric(setup.algo_config, components.evaluator)
        on_failure.pop_all()
    return components


class Run:
    """One run: its components, its folder and files, and the session that its loop reports to."""

    def __init__(
        self,
        setup: RunSetup,
        components: RunComponents,
        folder: TrainingRun,
        view: ProgressView,
        callbacks: Sequence[AnyCallback],
        origin: Origin,
        tracking: Tracking,
    ) -> None:
        self.setup, self.components, self.folder = setup, components, folder
        self.view, self.origin, self.tracking = view, origin, tracking
        config, algo_config = setup.config, setup.algo_config
        self.checkpoints = CheckpointFolder(folder.checkpoints_dir, config.keep, folder.workspace)
        early_stopping = [EarlyStoppingCallback(algo_config.early_stopping)] if algo_config.early_stopping else []
        state = TrainerState(components.algorithm, folder.run_dir, config=config)
        tracking.report, tracking.read_stop_reason = view.message, lambda: state.stop_reason
        self.scores = Scores(state, components.evaluator, self.checkpoints)
        self.session = Session(
            config=config,
            state=state,
            training_progress=TrainingProgress(config.total_timesteps),
            callbacks=CallbackList([*early_stopping, *callbacks]),
            scores=self.scores,
            sinks=(),
            view=view,
            save=self.save,
            eval_every_steps=algo_config.eval_interval or max(1, config.total_timesteps // 10),
        )
        self._metrics: JsonlSink
        self._evaluations: EvaluationFile
        self._started = time.monotonic()
        self._heed(folder.lease)

    def _heed(self, lease: Lease | None) -> None:
        """Report the progress in the heartbeat, and stop when it finds a stop file or another owner."""
        state = self.session.state
        if lease is None:
            return

        def interrupt(what: str) -> None:
            if not state.should_stop:
                self.view.stopping()
            state.request_stop(INTERRUPTED + what)

        lease.read_progress = lambda: {"step": state.global_step, "total": self.session.last_step}
        lease.on_request = interrupt

    def summary(self) -> dict[str, Any]:
        """What the metadata says of the run at its end: how exact it is, and how fast this process was."""
        seconds = time.monotonic() - self._started
        steps = self.session.state.global_step - self.origin.first_step
        return {
            "exactness": self._exactness(),
            "seconds": round(seconds, 3),
            "steps_per_second": round(steps / seconds, 3) if seconds > 0 else None,
        }

    def announce(self) -> None:
        """Show where and how the run computes, and warnings about its settings."""
        setup, components = self.setup, self.components
        self.view.message(f"{self.folder.run_dir}: {components.algorithm.device}, {setup.execution.describe()}")
        if self.origin.state is not None:
            first, total = f"{self.origin.first_step:,}", f"{setup.config.total_timesteps:,}"
            self.folder.logger.info("resumed at step %s of %s", first, total)
            self.view.message(f"resumed at step {first} of {total}")
        dataset_size = len(components.dataset) if components.dataset else None
        notes = [
            *learning_warnings(setup.config, setup.algo_config, dataset_size, self.origin.warm_start_step),
            *components.notes,
        ]
        taken = self.origin.weights.describe() if self.origin.weights else []
        for note in collapsed([*taken, *notes, *self._env_reasons()]):
            self.view.message(note)

    def train(self, stop_reason: str | None = None) -> TrainResult:
        """Train to the end; `stop_reason` ends the run at once, as its killed process had decided."""
        session, is_new = self.session, self.origin.state is None
        with contextlib.ExitStack() as stack, stop_on_signals(session.state, self.view.stopping):
            self._begin()
            self._open_files(stack)
            if not is_new and self.origin.folder is None:  # a fork can be resumed from its first moment on
                self.scores.offer_best(self.save())
            if stop_reason is not None:
                session.state.request_stop(stop_reason)
            session.begin(len(self.components.dataset) if is_new and self.components.dataset else None)
            try_saving(**self._checkpoint_values())
            result = self._run_loop()
        session.callbacks.on_train_end(session.state, result)
        return result

    def save(self) -> Path:
        """Write a checkpoint of the current state."""
        started = time.perf_counter()
        self._metrics.sync()
        self._evaluations.sync()
        lease = self.folder.lease
        with lease.explained() if lease else contextlib.nullcontext():
            path = self.checkpoints.save(self.session.position, self._write_checkpoint)
        self.session.times.save_seconds += time.perf_counter() - started
        return path

    def _begin(self) -> None:
        """Set up a new run, or restore a checkpoint; only then is anything newer than the checkpoint removed."""
        if self.origin.state is None:
            self.components.begin(self.setup.seeds)
            if self.origin.weights is not None:  # after `begin`: networks keep the normalizer they were trained with
                self.origin.weights.load_into(self.components.algorithm)
                if self.origin.weights.has_policy:
                    self.session.state.warm_start_step = 0
        else:
            restore(self.origin.state, self.components, self.session, self.view, self.origin.resumption)
            self.folder.update_metadata(exactness=self._exactness())
        if self.components.dataset_facts:
            self.folder.update_metadata(dataset=dict(self.components.dataset_facts))
        if self.origin.folder is None:
            self.scores.reset_best()
        elif self.origin.state is not None and self.origin.resumption is not None:
            discard_newer(self.origin.state.trainer_state, self.session, self.origin.resumption)

    def _open_files(self, stack: contextlib.ExitStack) -> None:
        """Open the files of metrics, cut to the lines that the restored checkpoint counts."""
        run_dir = self.folder.run_dir
        is_continued = self.origin.folder is not None and self.origin.state is not None
        kept: dict[str, Any] = self.origin.state.trainer_state if is_continued and self.origin.state else {}
        workspace, first_step = self.folder.workspace, self.origin.first_step
        all_settings = self.setup.algo_config.model_dump(mode="json")
        trackers = self.tracking.open(all_settings, kept.get("metrics_bytes", 0), first_step)
        self._metrics = JsonlSink(run_dir / "metrics.jsonl", kept.get("metrics_bytes", 0), workspace)
        stack.callback(self._metrics.close)
        self._evaluations = EvaluationFile(run_dir / "evaluations.jsonl", kept.get("evaluations_bytes", 0), workspace)
        stack.callback(self._evaluations.close)
        timing = TimingFile(run_dir / TIMING_NAME, self._metrics.path, first_step, workspace)
        stack.callback(timing.close)
        sinks: list[MetricSink] = [self._metrics, timing]
        if "tensorboard" in self.setup.config.loggers:
            tensorboard = TensorboardSink(run_dir / "tensorboard", first_step, workspace, lambda: timing.latest)
            stack.callback(tensorboard.close)
            sinks.append(tensorboard)
        files = (self._metrics, self._evaluations)
        lost = [f"{file.path.name} ({file.num_lost_bytes:,} bytes)" for file in files if file.num_lost_bytes]
        if lost:
            files_lost = " and ".join(lost)
            self.view.message(
                f"shorter than at the checkpoint: {files_lost}; the run resumes without the missing lines"
            )
        self.session.sinks, self.scores.evaluations = [*sinks, *trackers], self._evaluations
        self.session.times = timing.times
        self.session.recall_metrics(latest_metrics(run_dir / "metrics.jsonl"))

    def _run_loop(self) -> TrainResult:
        session, components = self.session, self.components
        train = LOOPS[get_algorithm_spec(self.setup.config.algo).loop].train
        try:
            session.handle_pending()
            train(session, components.algorithm, components.collector, components.buffer)
            result = session.finish()
            self._metrics.sync()
            self._evaluations.sync()
        except NonFiniteError as error:
            last = self.checkpoints.last
            where = f"the last good checkpoint is '{last}'" if last else "no checkpoint had been written yet"
            raise NonFiniteError(f"{error}; {where}") from error
        return result

    def _write_checkpoint(self, path: Path, base: Path | None) -> None:
        self.session.parameters.check_all(self.session.state.global_step)
        values = self._checkpoint_values()
        with translate_save_errors():
            buffer_state = self.components.buffer.state_dict()
            save_training_checkpoint(
                path, base=base, buffer_state=buffer_state, workspace=self.folder.workspace, **values
            )

    def _checkpoint_values(self) -> dict[str, Any]:
        """The content of a checkpoint of the current state, without the buffer."""
        session, components, execution = self.session, self.components, self.setup.execution
        best = self.checkpoints.best
        return {
            "config": self.setup.config,
            "algorithm_state": components.algorithm.state_dict(),
            "trainer_state": {
                "session": session.state_dict(),
                "collector": components.collector.state_dict() if components.collector else None,
                "metrics_bytes": self._metrics.num_bytes,
                "evaluations_bytes": self._evaluations.num_bytes,
                "best": best._asdict() if best else None,
            },
            "metadata": {
                "execution": {"num_threads": execution.num_threads, "compile": execution.compile},
                "global_step": session.state.global_step,
                "machine": machine_facts(components.algorithm.device),
                "code": code_facts(self.setup.config),
                "exactness": self._exactness(),
                "inexact_reasons": [*session.inexact_reasons, *self._env_reasons()],
            },
        }

    def _exactness(self) -> str:
        """`exact`, or `approximate` if the run may differ from one that was never stopped."""
        return "approximate" if self.session.inexact_reasons or self._env_reasons() else "exact"

    def _env_reasons(self) -> Sequence[str]:
        """Why the environments may not be in the exact state."""
        return self.components.collector.inexact_reasons if self.components.collector else ()


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
            told = RLTrainingError(f"the run did not finish: a callback or a package called sys.exit({error.code!r})")
            failure_note(told).run_dir = folder.run_dir
            raise told from error
        failure_note(error).run_dir = folder.run_dir
        raise


def _close(components: RunComponents) -> None:
    for failure in components.close():
        tell(f"the run is over, but closing failed: {failure}")

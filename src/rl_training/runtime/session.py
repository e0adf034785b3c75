"""A run as its loop sees it: callbacks, log lines, evaluations, scores and checkpoints, and the end of the run."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from rl_training.algorithms.base import UpdateResult
from rl_training.algorithms.config import value_at
from rl_training.errors import NonFiniteError
from rl_training.experiment.checkpoint_folder import CheckpointFolder, Position
from rl_training.experiment.run_folder import TrainingRun, is_interruption
from rl_training.runtime.assembly import RunComponents, RunSetup
from rl_training.runtime.callbacks import CallbackList
from rl_training.runtime.controls import Interval, Schedules, TrainingProgress
from rl_training.runtime.execution import code_facts, machine_facts
from rl_training.runtime.metrics import MetricAccumulator, ParameterGuard, RunLog
from rl_training.runtime.run_utils import save_training_checkpoint, translate_save_errors
from rl_training.runtime.trainer import CollectResult, TrainerState, TrainResult
from rl_training.terminal.progress import ProgressView

UPDATES_BETWEEN_CHECKS = 8
"""Gradient steps between two checks of the parameters, each of which costs a hundredth of a small update."""
STOP_WITHOUT_REASON = "a callback set should_stop without giving a reason"


class AbandonedError(Exception):
    """An evaluation was abandoned because the run was interrupted."""


class Due(NamedTuple):
    """What the end of an iteration has to do."""

    log: bool
    evaluation: bool
    checkpoint: bool


class Session:
    """A run as its loop sees it: the loop reports collections and updates, and ends iterations."""

    def __init__(
        self,
        setup: RunSetup,
        components: RunComponents,
        folder: TrainingRun,
        state: TrainerState,
        callbacks: CallbackList,
        view: ProgressView,
        log: RunLog,
    ) -> None:
        config = setup.config
        self.setup, self.components, self.folder, self.state = setup, components, folder, state
        self.callbacks, self.view, self.log = callbacks, view, log
        self.checkpoints = CheckpointFolder(folder.checkpoints_dir, config.keep, folder.workspace)
        self.training_progress = TrainingProgress(config.total_timesteps)
        self.parameters = ParameterGuard(components.algorithm)
        self.accumulator = MetricAccumulator()
        self.train_restarts = 0
        """Training environments that failed and were recreated."""
        self.inexact_reasons: list[str] = []
        """Why the run is not bit-exact with one that was never stopped (another machine, for example)."""
        self.best_return: float | None = None
        self.last_eval: dict[str, float] = {}
        """Metrics of the last evaluation."""
        self.last_eval_step: int | None = None
        self._log_due = Interval(config.log_every_steps)
        self._eval_due = Interval(
            setup.algo_config.eval_interval or max(1, config.total_timesteps // 10)
        )
        self._checkpoint_due = Interval(config.checkpoint_every_steps)
        self._pending: Due | None = None
        self._last_logged_step: int | None = None
        self._next_event_step = 0
        self._check_parameters_at = 0
        self._is_within_iteration = False
        self._hears_collections = callbacks.listens_to("on_collect_end")
        self._hears_updates = callbacks.listens_to("on_update_end")
        self._phase_start = perf_counter()

    @property
    def position(self) -> Position:
        """Unique to each state of the run, also within an iteration or with an evaluation pending."""
        state = self.state
        return (
            state.global_step,
            state.update_count,
            state.epoch,
            self._is_within_iteration,
            self._pending is not None,
        )

    @property
    def has_steps_left(self) -> bool:
        """Whether the last step is not reached yet."""
        return self.state.global_step < self.training_progress.total

    @property
    def last_step(self) -> int:
        """The step at which the run ends, which may be later than `total_timesteps`."""
        last: int = self.setup.algo_config.last_step(
            self.training_progress.total, self.setup.config.num_envs
        )
        return last

    @property
    def steps_to_next_event(self) -> int:
        """Steps until the next log line, evaluation, checkpoint or the end, whichever comes first."""
        step = self.state.global_step
        return min(
            self.training_progress.total - step,
            *(due.steps_left(step) for due in self._intervals()),
        )

    @property
    def num_restarts(self) -> int:
        """Environments of training and evaluation that failed and were recreated."""
        evaluator = self.components.evaluator
        return self.train_restarts + (0 if evaluator is None else evaluator.num_restarts)

    @property
    def is_evaluated(self) -> bool:
        """Whether the last evaluation is of the current step."""
        return self.last_eval_step == self.state.global_step

    @property
    def exactness(self) -> str:
        """`exact`, or `approximate` if the run may differ from one that was never stopped."""
        return "approximate" if self.inexact_reasons or self.components.env_reasons else "exact"

    def begin(self, *, is_new: bool) -> None:
        """Call `on_train_start`; a new offline run reports its dataset as collected."""
        self.log.latest = {**self.last_eval, **self.log.latest}
        self.callbacks.on_train_start(self.state)
        is_warm_start = self.state.warm_start_step == self.state.global_step
        if is_warm_start and self.components.evaluator and not self.last_eval:
            self._pending = Due(
                log=False, evaluation=True, checkpoint=False
            )  # the first score to beat
            for due in self._intervals():
                due.is_due(self.state.global_step)
        self.callbacks.state_dict()  # raises if it cannot be saved, before any step is taken
        last_step = self.last_step
        self.view.watch(lambda: (self.state.global_step, last_step, self.log.latest))
        if is_new and self.components.dataset:
            self._is_within_iteration = True
            self.callbacks.on_collect_end(self.state, CollectResult(len(self.components.dataset)))
        self._phase_start = perf_counter()

    def set_progress(self) -> None:
        """Pass the current step and fraction of training done to the algorithm."""
        step = self.state.global_step
        algorithm = self.state.algorithm
        algorithm.global_step, algorithm.progress = step, self.training_progress.progress(step)

    def collected(self, result: CollectResult) -> None:
        """Report new steps in the buffer."""
        now = perf_counter()
        self.log.times.collect_seconds += now - self._phase_start
        self._phase_start = now
        self._is_within_iteration = True
        if result.env_restarts != self.train_restarts:
            self.train_restarts = result.env_restarts
            self._report_restarts()
        if result.episode_returns:
            self.accumulator.add_episodes(result.episode_returns, result.episode_lengths)
        if self._hears_collections:
            self.callbacks.on_collect_end(self.state, result)
            self._phase_start = perf_counter()

    def updated(self, result: UpdateResult) -> None:
        """Report an update of the algorithm."""
        now = perf_counter()
        self.log.times.update_seconds += now - self._phase_start
        self._phase_start = now
        self._is_within_iteration = True
        self.state.update_calls += 1
        self.state.update_count += result.gradient_steps
        if self.accumulator.add_update(result.metrics):
            self.accumulator.check(self.state.global_step, self.state.update_count)
        if self._hears_updates:
            self.callbacks.on_update_end(self.state, result)
            self._phase_start = perf_counter()

    def end_iteration(self) -> None:
        """End an iteration: log, evaluate and save what is due."""
        step = self.state.global_step
        self.state.epoch += 1
        self._is_within_iteration = False
        if self.accumulator.is_deferred:
            self.accumulator.check(self.state.global_step, self.state.update_count)
        has_event = step >= self._next_event_step
        if has_event or self.state.update_count >= self._check_parameters_at:
            self.parameters.check(step)
            self._check_parameters_at = self.state.update_count + UPDATES_BETWEEN_CHECKS
        if has_event:
            self._next_event_step = step + min(due.steps_left(step) for due in self._intervals())
            log_due, eval_due, checkpoint_due = (due.is_due(step) for due in self._intervals())
            has_evaluator = self.components.evaluator is not None
            self._pending = Due(log_due, eval_due and has_evaluator, checkpoint_due)
            self.do_pending()
            self._phase_start = perf_counter()

    def do_pending(self) -> None:
        """Evaluate, log and save what is due. It stays pending for a resumed run if the evaluation is interrupted."""
        due = self._pending
        if due is None:
            return
        try:
            is_best = due.evaluation and self._evaluate()
        except AbandonedError:
            return
        # The last line is left to `finish`, which writes it with the closing evaluation, after the checkpoint. It stays
        # pending there: a run resumed from that checkpoint writes it without an evaluation.
        is_left_to_finish = due.log and not due.evaluation and self._ends_with_evaluation()
        if not is_left_to_finish:
            self._pending = None
            if due.log or due.evaluation:
                self._log()
        if due.checkpoint or is_best:
            path = self.save()
            if is_best:
                self.offer_best(path)
        if self._pending is None:
            self._show()

    def finish(self) -> TrainResult:
        """End the run: save, and evaluate the last policy unless the run was interrupted."""
        self._name_stop()
        if is_interruption(self.state.stop_reason):
            self.view.stopped()
        # Saved before the closing evaluation, so that a resumed run continues as if it had never stopped here.
        path = self.save()
        if self.components.evaluator is not None and not self.is_evaluated:
            with contextlib.suppress(AbandonedError):
                if self._evaluate():
                    self.offer_best(path)
                self._last_logged_step = None  # a line without the evaluation is not enough
            self._name_stop()
        if self._last_logged_step != self.state.global_step:
            self._log()
        self._show()
        self.log.sync()
        return TrainResult(self.state.run_dir, path, self._final_metrics(), self.state.stop_reason)

    def save(self) -> Path:
        """Write a checkpoint of the current state."""
        started = perf_counter()
        self.log.sync()
        lease = self.folder.lease
        with lease.explained() if lease else contextlib.nullcontext():
            path = self.checkpoints.save(self.position, self._write_checkpoint)
        self.log.times.save_seconds += perf_counter() - started
        return path

    def checkpoint_values(self) -> dict[str, Any]:
        """The content of a checkpoint of the current state, without the buffer."""
        components, execution = self.components, self.setup.execution
        best = self.checkpoints.best
        return {
            "config": self.setup.config,
            "algorithm_state": components.algorithm.state_dict(),
            "trainer_state": {
                "session": self.state_dict(),
                "collector": components.collector.state_dict() if components.collector else None,
                **self.log.num_bytes(),
                "best": best._asdict() if best else None,
            },
            "metadata": {
                "execution": dataclasses.asdict(execution),
                "global_step": self.state.global_step,
                "machine": machine_facts(components.algorithm.device),
                "code": code_facts(self.setup.config),
                "exactness": self.exactness,
                "inexact_reasons": [*self.inexact_reasons, *components.env_reasons],
            },
        }

    def forget_best(self) -> None:
        """Reset the best score in a fork: the best checkpoint of the original run is not in its folder."""
        self.best_return = self.last_eval["eval_return_mean"] if self.is_evaluated else None

    def offer_restored(self) -> None:
        """Point `best` at the restored checkpoint if it holds the best score: a kill may have come between the two."""
        path = self.checkpoints.last
        if (
            path is not None
            and self.is_evaluated
            and self.best_return == self.last_eval["eval_return_mean"]
        ):
            self.offer_best(path)

    def state_dict(self) -> dict[str, Any]:
        """Counters, schedules, statistics, scores and the states of the callbacks."""
        evaluator = self.components.evaluator
        return {
            "global_step": self.state.global_step,
            "epoch": self.state.epoch,
            "update_count": self.state.update_count,
            "update_calls": self.state.update_calls,
            "warm_start_step": self.state.warm_start_step,
            "stop_reason": self.state.stop_reason,
            "training_progress": self.training_progress.state_dict(),
            "accumulator": self.accumulator.state_dict(),
            "callbacks": self.callbacks.state_dict(),
            "intervals": [due.state_dict() for due in self._intervals()],
            "best_return": self.best_return,
            "last_eval": dict(self.last_eval),
            "last_eval_step": self.last_eval_step,
            "eval_restarts": 0 if evaluator is None else evaluator.num_restarts,
            "shared_changes": [] if evaluator is None else evaluator.shared_changes,
            "last_logged_step": self._last_logged_step,
            "pending": None if self._pending is None else list(self._pending),
            "is_within_iteration": self._is_within_iteration,
            "inexact_reasons": list(self.inexact_reasons),
        }

    def load_state_dict(self, state: dict[str, Any], schedules: Schedules = "stretch") -> None:
        """Restore all but the stop reason; `schedules` says how the schedules of an extended run continue."""
        self.state.global_step = state["global_step"]
        self.state.epoch = state["epoch"]
        self.state.update_count = state["update_count"]
        self.state.update_calls = state["update_calls"]
        self.state.warm_start_step = state.get("warm_start_step")
        saved = TrainingProgress(**state["training_progress"])
        self.training_progress = saved.extended(
            state["global_step"], self.setup.config.total_timesteps, schedules
        )
        self.accumulator.load_state_dict(state["accumulator"])
        self.callbacks.load_state_dict(state["callbacks"])
        for due, passed in zip(self._intervals(), state["intervals"], strict=True):
            due.load_state_dict(passed)
        self.best_return = state["best_return"]
        self.last_eval = dict(state["last_eval"])
        self.last_eval_step = state["last_eval_step"]
        if self.components.evaluator is not None:
            self.components.evaluator.num_restarts = state["eval_restarts"]
        self._last_logged_step = state["last_logged_step"]
        self._pending = None if state["pending"] is None else Due(*state["pending"])
        self._is_within_iteration = state["is_within_iteration"]
        self.inexact_reasons = list(state["inexact_reasons"])

    def _intervals(self) -> tuple[Interval, Interval, Interval]:
        return self._log_due, self._eval_due, self._checkpoint_due

    def _ends_with_evaluation(self) -> bool:
        is_last = self.state.should_stop or not self.has_steps_left
        return is_last and self.components.evaluator is not None

    def _evaluate(self) -> bool:
        """Evaluate the policy; returns whether it is the best so far."""
        evaluator, step = self.components.evaluator, self.state.global_step
        assert evaluator is not None
        self._show()
        started = perf_counter()
        try:
            episodes = evaluator.run_episodes(self.state.algorithm, self._watch_evaluation)
            self.last_eval, self.last_eval_step = evaluator.summarize(*episodes), step
            self._report_restarts()
            self.callbacks.on_eval_end(self.state, dict(self.last_eval))
            score = self.last_eval["eval_return_mean"]
            if not math.isfinite(score):
                raise NonFiniteError(f"the evaluation's mean return is {score} at step {step:,}")
            self.log.write_evaluation(step, evaluator.seeds, *episodes)
        finally:
            self.log.times.eval_seconds += perf_counter() - started
        is_best = self.best_return is None or score > self.best_return
        if is_best:
            self.best_return = score
        self.view.evaluated(step, self.last_eval, is_best=is_best)
        return is_best

    def _watch_evaluation(self, num_done: int) -> None:
        if is_interruption(self.state.stop_reason):
            raise AbandonedError
        self.view.evaluating(num_done, self.setup.config.eval_episodes)

    def offer_best(self, path: Path) -> None:
        """Point `best` at the checkpoint of the best evaluation."""
        if self.best_return is not None:
            self.checkpoints.offer_best(path, self.best_return)

    def _log(self) -> None:
        """Write one log line with the metrics since the last one."""
        metrics: dict[str, float] = {
            "global_step": self.state.global_step,
            "gradient_steps": self.state.update_count,
            **self._learning_rate(),
            **self.accumulator.collect(),
        }
        if self.state.env_restarts:
            metrics["env_restarts"] = self.state.env_restarts
        if self.is_evaluated:
            metrics |= self.last_eval
        self.log.write(metrics)
        self._last_logged_step = self.state.global_step
        self.callbacks.on_log(self.state, dict(metrics))

    def _learning_rate(self) -> dict[str, float]:
        """The learning rate of the last update; none for an algorithm without that setting."""
        algorithm = self.state.algorithm
        setting = getattr(algorithm.config, "learning_rate", None)
        return {} if setting is None else {"learning_rate": value_at(setting, algorithm.progress)}

    def _write_checkpoint(self, path: Path, base: Path | None) -> None:
        self.parameters.check_all(self.state.global_step)
        values, workspace = self.checkpoint_values(), self.folder.workspace
        with translate_save_errors():
            buffer_state = self.components.buffer.state_dict()
            save_training_checkpoint(
                path, base=base, buffer_state=buffer_state, workspace=workspace, **values
            )

    def _final_metrics(self) -> dict[str, float]:
        """Last value of each metric, the last evaluation with its step, and the best score."""
        metrics = {
            "global_step": self.state.global_step,
            "gradient_steps": self.state.update_count,
            **self.log.latest,
        }
        if self.last_eval_step is not None:
            metrics |= {**self.last_eval, "eval_step": self.last_eval_step}
        if self.checkpoints.best is not None:
            metrics["best_eval_return_mean"] = self.checkpoints.best.score
        return metrics

    def _name_stop(self) -> None:
        """Set a general reason for a stop that a callback requested without one."""
        if self.state.should_stop and self.state.stop_reason is None:
            self.state.stop_reason = STOP_WITHOUT_REASON

    def _report_restarts(self) -> None:
        if self.num_restarts > self.state.env_restarts:
            self.state.env_restarts = self.num_restarts
            self.view.message(
                f"an environment failed and was recreated ({self.num_restarts} in this run)"
            )

    def _show(self) -> None:
        self.view.update(self.state.global_step, self.last_step, self.log.latest)

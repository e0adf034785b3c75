"""Callbacks, log lines, evaluations and checkpoints of a loop, and the end of the run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from rl_training.algorithms.base import UpdateResult
from rl_training.algorithms.config import value_at
from rl_training.experiment.checkpoint_folder import Position
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.logging import MetricSink
from rl_training.experiment.run_folder import is_interruption
from rl_training.experiment.timing import PhaseTimes
from rl_training.runtime.callbacks import CallbackList
from rl_training.runtime.controls import Interval, Schedules
from rl_training.runtime.metrics import MetricAccumulator, ParameterGuard
from rl_training.runtime.scores import Scores
from rl_training.runtime.trainer import CollectResult, TrainerState, TrainResult
from rl_training.terminal.progress import ProgressView

UPDATES_BETWEEN_CHECKS = 8
"""Gradient steps between two checks of the parameters, each of which costs a hundredth of a small update."""

STOP_WITHOUT_REASON = "a callback set should_stop without giving a reason"


class AbandonedError(Exception):
    """An evaluation was abandoned because the run was interrupted."""


@dataclass
class TrainingProgress:
    """The last step of the run, and the fraction of each schedule done at a step.

    From `from_step` to `total`, the fraction rises linearly from `from_progress` to `to_progress`.
    """

    total: int
    from_step: int = 0
    from_progress: float = 0.0
    to_progress: float = 1.0

    def progress(self, step: int) -> float:
        """Fraction of each schedule done at `step`, 0 to 1."""
        left = self.total - self.from_step
        fraction = (step - self.from_step) / left if left > 0 else 0.0
        return min(self.to_progress, self.from_progress + (self.to_progress - self.from_progress) * fraction)

    def extended(self, step: int, total: int, schedules: Schedules = "stretch") -> TrainingProgress:
        """Progress of a run resumed at `step` that now ends at `total`; no schedule jumps, unless it restarts."""
        if schedules == "restart":
            return TrainingProgress(total, step)
        if schedules == "hold":
            return TrainingProgress(total, step, self.progress(step), self.progress(step))
        return self if total == self.total else TrainingProgress(total, step, self.progress(step))

    def state_dict(self) -> dict[str, Any]:
        """All fields."""
        return vars(self).copy()


@dataclass
class Session:
    """A run as its loop sees it: the loop reports collections and updates, and ends iterations."""

    config: TrainConfig
    state: TrainerState
    training_progress: TrainingProgress
    callbacks: CallbackList
    scores: Scores
    sinks: Sequence[MetricSink]
    view: ProgressView
    save: Callable[[], Path]
    """Writes a checkpoint of the run's current state."""
    eval_every_steps: int
    accumulator: MetricAccumulator = field(default_factory=MetricAccumulator)
    times: PhaseTimes = field(default_factory=PhaseTimes)
    """Where the time goes."""
    train_restarts: int = 0
    """Training environments that failed and were recreated."""
    inexact_reasons: list[str] = field(default_factory=list)
    """Why the run is not bit-exact with one that was never stopped (another machine, for example)."""

    def __post_init__(self) -> None:
        """Set up the intervals."""
        self._log_due = Interval(self.config.log_every_steps)
        self._eval_due = Interval(self.eval_every_steps)
        self._checkpoint_due = Interval(self.config.checkpoint_every_steps)
        self._latest: dict[str, float] = {}
        self.parameters = ParameterGuard(self.state.algorithm)
        self._check_parameters_at = 0
        self._next_event_step = 0
        self._hears_collections = self.callbacks.listens_to("on_collect_end")
        self._hears_updates = self.callbacks.listens_to("on_update_end")
        self._last_logged_step: int | None = None
        self._pending: list[bool] | None = None
        self._is_within_iteration = False
        self._phase_start = perf_counter()

    @property
    def position(self) -> Position:
        """Unique to each state of the run, also within an iteration or with an evaluation pending."""
        state = self.state
        return state.global_step, state.update_count, state.epoch, self._is_within_iteration, self._pending is not None

    @property
    def has_steps_left(self) -> bool:
        """Whether the last step is not reached yet."""
        return self.state.global_step < self.training_progress.total

    @property
    def last_step(self) -> int:
        """The step at which the run ends, which may be later than `total_timesteps`."""
        last: int = self.state.algorithm.config.last_step(self.training_progress.total, self.config.num_envs)
        return last

    @property
    def steps_to_next_event(self) -> int:
        """Steps until the next log line, evaluation, checkpoint or the end, whichever comes first."""
        step = self.state.global_step
        return min(self.training_progress.total - step, *(due.steps_left(step) for due in self._intervals()))

    @property
    def num_restarts(self) -> int:
        """Environments of training and evaluation that failed and were recreated."""
        return self.train_restarts + self.scores.num_restarts

    def begin(self, dataset_size: int | None = None) -> None:
        """Call `on_train_start`; a new offline run reports its dataset of `dataset_size` transitions as collected."""
        self.callbacks.on_train_start(self.state)
        if self.state.warm_start_step == self.state.global_step and self.scores.evaluator and not self.scores.last:
            self._pending = [False, True, False]  # the score of the trained policy is the first to beat
            for due in self._intervals():
                due.is_due(self.state.global_step)
        self.callbacks.state_dict()  # raises if it cannot be saved, before any step is taken
        last_step = self.last_step
        self.view.watch(lambda: (self.state.global_step, last_step, self._latest))
        if dataset_size is not None:
            self._is_within_iteration = True
            self.callbacks.on_collect_end(self.state, CollectResult(dataset_size))
        self._phase_start = perf_counter()

    def set_progress(self) -> None:
        """Pass the current step and fraction of training done to the algorithm."""
        step = self.state.global_step
        algorithm = self.state.algorithm
        algorithm.global_step, algorithm.progress = step, self.training_progress.progress(step)

    def collected(self, result: CollectResult) -> None:
        """Report new steps in the buffer."""
        now = perf_counter()
        self.times.collect_seconds += now - self._phase_start
        self._phase_start = now
        self._is_within_iteration = True
        if result.env_restarts != self.train_restarts:
            self.train_restarts = result.env_restarts
            self._tell_restarts()
        if result.episode_returns:
            self.accumulator.add_episodes(result.episode_returns, result.episode_lengths)
        if self._hears_collections:
            self.callbacks.on_collect_end(self.state, result)
            self._phase_start = perf_counter()

    def updated(self, result: UpdateResult) -> None:
        """Report an update of the algorithm."""
        now = perf_counter()
        self.times.update_seconds += now - self._phase_start
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
            self._pending = [log_due, eval_due and self.scores.evaluator is not None, checkpoint_due]
            self.handle_pending()
            self._phase_start = perf_counter()

    def handle_pending(self) -> None:
        """Log, evaluate and save what is pending; an interrupted evaluation stays pending for a resumed run.

        The log line of the last step also stays pending: `finish` writes it after the checkpoint, with the final
        evaluation. A run resumed from that checkpoint writes it without one.
        """
        if self._pending is None:
            return
        log_due, eval_due, checkpoint_due = self._pending
        try:
            is_best = self._evaluate() if eval_due else False
        except AbandonedError:
            return
        is_last = self.state.should_stop or not self.has_steps_left
        if log_due and is_last and not eval_due and self.scores.evaluator is not None:
            self._pending = [True, False, checkpoint_due]
        else:
            self._pending = None
            if log_due or eval_due:
                self._log()
        if checkpoint_due or is_best:
            path = self.save()
            if is_best:
                self.scores.offer_best(path)
        if self._pending is None:
            self.view.update(self.state.global_step, self.last_step, self._latest)

    def finish(self) -> TrainResult:
        """End the run: save, and evaluate the last policy unless the run was interrupted."""
        self._name_stop()
        if is_interruption(self.state.stop_reason):
            self.view.stopped()
        # Saved before the closing evaluation, so that a resumed run continues as if it had never stopped here.
        path = self.save()
        if self.scores.evaluator is not None and not self.scores.is_current:
            with contextlib.suppress(AbandonedError):
                if self._evaluate():
                    self.scores.offer_best(path)
                self._last_logged_step = None  # a line without the evaluation is not enough
            self._name_stop()
        if self._last_logged_step != self.state.global_step:
            self._log()
        self.view.update(self.state.global_step, self.last_step, self._latest)
        counts = {"global_step": self.state.global_step, "gradient_steps": self.state.update_count}
        metrics = {**counts, **self._latest, **self.scores.metrics()}
        return TrainResult(self.state.run_dir, path, metrics, self.state.stop_reason)

    def _name_stop(self) -> None:
        """Set a general reason for a stop that a callback requested without one."""
        if self.state.should_stop and self.state.stop_reason is None:
            self.state.stop_reason = STOP_WITHOUT_REASON

    def state_dict(self) -> dict[str, Any]:
        """Counters, schedules, statistics and the states of the callbacks."""
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
            **self.scores.state_dict(),
            "last_logged_step": self._last_logged_step,
            "pending": self._pending,
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
        self.training_progress = saved.extended(state["global_step"], self.config.total_timesteps, schedules)
        self.accumulator.load_state_dict(state["accumulator"])
        self.callbacks.load_state_dict(state["callbacks"])
        for due, saved in zip(self._intervals(), state["intervals"], strict=True):
            due.load_state_dict(saved)
        self.scores.load_state_dict(state)
        self._last_logged_step = state["last_logged_step"]
        self._pending = state["pending"]
        self._is_within_iteration = state["is_within_iteration"]
        self.inexact_reasons = list(state["inexact_reasons"])

    def recall_metrics(self, logged: Mapping[str, float]) -> None:
        """Load the metrics logged before a resume, which are part of the run's result."""
        self._latest = {**self.scores.last, **logged}

    def _intervals(self) -> tuple[Interval, Interval, Interval]:
        return self._log_due, self._eval_due, self._checkpoint_due

    def _evaluate(self) -> bool:
        """Evaluate the policy; returns whether it is the best so far."""
        self.view.update(self.state.global_step, self.last_step, self._latest)
        started = perf_counter()
        try:
            is_best = self.scores.evaluate(self._watch_evaluation, self._evaluated)
        finally:
            self.times.eval_seconds += perf_counter() - started
        self.view.evaluated(self.state.global_step, self.scores.last, is_best=is_best)
        return is_best

    def _evaluated(self, metrics: dict[str, float]) -> None:
        self._tell_restarts()
        self.callbacks.on_eval_end(self.state, metrics)

    def _tell_restarts(self) -> None:
        if self.num_restarts > self.state.env_restarts:
            self.state.env_restarts = self.num_restarts
            self.view.message(f"an environment failed and was recreated ({self.num_restarts} in this run)")

    def _watch_evaluation(self, num_done: int) -> None:
        if is_interruption(self.state.stop_reason):
            raise AbandonedError
        self.view.evaluating(num_done, self.config.eval_episodes)

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
        if self.scores.is_current:
            metrics |= self.scores.last
        for sink in self.sinks:
            sink.write(metrics)
        self._latest |= metrics
        self._last_logged_step = self.state.global_step
        self.callbacks.on_log(self.state, dict(metrics))

    def _learning_rate(self) -> dict[str, float]:
        """The learning rate of the last update; none for an algorithm without that setting."""
        algorithm = self.state.algorithm
        setting = getattr(algorithm.config, "learning_rate", None)
        return {} if setting is None else {"learning_rate": value_at(setting, algorithm.progress)}

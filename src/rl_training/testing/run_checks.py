"""Checks of whole runs: seeds, stopping and resuming, metrics, counts and evaluation."""

from __future__ import annotations

import functools
import math
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from rl_training.algorithms.base import ActResult, UpdateResult
from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.logs import read_metrics
from rl_training.experiment.registry import Loop, registered
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.loops.off_policy import updates_due
from rl_training.runtime.run import run_training
from rl_training.runtime.trainer import TrainerState, TrainResult
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training
from rl_training.testing.case import (
    NUM_ENVS,
    TOTAL_STEPS,
    AlgorithmCase,
    check,
    fail,
    first_difference,
)
from rl_training.testing.object_checks import KEEP_STATE

STOPS = {"within a collection": 50, "within the updates": 64, "at an evaluation": 64}
"""Where a run is stopped, and from which step on."""
STOP_REASON = "check_resume"


@dataclass
class Recorder(Callback):
    """Records the updates and the log lines of a run."""

    updates: list[UpdateResult] = field(default_factory=list)
    lines: list[tuple[Mapping[str, float], int]] = field(default_factory=list)
    """The metrics of each log line, and the number of updates before it."""

    def on_update_end(self, trainer: TrainerState, result: UpdateResult) -> None:
        """Record an update."""
        self.updates.append(result)

    def on_log(self, trainer: TrainerState, metrics: Mapping[str, float]) -> None:
        """Record a line."""
        self.lines.append((metrics, len(self.updates)))


class StopAt(Callback):
    """Requests a stop at one of `STOPS`."""

    def __init__(self, place: str) -> None:
        self.place = place

    def on_train_start(self, trainer: TrainerState) -> None:
        """Watch `act`, which is called within a collection."""
        act = trainer.algorithm.act

        def watched(
            obs: Tensor, state: Tensor | None = None, *, explore: bool, **options: Any
        ) -> ActResult:
            if explore:
                self._check(trainer, "within a collection")
            return act(obs, state, explore=explore, **options)

        trainer.algorithm.act = watched  # type: ignore[method-assign]

    def on_update_end(self, trainer: TrainerState, result: UpdateResult) -> None:
        """Stop within the updates."""
        self._check(trainer, "within the updates")

    def on_eval_end(self, trainer: TrainerState, metrics: Mapping[str, float]) -> None:
        """Stop at an evaluation."""
        self._check(trainer, "at an evaluation")

    def _check(self, trainer: TrainerState, place: str) -> None:
        if place == self.place and trainer.global_step >= STOPS[place]:
            trainer.request_stop(STOP_REASON)


@dataclass(frozen=True)
class Outcome:
    """What a run leaves behind."""

    state: dict[str, Any]
    """Algorithm, buffer, environments and session in the last checkpoint, the best algorithm, and both logs."""
    metrics: dict[str, float]
    recorder: Recorder
    scores: dict[str, float]
    """Results of `evaluate_checkpoint`, named like those of the run."""


def _outcome(result: TrainResult, recorder: Recorder, *, evaluate: bool = False) -> Outcome:
    checkpoint = load_checkpoint(result.checkpoint_path)
    best = result.run_dir / "checkpoints" / "best"
    state = {
        "algorithm": checkpoint.algorithm_state,
        "buffer": checkpoint.buffer_state,
        "collector": checkpoint.trainer_state["collector"],
        "session": {**checkpoint.trainer_state["session"], "stop_reason": None, "callbacks": None},
        "metrics": list(read_metrics(result.run_dir / "metrics.jsonl")),
        "best": load_checkpoint(best, include_buffer=False).algorithm_state,
        "evaluations": (result.run_dir / "evaluations.jsonl").read_text().splitlines(),
    }
    return Outcome(state, result.metrics, recorder, _scores(result.run_dir) if evaluate else {})


def _scores(run_dir: Path) -> dict[str, float]:
    last = evaluate_checkpoint(run_dir, device="cpu")
    best = evaluate_checkpoint(run_dir / "checkpoints" / "best", device="cpu")
    return {
        "eval_return_mean": last["eval_return_mean"],
        "eval_return_std": last["eval_return_std"],
        "best_eval_return_mean": best["eval_return_mean"],
    }


def _run(
    case: AlgorithmCase, seed: int = 1, *, stop: str | None = None, evaluate: bool = False
) -> Outcome:
    """A run; with `stop` it is stopped at that place and resumed."""
    recorder = Recorder()
    with registered(case.spec), tempfile.TemporaryDirectory() as folder:
        config = case.train_config(Path(folder), seed)
        if stop is None:
            result = run_training(config, callbacks=[recorder])
        else:
            stopped = run_training(config, callbacks=[StopAt(stop)])
            if stopped.stop_reason != STOP_REASON:
                raise ConfigError(
                    f"a run of {TOTAL_STEPS} steps does not stop {stop}: lower the settings in algo_kwargs"
                )
            result = resume_training(stopped.run_dir, callbacks=[recorder])
        return _outcome(result, recorder, evaluate=evaluate)


@functools.lru_cache(maxsize=1)
def _undisturbed(case: AlgorithmCase) -> Outcome:
    """The run that the checks share; it is not stopped."""
    return _run(case, evaluate=True)


@check
def check_seed(case: AlgorithmCase) -> None:
    """The same seed gives the same run, another seed another run."""
    whole = _undisturbed(case)
    path = first_difference(whole.state, _run(case).state, path="run")
    if path:
        fail(
            f"two runs with the same seed differ at {path}",
            "draw every random number from self.generator",
        )
    members = [outcome.state["algorithm"]["members"] for outcome in (whole, _run(case, seed=2))]
    if first_difference(*members, path="members") is None:
        fail(
            "runs with two seeds learn the same",
            "draw initial weights and noise from self.generator",
        )


@check
def check_resume(case: AlgorithmCase) -> None:
    """A run that is stopped and resumed equals the run that was never stopped, tensor by tensor."""
    whole = _undisturbed(case)
    collects = (
        case.loop is not Loop.OFFLINE or getattr(case.algo_config, "online", None) is not None
    )
    for place in STOPS:
        if place == "within a collection" and not collects:
            continue
        path = first_difference(whole.state, _run(case, stop=place).state, path="run")
        if path:
            found = f"a run that was stopped {place} and resumed differs from the one that was not, at {path}"
            fail(found, f"{KEEP_STATE}, and draw random numbers from self.generator only")


@check
def check_metrics(case: AlgorithmCase) -> None:
    """Each log line has the mean of every metric over the updates since the line before that reported it."""
    recorder = _undisturbed(case).recorder
    first = 0
    for line, last in recorder.lines:
        values: dict[str, list[float]] = {}
        for result in recorder.updates[first:last]:
            for name, value in result.metrics.items():
                values.setdefault(name, []).append(float(value))
        for name, reported in sorted(values.items()):
            mean, logged = statistics.fmean(reported), line.get(name)
            if logged is None or not math.isclose(logged, mean, rel_tol=1e-5, abs_tol=1e-6):
                found = f"the log line has {logged} for metric '{name}', whose mean is {mean}"
                fail(found, "report it under a name that the run does not use")
        first = last
    if not any(result.metrics for result in recorder.updates):
        fail("no update reports a metric", "report the losses in UpdateResult.metrics")


@check
def check_gradient_steps(case: AlgorithmCase) -> None:
    """The log has the sum of the reported `gradient_steps`; the number of updates does not depend on it."""
    whole = _undisturbed(case)
    updates = whole.recorder.updates
    for line, count in whole.recorder.lines:
        gradient_steps = sum(result.gradient_steps for result in updates[:count])
        if line["gradient_steps"] != gradient_steps:
            found = f"the log line at step {line['global_step']} has gradient_steps {line['gradient_steps']}"
            remedy = "report the optimizer steps of each update in UpdateResult: their sum is"
            fail(found, f"{remedy} {gradient_steps}")
    expected = _expected_updates(case, int(whole.metrics["global_step"]))
    calls = len(updates)
    if calls != expected:
        found = f"the run called update {calls} times, not {expected}"
        fail(found, "leave the number of updates to the loop")


def _expected_updates(case: AlgorithmCase, last_step: int) -> int:
    """Calls of `update` that the settings of a run ask for."""
    config = case.algo_config
    if case.loop is Loop.ON_POLICY:
        return -(-last_step // int(config.num_steps * NUM_ENVS))
    if case.loop is Loop.OFF_POLICY:
        return updates_due(config, last_step, 0)
    online = getattr(config, "online", None)
    if online is None:
        return last_step
    return int(online.after_updates) + updates_due(online, last_step - online.after_updates, 0)


@check
def check_evaluation(case: AlgorithmCase) -> None:
    """`evaluate_checkpoint` reproduces the scores that the run logged, of the last checkpoint and of the best."""
    whole = _undisturbed(case)
    for name, score in whole.scores.items():
        if score != whole.metrics[name]:
            found = (
                f"evaluate_checkpoint gives {name} {score}, the run logged {whole.metrics[name]}"
            )
            fail(found, f"let act without explore depend on saved state only: {KEEP_STATE}")

"""Evaluations of a run: the last score, the best score, and the checkpoint that `best` points at."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_training.errors import NonFiniteError
from rl_training.evaluation.evaluator import Evaluator
from rl_training.experiment.checkpoint_folder import Best, CheckpointFolder, Position
from rl_training.experiment.logging import EvaluationFile
from rl_training.runtime.trainer import TrainerState


@dataclass
class Scores:
    """Evaluates the policy and keeps track of its scores."""

    state: TrainerState
    evaluator: Evaluator | None
    checkpoints: CheckpointFolder
    evaluations: EvaluationFile | None = None
    best_return: float | None = None
    last: dict[str, float] = field(default_factory=dict)
    """Metrics of the last evaluation."""
    last_step: int | None = None
    """Step of the last evaluation."""

    @property
    def num_restarts(self) -> int:
        """Evaluation environments that failed and were recreated."""
        return 0 if self.evaluator is None else self.evaluator.num_restarts

    @property
    def is_current(self) -> bool:
        """Whether the last evaluation is of the current step."""
        return self.last_step == self.state.global_step

    def evaluate(self, on_progress: Callable[[int], None], on_end: Callable[[dict[str, float]], None]) -> bool:
        """Evaluate the policy; returns whether it is the best so far.

        `on_progress` is called with the number of episodes done, `on_end` with the metrics.
        """
        assert self.evaluator is not None
        episodes = self.evaluator.run_episodes(self.state.algorithm, on_progress)
        self.last = self.evaluator.summarize(*episodes)
        self.last_step = self.state.global_step
        on_end(dict(self.last))
        score = self.last["eval_return_mean"]
        if not math.isfinite(score):
            raise NonFiniteError(f"the evaluation's mean return is {score} at step {self.last_step:,}")
        if self.evaluations is not None:
            self.evaluations.write(self.last_step, self.evaluator.seeds, *episodes)
        is_best = self.best_return is None or score > self.best_return
        if is_best:
            self.best_return = score
        return is_best

    def offer_best(self, path: Path) -> None:
        """Point `best` at the checkpoint of the best evaluation."""
        if self.best_return is not None:
            self.checkpoints.offer_best(path, self.best_return)

    def offer_restored(self) -> None:
        """Point `best` at the restored checkpoint if it holds the best score: a kill may have come between the two."""
        path = self.checkpoints.last
        if path is not None and self.is_current and self.best_return == self.last["eval_return_mean"]:
            self.offer_best(path)

    def reset_best(self) -> None:
        """Reset the best score in a fork: the best checkpoint of the original run is not in its folder."""
        self.best_return = self.last["eval_return_mean"] if self.is_current else None

    def discard_newer(self, name: str, position: Position | None, best: Best | None, *, is_extended: bool) -> None:
        """Make the restored checkpoint `name` the last one, and restore `best` as of then.

        A resumed run drops the final evaluation made when it was stopped; an extended run keeps it.
        """
        now = self.checkpoints.best
        if now is not None and not is_extended and (self.best_return is None or now.score > self.best_return):
            self.checkpoints.restore_best(best)
        self.checkpoints.rewind_to(name, position, best)
        kept = self.checkpoints.best
        if kept is not None and (self.best_return is None or kept.score > self.best_return):
            self.best_return = kept.score  # of the closing evaluation
        self.offer_restored()

    def metrics(self) -> dict[str, float]:
        """The last evaluation with its step, and the best score, for the result of the run."""
        metrics: dict[str, float] = {}
        if self.last_step is not None:
            metrics |= {**self.last, "eval_step": self.last_step}
        if self.checkpoints.best is not None:
            metrics["best_eval_return_mean"] = self.checkpoints.best.score
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """The scores, and what is known of the evaluation environments."""
        return {
            "best_return": self.best_return,
            "last_eval": dict(self.last),
            "last_eval_step": self.last_step,
            "eval_restarts": self.num_restarts,
            "shared_changes": [] if self.evaluator is None else self.evaluator.shared_changes,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.best_return = state["best_return"]
        self.last = dict(state["last_eval"])
        self.last_step = state["last_eval_step"]
        if self.evaluator is not None:
            self.evaluator.num_restarts = state["eval_restarts"]

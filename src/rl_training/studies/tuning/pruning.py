"""When a trial is pruned: Optuna's pruners, asked about evaluations in the order of their steps.

A decision depends on the evaluations of the trial itself and on the trials of earlier batches, which are over. So it
is the same whichever run is faster, and the same again after the tuning was killed.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_training.studies.tuning.journal import copy_in_memory, quiet_optuna

RUNG = "completed_rung_"
"""Beginning of the attributes in which Optuna's Hyperband notes how far a trial came."""


@dataclass(frozen=True)
class Decision:
    """What a pruner says of a trial so far."""

    step: int | None = None
    """The evaluation at which it is pruned; None: not pruned."""
    rungs: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Pruning:
    """A pruner and the budget of a trial."""

    kind: str
    """`median`, `hyperband` or `none`."""
    total_steps: int
    num_startup: int
    """Complete trials before the median pruner prunes."""

    @property
    def first_step(self) -> int:
        """No trial is pruned before this step: a third of its budget."""
        return -(-self.total_steps // 3)

    def decide(
        self, name: str, decided: Sequence[Any], batch: Sequence[Any], number: int, values: Mapping[int, float]
    ) -> Decision:
        """Ask the pruner about each evaluation of trial `number` in turn; the first yes counts.

        `decided` are the trials of earlier batches and `batch` those of its own, of which only the parameters are used.
        """
        if self.kind == "none" or not values or max(values) < self.first_step:
            return Decision()
        distributions = batch[0].distributions
        study = copy_in_memory(name, decided, [trial.params for trial in batch], distributions)
        pruner, storage = self._pruner(), study._storage
        trial_id = study.trials[number]._trial_id
        for step in sorted(values):
            storage.set_trial_intermediate_value(trial_id, step, values[step])
            trial = storage.get_trial(trial_id)
            if step >= self.first_step and pruner.prune(study, trial):
                return Decision(step, _rungs(storage.get_trial(trial_id)))
        return Decision(None, _rungs(storage.get_trial(trial_id)))

    def _pruner(self) -> Any:
        with quiet_optuna() as optuna:
            if self.kind == "median":
                return optuna.pruners.MedianPruner(
                    n_startup_trials=self.num_startup, n_warmup_steps=self.first_step, interval_steps=1
                )
            # Halving at one third and at two thirds of the budget: two brackets.
            return optuna.pruners.HyperbandPruner(
                min_resource=self.first_step, max_resource=self.total_steps, reduction_factor=2
            )


def read_evaluations(run_dir: Path, every_steps: int) -> dict[int, float]:
    """Mean return of each evaluation of a run, by the step at which it was due; without values that are not finite.

    Runs with other rollout lengths evaluate a little later; by the step that was due they can be compared.
    """
    found: dict[int, float] = {}
    with contextlib.suppress(OSError):
        text = (run_dir / "evaluations.jsonl").read_text(encoding="utf-8", errors="replace")
        for line in text.split("\n")[:-1]:  # what follows the last line break is incomplete
            with contextlib.suppress(ValueError, TypeError, KeyError, OverflowError):
                values = json.loads(line)
                mean = statistics.fmean(values["returns"])
                if math.isfinite(mean):
                    found.setdefault(values["global_step"] // every_steps * every_steps, mean)
    return found


def mean_evaluations(runs: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The mean over the runs of a trial at each step at which all have been evaluated."""
    steps = sorted(set.intersection(*(set(run) for run in runs))) if runs else []
    return {step: statistics.fmean(run[step] for run in runs) for step in steps}


def _rungs(trial: Any) -> dict[str, float]:
    return {key: value for key, value in trial.system_attrs.items() if key.startswith(RUNG)}

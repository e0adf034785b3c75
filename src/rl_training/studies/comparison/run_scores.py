"""The score of one run: a rule that makes one number of its curve, and checks that the curve is complete."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from rl_training.errors import ConfigError
from rl_training.studies.catalog import last_line
from rl_training.studies.records import RunRecord
from rl_training.validation import suggest

Measure = Literal["last", "best", "auc"]
Mode = Literal["max", "min"]
FailedRuns = Literal["refuse", "worst"]
NEAREST = 0.9
"""A run with a larger budget needs an evaluation at or after this fraction of the common budget."""
BIASED = {
    "best": "`best` is a maximum over the evaluations of each run: it is biased upwards, more so for noisy runs and for"
    " frequent evaluations",
}
"""Why a measure is biased, by its name."""
Curve = tuple[Sequence[int], Sequence[float]]


@dataclass(frozen=True)
class ScoreRule:
    """How a run becomes one number."""

    metric: str = "eval_return_mean"
    measure: Measure = "last"
    """`last`: evaluation of the last policy; `best`: the maximum over time; `auc`: the mean over steps."""
    mode: Mode = "max"
    """Whether larger (`max`) or smaller (`min`) is better."""
    failed: FailedRuns = "refuse"
    """`worst`: a failed run gets the worst score of all runs on its task; `refuse`: no comparison."""

    def __post_init__(self) -> None:
        for key, kind in (("measure", Measure), ("mode", Mode), ("failed", FailedRuns)):
            value, known = getattr(self, key), get_args(kind)
            if value not in known:
                raise ConfigError(f"bad value '{value}' for --{key}: use {', '.join(known)}")

    def __str__(self) -> str:
        names = {"last": "of the last policy", "best": "of the best policy (biased)", "auc": "averaged over steps"}
        end = ", smaller is better" if self.mode == "min" else ""
        return f"{self.metric} {names[self.measure]}{end}"


@dataclass(frozen=True)
class RunScore:
    """One run as a number."""

    value: float
    step: int
    """Step of the last evaluation that counts."""


def budget_of(run: RunRecord) -> int:
    """Steps that the run was planned for."""
    if run.info.total is None:
        raise ConfigError(f"run '{run.run_dir}' does not tell its total_timesteps: its files are damaged")
    return run.info.total


def score_run(run: RunRecord, rule: ScoreRule, budget: int, limit: int) -> RunScore:
    """The score of a complete run at the common `budget`; a longer run is scored up to step `limit`."""
    steps, values = complete_curve(run, rule.metric)
    if budget_of(run) > budget:
        count = bisect_right(steps, limit)
        if count == 0 or steps[count - 1] < NEAREST * budget:
            raise ConfigError(
                f"run '{run.run_dir}' has {budget_of(run):,} steps, others {budget:,}, and it has no {rule.metric} near"
                f" step {budget:,}: compare runs of the same budget, or with evaluations at that step"
            )
        steps, values = steps[:count], values[:count]
    if rule.measure == "last":
        value = values[-1]
    elif rule.measure == "best":
        value = max(values) if rule.mode == "max" else min(values)
    else:
        value = mean_over_steps(steps, values, budget)
    return RunScore(value, steps[-1])


def complete_curve(run: RunRecord, metric: str) -> Curve:
    """Steps and values of a metric; a `ConfigError` if the file is damaged or ends before the run did."""
    if run.damage is not None:
        raise ConfigError(f"run '{run.run_dir}' has no score: {run.damage}; restore the file, or train the run again")
    steps, values = run.curve(metric)
    if not steps:
        known = sorted((name for name in run.curves if name != "gradient_steps"), key=_evaluations_first)
        hint = suggest(metric, known, f"it has {', '.join(known[:8])}" if known else "it has no metrics")
        raise ConfigError(f"run '{run.run_dir}' never logged '{metric}'{hint}")
    evaluated = last_line(run.run_dir / "evaluations.jsonl").get("global_step") if metric.startswith("eval_") else None
    end = evaluated if isinstance(evaluated, int) else run.info.step
    if metric.startswith("eval_") and steps[-1] != end:
        raise ConfigError(
            f"run '{run.run_dir}' was last evaluated at step {end:,}, and its metrics.jsonl has {metric} up to step"
            f" {steps[-1]:,} only: restore the file, or train the run again"
        )
    if not all(map(math.isfinite, values)):
        raise ConfigError(f"run '{run.run_dir}' has a {metric} that is not finite: it has no score")
    return steps, values


def mean_over_steps(steps: Sequence[int], values: Sequence[float], budget: int) -> float:
    """Area under the curve from step 0 to the budget, divided by the budget.

    Linear between two evaluations, constant before the first and after the last: a run that stopped early keeps its
    last policy.
    """
    corners = [0, *steps, max(budget, steps[-1])]
    heights = [values[0], *values, values[-1]]
    areas = [
        (corners[index + 1] - corners[index]) * (heights[index] + heights[index + 1]) / 2
        for index in range(len(corners) - 1)
    ]
    return sum(areas) / corners[-1] if corners[-1] else values[-1]


def _evaluations_first(name: str) -> tuple[bool, str]:
    return not name.startswith("eval_"), name

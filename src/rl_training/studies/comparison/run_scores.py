"""Scores of whole runs, by a rule that is the same for all runs of all arms, and what to know about them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Literal, get_args

from rl_training.errors import ConfigError
from rl_training.experiment.registry import learns_offline
from rl_training.studies.catalog import is_complete, last_line
from rl_training.studies.groups import RunGroup, RunRecord
from rl_training.validation import suggest

Measure = Literal["last", "best", "auc"]
Mode = Literal["max", "min"]
FailedRuns = Literal["refuse", "worst"]
NEAREST = 0.9
"""A run with a larger budget needs an evaluation at or after this fraction of the common budget."""


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
        names = {
            "last": "of the last policy",
            "best": "of the best policy (biased)",
            "auc": "averaged over steps",
        }
        end = ", smaller is better" if self.mode == "min" else ""
        return f"{self.metric} {names[self.measure]}{end}"


RULE_OPTIONS = tuple(field.name for field in fields(ScoreRule))


@dataclass(frozen=True)
class RunScore:
    """One run as a number."""

    value: float
    step: int
    """Step of the last evaluation that counts."""


def budget_of(run: RunRecord) -> int:
    """Steps that the run was planned for."""
    if run.info.total is None:
        raise ConfigError(
            f"run '{run.run_dir}' does not tell its total_timesteps: its files are damaged"
        )
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


def complete_curve(run: RunRecord, metric: str) -> tuple[list[int], list[float]]:
    """Steps and values of a metric; a `ConfigError` if the file is damaged or ends before the run did."""
    if run.damage is not None:
        raise ConfigError(
            f"run '{run.run_dir}' has no score: {run.damage}; restore the file, or train the run again"
        )
    steps, values = run.curve(metric)
    if not steps:
        known = [name for name in run.curves if name != "gradient_steps"]
        known.sort(key=lambda name: (not name.startswith("eval_"), name))
        has = f"it has {', '.join(known[:8])}" if known else "it has no metrics"
        hint = suggest(metric, known, has)
        raise ConfigError(f"run '{run.run_dir}' never logged '{metric}'{hint}")
    if metric.startswith("eval_"):
        evaluated = last_line(run.run_dir / "evaluations.jsonl").get("global_step")
        end = evaluated if isinstance(evaluated, int) else run.info.step
        if steps[-1] != end:
            raise ConfigError(
                f"run '{run.run_dir}' was last evaluated at step {end:,}, and its metrics.jsonl has {metric} up to"
                f" step {steps[-1]:,} only: restore the file, or train the run again"
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
        (step - before) * (value + height) / 2
        for (before, step), (height, value) in zip(
            pairwise(corners), pairwise(heights), strict=True
        )
    ]
    return sum(areas) / corners[-1] if corners[-1] else values[-1]


@dataclass(frozen=True)
class ArmScores:
    """The scores of one arm of a comparison."""

    name: str
    by_task: Mapping[str, Mapping[str, float]]
    """Environment id → name of the run folder → score."""

    @property
    def values(self) -> dict[str, list[float]]:
        """The scores of each task, in the order of the runs."""
        return {task: list(scores.values()) for task, scores in self.by_task.items()}

    @property
    def runs(self) -> dict[str, float]:
        """Score of each run by the name of its folder."""
        return {name: score for scores in self.by_task.values() for name, score in scores.items()}


@dataclass(frozen=True)
class ScoreTable:
    """The scores of all arms by one rule, the budget of each task, and what to know before believing the scores."""

    rule: ScoreRule
    arms: tuple[ArmScores, ...]
    budgets: Mapping[str, int]
    """Steps that the runs of a task were planned for."""
    steps: Mapping[str, tuple[int, int]]
    """First and last of the steps at which the runs of a task were scored: a rollout may end after the budget."""
    notes: tuple[str, ...]
    unit: str
    """What the budgets count: `steps`, or `updates` of offline runs."""


Scored = Mapping[RunRecord, RunScore]
"""The runs that did not fail, in the order of the arms."""


def score_arms(
    arms: Sequence[RunGroup], rule: ScoreRule, earlier: Sequence[ScoreTable] = ()
) -> ScoreTable:
    """The scores of all runs of all arms.

    A failed run gets the worst score of its task, `earlier` scores included. Raises a `ConfigError` for a run that is
    not complete, for one that failed (unless it counts as the worst), and for arms that cannot be compared: none is
    left out silently.
    """
    _refuse_incomparable(arms)
    runs = [run for arm in arms for run in arm.runs]
    whole = [run for run in runs if not _counts_as_worst(run, rule)]
    tasks = sorted({run.task for run in runs})
    budgets = {task: min(budget_of(run) for run in runs if run.task == task) for task in tasks}
    scored = _score_runs(whole, rule, budgets)
    values = {run: score.value for run, score in scored.items()}
    for run in runs:
        if run not in scored:
            values[run] = _worst(run.task, scored, rule, earlier)
    found = []
    for arm in arms:
        by_task: dict[str, dict[str, float]] = {task: {} for task in tasks}
        for label, run in label_runs(arm.runs).items():
            by_task[run.task][label] = values[run]
        found.append(ArmScores(arm.name, by_task))
    reached = {task: _steps(task, runs, scored) or [budgets[task]] for task in tasks}
    return ScoreTable(
        rule,
        tuple(found),
        budgets,
        {task: (steps[0], steps[-1]) for task, steps in reached.items()},
        tuple(_notes(arms, rule, budgets, scored)),
        "updates" if all(map(_counts_updates, runs)) else "steps",
    )


def _score_runs(runs: Sequence[RunRecord], rule: ScoreRule, budgets: Mapping[str, int]) -> Scored:
    """Score every run at the common budget; longer runs are cut where the last of the others ended."""
    limits = dict(budgets)
    for run in runs:
        if budget_of(run) == budgets[run.task]:
            limits[run.task] = max(limits[run.task], complete_curve(run, rule.metric)[0][-1])
    return {run: score_run(run, rule, budgets[run.task], limits[run.task]) for run in runs}


def _steps(task: str, runs: Sequence[RunRecord], scored: Scored) -> list[int]:
    """The steps at which runs of a task were scored, in ascending order."""
    return sorted({scored[run].step for run in runs if run.task == task and run in scored})


def label_runs(runs: Sequence[RunRecord]) -> dict[str, RunRecord]:
    """The runs in the order of their seeds, by the names of their folders; by their paths if two have one name."""
    ordered = sorted(runs, key=lambda run: (run.seed is None, run.seed or 0, str(run.run_dir)))
    labels = {run.run_dir.name: run for run in ordered}
    return labels if len(labels) == len(ordered) else {str(run.run_dir): run for run in ordered}


def _counts_updates(run: RunRecord) -> bool:
    kwargs = run.settings.get("algo_kwargs")
    is_online_later = isinstance(kwargs, Mapping) and kwargs.get("online") is not None
    return learns_offline(run.info.algo or "") and not is_online_later


def _refuse_incomparable(arms: Sequence[RunGroup]) -> None:
    names = [run.run_dir.resolve() for arm in arms for run in arm.runs]
    twice = next((path for path in names if names.count(path) > 1), None)
    if twice is not None:
        raise ConfigError(f"run '{twice.name}' is in two arms: compare different runs")
    for arm in arms:
        if not arm.runs:
            raise ConfigError(f"'{arm.name}' has no runs yet")
        if arm.missing:
            raise ConfigError(
                f"'{arm.name}' has runs that were never started: {_listed(arm.missing)}; train them first"
                f" (`rl-training study run {arm.study}`)"
            )
    tasks = [{run.task for run in arm.runs} for arm in arms]
    for arm, other in zip(arms, tasks, strict=True):
        if other != tasks[0]:
            raise ConfigError(
                f"'{arms[0].name}' was trained on {_listed(sorted(tasks[0]))} and '{arm.name}' on"
                f" {_listed(sorted(other))}: compare runs on the same environments"
            )


def _counts_as_worst(run: RunRecord, rule: ScoreRule) -> bool:
    """Whether a run failed and counts as the worst; raises a `ConfigError` for any other incomplete run."""
    if is_complete(run.info):
        return False
    if run.info.state != "failed":
        raise ConfigError(
            f"run '{run.run_dir}' is not finished ({run.info.state} at step {run.info.step:,}): finish it first"
            f" (`rl-training resume {run.run_dir}`), or leave it out by naming the others"
        )
    if rule.failed == "refuse":
        raise ConfigError(
            f"run '{run.run_dir}' failed ({(run.info.reason or 'no reason given').splitlines()[0]}): give"
            " --failed worst to count failed runs as the worst score, or mend and resume it"
        )
    return True


def _worst(task: str, scored: Scored, rule: ScoreRule, earlier: Sequence[ScoreTable]) -> float:
    """The worst score of a task."""
    known = [score.value for run, score in scored.items() if run.task == task]
    for table in earlier:
        known += [score for arm in table.arms for score in arm.values.get(task, ())]
    if not known:
        raise ConfigError(f"every run on {task} failed: there is no score to compare")
    return min(known) if rule.mode == "max" else max(known)


def _notes(
    arms: Sequence[RunGroup], rule: ScoreRule, budgets: Mapping[str, int], scored: Scored
) -> Iterator[str]:
    """What a reader has to know before believing the scores."""
    if rule.measure == "best":
        yield (
            "`best` is a maximum over the evaluations of each run: it is biased upwards, more so for noisy runs and for"
            " frequent evaluations"
        )
    for arm in arms:
        yield from _notes_of_arm(arm, budgets, scored)
    for task in budgets:
        steps = {arm.name: _steps(task, arm.runs, scored) for arm in arms}
        if len({tuple(found) for found in steps.values() if found}) > 1:
            texts = [f"{name} at step {_range(found)}" for name, found in steps.items() if found]
            yield f"the last evaluations that count on {task}: {', '.join(texts)}"
    for key in ("env_kwargs", "eval_episodes"):
        values = {frozenset(repr(run.settings.get(key)) for run in arm.runs) for arm in arms}
        if len(values) > 1:
            yield f"the arms differ in {key}: their scores may not mean the same"


def _notes_of_arm(arm: RunGroup, budgets: Mapping[str, int], scored: Scored) -> Iterator[str]:
    bad = [run.run_dir.name for run in arm.runs if run not in scored]
    if len(bad) == len(arm.runs):
        yield f"all runs of {arm.name} failed and count as the worst score"
    elif bad:
        yield f"{arm.name}: {_listed(bad)} failed and count as the worst score"
    longer = sorted({budget_of(run) for run in arm.runs if budget_of(run) > budgets[run.task]})
    if longer:
        yield (
            f"{arm.name} was planned for {longer[0]:,} steps and is scored at {min(budgets.values()):,}: its schedules"
            " were stretched over the longer run"
        )
    early = [run for run in arm.runs if run.info.state == "stopped" and run in scored]
    if early:
        yield (
            f"{arm.name}: {len(early)} of {len(arm.runs)} runs stopped early by their own rule; the evaluation that"
            " ended a run was selected, which biases its score"
        )
    inexact = [run.run_dir.name for run in arm.runs if run.info.exactness == "approximate"]
    if inexact:
        yield f"{arm.name}: {_listed(inexact)} was resumed approximately, not bit for bit"


def _range(steps: Sequence[int]) -> str:
    return f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

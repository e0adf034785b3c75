"""The comparison of two arms: difference, interval, probability of improvement, and one verdict in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from rl_training.errors import ConfigError
from rl_training.studies.comparison.run_scores import ArmScores, ScoreRule, ScoreTable
from rl_training.studies.statistics import compare_means, probability_of_improvement, runs_needed, step_down

ALPHA = 0.05
"""Probability of calling equal arms different."""
POWER = 0.8
"""Probability with which the advised number of seeds decides."""
MOST_SEEDS = 10_000
"""An advice beyond this number of seeds is given as `more than`."""


class Verdict(Enum):
    """What a comparison says."""

    A_BETTER = "a_better"
    B_BETTER = "b_better"
    EQUIVALENT = "equivalent"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Judgement:
    """A difference of two arms with its uncertainty, however it was tested."""

    difference: float
    """Mean of A minus mean of B; with several tasks in units of each task's standard deviation, averaged."""
    interval: tuple[float, float]
    p_value: float
    is_rejected: bool
    """Whether the test says that the arms differ."""


@dataclass(frozen=True)
class Comparison:
    """Two arms, compared."""

    table: ScoreTable
    rule: ScoreRule
    judgement: Judgement
    prob_a_beats_b: float
    prob_interval: tuple[float, float]
    margin: float | None
    alpha: float
    smallest_p: float = 0.0
    """Smallest p-value that so many runs can give."""

    @property
    def a(self) -> ArmScores:
        """The first arm."""
        return self.table.arms[0]

    @property
    def b(self) -> ArmScores:
        """The second arm."""
        return self.table.arms[1]

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader has to know before believing the scores."""
        return self.table.notes

    @property
    def pairs(self) -> tuple[Comparison, ...]:
        """One pair, itself; a comparison of more than two arms has several."""
        return (self,)

    @property
    def spread_unit(self) -> str:
        """Unit of differences and margins; nothing for one task, whose differences are in units of the metric."""
        return "" if len(self.a.by_task) == 1 else " standard deviations"

    @property
    def verdict(self) -> Verdict:
        """Equivalent if the whole interval lies within the margin; else by the test."""
        low, high = self.judgement.interval
        if self.margin is not None and -self.margin <= low and high <= self.margin:
            return Verdict.EQUIVALENT
        if not self.judgement.is_rejected:
            return Verdict.UNDECIDED
        is_a_higher = self.judgement.difference > 0
        return Verdict.A_BETTER if is_a_higher == (self.rule.mode == "max") else Verdict.B_BETTER

    @property
    def more_seeds(self) -> int | None:
        """Further runs of each arm that would decide `decided_difference` with 80 % probability; None if decided."""
        if self.verdict is not Verdict.UNDECIDED or not self.decided_difference:
            return None
        a, b = self.a.values, self.b.values
        needed = runs_needed(a, b, self.decided_difference, alpha=self.alpha, power=POWER)
        return max(1, needed - min(map(len, [*a.values(), *b.values()])))

    @property
    def decided_difference(self) -> float:
        """The margin, or the observed difference if none was given."""
        return self.margin if self.margin is not None else abs(self.judgement.difference)

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        names = f"{self.a.name} and {self.b.name}"
        if self.verdict is Verdict.A_BETTER:
            return f"{self.a.name} is better than {self.b.name}"
        if self.verdict is Verdict.B_BETTER:
            return f"{self.b.name} is better than {self.a.name}"
        if self.verdict is Verdict.EQUIVALENT:
            return f"{names} are equal within {self.margin:g}{self.spread_unit}"
        return f"{names} are not distinguishable: {self._advice()}"

    def _advice(self) -> str:
        if not self.decided_difference:
            return "the means are equal; give --margin D to ask whether the arms are equal within D"
        seeds = self.more_seeds
        assert seeds is not None
        number = f"more than {MOST_SEEDS:,}" if seeds > MOST_SEEDS else f"about {seeds:,}"
        size = f"{self.decided_difference:.4g}{self.spread_unit}"
        advice = f"{number} more seeds each would decide a difference of {size} ({percent(POWER)})"
        if self.smallest_p > self.alpha:
            advice += (
                f"; with so few runs nothing can be decided at {percent(self.alpha)}, the smallest possible p-value is"
                f" {self.smallest_p:.2g}"
            )
        return advice

    def as_dict(self) -> dict[str, Any]:
        """For `--json`; an infinite bound is null."""
        return {
            "verdict": self.verdict.value,
            "sentence": self.sentence,
            "a": self.a.name,
            "b": self.b.name,
            "scores": {"a": self.a.runs, "b": self.b.runs},
            "difference": self.judgement.difference,
            "interval": finite(self.judgement.interval),
            "p_value": self.judgement.p_value,
            "prob_a_beats_b": self.prob_a_beats_b,
            "prob_interval": finite(self.prob_interval),
            "more_seeds": self.more_seeds,
            "measure": self.rule.measure,
            "metric": self.rule.metric,
            "mode": self.rule.mode,
            "margin": self.margin,
            "alpha": self.alpha,
            "steps": {task: list(ends) for task, ends in self.table.steps.items()},
            "notes": list(self.notes),
            "runs": [*self.a.runs, *self.b.runs],
        }


def percent(fraction: float) -> str:
    """A fraction as people write it: `95 %`."""
    return f"{100 * fraction:.4g} %"


def finite(interval: Sequence[float]) -> list[float | None]:
    """The bounds for JSON, which has no infinity."""
    return [bound if math.isfinite(bound) else None for bound in interval]


def check_level(alpha: float, margin: float | None) -> None:
    """Raise a `ConfigError` for an impossible level or margin."""
    if not 0 < alpha < 1:
        raise ConfigError(f"bad value {alpha} for --alpha: should be between 0 and 1")
    if margin is not None and not (math.isfinite(margin) and margin > 0):
        raise ConfigError(f"bad value {margin} for --margin: should be a positive number")


def compare_two(
    table: ScoreTable,
    rule: ScoreRule,
    generator: np.random.Generator,
    *,
    alpha: float = ALPHA,
    margin: float | None = None,
) -> Comparison:
    """Compare two arms once, with all runs that they have."""
    a, b = table.arms
    _refuse_single_runs(table.arms)
    result = compare_means(a.values, b.values, generator, alpha=alpha)
    judgement = Judgement(result.difference, result.interval, result.p_value, result.p_value <= alpha)
    return judge(table, rule, judgement, generator, alpha=alpha, margin=margin, smallest_p=result.smallest_p)


def judge(
    table: ScoreTable,
    rule: ScoreRule,
    judgement: Judgement,
    generator: np.random.Generator,
    *,
    alpha: float,
    margin: float | None,
    smallest_p: float = 0.0,
) -> Comparison:
    """The comparison of two arms whose difference has been tested."""
    first, second = table.arms if rule.mode == "max" else table.arms[::-1]
    improvement = probability_of_improvement(first.values, second.values, generator)
    return Comparison(table, rule, judgement, improvement.value, improvement.interval, margin, alpha, smallest_p)


@dataclass(frozen=True)
class ManyComparisons:
    """More than two arms: every pair, with p-values adjusted by the step-down maximum."""

    pairs: tuple[Comparison, ...]
    """Their `p_value` is the adjusted one."""
    table: ScoreTable

    @property
    def arms(self) -> tuple[ArmScores, ...]:
        """All arms."""
        return self.table.arms

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader has to know before believing the scores."""
        return self.table.notes

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "arms": [{"name": arm.name, "scores": arm.runs} for arm in self.arms],
            "pairs": [pair.as_dict() for pair in self.pairs],
            "measure": self.pairs[0].rule.measure,
            "metric": self.pairs[0].rule.metric,
            "notes": list(self.notes),
        }


def compare_many(
    table: ScoreTable,
    rule: ScoreRule,
    generator: np.random.Generator,
    *,
    alpha: float = ALPHA,
    margin: float | None = None,
) -> ManyComparisons:
    """Compare every pair of arms; the probability of any wrong verdict `better` is at most `alpha`.

    The intervals of the differences are per pair, not simultaneous.
    """
    _refuse_single_runs(table.arms)
    adjusted = step_down({arm.name: arm.values for arm in table.arms}, generator)
    pairs = []
    for index, a in enumerate(table.arms):
        for b in table.arms[index + 1 :]:
            alone = compare_two(replace(table, arms=(a, b), notes=()), rule, generator, alpha=alpha, margin=margin)
            result = alone.judgement
            # Labelings of all arms outnumber the pair's, and are valid only if all arms are equal.
            p_value = max(_of_pair(adjusted, a.name, b.name), result.p_value)
            judgement = Judgement(result.difference, result.interval, p_value, p_value <= alpha)
            pairs.append(replace(alone, judgement=judgement))
    return ManyComparisons(tuple(pairs), table)


def _of_pair(adjusted: Mapping[tuple[str, str], float], a: str, b: str) -> float:
    return adjusted[a, b] if (a, b) in adjusted else adjusted[b, a]


def _refuse_single_runs(arms: Sequence[ArmScores]) -> None:
    for arm in arms:
        for task, scores in arm.by_task.items():
            if len(scores) < 2:
                raise ConfigError(
                    f"'{arm.name}' has one run on {task}: a comparison needs several seeds of each arm, at least 4 to"
                    " decide at 5 % (`rl-training train … --seeds 0..9`)"
                )

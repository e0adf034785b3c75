"""The comparison of arms that words name: difference, interval, one verdict in words, and the folder of the result."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.errors import ConfigError, RLTrainingError
from rl_training.experiment.run_folder import safe_name
from rl_training.files import is_file, replace_synced, translate_write_errors
from rl_training.studies.comparison.run_scores import (
    ArmScores,
    FailedRuns,
    Measure,
    Mode,
    ScoreRule,
    ScoreTable,
    score_arms,
)
from rl_training.studies.groups import RunGroup, find_groups, group_of_word
from rl_training.studies.plan import PLAN_FILE
from rl_training.studies.statistics import (
    compare_means,
    probability_of_improvement,
    runs_needed,
    step_down,
)

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
    judgement: Judgement
    prob_a_beats_b: float
    prob_interval: tuple[float, float]
    alpha: float
    margin: float | None
    smallest_p: float = 0.0
    """Smallest p-value that so many runs can give."""

    @property
    def rule(self) -> ScoreRule:
        """How a run became one number."""
        return self.table.rule

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
    def is_decided(self) -> bool:
        """Whether no further runs are needed."""
        return self.verdict is not Verdict.UNDECIDED

    @property
    def more_seeds(self) -> int | None:
        """Further runs of each arm that would decide `decided_difference` with 80 % probability; None if decided."""
        if self.is_decided or not self.decided_difference:
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
        if self.verdict is Verdict.A_BETTER:
            return f"{self.a.name} is better than {self.b.name}"
        if self.verdict is Verdict.B_BETTER:
            return f"{self.b.name} is better than {self.a.name}"
        names = f"{self.a.name} and {self.b.name} are"
        if self.verdict is Verdict.EQUIVALENT:
            return f"{names} equal within {self.margin:g}{self.spread_unit}"
        return f"{names} not distinguishable: {self._advice()}"

    def _advice(self) -> str:
        seeds = self.more_seeds
        if seeds is None:
            return "the means are equal; give --margin D to ask whether the arms are equal within D"
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


def judge(
    table: ScoreTable,
    judgement: Judgement,
    generator: np.random.Generator,
    alpha: float,
    margin: float | None,
    smallest_p: float = 0.0,
) -> Comparison:
    """The comparison of two arms whose difference has been tested."""
    first, second = table.arms if table.rule.mode == "max" else table.arms[::-1]
    improvement = probability_of_improvement(first.values, second.values, generator)
    return Comparison(
        table, judgement, improvement.value, improvement.interval, alpha, margin, smallest_p
    )


def compare_two(
    table: ScoreTable, generator: np.random.Generator, alpha: float, margin: float | None
) -> Comparison:
    """Compare two arms once, with all runs that they have."""
    a, b = table.arms
    result = compare_means(a.values, b.values, generator, alpha=alpha)
    is_rejected = result.p_value <= alpha
    judgement = Judgement(result.difference, result.interval, result.p_value, is_rejected)
    return judge(table, judgement, generator, alpha, margin, result.smallest_p)


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
            "measure": self.table.rule.measure,
            "metric": self.table.rule.metric,
            "notes": list(self.notes),
        }


def compare_many(
    table: ScoreTable, generator: np.random.Generator, alpha: float, margin: float | None
) -> ManyComparisons:
    """Compare every pair of arms; the probability of any wrong verdict `better` is at most `alpha`.

    The intervals of the differences are per pair, not simultaneous.
    """
    adjusted = step_down({arm.name: arm.values for arm in table.arms}, generator)
    pairs = []
    for a, b in itertools.combinations(table.arms, 2):
        alone = compare_two(replace(table, arms=(a, b), notes=()), generator, alpha, margin)
        # Labelings of all arms outnumber the pair's, and are valid only if all arms are equal.
        p_value = max(adjusted[a.name, b.name], alone.judgement.p_value)
        judgement = replace(alone.judgement, p_value=p_value, is_rejected=p_value <= alpha)
        pairs.append(replace(alone, judgement=judgement))
    return ManyComparisons(tuple(pairs), table)


def compare_arms(
    arms: Sequence[RunGroup],
    rule: ScoreRule,
    *,
    alpha: float = ALPHA,
    margin: float | None = None,
    seed: int = 0,
) -> Comparison | ManyComparisons:
    """Compare arms once; `seed` is the seed of the random labelings."""
    check_level(alpha, margin)
    table = score_arms(arms, rule)
    for arm in table.arms:
        for task, scores in arm.by_task.items():
            if len(scores) < 2:
                raise ConfigError(
                    f"'{arm.name}' has one run on {task}: a comparison needs several seeds of each arm, at least 4 to"
                    " decide at 5 % (`rl-training train … --seeds 0..9`)"
                )
    test = compare_two if len(arms) == 2 else compare_many
    return test(table, np.random.default_rng(seed), alpha, margin)


COMPARISONS = "comparisons"
RESULT_FILE = "comparison.json"
PICTURE = "comparison.png"
PLANNED = "__planned"
"""End of the folder's name of a comparison in planned looks."""
LONGEST_NAME = 100


def find_arms(words: Sequence[str]) -> list[RunGroup]:
    """The arms that the words mean, one each; a single study means its settings."""
    if not words:
        raise ConfigError(
            "nothing to compare: name two studies, settings of studies, or folders of runs"
        )
    for word in words:
        if Path(word).suffix in (".yaml", ".yml") and is_file(Path(word)):
            raise ConfigError(
                f"'{word}' is a study file: name its study, or add --until-decided, which trains it as far as needed"
            )
    if len(words) == 1:
        groups = find_groups(words)
        if len(groups) < 2:
            raise ConfigError(f"'{words[0]}' is one arm: name what to compare it with")
        return groups
    arms = [group_of_word(word) for word in words]
    names = [arm.name for arm in arms]
    if len(set(names)) < len(names):
        arms = [replace(arm, name=word.rstrip("/")) for arm, word in zip(arms, words, strict=True)]
    return arms


def compare(
    *arms: str | Path,
    metric: str = "eval_return_mean",
    measure: Measure = "last",
    mode: Mode = "max",
    failed: FailedRuns = "refuse",
    alpha: float = ALPHA,
    margin: float | None = None,
    seed: int = 0,
) -> Comparison | ManyComparisons:
    """Compare algorithms or settings by whole runs, as `rl-training compare` does.

    An arm is a study, `STUDY:SETTING`, a folder of runs, or a pattern. `seed` is that of the random labelings, which
    are needed where there are too many to try all.
    """
    rule = ScoreRule(metric, measure, mode, failed)
    found = find_arms([str(arm) for arm in arms])
    return compare_arms(found, rule, alpha=alpha, margin=margin, seed=seed)


def folder_of(
    arms: Sequence[RunGroup],
    words: Sequence[str],
    name: str | None = None,
    *,
    is_planned: bool = False,
) -> Path:
    """The folder of a comparison, beside the study or the runs of its first arm; `words` are the command's."""
    if name is not None and safe_name(name) != name:
        raise ConfigError(f"bad value {name!r} for --name: use letters, digits and . _ - only")
    first = arms[0]
    place = first.study or (first.runs[0].run_dir if first.runs else Path("runs") / first.name)
    if is_file(place.parent / PLAN_FILE):  # not inside of a study
        place = place.parent
    if len(words) != len(arms):
        words = [arm.name for arm in arms]
    text = "__vs__".join(map(_label, arms, words))
    if len(text) > LONGEST_NAME:
        text = f"{text[:LONGEST_NAME]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return place.parent / COMPARISONS / (name or text + (PLANNED if is_planned else ""))


def _label(arm: RunGroup, word: str) -> str:
    """A name that other arms do not have: the study with its setting, or the word that means the runs."""
    if arm.study is None:
        return safe_name(word.removeprefix("runs/").rstrip("/"))
    return safe_name(f"{arm.study.name}-{arm.setting}" if arm.setting else arm.study.name)


def read_result(folder: Path) -> dict[str, Any]:
    """The stored result of a comparison; empty if there is none that can be read."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        values = json.loads((folder / RESULT_FILE).read_text(encoding="utf-8"))
        return values if isinstance(values, dict) else {}
    return {}


def store_result(folder: Path, values: Mapping[str, Any]) -> Path:
    """Store the result of a comparison; it replaces the last one of the same arms, and no file of another kind."""
    path = folder / RESULT_FILE
    if path.exists() and not {"verdict", "pairs"} & read_result(folder).keys():
        raise RLTrainingError(f"'{path}' is no result of a comparison: move it away")
    with translate_write_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        replace_synced(path, (json.dumps(dict(values), indent=1) + "\n").encode())
    return path

"""The arms of a comparison, named by words as on the command line, and their comparison from Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rl_training.errors import ConfigError
from rl_training.files import is_file
from rl_training.studies.comparison.run_scores import FailedRuns, Measure, Mode, ScoreRule
from rl_training.studies.comparison.scores import score_arms
from rl_training.studies.comparison.verdict import (
    ALPHA,
    Comparison,
    ManyComparisons,
    check_level,
    compare_many,
    compare_two,
)
from rl_training.studies.groups import RunGroup, find_groups, group_of_word


def find_arms(words: Sequence[str]) -> list[RunGroup]:
    """The arms that the words mean, one each; a single study means its settings."""
    if not words:
        raise ConfigError("nothing to compare: name two studies, settings of studies, or folders of runs")
    files = [word for word in words if is_file(Path(word)) and Path(word).suffix in (".yaml", ".yml")]
    if files:
        raise ConfigError(
            f"'{files[0]}' is a study file: name its study, or add --until-decided, which trains it as far as needed"
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
    check_level(alpha, margin)
    rule = ScoreRule(metric, measure, mode, failed)
    table = score_arms(find_arms([str(arm) for arm in arms]), rule)
    test = compare_two if len(table.arms) == 2 else compare_many
    return test(table, rule, np.random.default_rng(seed), alpha=alpha, margin=margin)

"""The arms of a comparison, named by words; their comparison from Python, and the folder of its result."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.errors import ConfigError, RLTrainingError
from rl_training.experiment.run_folder import safe_name
from rl_training.files import is_file, replace_synced, translate_write_errors
from rl_training.studies.comparison.run_scores import FailedRuns, Measure, Mode, ScoreRule, score_arms
from rl_training.studies.comparison.verdict import (
    ALPHA,
    Comparison,
    ManyComparisons,
    check_level,
    compare_many,
    compare_two,
)
from rl_training.studies.groups import RunGroup, find_groups, group_of_word
from rl_training.studies.plan import PLAN_FILE

COMPARISONS = "comparisons"
RESULT_FILE = "comparison.json"
PICTURE = "comparison.png"
PLANNED = "__planned"
"""End of the folder's name of a comparison in planned looks."""
LONGEST_NAME = 100


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


def folder_of(
    arms: Sequence[RunGroup], words: Sequence[str], name: str | None = None, *, is_planned: bool = False
) -> Path:
    """The folder of a comparison, beside the study or the runs of its first arm; `words` are the command's."""
    if name is not None and safe_name(name) != name:
        raise ConfigError(f"bad value {name!r} for --name: use letters, digits and . _ - only")
    first = arms[0]
    place = first.study or (first.runs[0].run_dir if first.runs else Path("runs") / first.name)
    place = place.parent.parent if is_file(place.parent / PLAN_FILE) else place.parent  # not inside of a study
    labels = [_label(arm, words[index] if len(words) == len(arms) else arm.name) for index, arm in enumerate(arms)]
    text = name or _shortened("__vs__".join(labels)) + (PLANNED if is_planned else "")
    return place / COMPARISONS / text


def _label(arm: RunGroup, word: str) -> str:
    """A name that other arms do not have: the study with its setting, or the word that means the runs."""
    if arm.study is None:
        return safe_name(word.removeprefix("runs/").rstrip("/"))
    return safe_name(f"{arm.study.name}-{arm.setting}" if arm.setting else arm.study.name)


def _shortened(text: str) -> str:
    if len(text) <= LONGEST_NAME:
        return text
    return f"{text[:LONGEST_NAME]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


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

"""Plans a comparison in looks from the words of a command, or opens the plan that was frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError
from rl_training.files import is_file
from rl_training.studies.comparison.folder import folder_of
from rl_training.studies.comparison.looks import LookPlan, PlannedComparison, plan_arm
from rl_training.studies.comparison.scores import ScoreRule
from rl_training.studies.groups import RunGroup, groups_of_word
from rl_training.studies.study import Study

RULE_OPTIONS = ("metric", "measure", "mode", "failed")
PLAN_OPTIONS = (*RULE_OPTIONS, "margin", "alpha", "looks", "seeds_per_look")
SIZE = {"looks": 4, "seeds_per_look": 5}


@dataclass(frozen=True)
class StudyArm:
    """An arm whose study can train further seeds."""

    name: str
    study: Study
    settings: tuple[str, ...]
    """Labels of the settings, one for each environment."""

    def budgets(self) -> dict[str, int]:
        """total_timesteps of each environment."""
        runs = [run for run in self.study.runs() if run.setting in self.settings]
        return {run.config.env_id or "offline": run.config.total_timesteps for run in runs}


def plan_comparison(words: Sequence[str], given: Mapping[str, Any], name: str | None = None) -> PlannedComparison:
    """The frozen plan of two arms, or a new one with the options `given`; studies of new plans begin.

    Raises a `ConfigError` if `given` differs from a frozen plan.
    """
    found = [find_study_arm(word) for word in words]
    if found[0].name == found[1].name:
        raise ConfigError(f"both arms are called '{found[0].name}': fork one of the studies under another name")
    arms = [RunGroup(arm.name, (), arm.study.path) for arm in found]
    folder = folder_of(arms, name, is_planned=True)
    known = PlannedComparison.open(folder)
    if known is not None:
        _refuse_changed(known, given)
        return known
    budgets = [arm.budgets() for arm in found]
    if budgets[0] != budgets[1]:
        raise ConfigError(f"the arms have other steps or environments: {budgets[0]} and {budgets[1]}")
    rule = ScoreRule(**{key: value for key, value in given.items() if key in RULE_OPTIONS})
    rest = SIZE | {key: value for key, value in given.items() if key not in RULE_OPTIONS}
    num_seeds = rest["looks"] * rest["seeds_per_look"]
    a, b = (plan_arm(arm.name, arm.study, arm.settings, num_seeds, folder) for arm in found)
    plan = LookPlan(a, b, rule, budgets[0], **rest)
    for arm in found:
        arm.study.begin()
    return PlannedComparison.freeze(folder, plan)


def find_study_arm(word: str) -> StudyArm:
    """The arm that a word means: a study, settings of one, or a study file, which may not have begun yet."""
    if is_file(Path(word)):
        study = Study.from_file(word)
        settings = tuple(dict.fromkeys(run.setting for run in study.runs()))
        if len({run.config.env_id for run in study.runs()}) < len(settings):
            names = ", ".join(f"'{study.path}:{setting}'" for setting in settings[:6])
            raise ConfigError(f"'{word}' has {len(settings):,} settings: begin it, and name one of them, as {names}")
        return StudyArm(study.plan.name, study, settings)
    groups = groups_of_word(word)
    if groups[0].study is None:
        raise ConfigError(f"--until-decided trains further seeds of studies, and '{word}' is none: name a study")
    name = groups[0].name if len(groups) == 1 else Path(word).name
    return StudyArm(name, Study.open(groups[0].study), tuple(group.setting or "" for group in groups))


def _refuse_changed(known: PlannedComparison, given: Mapping[str, Any]) -> None:
    frozen = {**vars(known.plan.rule), **vars(known.plan)}
    for name, value in given.items():
        if frozen[name] != value:
            raise ConfigError(
                f"the plan of this comparison was frozen before its first look ('{known.folder}'): {name} is"
                f" {frozen[name]} there and {value} here; leave --{name.replace('_', '-')} out, or begin another"
                " comparison with --name NAME"
            )

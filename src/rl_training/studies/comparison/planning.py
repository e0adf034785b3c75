"""Plans a comparison in looks from the words of a command, or opens the plan that was frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError
from rl_training.files import is_file
from rl_training.studies.comparison.folder import folder_of
from rl_training.studies.comparison.looks import LOOKS, SEEDS_PER_LOOK, LookPlan, PlannedComparison, plan_arm
from rl_training.studies.comparison.run_scores import ScoreRule
from rl_training.studies.groups import RunGroup, groups_of_word
from rl_training.studies.plan import is_extension
from rl_training.studies.study import Study
from rl_training.studies.study_folder import PLAN_FILE, open_study, refuse_changed

RULE_OPTIONS = ("metric", "measure", "mode", "failed")
PLAN_OPTIONS = (*RULE_OPTIONS, "margin", "alpha", "looks", "seeds_per_look")


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
    arms = [
        RunGroup(arm.name, (), arm.study.path, arm.settings[0] if len(arm.settings) == 1 else arm.name) for arm in found
    ]
    folder = folder_of(arms, words, name, is_planned=True)
    budgets = [arm.budgets() for arm in found]
    if budgets[0] != budgets[1]:
        texts = [
            f"'{arm.name}' has {', '.join(f'{steps:,} steps of {task}' for task, steps in budget.items())}"
            for arm, budget in zip(found, budgets, strict=True)
        ]
        raise ConfigError(f"{' and '.join(texts)}: plan studies of the same environments and total_timesteps")
    known = PlannedComparison.open(folder)
    if known is not None:
        _refuse_other_arms(known, found)
        if known.recorded():
            _refuse_changed(known, given)
            return known
        given = {**_options_of(known), **given}
    rule = ScoreRule(**{key: value for key, value in given.items() if key in RULE_OPTIONS})
    rest = {"looks": LOOKS, "seeds_per_look": SEEDS_PER_LOOK} | {
        key: value for key, value in given.items() if key not in RULE_OPTIONS
    }
    num_seeds = rest["looks"] * rest["seeds_per_look"]
    a, b = (plan_arm(arm.name, arm.study, arm.settings, num_seeds, folder) for arm in found)
    plan = LookPlan(a, b, rule, budgets[0], **rest)
    for arm in found:
        arm.study.begin()
    return PlannedComparison.freeze(folder, plan)


def find_study_arm(word: str) -> StudyArm:
    """The arm that a word means: a study, settings of one, or a study file, which may not have begun yet."""
    if is_file(Path(word)):
        study = _begun(Study.from_file(word))
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


def _begun(study: Study) -> Study:
    """The study as it is in its folder, if it has begun: earlier looks may have added seeds to those of its file."""
    if not is_file(study.path / PLAN_FILE):
        return study
    stored = open_study(study.path)
    if not is_extension(study.plan, stored.plan):
        refuse_changed(study.plan, stored)
    return Study.open(study.path)


def _refuse_other_arms(known: PlannedComparison, found: Sequence[StudyArm]) -> None:
    for planned, arm in zip((known.plan.a, known.plan.b), found, strict=True):
        suffixes = {run.suffix for run in arm.study.runs() if run.setting in arm.settings}
        is_same_study = known.study_of(planned).path.resolve() == arm.study.path.resolve()
        if not is_same_study or suffixes != {*planned.suffixes}:
            raise ConfigError(
                f"the plan in '{known.folder}' compares '{known.plan.a.name}' with '{known.plan.b.name}', in this"
                " order: name these, or begin another comparison with --name NAME"
            )


def _options_of(known: PlannedComparison) -> dict[str, Any]:
    """The options of a plan at which nobody has looked yet: they may still be changed."""
    frozen = {**vars(known.plan.rule), **vars(known.plan)}
    return {name: frozen[name] for name in PLAN_OPTIONS}


def _refuse_changed(known: PlannedComparison, given: Mapping[str, Any]) -> None:
    frozen = _options_of(known)
    for name, value in given.items():
        if frozen[name] != value:
            raise ConfigError(
                f"the plan of this comparison was frozen before its first look ('{known.folder}'): {name} is"
                f" {frozen[name]} there and {value} here; leave --{name.replace('_', '-')} out, or begin another"
                " comparison with --name NAME"
            )

"""A comparison in planned looks: its plan is frozen when it begins, one process drives it, every look is recorded."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.errors import ConfigError
from rl_training.experiment.config import load_signed_file
from rl_training.experiment.logs import read_lines
from rl_training.experiment.ownership import Lease
from rl_training.experiment.yaml_text import dump_yaml, sign
from rl_training.files import is_file, replace_synced, translate_write_errors
from rl_training.studies.catalog import is_complete, is_run_folder, read_run
from rl_training.studies.comparison.run_scores import (
    RULE_OPTIONS,
    ArmScores,
    ScoreRule,
    ScoreTable,
    complete_curve,
    score_arms,
)
from rl_training.studies.comparison.verdict import (
    ALPHA,
    Comparison,
    Judgement,
    Verdict,
    check_level,
    folder_of,
    judge,
    percent,
)
from rl_training.studies.groups import RunGroup, groups_of_word
from rl_training.studies.launching.launchers import Launcher
from rl_training.studies.launching.study import Study
from rl_training.studies.plan import PLAN_FILE as STUDY_FILE
from rl_training.studies.plan import (
    PlannedRun,
    driven_alone,
    freeze,
    is_extension,
    open_study,
    refuse_changed,
)
from rl_training.studies.statistics import sequential_test

PLAN_FILE = "plan.yaml"
LOOKS_FILE = "looks.jsonl"
LEAST_RUNS = 2
LOOKS = 4
SEEDS_PER_LOOK = 5
PLAN_OPTIONS = (*RULE_OPTIONS, "margin", "alpha", "looks", "seeds_per_look")


@dataclass(frozen=True)
class PlannedArm:
    """One arm: settings of a study, one for each environment, and the seeds of all looks."""

    name: str
    study: str
    """Folder of the study, relative to the folder of the comparison."""
    suffixes: Sequence[str]
    """Ends of the run folders' names: they identify the settings, also after the study has grown."""
    seeds: Sequence[int]
    """In the order in which the looks use them."""


@dataclass(frozen=True)
class LookPlan:
    """What is decided when the comparison begins, and never changed."""

    a: PlannedArm
    b: PlannedArm
    rule: ScoreRule
    budgets: Mapping[str, int]
    """total_timesteps of each environment."""
    alpha: float = ALPHA
    looks: int = LOOKS
    seeds_per_look: int = SEEDS_PER_LOOK
    margin: float | None = None
    permutation_seed: int = 0

    def __post_init__(self) -> None:
        check_level(self.alpha, self.margin)
        if self.seeds_per_look < LEAST_RUNS:
            raise ConfigError(
                f"bad value {self.seeds_per_look} for --seeds-per-look: should be at least {LEAST_RUNS}"
            )
        per_task = math.comb(2 * self.seeds_per_look, self.seeds_per_look)
        labelings = per_task ** (self.looks * len(self.budgets))
        if 2 / labelings > self.alpha:
            raise ConfigError(
                f"{self.looks} look{'' if self.looks == 1 else 's'} of {self.seeds_per_look} seeds each can decide"
                f" nothing at {percent(self.alpha)}, since the smallest possible p-value is {2 / labelings:.2g}: give"
                " more --seeds-per-look or --looks"
            )

    @property
    def arms(self) -> tuple[PlannedArm, PlannedArm]:
        """Both arms."""
        return self.a, self.b

    @property
    def options(self) -> dict[str, Any]:
        """The options of the command, by name."""
        known = {**vars(self.rule), **vars(self)}
        return {name: known[name] for name in PLAN_OPTIONS}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> LookPlan:
        """A plan as stored: the inverse of `asdict`."""
        try:
            a, b = (PlannedArm(**values[key]) for key in ("a", "b"))
            return cls(**{**values, "a": a, "b": b, "rule": ScoreRule(**values["rule"])})
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the stored plan of the comparison is damaged: {error}") from None


class PlannedComparison:
    """The folder of a planned comparison: `plan.yaml` and `looks.jsonl`."""

    def __init__(self, folder: Path, plan: LookPlan) -> None:
        self.folder, self.plan = folder, plan
        self.interrupted_by: signal.Signals | None = None
        """The signal that stopped it; all its runs are saved."""

    @classmethod
    def open(cls, folder: Path) -> PlannedComparison | None:
        """The comparison in a folder; None if none was begun there."""
        file = folder / PLAN_FILE
        if not is_file(file):
            return None
        values = load_signed_file(file, "a comparison", "begin another comparison with --name NAME")
        return cls(folder, LookPlan.from_values(values))

    def begin(self) -> None:
        """Store the plan; one that another process stored a moment ago must be the same."""
        values = json.loads(json.dumps(asdict(self.plan)))
        if not freeze(self.folder / PLAN_FILE, sign(dump_yaml(values))):
            stored = self.open(self.folder)
            assert stored is not None
            stored.refuse_changed(self.plan.options)

    def refuse_changed(self, given: Mapping[str, Any]) -> None:
        """Raise a `ConfigError` that names the options that differ from the frozen ones."""
        frozen = self.plan.options
        other = [name for name, value in given.items() if frozen[name] != value]
        if other:
            listed = ", ".join(
                f"{name} is {'not set' if frozen[name] is None else frozen[name]} there and {given[name]} here"
                for name in other
            )
            words = ", ".join(f"--{name.replace('_', '-')}" for name in other)
            raise ConfigError(
                f"the plan of this comparison was frozen when it began ('{self.folder}'): {listed}; leave {words} out,"
                " or begin another comparison with --name NAME"
            )

    def run(
        self,
        launch: Callable[[Path], Launcher],
        named_code: Sequence[str],
        on_look: Callable[[int, Comparison], None],
    ) -> tuple[int, Comparison] | None:
        """Train and judge one look after the other until one decides; None if a signal stopped it.

        `launch` makes the launcher for a folder of studies; `named_code` is code that the user has named, so that the
        runs of the studies may import it.
        """
        recorded = self.recorded()
        is_over = len(recorded) == self.plan.looks or any(
            line.get("verdict") != Verdict.UNDECIDED.value for line in recorded
        )
        alone = contextlib.nullcontext() if is_over else driven_alone(self.folder, "comparison")
        with alone as lease:
            for look in range(1, self.plan.looks + 1):
                if look > len(self.recorded()):
                    for study in dict.fromkeys(arm.study for arm in self.plan.arms):
                        self.interrupted_by = self._train(study, look, launch, named_code)
                        if self.interrupted_by is not None:
                            return None
                comparison = self.look(look, lease)
                on_look(look, comparison)
                if comparison.is_decided:
                    break
        return look, comparison

    def _train(
        self, place: str, look: int, launch: Callable[[Path], Launcher], named_code: Sequence[str]
    ) -> signal.Signals | None:
        """Train what is not finished of a look in one study; returns the signal that interrupted it, if one did."""
        arms = [arm for arm in self.plan.arms if arm.study == place]
        before = self.study_of(arms[0])
        study = before.with_seeds([seed for arm in arms for seed in self._seeds(arm, look)])
        runs = [run for arm in arms for run in self._runs(arm, study, look)]
        if all(is_run_folder(run.run_dir) and is_complete(read_run(run.run_dir)) for run in runs):
            return None
        study.refuse_unnamed_code(named_code)
        folders = {run.run_dir for run in runs}
        driver = study.drive(
            launch(study.path.parent),
            extend=study.plan.seeds != before.plan.seeds,
            only=lambda run: run.run_dir in folders,
        )
        return driver.interrupted_by

    def recorded(self) -> list[dict[str, Any]]:
        """The looks so far, up to the first line that cannot be read: it and those after it are recorded again."""
        found: list[dict[str, Any]] = []
        for line in read_lines(self.folder / LOOKS_FILE):
            if line.get("look") != len(found) + 1:
                break
            found.append(line)
        return found

    def study_of(self, arm: PlannedArm) -> Study:
        """The study of an arm, as it is in its folder."""
        return Study.open(os.path.normpath(self.folder / arm.study))

    def _seeds(self, arm: PlannedArm, look: int) -> Sequence[int]:
        """The seeds that are new at a look; looks count from 1."""
        count = self.plan.seeds_per_look
        return arm.seeds[(look - 1) * count : look * count]

    def _runs(self, arm: PlannedArm, study: Study, look: int) -> list[PlannedRun]:
        """The runs of an arm, in its study, that are new at a look."""
        seeds = self._seeds(arm, look)
        return [
            run for run in study.runs() if run.suffix in arm.suffixes and run.config.seed in seeds
        ]

    def groups_at(self, look: int) -> list[RunGroup]:
        """The runs of both arms that are new at a look, as far as they have begun."""
        studies = map(self.study_of, self.plan.arms)
        return [
            RunGroup.planned(arm.name, self._runs(arm, study, look), study.path)
            for arm, study in zip(self.plan.arms, studies, strict=True)
        ]

    def look(self, number: int, lease: Lease | None = None) -> Comparison:
        """Compare at a look, with all runs up to it, and record it; `lease` is the right to drive the comparison.

        The scores of an earlier look must still be what was recorded. A failed run gets the worst score so far.
        """
        plan, known = self.plan, self.recorded()
        tables: list[ScoreTable] = []
        for look in range(1, number + 1):
            table = score_arms(self.groups_at(look), plan.rule, tables)
            if dict(table.budgets) != dict(plan.budgets):
                raise ConfigError(
                    f"the runs have {dict(table.budgets)} steps, the frozen plan {dict(plan.budgets)}"
                )
            if look <= len(known):
                _refuse_changed_scores(look, table, known[look - 1])
            tables.append(table)
        blocks = [(table.arms[0].values, table.arms[1].values) for table in tables]
        generator = np.random.default_rng(plan.permutation_seed)
        result = sequential_test(blocks, plan.looks, generator, alpha=plan.alpha)
        judgement = Judgement(
            result.difference, result.interval, result.p_value, result.decided_at is not None
        )
        comparison = judge(_joined(tables), judgement, generator, plan.alpha, plan.margin)
        if number > len(known):
            if lease is not None:
                lease.check()
            lines = [*known, _record_of(number, table, comparison)]
            path = self.folder / LOOKS_FILE
            with translate_write_errors(path):
                replace_synced(path, "".join(json.dumps(line) + "\n" for line in lines).encode())
        return comparison


def _record_of(look: int, table: ScoreTable, comparison: Comparison) -> dict[str, Any]:
    """The line of a look: the scores of its new runs, and the result of all so far."""
    result = comparison.as_dict()
    return {
        "look": look,
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "scores": {"a": table.arms[0].runs, "b": table.arms[1].runs},
        **{key: result[key] for key in ("verdict", "difference", "interval", "p_value")},
    }


def _joined(tables: Sequence[ScoreTable]) -> ScoreTable:
    """The tables of several looks as one."""
    arms = []
    for parts in zip(*(table.arms for table in tables), strict=True):
        by_task = {
            task: dict(chain.from_iterable(part.by_task[task].items() for part in parts))
            for task in parts[0].by_task
        }
        arms.append(ArmScores(parts[0].name, by_task))
    steps = {}
    for task in tables[0].steps:
        firsts, lasts = zip(*(table.steps[task] for table in tables), strict=True)
        steps[task] = (min(firsts), max(lasts))
    notes = dict.fromkeys(note for table in tables for note in table.notes)
    return replace(tables[0], arms=tuple(arms), steps=steps, notes=tuple(notes))


def _refuse_changed_scores(look: int, table: ScoreTable, line: Mapping[str, Any]) -> None:
    for key, arm in zip(("a", "b"), table.arms, strict=True):
        scores = line.get("scores", {}).get(key, {})
        for name in dict.fromkeys([*scores, *arm.runs]):
            was, now = scores.get(name), arm.runs.get(name)
            if was != now:
                before, after = (
                    "no score" if score is None else f"score {score:g}" for score in (was, now)
                )
                raise ConfigError(
                    f"look {look} was recorded with {before} for run '{name}', which has {after}: the runs"
                    " of a planned comparison do not change after their look; restore them, or begin another"
                    " comparison with --name NAME"
                )


@dataclass(frozen=True)
class StudyArm:
    """An arm whose study can train further seeds."""

    name: str
    study: Study
    settings: Sequence[str]
    """Labels of the settings, one for each environment."""

    @property
    def runs(self) -> list[PlannedRun]:
        """Its runs so far."""
        return [run for run in self.study.runs() if run.setting in self.settings]

    @property
    def suffixes(self) -> list[str]:
        """Ends of the run folders' names, one for each setting."""
        return list(dict.fromkeys(run.suffix for run in self.runs))

    @property
    def budgets(self) -> dict[str, int]:
        """total_timesteps of each environment."""
        return {run.config.env_id or "offline": run.config.total_timesteps for run in self.runs}

    @property
    def group(self) -> RunGroup:
        """The arm without its runs, which names the comparison's folder."""
        setting = self.settings[0] if len(self.settings) == 1 else self.name
        return RunGroup(self.name, (), self.study.path, setting)

    def planned(self, num_seeds: int, folder: Path) -> PlannedArm:
        """Its plan in the comparison's `folder`: the seeds that the study has come first, then new ones."""
        known = self.study.plan.seeds
        seeds = [*known, *range(max(known) + 1, max(known) + 1 + num_seeds)][:num_seeds]
        return PlannedArm(self.name, os.path.relpath(self.study.path, folder), self.suffixes, seeds)


def plan_comparison(
    words: Sequence[str], given: Mapping[str, Any], name: str | None = None
) -> PlannedComparison:
    """The frozen plan of two arms, or a new one with the options `given`, which is frozen now; its studies begin.

    Raises a `ConfigError` if `given` differs from a frozen plan.
    """
    found = [find_study_arm(word) for word in words]
    _refuse_incomparable(found)
    groups = [arm.group for arm in found]
    folder = folder_of(groups, words, name, is_planned=True)
    mirrored = folder if name else folder_of(groups[::-1], words[::-1], is_planned=True)
    known = PlannedComparison.open(folder) or PlannedComparison.open(mirrored)
    if known is not None:
        _refuse_other_arms(known, found)
        known.refuse_changed(given)
        return known
    rule = ScoreRule(**{key: value for key, value in given.items() if key in RULE_OPTIONS})
    rest = {key: value for key, value in given.items() if key not in RULE_OPTIONS}
    num_seeds = rest.get("looks", LOOKS) * rest.get("seeds_per_look", SEEDS_PER_LOOK)
    a, b = (arm.planned(num_seeds, folder) for arm in found)
    planned = PlannedComparison(folder, LookPlan(a, b, rule, found[0].budgets, **rest))
    for arm in found:
        arm.study.begin()
    for group in planned.groups_at(1):
        for run in group.runs:
            if is_complete(run.info):
                complete_curve(run, rule.metric)  # refuses a metric that it does not have
    planned.begin()
    return planned


def _refuse_incomparable(arms: Sequence[StudyArm]) -> None:
    if arms[0].name == arms[1].name:
        raise ConfigError(
            f"both arms are called '{arms[0].name}': fork one of the studies under another name"
        )
    if arms[0].budgets != arms[1].budgets:
        texts = []
        for arm in arms:
            steps = [f"{steps:,} steps of {task}" for task, steps in arm.budgets.items()]
            texts.append(f"'{arm.name}' has {', '.join(steps)}")
        raise ConfigError(
            f"{' and '.join(texts)}: plan studies of the same environments and total_timesteps"
        )


def find_study_arm(word: str) -> StudyArm:
    """The arm that a word means: a study, settings of one, or a study file, which may not have begun yet."""
    if is_file(Path(word)):
        study = Study.from_file(word)
        if is_file(study.path / STUDY_FILE):  # earlier looks may have added seeds to the file's
            stored = open_study(study.path)
            if not is_extension(study.plan, stored.plan):
                refuse_changed(study.plan, stored)
            study = Study.open(study.path)
        settings = list(dict.fromkeys(run.setting for run in study.runs()))
        if len({run.config.env_id for run in study.runs()}) < len(settings):
            names = ", ".join(f"'{study.path}:{setting}'" for setting in settings[:6])
            raise ConfigError(
                f"'{word}' has {len(settings):,} settings: begin it, and name one of them, as {names}"
            )
        return StudyArm(study.plan.name, study, settings)
    groups = groups_of_word(word)
    if groups[0].study is None:
        raise ConfigError(
            f"--until-decided trains further seeds of studies, and '{word}' is none: name a study"
        )
    name = groups[0].name if len(groups) == 1 else Path(word).name
    return StudyArm(name, Study.open(groups[0].study), [group.setting or "" for group in groups])


def _refuse_other_arms(known: PlannedComparison, found: Sequence[StudyArm]) -> None:
    for planned, arm in zip(known.plan.arms, found, strict=True):
        is_same_study = known.study_of(planned).path.resolve() == arm.study.path.resolve()
        if not is_same_study or {*arm.suffixes} != {*planned.suffixes}:
            raise ConfigError(
                f"the plan in '{known.folder}' compares '{known.plan.a.name}' with '{known.plan.b.name}', in this"
                " order: name these, or begin another comparison with --name NAME"
            )

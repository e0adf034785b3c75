"""A comparison in planned looks: its plan is frozen when it begins, one process drives it, every look is recorded."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.errors import ConfigError
from rl_training.experiment.config import load_signed_file
from rl_training.experiment.logs import read_lines
from rl_training.experiment.yaml_text import dump_yaml, sign
from rl_training.files import is_file, replace_synced, translate_write_errors
from rl_training.studies.catalog import is_complete, is_run_folder, read_run
from rl_training.studies.comparison.run_scores import (
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
from rl_training.studies.groups import RunGroup, RunRecord, groups_of_word
from rl_training.studies.launching.driver import Driver
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
RULE_OPTIONS = ("metric", "measure", "mode", "failed")
PLAN_OPTIONS = (*RULE_OPTIONS, "margin", "alpha", "looks", "seeds_per_look")


@dataclass(frozen=True)
class PlannedArm:
    """One arm: settings of a study, one for each environment, and the seeds of all looks."""

    name: str
    study: str
    """Folder of the study, relative to the folder of the comparison."""
    suffixes: tuple[str, ...]
    """Ends of the run folders' names: they identify the settings, also after the study has grown."""
    seeds: tuple[int, ...]
    """In the order in which the looks use them."""

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> PlannedArm:
        """An arm as stored."""
        suffixes, seeds = tuple(map(str, values["suffixes"])), tuple(map(int, values["seeds"]))
        return cls(str(values["name"]), str(values["study"]), suffixes, seeds)

    def owns(self, run: PlannedRun, seeds: Sequence[int]) -> bool:
        """Whether a run of the study belongs to this arm and to those seeds."""
        return run.suffix in self.suffixes and run.config.seed in seeds


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
        if self.looks < 1:
            raise ConfigError(f"bad value {self.looks} for --looks: should be at least 1")
        if self.seeds_per_look < LEAST_RUNS:
            raise ConfigError(
                f"bad value {self.seeds_per_look} for --seeds-per-look: should be at least {LEAST_RUNS}"
            )
        labelings = math.comb(2 * self.seeds_per_look, self.seeds_per_look) ** (
            self.looks * len(self.budgets)
        )
        if 2 / labelings > self.alpha:
            raise ConfigError(
                f"{self.looks} look{'' if self.looks == 1 else 's'} of {self.seeds_per_look} seeds each can decide"
                f" nothing at {percent(self.alpha)}, since the smallest possible p-value is {2 / labelings:.2g}: give"
                " more --seeds-per-look or --looks"
            )

    def seeds_of(self, arm: PlannedArm, look: int) -> tuple[int, ...]:
        """The seeds that are new at a look; looks count from 1."""
        return arm.seeds[(look - 1) * self.seeds_per_look : look * self.seeds_per_look]

    @property
    def options(self) -> dict[str, Any]:
        """The options of the command, by name."""
        known = {**vars(self.rule), **vars(self)}
        return {name: known[name] for name in PLAN_OPTIONS}

    def values(self) -> dict[str, Any]:
        """The plan as stored."""
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> LookPlan:
        """The inverse of `values`."""
        try:
            budgets = {str(task): int(steps) for task, steps in values["budgets"].items()}
            rest = {
                key: value
                for key, value in values.items()
                if key not in ("a", "b", "rule", "budgets")
            }
            return cls(
                PlannedArm.from_values(values["a"]),
                PlannedArm.from_values(values["b"]),
                ScoreRule(**values["rule"]),
                budgets,
                **rest,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"the stored plan of the comparison is damaged: {error}") from None


def plan_arm(
    name: str, study: Study, settings: Sequence[str], num_seeds: int, folder: Path
) -> PlannedArm:
    """The arm made of those settings of a study; its first seeds are those that the study has, then new ones.

    `folder` is the comparison's.
    """
    known = list(study.plan.seeds)
    fresh = (seed for seed in range(max(known) + 1, max(known) + 1 + num_seeds))
    seeds = [*known, *fresh][:num_seeds]
    suffixes = dict.fromkeys(run.suffix for run in study.runs() if run.setting in settings)
    return PlannedArm(name, os.path.relpath(study.path, folder), tuple(suffixes), tuple(seeds))


class PlannedComparison:
    """The folder of a planned comparison: `plan.yaml` and `looks.jsonl`."""

    def __init__(self, folder: Path, plan: LookPlan) -> None:
        self.folder, self.plan = folder, plan
        self.interrupted_by: signal.Signals | None = None
        """The signal that stopped it; all its runs are saved."""
        self._check: Callable[[], None] = lambda: None
        """Raises if another process drives the comparison."""

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
        if not freeze(self.folder / PLAN_FILE, sign(dump_yaml(self.plan.values()))):
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
        named_code: Sequence[str] = (),
        on_look: Callable[[int, Comparison], None] = lambda look, comparison: None,
    ) -> tuple[int, Comparison] | None:
        """Train and judge one look after the other until one decides; None if a signal stopped it.

        `launch` makes the launcher for a folder of studies; `named_code` is code that the user has named, so that the
        runs of the studies may import it.
        """
        with self._driven():
            for look in range(1, self.plan.looks + 1):
                if look > len(self.recorded()):
                    driver = self._train(look, launch, named_code)
                    if driver is not None:
                        self.interrupted_by = driver.interrupted_by
                        return None
                comparison = self.look(look)
                on_look(look, comparison)
                if is_decided(comparison):
                    break
        return look, comparison

    @contextlib.contextmanager
    def _driven(self) -> Iterator[None]:
        """Be the only process that drives it; nothing happens if there is nothing left to do."""
        lines = self.recorded()
        if len(lines) == self.plan.looks or (
            lines and lines[-1].get("verdict") != Verdict.UNDECIDED.value
        ):
            yield
            return
        with driven_alone(self.folder, "comparison") as lease:
            self._check = lease.check
            yield

    def _train(
        self, look: int, launch: Callable[[Path], Launcher], named_code: Sequence[str]
    ) -> Driver | None:
        """Train what is not finished of a look; returns the driver that a signal interrupted, if one was."""
        arms: dict[Path, list[PlannedArm]] = {}
        for arm in (self.plan.a, self.plan.b):
            arms.setdefault(self.study_of(arm).path, []).append(arm)
        for members in arms.values():
            study = self.study_of(members[0])
            seeds = [seed for arm in members for seed in self.plan.seeds_of(arm, look)]
            new = [seed for seed in dict.fromkeys(seeds) if seed not in study.plan.seeds]
            study = study.with_seeds(new)

            def is_of_look(run: PlannedRun, members: list[PlannedArm] = members) -> bool:
                return any(arm.owns(run, self.plan.seeds_of(arm, look)) for arm in members)

            if not all(_is_done(run) for run in study.runs() if is_of_look(run)):
                study.refuse_unnamed_code(named_code)
                driver = study.drive(launch(study.path.parent), extend=bool(new), only=is_of_look)
                if driver.interrupted_by is not None:
                    return driver
        return None

    def recorded(self) -> list[dict[str, Any]]:
        """The looks so far, up to the first line that cannot be read: it and those after it are recorded again."""
        found: list[dict[str, Any]] = []
        for line in read_lines(self.folder / LOOKS_FILE):
            if line.get("look") != len(found) + 1:
                break
            found.append(line)
        return found

    def arm_at(self, arm: PlannedArm, look: int) -> RunGroup:
        """The runs of an arm that are new at a look."""
        seeds = self.plan.seeds_of(arm, look)
        study = self.study_of(arm)
        runs = [run for run in study.runs() if arm.owns(run, seeds)]
        begun = tuple(RunRecord(run.run_dir) for run in runs if is_run_folder(run.run_dir))
        missing = tuple(run.label for run in runs if not is_run_folder(run.run_dir))
        return RunGroup(arm.name, begun, study.path, missing=missing)

    def study_of(self, arm: PlannedArm) -> Study:
        """The study of an arm."""
        return Study.open(os.path.normpath(self.folder / arm.study))

    def look(self, number: int) -> Comparison:
        """Compare at a look, with all runs up to it, and record it.

        The scores of an earlier look must still be what was recorded.
        """
        tables: list[ScoreTable] = []
        for look in range(1, number + 1):
            tables.append(self._table(look, tables))
        known = self.recorded()
        for look, (table, line) in enumerate(zip(tables, known, strict=False), 1):
            _refuse_changed_scores(look, table, line)
        blocks = [(table.arms[0].values, table.arms[1].values) for table in tables]
        generator = np.random.default_rng(self.plan.permutation_seed)
        result = sequential_test(blocks, self.plan.looks, generator, alpha=self.plan.alpha)
        judgement = Judgement(
            result.difference, result.interval, result.p_value, result.decided_at is not None
        )
        comparison = judge(
            _joined(tables),
            self.plan.rule,
            judgement,
            generator,
            alpha=self.plan.alpha,
            margin=self.plan.margin,
        )
        self._record(tables, number, comparison)
        return comparison

    def _table(self, look: int, before: Sequence[ScoreTable]) -> ScoreTable:
        """The scores of the runs that are new at a look; the score of a failed run is the worst so far."""
        earlier = {
            task: [score for table in before for score in (table.observed or {})[task]]
            for task in self.plan.budgets
        }
        table = score_arms(
            [self.arm_at(arm, look) for arm in (self.plan.a, self.plan.b)], self.plan.rule, earlier
        )
        if dict(table.budgets) != dict(self.plan.budgets):
            raise ConfigError(
                f"the runs have {dict(table.budgets)} steps, the frozen plan {dict(self.plan.budgets)}"
            )
        return table

    def _record(self, tables: Sequence[ScoreTable], number: int, comparison: Comparison) -> None:
        """Record a look, unless it is recorded already."""
        known = self.recorded()
        if len(known) >= number:
            return
        self._check()
        result = comparison.as_dict()
        line = {
            "look": number,
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "scores": {"a": tables[-1].arms[0].runs, "b": tables[-1].arms[1].runs},
            **{key: result[key] for key in ("verdict", "difference", "interval", "p_value")},
        }
        path = self.folder / LOOKS_FILE
        with translate_write_errors(path):
            replace_synced(
                path, "".join(json.dumps(item) + "\n" for item in [*known, line]).encode()
            )


def is_decided(comparison: Comparison) -> bool:
    """Whether no further look is needed."""
    return comparison.verdict is not Verdict.UNDECIDED


def _joined(tables: Sequence[ScoreTable]) -> ScoreTable:
    """The tables of several looks as one."""
    arms = []
    for index, arm in enumerate(tables[0].arms):
        by_task = {
            task: {
                name: score
                for table in tables
                for name, score in table.arms[index].by_task[task].items()
            }
            for task in arm.by_task
        }
        arms.append(ArmScores(arm.name, by_task))
    steps = {task: [table.steps[task] for table in tables] for task in tables[0].steps}
    ends = {
        task: (min(first for first, _ in of_task), max(last for _, last in of_task))
        for task, of_task in steps.items()
    }
    notes = dict.fromkeys(note for table in tables for note in table.notes)
    return replace(tables[0], arms=tuple(arms), steps=ends, notes=tuple(notes))


def _refuse_changed_scores(look: int, table: ScoreTable, line: Mapping[str, Any]) -> None:
    for key, arm in zip(("a", "b"), table.arms, strict=True):
        scores = line.get("scores", {}).get(key, {})
        for name in dict.fromkeys([*scores, *arm.runs]):
            was, now = scores.get(name), arm.runs.get(name)
            if was != now:
                texts = [
                    "no score" if score is None else f"score {score:g}" for score in (was, now)
                ]
                raise ConfigError(
                    f"look {look} was recorded with {texts[0]} for run '{name}', which has {texts[1]}: the runs"
                    " of a planned comparison do not change after their look; restore them, or begin another"
                    " comparison with --name NAME"
                )


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


def plan_comparison(
    words: Sequence[str], given: Mapping[str, Any], name: str | None = None
) -> PlannedComparison:
    """The frozen plan of two arms, or a new one with the options `given`, which is frozen now; its studies begin.

    Raises a `ConfigError` if `given` differs from a frozen plan.
    """
    found = [find_study_arm(word) for word in words]
    if found[0].name == found[1].name:
        raise ConfigError(
            f"both arms are called '{found[0].name}': fork one of the studies under another name"
        )
    arms = [
        RunGroup(
            arm.name, (), arm.study.path, arm.settings[0] if len(arm.settings) == 1 else arm.name
        )
        for arm in found
    ]
    folder = folder_of(arms, words, name, is_planned=True)
    budgets = [arm.budgets() for arm in found]
    if budgets[0] != budgets[1]:
        texts = [
            f"'{arm.name}' has {', '.join(f'{steps:,} steps of {task}' for task, steps in budget.items())}"
            for arm, budget in zip(found, budgets, strict=True)
        ]
        raise ConfigError(
            f"{' and '.join(texts)}: plan studies of the same environments and total_timesteps"
        )
    mirrored = folder if name else folder_of(arms[::-1], words[::-1], is_planned=True)
    known = PlannedComparison.open(folder) or PlannedComparison.open(mirrored)
    if known is not None:
        _refuse_other_arms(known, found)
        known.refuse_changed(given)
        return known
    rule = ScoreRule(**{key: value for key, value in given.items() if key in RULE_OPTIONS})
    rest = {"looks": LOOKS, "seeds_per_look": SEEDS_PER_LOOK}
    rest |= {key: value for key, value in given.items() if key not in RULE_OPTIONS}
    num_seeds = rest["looks"] * rest["seeds_per_look"]
    a, b = (plan_arm(arm.name, arm.study, arm.settings, num_seeds, folder) for arm in found)
    planned = PlannedComparison(folder, LookPlan(a, b, rule, budgets[0], **rest))
    for arm in found:
        arm.study.begin()
    _check_metric(planned)
    planned.begin()
    return planned


def find_study_arm(word: str) -> StudyArm:
    """The arm that a word means: a study, settings of one, or a study file, which may not have begun yet."""
    if is_file(Path(word)):
        study = _begun(Study.from_file(word))
        settings = tuple(dict.fromkeys(run.setting for run in study.runs()))
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
    return StudyArm(
        name, Study.open(groups[0].study), tuple(group.setting or "" for group in groups)
    )


def _begun(study: Study) -> Study:
    """The study as it is in its folder, if it has begun: earlier looks may have added seeds to its file's."""
    if not is_file(study.path / STUDY_FILE):
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


def _check_metric(planned: PlannedComparison) -> None:
    """Raise a `ConfigError` for a metric that the finished runs of the first look do not have."""
    for arm in (planned.plan.a, planned.plan.b):
        for run in planned.arm_at(arm, 1).runs:
            if is_complete(run.info):
                complete_curve(run, planned.plan.rule.metric)


def _is_done(run: PlannedRun) -> bool:
    return is_run_folder(run.run_dir) and is_complete(read_run(run.run_dir))

"""A comparison in planned looks: the plan is frozen at the first look, and every look is recorded."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.errors import ConfigError
from rl_training.experiment.config import load_signed_file
from rl_training.experiment.timing import read_lines
from rl_training.experiment.yaml_text import dump_yaml, sign
from rl_training.files import is_file, replace_synced, translate_write_errors
from rl_training.studies.catalog import is_run_folder
from rl_training.studies.comparison.run_scores import ScoreRule
from rl_training.studies.comparison.scores import ArmScores, ScoreTable, score_arms
from rl_training.studies.comparison.verdict import ALPHA, Comparison, Judgement, Verdict, check_level, judge, percent
from rl_training.studies.groups import RunGroup
from rl_training.studies.plan import PlannedRun
from rl_training.studies.records import RunRecord
from rl_training.studies.statistics import sequential_test
from rl_training.studies.study import Study

PLAN_FILE = "plan.yaml"
LOOKS_FILE = "looks.jsonl"
LEAST_RUNS = 2
LOOKS = 4
SEEDS_PER_LOOK = 5


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
    """What is decided before the first look, and never changed."""

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
            raise ConfigError(f"bad value {self.seeds_per_look} for --seeds-per-look: should be at least {LEAST_RUNS}")
        labelings = math.comb(2 * self.seeds_per_look, self.seeds_per_look) ** (self.looks * len(self.budgets))
        if 2 / labelings > self.alpha:
            raise ConfigError(
                f"{self.looks} look{'' if self.looks == 1 else 's'} of {self.seeds_per_look} seeds each can decide"
                f" nothing at {percent(self.alpha)}, since the smallest possible p-value is {2 / labelings:.2g}: give"
                " more --seeds-per-look or --looks"
            )

    def seeds_of(self, arm: PlannedArm, look: int) -> tuple[int, ...]:
        """The seeds that are new at a look; looks count from 1."""
        return arm.seeds[(look - 1) * self.seeds_per_look : look * self.seeds_per_look]

    def values(self) -> dict[str, Any]:
        """The plan as stored."""
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> LookPlan:
        """The inverse of `values`."""
        try:
            budgets = {str(task): int(steps) for task, steps in values["budgets"].items()}
            rest = {key: value for key, value in values.items() if key not in ("a", "b", "rule", "budgets")}
            return cls(
                PlannedArm.from_values(values["a"]),
                PlannedArm.from_values(values["b"]),
                ScoreRule(**values["rule"]),
                budgets,
                **rest,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"the stored plan of the comparison is damaged: {error}") from None


def plan_arm(name: str, study: Study, settings: Sequence[str], num_seeds: int, folder: Path) -> PlannedArm:
    """The arm made of those settings of a study; its first seeds are those that the study has, then new ones.

    `folder` is that of the comparison.
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

    @classmethod
    def open(cls, folder: Path) -> PlannedComparison | None:
        """The comparison in a folder; None if none was begun there."""
        file = folder / PLAN_FILE
        if not is_file(file):
            return None
        values = load_signed_file(file, "a comparison", "begin another comparison with --name NAME")
        return cls(folder, LookPlan.from_values(values))

    @classmethod
    def freeze(cls, folder: Path, plan: LookPlan) -> PlannedComparison:
        """Store a new plan; it replaces one at which nobody has looked yet."""
        with translate_write_errors(folder / PLAN_FILE):
            folder.mkdir(parents=True, exist_ok=True)
            replace_synced(folder / PLAN_FILE, sign(dump_yaml(plan.values())).encode())
        return cls(folder, plan)

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
        judgement = Judgement(result.difference, result.interval, result.p_value, result.decided_at is not None)
        comparison = judge(
            _joined(tables), self.plan.rule, judgement, generator, alpha=self.plan.alpha, margin=self.plan.margin
        )
        self._record(tables, number, comparison)
        return comparison

    def _table(self, look: int, before: Sequence[ScoreTable]) -> ScoreTable:
        """The scores of the runs that are new at a look; the score of a failed run is the worst so far."""
        earlier = {
            task: [score for table in before for score in (table.observed or {})[task]] for task in self.plan.budgets
        }
        table = score_arms([self.arm_at(arm, look) for arm in (self.plan.a, self.plan.b)], self.plan.rule, earlier)
        if dict(table.budgets) != dict(self.plan.budgets):
            raise ConfigError(f"the runs have {dict(table.budgets)} steps, the frozen plan {dict(self.plan.budgets)}")
        return table

    def _record(self, tables: Sequence[ScoreTable], number: int, comparison: Comparison) -> None:
        """Record a look, unless it is recorded already, as by another process a moment ago."""
        known = self.recorded()
        if len(known) >= number:
            return
        result = comparison.as_dict()
        line = {
            "look": number,
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "scores": {"a": tables[-1].arms[0].runs, "b": tables[-1].arms[1].runs},
            **{key: result[key] for key in ("verdict", "difference", "interval", "p_value")},
        }
        path = self.folder / LOOKS_FILE
        with translate_write_errors(path):
            replace_synced(path, "".join(json.dumps(item) + "\n" for item in [*known, line]).encode())


def is_decided(comparison: Comparison) -> bool:
    """Whether no further look is needed."""
    return comparison.verdict is not Verdict.UNDECIDED


def _joined(tables: Sequence[ScoreTable]) -> ScoreTable:
    """The tables of several looks as one."""
    arms = []
    for index, arm in enumerate(tables[0].arms):
        by_task = {
            task: {name: score for table in tables for name, score in table.arms[index].by_task[task].items()}
            for task in arm.by_task
        }
        arms.append(ArmScores(arm.name, by_task))
    notes = dict.fromkeys(note for table in tables for note in table.notes)
    return replace(tables[0], arms=tuple(arms), notes=tuple(notes))


def _refuse_changed_scores(look: int, table: ScoreTable, line: Mapping[str, Any]) -> None:
    for key, arm in zip(("a", "b"), table.arms, strict=True):
        scores = line.get("scores", {}).get(key, {})
        for name in dict.fromkeys([*scores, *arm.runs]):
            was, now = scores.get(name), arm.runs.get(name)
            if was != now:
                raise ConfigError(
                    f"look {look} was recorded with {_text(was)} for run '{name}', which has {_text(now)}: the runs"
                    " of a planned comparison do not change after their look; restore them, or begin another"
                    " comparison with --name NAME"
                )


def _text(score: float | None) -> str:
    return "no score" if score is None else f"score {score:g}"

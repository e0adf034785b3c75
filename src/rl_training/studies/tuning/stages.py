"""The stages of a tuning, search, race and final, each a study in a folder of its own; and what they found."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.errors import RLTrainingError
from rl_training.studies.launching.driver import Driver, Outcome, Task
from rl_training.studies.launching.launchers import Launcher, LocalLauncher, SettingsCheck
from rl_training.studies.launching.progress import make_listener
from rl_training.studies.launching.study import results_by_setting
from rl_training.studies.plan import PLAN_FILE, StudyFolder, open_study, store_plan
from rl_training.studies.statistics import MeanComparison, MeanInterval, mean_interval
from rl_training.studies.tuning.tune_plan import TunePlan
from rl_training.studies.variation import Setting

DEFAULT = "default"
Scores = dict[str, dict[str, float | None]]
"""Score of each seed, by the name of the setting; None: the run failed."""


def trial_name(number: int) -> str:
    """Name of a trial's setting and of its run folders; trial 0 is the default."""
    return DEFAULT if number == 0 else f"trial-{number}"


@dataclass(frozen=True)
class Stage:
    """One stage of a tuning."""

    name: str
    plan: TunePlan
    path: Path
    """Folder of its study."""

    def folder(self) -> StudyFolder | None:
        """Its study; None if it has none yet."""
        return open_study(self.path) if (self.path / PLAN_FILE).is_file() else None

    def threads(self) -> dict[str, int]:
        """PyTorch threads of each setting of the study."""
        stored = self.folder()
        return (
            {} if stored is None else dict(zip(stored.plan.names, stored.plan.threads, strict=True))
        )

    def admit(self, settings: Mapping[str, Setting], launcher: Launcher) -> dict[str, str]:
        """Check settings and add them to the study; returns why some cannot be trained, by name."""
        known = self.threads()
        new = {name: setting for name, setting in settings.items() if name not in known}
        if not new:
            return {}
        runs = self.plan.study(self.name, new, ()).runs(self.path)
        check = SettingsCheck(runs, self.plan.plugins, self.plan.callbacks)
        if isinstance(launcher, LocalLauncher):
            launcher.prepare(len(runs))
        answers = dict(zip(new, check.answers(), strict=True))
        wrong = {
            name: str(answer["error"]).splitlines()[0]
            for name, answer in answers.items()
            if "error" in answer
        }
        right = {name: setting for name, setting in new.items() if name not in wrong}
        self.add(right, {name: answers[name]["num_threads"] for name in right})
        return wrong

    def add(self, settings: Mapping[str, Setting], threads: Mapping[str, int]) -> None:
        """Add settings that were checked, with their threads, as far as the study does not have them."""
        stored, known = self.folder(), self.threads()
        new = {name: setting for name, setting in settings.items() if name not in known}
        every = {
            **({} if stored is None else dict(zip(known, stored.plan.vary, strict=True))),
            **new,
        }
        if new:
            counts = {**threads, **known}
            plan = self.plan.study(self.name, every, tuple(counts.get(name, 1) for name in every))
            store_plan(plan, self.path, is_extended=True)

    def drive(
        self,
        names: Collection[str],
        launcher: Launcher,
        watch: Callable[[Driver], None] | None = None,
    ) -> Driver | None:
        """Train the runs of these settings; None if there are none. `watch` is called about once a second."""
        folder = self.folder()
        runs = [] if folder is None else [run for run in folder.runs() if run.setting in names]
        if folder is None or not runs:
            return None
        launcher.threads_per_run = max(folder.plan.threads, default=1)
        listener = make_listener()
        try:
            driver = Driver(runs, launcher, listener, folder)
            if watch is not None:
                driver.on_look = lambda: watch(driver)
            driver.run()
        finally:
            listener.close()
        return driver


def tasks_by_setting(driver: Driver | None) -> dict[str, list[Task]]:
    """The runs of a driver by the name of their setting."""
    found: dict[str, list[Task]] = {}
    for task in () if driver is None else driver.tasks:
        found.setdefault(task.run.setting, []).append(task)
    return found


def failure_of(tasks: Collection[Task]) -> str | None:
    """Why a setting's runs failed; None if none did."""
    failed = [task for task in tasks if task.outcome in (Outcome.FAILED, Outcome.GIVEN_UP)]
    return None if not failed else failed[0].reason or failed[0].outcome.value


def scores_of(driver: Driver) -> Scores:
    """The scores of all runs."""
    return {
        result.setting: {str(seed): score for seed, score in result.scores.items()}
        for result in results_by_setting(driver.tasks)
    }


def complete_scores(scores: Scores) -> dict[str, list[float]]:
    """The scores of the settings of which no run failed."""
    found = {}
    for name, by_seed in scores.items():
        known = [score for score in by_seed.values() if score is not None]
        if known and len(known) == len(by_seed):
            found[name] = known
    return found


def best_of(scores: Scores) -> str | None:
    """The setting with the highest mean; of equal ones the first. None if every setting has failed runs."""
    means = {name: statistics.fmean(values) for name, values in complete_scores(scores).items()}
    return max(means, key=lambda name: means[name]) if means else None


def is_repeat(trial: Any) -> bool:
    """Whether a trial has the settings of an earlier one, whose result it took."""
    return "same_as" in trial.user_attrs


def complete_trials(trials: Sequence[Any]) -> list[Any]:
    """The complete trials with settings of their own, best first; of equal ones the earlier."""
    complete = [
        trial for trial in trials if trial.state.name == "COMPLETE" and not is_repeat(trial)
    ]
    return sorted(complete, key=lambda trial: (-trial.value, trial.number))


ALPHA = 0.05
SEED = 0
"""Seed of the permutation test; it matters only where there are too many labelings to enumerate."""


class StageError(RLTrainingError):
    """Runs of the race or of the final failed."""

    def __init__(self, stage: str, reasons: dict[str, str]) -> None:
        listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        super().__init__(
            f"runs of the {stage} failed ({listed}): the same command tries them again"
        )


@dataclass(frozen=True)
class Verdict:
    """Whether the winner beats the default, on the final seeds."""

    kind: str
    """`better`, `worse`, `undecided`, or `default` if the default won the race."""
    sentence: str
    comparison: MeanComparison | None

    @property
    def is_better(self) -> bool:
        """Whether to train with the winner's settings; else the default is kept."""
        return self.kind == "better"


def verdict_of(winner: str, final: Scores) -> Verdict:
    """Compare the winner with the default on the final seeds."""
    scores = complete_scores(final)
    if winner == DEFAULT:
        return Verdict(
            "default",
            "the default won the race: no settings that were tried are better, keep it",
            None,
        )
    from numpy.random import default_rng

    from rl_training.studies.statistics import compare_means

    found = compare_means({"": scores[winner]}, {"": scores[DEFAULT]}, default_rng(SEED))
    count = len(scores[winner])
    many = f"on {count} untouched seed{'' if count == 1 else 's'}: {difference_text(found)}"
    if found.smallest_p > ALPHA:
        many += ", and so few can decide nothing"
    if found.p_value > ALPHA:
        sentence = f"not distinguishable from the default {many}; keep the default, or tune with more trials or seeds"
        return Verdict("undecided", sentence, found)
    if found.difference > 0:
        return Verdict("better", f"the tuned settings are better than the default {many}", found)
    return Verdict(
        "worse", f"the tuned settings are worse than the default {many}; keep the default", found
    )


def warn_of_few_seeds(count: int) -> str | None:
    """Why a final of `count` seeds cannot decide anything; None if it can."""
    smallest = _smallest_p(count)
    if smallest <= ALPHA:
        return None
    enough = next(number for number in itertools.count(count) if _smallest_p(number) <= ALPHA)
    many = f"{count} final seed{'' if count == 1 else 's'}"
    return (
        f"{many} can decide nothing: the smallest possible p-value of {count} against {count} runs is {smallest:.2g};"
        f" give --final-seeds {enough} or more"
    )


def _smallest_p(count: int) -> float:
    """The smallest p-value of the permutation test with `count` runs on each side."""
    from rl_training.studies.statistics.samples import pair, smallest_p

    return smallest_p(pair({"": [0.0] * count}, {"": [1.0] * count}))


def difference_text(found: MeanComparison) -> str:
    """The difference with its interval."""
    low, high = found.interval
    if math.isinf(low) and math.isinf(high):
        return f"{found.difference:+.1f} (no interval)"
    return f"{found.difference:+.1f} [{low:+.1f}, {high:+.1f}]"


@dataclass(frozen=True)
class TuneResult:
    """A tuning that is over."""

    path: Path
    trials: Sequence[Any]
    """Optuna's frozen trials."""
    settings: dict[str, Setting]
    """The settings of each trial by name."""
    race: Scores
    final: Scores
    winner: str
    verdict: Verdict
    best: Path
    """The configuration to train with: the winner's if it is better, else the default's."""
    edited: Path | None = None
    """The `best.yaml` that was edited and is kept, so that `best` is another file."""

    @property
    def search_scores(self) -> dict[str, float]:
        """Scores of the complete trials in the search, best first; optimistic, since the best are chosen by them."""
        return {trial_name(trial.number): trial.value for trial in complete_trials(self.trials)}

    @property
    def search_score(self) -> float | None:
        """The winner's score in the search."""
        return self.search_scores.get(self.winner)

    @property
    def default_search_score(self) -> float | None:
        """The default's score in the search; None if it failed or was pruned."""
        return self.search_scores.get(DEFAULT)

    @property
    def best_trial(self) -> str | None:
        """The best of the search; None if no trial is complete."""
        return next(iter(self.search_scores), None)

    def intervals(self, stage: Scores) -> dict[str, MeanInterval]:
        """Means and intervals of a stage, of settings without failed runs."""
        return {name: mean_interval(scores) for name, scores in complete_scores(stage).items()}

    @property
    def num_settings(self) -> int:
        """Different settings that were tried."""
        return sum(not is_repeat(trial) for trial in self.trials)

    def count(self, state: str) -> int:
        """Settings in a state: `COMPLETE`, `PRUNED` or `FAIL`; a trial that repeats an earlier one is not counted."""
        return sum(trial.state.name == state and not is_repeat(trial) for trial in self.trials)

"""The stages of a tuning, search, race and final, each a study in a folder of its own; and what they found."""

from __future__ import annotations

import itertools
import math
import signal
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.errors import RLTrainingError
from rl_training.studies.launching.driver import Driver, Outcome, Task
from rl_training.studies.launching.launchers import Launcher, LocalLauncher, SettingsCheck
from rl_training.studies.launching.progress import make_listener
from rl_training.studies.launching.study import SettingResult, results_by_setting
from rl_training.studies.plan import PLAN_FILE, open_study, store_plan
from rl_training.studies.statistics import MeanComparison, MeanInterval, mean_interval
from rl_training.studies.tuning.tune_plan import TunePlan
from rl_training.studies.variation import Setting

DEFAULT = "default"
Scores = dict[str, dict[str, float | None]]
"""Score of each seed, by the name of the setting; None: the run failed."""


def trial_name(number: int) -> str:
    """Name of a trial's setting and of its run folders; trial 0 is the default."""
    return DEFAULT if number == 0 else f"trial-{number}"


class InterruptedStageError(Exception):
    """A signal stopped the runs of a stage; all are saved."""

    def __init__(self, signal: signal.Signals) -> None:
        super().__init__(signal.name)
        self.signal = signal


@dataclass(frozen=True)
class Stage:
    """One stage of a tuning."""

    name: str
    plan: TunePlan
    path: Path
    """Folder of its study."""
    launcher: Launcher

    def known(self) -> dict[str, tuple[Setting, int]]:
        """The settings of the study by name, each with its PyTorch threads; none if it has not begun."""
        if not (self.path / PLAN_FILE).is_file():
            return {}
        plan = open_study(self.path).plan
        return dict(zip(plan.names, zip(plan.vary, plan.threads, strict=True), strict=True))

    def admit(self, settings: Mapping[str, Setting]) -> dict[str, str]:
        """Check settings and add them to the study; returns why some cannot be trained, by name."""
        known = self.known()
        new = {name: setting for name, setting in settings.items() if name not in known}
        if not new:
            return {}
        runs = self.plan.stage(self.name, new).runs(self.path)
        check = SettingsCheck(runs, self.plan.study.plugins, self.plan.study.callbacks)
        if isinstance(self.launcher, LocalLauncher):
            self.launcher.prepare(len(runs))
        wrong, right = {}, {}
        for name, answer in zip(new, check.answers(), strict=True):
            if "error" in answer:
                wrong[name] = str(answer["error"]).splitlines()[0]
            else:
                right[name] = new[name], answer["num_threads"]
        self.add(right)
        return wrong

    def add(self, settings: Mapping[str, tuple[Setting, int]]) -> None:
        """Add settings that were checked, with their threads, as far as the study does not have them."""
        known = self.known()
        every = {**known, **{name: settings[name] for name in settings if name not in known}}
        if len(every) > len(known):
            vary = {name: setting for name, (setting, _) in every.items()}
            threads = [count for _, count in every.values()]
            store_plan(self.plan.stage(self.name, vary, threads), self.path, is_extended=True)

    def drive(
        self, names: Collection[str], watch: Callable[[Driver], None] | None = None
    ) -> dict[str, SettingResult]:
        """Train the runs of these settings; returns them by name. `watch` is called about once a second.

        Raises an `InterruptedStageError` if a signal stopped them.
        """
        if not names:
            return {}
        folder = open_study(self.path)
        runs = [run for run in folder.runs() if run.setting in names]
        self.launcher.threads_per_run = max(folder.plan.threads)
        listener = make_listener()
        try:
            driver = Driver(runs, self.launcher, listener, folder)
            if watch is not None:
                driver.on_look = lambda: watch(driver)
            driver.run()
        finally:
            listener.close()
        if driver.interrupted_by is not None:
            raise InterruptedStageError(driver.interrupted_by)
        return runs_by_setting(driver)


def runs_by_setting(driver: Driver) -> dict[str, SettingResult]:
    """The runs of a driver by the name of their setting."""
    return {result.setting: result for result in results_by_setting(driver.tasks)}


def failure_of(tasks: Collection[Task]) -> str | None:
    """Why a setting's runs failed; None if none did."""
    for task in tasks:
        if task.outcome in (Outcome.FAILED, Outcome.GIVEN_UP):
            return task.reason or task.outcome.value
    return None


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


def count_of(count: int, noun: str) -> str:
    """A number of things in words: `1 seed`, `5 seeds`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


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
    if winner == DEFAULT:
        sentence = "the default won the race: no settings that were tried are better, keep it"
        return Verdict("default", sentence, None)
    from numpy.random import default_rng

    from rl_training.studies.statistics import compare_means

    scores = complete_scores(final)
    found = compare_means({"": scores[winner]}, {"": scores[DEFAULT]}, default_rng(SEED))
    where = f"on {count_of(len(scores[winner]), 'untouched seed')}: {difference_text(found)}"
    if found.smallest_p > ALPHA:
        where += ", and so few can decide nothing"
    if found.p_value > ALPHA:
        kind, sentence = "undecided", f"not distinguishable from the default {where}"
        sentence += "; keep the default, or tune with more trials or seeds"
    elif found.difference > 0:
        kind, sentence = "better", f"the tuned settings are better than the default {where}"
    else:
        kind, sentence = "worse", f"the tuned settings are worse than the default {where}"
        sentence += "; keep the default"
    return Verdict(kind, sentence, found)


def warn_of_few_seeds(count: int) -> str | None:
    """Why a final of `count` seeds cannot decide anything; None if it can."""
    smallest = _smallest_p(count)
    if smallest <= ALPHA:
        return None
    enough = next(number for number in itertools.count(count) if _smallest_p(number) <= ALPHA)
    return (
        f"{count_of(count, 'final seed')} can decide nothing: the smallest possible p-value of {count} against"
        f" {count} runs is {smallest:.2g}; give --final-seeds {enough} or more"
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

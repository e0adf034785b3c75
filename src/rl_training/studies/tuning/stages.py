"""The stages of a tuning: search, race and final, each an ordinary study in a folder of its own."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.studies.launching.driver import Driver, Outcome, Task
from rl_training.studies.launching.launchers import Launcher, LocalLauncher, SettingsCheck
from rl_training.studies.launching.progress import make_listener
from rl_training.studies.launching.study import results_by_setting
from rl_training.studies.plan import PLAN_FILE, StudyFolder, open_study, store_plan
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
        return {} if stored is None else dict(zip(stored.plan.names, stored.plan.threads, strict=True))

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
        wrong = {name: str(answer["error"]).splitlines()[0] for name, answer in answers.items() if "error" in answer}
        right = {name: setting for name, setting in new.items() if name not in wrong}
        self.add(right, {name: answers[name]["num_threads"] for name in right})
        return wrong

    def add(self, settings: Mapping[str, Setting], threads: Mapping[str, int]) -> None:
        """Add settings that were checked, with their threads, as far as the study does not have them."""
        stored, known = self.folder(), self.threads()
        new = {name: setting for name, setting in settings.items() if name not in known}
        every = {**({} if stored is None else dict(zip(known, stored.plan.vary, strict=True))), **new}
        if new:
            counts = {**threads, **known}
            plan = self.plan.study(self.name, every, tuple(counts.get(name, 1) for name in every))
            store_plan(plan, self.path, is_extended=True)

    def drive(
        self, names: Collection[str], launcher: Launcher, watch: Callable[[Driver], None] | None = None
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
    complete = [trial for trial in trials if trial.state.name == "COMPLETE" and not is_repeat(trial)]
    return sorted(complete, key=lambda trial: (-trial.value, trial.number))

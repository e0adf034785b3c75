"""A tuning from begin to end: search, race, final, and `best.yaml`; the same call continues it after any death."""

from __future__ import annotations

import contextlib
import itertools
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.experiment.config import merge_layers
from rl_training.experiment.yaml_text import dump_yaml, is_unedited, sign
from rl_training.files import replace_synced, translate_write_errors
from rl_training.studies.launching.driver import Driver
from rl_training.studies.launching.launchers import Launcher
from rl_training.studies.plan import driven_alone
from rl_training.studies.tuning.journal import JOURNAL, Journal, import_optuna
from rl_training.studies.tuning.search import Search
from rl_training.studies.tuning.search_space import setting_of
from rl_training.studies.tuning.stages import (
    DEFAULT,
    Scores,
    Stage,
    StageError,
    TuneResult,
    best_of,
    complete_trials,
    failure_of,
    scores_of,
    tasks_by_setting,
    trial_name,
    verdict_of,
)
from rl_training.studies.tuning.tune_plan import TunePlan, store_tuning
from rl_training.studies.variation import Setting, describe, nested
from rl_training.terminal.streams import tell

BEST_FILE = "best.yaml"


@dataclass
class Tuning:
    """A tuning in a folder: `tune.yaml`, `journal.log`, the studies `search`, `race` and `final`, and `best.yaml`."""

    plan: TunePlan
    path: Path
    interrupted_by: signal.Signals | None = None
    """The signal that stopped it; all its runs are saved."""

    def run(
        self, launcher: Launcher, on_begin: Callable[[], None] = lambda: None
    ) -> TuneResult | None:
        """Run what is left; None if a signal stopped it. `on_begin` is called when the tuning has its folder."""
        import_optuna()  # before anything is written
        with contextlib.closing(launcher):
            store_tuning(self.plan, self.path)
            with driven_alone(self.path, "tuning") as lease:
                on_begin()
                journal = Journal(self.path / JOURNAL, self.plan.name, lease.check)
                search = Search(self.plan, self._stage("search"), journal, launcher)
                if not search.run():
                    self.interrupted_by = search.interrupted_by
                    return None
                race = self._race(journal, launcher)
                final = None if race is None else self._final(journal, launcher, race)
                if race is None or final is None:
                    return None
                return self._result(journal, race, final)

    def _stage(self, name: str) -> Stage:
        return Stage(name, self.plan, self.path / name)

    def settings(self, journal: Journal) -> dict[str, Setting]:
        """The settings of all trials by name."""
        return {
            trial_name(trial.number): setting_of(self.plan.space, trial.params)
            for trial in journal.trials()
        }

    def _race(self, journal: Journal, launcher: Launcher) -> Scores | None:
        """Scores of the best settings of the search and of the default, on fresh seeds."""
        best = [
            trial_name(trial.number) for trial in complete_trials(journal.trials()) if trial.number
        ]
        names = [DEFAULT, *best[: self.plan.settings.finalists]]
        if "race" not in journal.notes():
            count = len(names) - 1
            with_default = (
                f"{_many(count, 'finalist')} and the default" if count else "the default alone"
            )
            tell(f"race: {with_default} on {_many(len(self.plan.seeds('race')), 'fresh seed')}")
        return self._train("race", names, journal, launcher, needs_all=False)

    def _final(self, journal: Journal, launcher: Launcher, race: Scores) -> Scores | None:
        """Scores of the winner and of the default, on seeds that nobody used."""
        winner = _winner(race)
        names = list(dict.fromkeys([winner, DEFAULT]))
        if "final" not in journal.notes():
            who = (
                "the default won the race and runs alone"
                if winner == DEFAULT
                else f"{winner} against the default"
            )
            tell(
                f"final: {who}, on {_many(len(self.plan.seeds('final')), 'seed')} that nobody used"
            )
        return self._train("final", names, journal, launcher, needs_all=True)

    def _train(
        self, stage: str, names: list[str], journal: Journal, launcher: Launcher, *, needs_all: bool
    ) -> Scores | None:
        """The scores of a stage; None if a signal stopped it. Once it is over it is noted in the journal."""
        known = journal.notes().get(stage)
        if known is not None:
            return {name: dict(scores) for name, scores in known.items()}
        settings = self.settings(journal)
        place = self._stage(stage)
        place.add({name: settings[name] for name in names}, self._stage("search").threads())
        driver = place.drive(names, launcher)
        assert driver is not None
        if driver.interrupted_by is not None:
            self.interrupted_by = driver.interrupted_by
            return None
        scores = scores_of(driver)
        failed = _failures(driver)
        if failed and (needs_all or best_of(scores) is None):
            raise StageError(stage, failed)
        journal.note(stage, scores)
        return scores

    def _result(self, journal: Journal, race: Scores, final: Scores) -> TuneResult:
        winner = _winner(race)
        settings = self.settings(journal)
        verdict = verdict_of(winner, final)
        chosen = winner if verdict.is_better else DEFAULT
        text = [
            f"# {chosen} of tuning {self.plan.name}: {describe(settings[chosen])}",
            f"# {verdict.sentence}",
        ]
        values, _ = merge_layers([("base", self.plan.base), (chosen, nested(settings[chosen]))])
        first = self.path / BEST_FILE
        best = self._write_best(first, sign("\n".join(text) + "\n" + dump_yaml(values)))
        edited = None if best == first else first
        return TuneResult(
            self.path, journal.trials(), settings, race, final, winner, verdict, best, edited
        )

    def _write_best(self, path: Path, text: str) -> Path:
        """Write the configuration to train with beside files that were edited, which are kept; returns its path."""
        place, numbers = path, itertools.count(2)
        with translate_write_errors(path):
            while place.is_file() and not is_unedited(
                place.read_text(encoding="utf-8", errors="replace")
            ):
                place = path.with_stem(f"{path.stem}-{next(numbers)}")
            replace_synced(place, text.encode())
        return place


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _winner(race: Scores) -> str:
    winner = best_of(race)
    assert winner is not None
    return winner


def _failures(driver: Driver) -> dict[str, str]:
    reasons = {name: failure_of(tasks) for name, tasks in tasks_by_setting(driver).items()}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def trial_values(trial: Any) -> dict[str, Any]:
    """A trial for `--json`."""
    notes = trial.user_attrs
    return {
        "number": trial.number,
        "name": trial_name(trial.number),
        "state": trial.state.name.lower(),
        "value": trial.value,
        "params": dict(trial.params),
        "reason": notes.get("reason"),
        "same_as": notes.get("same_as"),
    }

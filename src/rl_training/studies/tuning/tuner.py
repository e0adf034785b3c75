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
from rl_training.studies.launching.launchers import Launcher
from rl_training.studies.plan import driven_alone
from rl_training.studies.tuning.journal import JOURNAL, import_optuna, open_journal
from rl_training.studies.tuning.search import Search
from rl_training.studies.tuning.search_space import setting_of
from rl_training.studies.tuning.stages import (
    DEFAULT,
    InterruptedStageError,
    Scores,
    Stage,
    StageError,
    TuneResult,
    best_of,
    complete_trials,
    count_of,
    failure_of,
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
                journal = open_journal(self.path / JOURNAL, self.plan.study.name, lease.check)
                try:
                    return self._finish(journal, launcher)
                except InterruptedStageError as stop:
                    self.interrupted_by = stop.signal
                    return None

    def _finish(self, journal: Any, launcher: Launcher) -> TuneResult:
        """Search, race and final."""
        search = Stage("search", self.plan, self.path / "search", launcher)
        Search(self.plan, search, journal).run()
        trials = journal.trials
        settings = {
            trial_name(trial.number): setting_of(self.plan.space, trial.params) for trial in trials
        }
        race = self._train("race", _finalists(self.plan, trials), settings, journal, search)
        winner = best_of(race)
        assert winner is not None
        both = list(dict.fromkeys([winner, DEFAULT]))
        final = self._train("final", both, settings, journal, search)
        verdict = verdict_of(winner, final)
        chosen = winner if verdict.is_better else DEFAULT
        best = self._write_best(chosen, settings[chosen], verdict.sentence)
        first = self.path / BEST_FILE
        edited = None if best == first else first
        return TuneResult(self.path, trials, settings, race, final, winner, verdict, best, edited)

    def _train(
        self,
        name: str,
        chosen: list[str],
        settings: dict[str, Setting],
        journal: Any,
        search: Stage,
    ) -> Scores:
        """The scores of the race or of the final; once it is over they are noted in the journal."""
        known = journal.user_attrs.get(name)
        if known is not None:
            return {setting: dict(scores) for setting, scores in known.items()}
        tell(_announcement(self.plan, name, chosen))
        stage = Stage(name, self.plan, self.path / name, search.launcher)
        threads = {setting: count for setting, (_, count) in search.known().items()}
        stage.add({setting: (settings[setting], threads.get(setting, 1)) for setting in chosen})
        runs = stage.drive(chosen)
        scores: Scores = {
            setting: {str(seed): score for seed, score in result.scores.items()}
            for setting, result in runs.items()
        }
        reasons = {setting: failure_of(result.tasks) for setting, result in runs.items()}
        failed = {setting: reason for setting, reason in reasons.items() if reason is not None}
        if failed and (name == "final" or best_of(scores) is None):
            raise StageError(name, failed)
        journal.set_user_attr(name, scores)
        return scores

    def _write_best(self, name: str, setting: Setting, sentence: str) -> Path:
        """Write the configuration to train with beside files that were edited, which are kept; returns its path."""
        study = self.plan.study
        values, _ = merge_layers([("base", study.base), (name, nested(setting))])
        head = f"# {name} of tuning {study.name}: {describe(setting)}\n# {sentence}\n"
        path = place = self.path / BEST_FILE
        numbers = itertools.count(2)
        with translate_write_errors(path):
            while place.is_file() and not is_unedited(
                place.read_text(encoding="utf-8", errors="replace")
            ):
                place = path.with_stem(f"{path.stem}-{next(numbers)}")
            replace_synced(place, sign(head + dump_yaml(values)).encode())
        return place


def _finalists(plan: TunePlan, trials: list[Any]) -> list[str]:
    """The default and the best settings of the search."""
    best = [trial_name(trial.number) for trial in complete_trials(trials) if trial.number]
    return [DEFAULT, *best[: plan.settings.finalists]]


def _announcement(plan: TunePlan, stage: str, names: list[str]) -> str:
    """What the race or the final will train, in one line."""
    others, num_seeds = [name for name in names if name != DEFAULT], len(plan.seeds(stage))
    if stage == "race":
        finalists = f"{count_of(len(others), 'finalist')} and the default"
        who = finalists if others else "the default alone"
        return f"race: {who} on {count_of(num_seeds, 'fresh seed')}"
    alone = "the default won the race and runs alone"
    who = f"{others[0]} against the default" if others else alone
    return f"final: {who}, on {count_of(num_seeds, 'seed')} that nobody used"


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

"""A tuning in Optuna: the journal with every trial, and the pruners that end trials early. optuna-dashboard opens it.

A pruner is asked about evaluations in the order of their steps. Its decision depends on those of the trial itself and
on the trials of earlier batches, which are over: it is the same whichever run is faster, and again after a kill.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError, RLTrainingError, install_extra
from rl_training.files import translate_write_errors
from rl_training.terminal.streams import tell

JOURNAL = "journal.log"
DAMAGED = "journal.damaged.log"
RUNG = "completed_rung_"
"""Beginning of the attributes in which Optuna's Hyperband notes how far a trial came."""


def import_optuna() -> Any:
    """Optuna without its log lines; a `ConfigError` names our extra if it is not installed."""
    try:
        import optuna
        import optuna.storages.journal
    except ImportError:
        raise ConfigError(f"tuning needs Optuna: {install_extra('tune')}") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


@contextlib.contextmanager
def quiet_optuna() -> Iterator[Any]:
    """Optuna without its warnings, such as those that an argument is experimental."""
    optuna = import_optuna()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield optuna


class Journal:
    """The journal file, opened by the only process that writes it.

    Each change is one line, so a process that dies leaves a journal of whole changes and at most one torn line.
    """

    def __init__(
        self, path: Path, study_name: str, check: Callable[[], None] = lambda: None
    ) -> None:
        """Open or create the journal; `check` is called before each change and raises if this process may not write."""
        self._optuna, self._check = import_optuna(), check
        self.states = self._optuna.trial.TrialState
        with translate_write_errors(path):
            repair(path)
            # Left by a process that died: the folder of a tuning has one writer.
            Path(f"{path}.lock").unlink(missing_ok=True)
            try:
                self._storage = self._optuna.storages.JournalStorage(
                    self._optuna.storages.journal.JournalFileBackend(str(path))
                )
                known = {
                    study.study_name: study._study_id for study in self._storage.get_all_studies()
                }
                if study_name not in known:
                    direction = self._optuna.study.StudyDirection.MAXIMIZE
                    known[study_name] = self._storage.create_new_study([direction], study_name)
            except (KeyError, ValueError, AssertionError, TypeError) as error:
                raise RLTrainingError(
                    f"'{path}' is not a journal of Optuna ({error}): move it away; the trials are found again from"
                    " their runs"
                ) from None
        self._study_id = known[study_name]

    def trials(self) -> list[Any]:
        """All trials in order, as Optuna's frozen trials."""
        return list(self._storage.get_all_trials(self._study_id))

    def notes(self) -> dict[str, Any]:
        """What was noted for the whole tuning."""
        return dict(self._storage.get_study_user_attrs(self._study_id))

    def note(self, key: str, value: Any) -> None:
        """Note something for the whole tuning."""
        self._check()
        self._storage.set_study_user_attr(self._study_id, key, value)

    def add(
        self, params: Mapping[str, Any], distributions: Mapping[str, Any], notes: Mapping[str, Any]
    ) -> None:
        """Add a trial that is to be run; one line, so it is there with all its parameters or not at all."""
        self._check()
        trial = self._optuna.trial.create_trial(
            state=self.states.RUNNING,
            params=dict(params),
            distributions=dict(distributions),
            user_attrs=dict(notes),
        )
        self._storage.create_new_trial(self._study_id, template_trial=trial)

    def report(self, number: int, values: Mapping[int, float]) -> None:
        """Add evaluations, by step, that a trial does not have yet."""
        trial_id, known = self._find(number)
        for step, value in values.items():
            if step not in known.intermediate_values:
                self._check()
                self._storage.set_trial_intermediate_value(trial_id, step, value)

    def tell(
        self,
        number: int,
        state: Any,
        value: float | None,
        *,
        notes: Mapping[str, Any] | None = None,
        rungs: Mapping[str, float] | None = None,
    ) -> None:
        """Record the end of a trial; `rungs` are what a pruner noted of it."""
        trial_id, known = self._find(number)
        self._check()
        for key, item in (notes or {}).items():
            self._storage.set_trial_user_attr(trial_id, key, item)
        for key, item in (rungs or {}).items():
            if key not in known.system_attrs:
                self._storage.set_trial_system_attr(trial_id, key, item)
        self._storage.set_trial_state_values(trial_id, state, None if value is None else [value])

    def _find(self, number: int) -> tuple[int, Any]:
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number)
        return trial_id, self._storage.get_trial(trial_id)


def repair(path: Path) -> None:
    """Cut a journal before its first line that cannot be read: what followed is found again from the runs.

    A torn last line is what a process leaves that dies while it writes. With more damage, a copy is kept.
    """
    if not path.is_file():
        return
    content = path.read_bytes()
    good, lines = 0, content.splitlines(keepends=True)
    for line in lines:
        if not line.endswith(b"\n") or not _is_object(line):
            break
        good += len(line)
    if good == len(content):
        return
    if content.count(b"\n", good) > 0:
        path.with_name(DAMAGED).write_bytes(content)
        tell(
            f"{path}: damaged after {good:,} bytes, and cut there; the whole file is kept as {DAMAGED}"
        )
    with path.open("rb+") as file:
        file.truncate(good)
        os.fsync(file.fileno())


def copy_in_memory(
    name: str,
    decided: Sequence[Any],
    running: Sequence[Mapping[str, Any]],
    distributions: Any,
    sampler: Any = None,
) -> Any:
    """A study of Optuna in memory with decided trials, and trials of which only the parameters are known."""
    with quiet_optuna() as optuna:
        study = optuna.create_study(
            study_name=name,
            direction="maximize",
            sampler=sampler,
            pruner=optuna.pruners.NopPruner(),
        )
        for trial in decided:
            study.add_trial(trial)
        for params in running:
            study.add_trial(
                optuna.trial.create_trial(
                    state=optuna.trial.TrialState.RUNNING,
                    params=dict(params),
                    distributions=dict(distributions),
                )
            )
    return study


def _is_object(line: bytes) -> bool:
    with contextlib.suppress(ValueError, RecursionError):
        return isinstance(json.loads(line), dict)
    return False


@dataclass(frozen=True)
class Decision:
    """What a pruner says of a trial so far."""

    step: int | None = None
    """The evaluation at which it is pruned; None: not pruned."""
    rungs: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Pruning:
    """A pruner and the budget of a trial."""

    kind: str
    """`median`, `hyperband` or `none`."""
    total_steps: int
    num_startup: int
    """Complete trials before the median pruner prunes."""

    @property
    def first_step(self) -> int:
        """No trial is pruned before this step: a third of its budget."""
        return -(-self.total_steps // 3)

    def decide(
        self,
        name: str,
        decided: Sequence[Any],
        batch: Sequence[Any],
        number: int,
        values: Mapping[int, float],
    ) -> Decision:
        """Ask the pruner about each evaluation of trial `number` in turn; the first yes counts.

        `decided` are the trials of earlier batches and `batch` those of its own, of which only the parameters are used.
        """
        if self.kind == "none" or not values or max(values) < self.first_step:
            return Decision()
        distributions = batch[0].distributions
        study = copy_in_memory(name, decided, [trial.params for trial in batch], distributions)
        pruner, storage = self._pruner(), study._storage
        trial_id = study.trials[number]._trial_id
        for step in sorted(values):
            storage.set_trial_intermediate_value(trial_id, step, values[step])
            trial = storage.get_trial(trial_id)
            if step >= self.first_step and pruner.prune(study, trial):
                return Decision(step, _rungs(storage.get_trial(trial_id)))
        return Decision(None, _rungs(storage.get_trial(trial_id)))

    def _pruner(self) -> Any:
        with quiet_optuna() as optuna:
            if self.kind == "median":
                return optuna.pruners.MedianPruner(
                    n_startup_trials=self.num_startup,
                    n_warmup_steps=self.first_step,
                    interval_steps=1,
                )
            # Halving at one third and at two thirds of the budget: two brackets.
            return optuna.pruners.HyperbandPruner(
                min_resource=self.first_step, max_resource=self.total_steps, reduction_factor=2
            )


def read_evaluations(run_dir: Path, every_steps: int) -> dict[int, float]:
    """Mean return of each evaluation of a run, by the step at which it was due; without values that are not finite.

    Runs with other rollout lengths evaluate a little later; by the step that was due they can be compared.
    """
    found: dict[int, float] = {}
    with contextlib.suppress(OSError):
        text = (run_dir / "evaluations.jsonl").read_text(encoding="utf-8", errors="replace")
        for line in text.split("\n")[:-1]:  # what follows the last line break is incomplete
            with contextlib.suppress(ValueError, TypeError, KeyError, OverflowError):
                values = json.loads(line)
                mean = statistics.fmean(values["returns"])
                if math.isfinite(mean):
                    found.setdefault(values["global_step"] // every_steps * every_steps, mean)
    return found


def mean_evaluations(runs: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The mean over the runs of a trial at each step at which all have been evaluated."""
    steps = sorted(set.intersection(*(set(run) for run in runs))) if runs else []
    return {step: statistics.fmean(run[step] for run in runs) for step in steps}


def _rungs(trial: Any) -> dict[str, float]:
    return {key: value for key, value in trial.system_attrs.items() if key.startswith(RUNG)}

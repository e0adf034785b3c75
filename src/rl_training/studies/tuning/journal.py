"""A tuning in Optuna: the journal with every trial, and the pruners that end trials early. optuna-dashboard opens it.

A pruner is asked about evaluations in the order of their steps. Its decision depends on the evaluations of the trial
itself and on the trials of earlier batches, which are over: it is the same whichever run is faster, and again after a
kill.
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
from rl_training.experiment.logs import read_lines
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


def open_journal(path: Path, study_name: str, check: Callable[[], None] = lambda: None) -> Any:
    """The study of Optuna in a journal file, opened or created by the only process that writes it.

    Each change is one line, so a process that dies leaves a journal of whole changes and at most one torn line. `check`
    is called before each change and raises if this process may not write.
    """
    optuna = import_optuna()
    backend: Any = optuna.storages.journal.JournalFileBackend

    class CheckedFile(backend):  # type: ignore[misc]
        def append_logs(self, logs: list[dict[str, Any]]) -> None:
            check()
            super().append_logs(logs)

    with translate_write_errors(path):
        repair(path)
        # Left by a process that died: the folder of a tuning has one writer.
        Path(f"{path}.lock").unlink(missing_ok=True)
        try:
            storage = optuna.storages.JournalStorage(CheckedFile(str(path)))
            if study_name in [study.study_name for study in storage.get_all_studies()]:
                return optuna.load_study(study_name=study_name, storage=storage)
            return optuna.create_study(study_name=study_name, storage=storage, direction="maximize")
        except (KeyError, ValueError, AssertionError, TypeError) as error:
            raise RLTrainingError(
                f"'{path}' is not a journal of Optuna ({error}): move it away; the trials are found again from"
                " their runs"
            ) from None


def repair(path: Path) -> None:
    """Cut a journal before its first line that cannot be read: what followed is found again from the runs.

    A torn last line is what a process leaves that dies while it writes. With more damage, a copy is kept.
    """
    if not path.is_file():
        return
    content = path.read_bytes()
    good = 0
    for line in content.splitlines(keepends=True):
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


def _is_object(line: bytes) -> bool:
    with contextlib.suppress(ValueError, RecursionError):
        return isinstance(json.loads(line), dict)
    return False


def add_trial(
    study: Any,
    params: Mapping[str, Any],
    distributions: Mapping[str, Any],
    notes: Mapping[str, Any] | None = None,
) -> None:
    """Add a trial that is to be run; one line of a journal, so it is there with all its parameters or not at all."""
    trial = import_optuna().trial
    study.add_trial(
        trial.create_trial(
            state=trial.TrialState.RUNNING,
            params=dict(params),
            distributions=dict(distributions),
            user_attrs=dict(notes or {}),
        )
    )


def copy_in_memory(
    name: str,
    decided: Sequence[Any],
    running: Sequence[Mapping[str, Any]],
    distributions: Mapping[str, Any],
    sampler: Any = None,
) -> Any:
    """A study of Optuna in memory with decided trials, and trials of which only the parameters are known."""
    with quiet_optuna() as optuna:
        pruner = optuna.pruners.NopPruner()
        study = optuna.create_study(
            study_name=name, direction="maximize", sampler=sampler, pruner=pruner
        )
        for trial in decided:
            study.add_trial(trial)
        for params in running:
            add_trial(study, params, distributions)
    return study


@dataclass(frozen=True)
class Decision:
    """A pruner's answer about a trial so far."""

    step: int | None = None
    """The evaluation at which it is pruned; None: not pruned."""
    rungs: dict[str, float] = field(default_factory=dict)
    """What Hyperband noted of the trial."""


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
        self, name: str, trials: Sequence[Any], first: int, number: int, values: Mapping[int, float]
    ) -> Decision:
        """Ask the pruner about each evaluation of trial `number` in turn; the first yes counts.

        From the trial `first` on they are of its own batch: only their parameters are used.
        """
        if self.kind == "none" or not values or max(values) < self.first_step:
            return Decision()
        params = [trial.params for trial in trials[first:]]
        study = copy_in_memory(name, trials[:first], params, trials[number].distributions)
        pruner, storage = self._pruner(), study._storage
        trial_id = study.trials[number]._trial_id
        pruned_at = None
        for step in sorted(values):
            storage.set_trial_intermediate_value(trial_id, step, values[step])
            if step >= self.first_step and pruner.prune(study, storage.get_trial(trial_id)):
                pruned_at = step
                break
        noted = storage.get_trial(trial_id).system_attrs
        rungs = {key: value for key, value in noted.items() if key.startswith(RUNG)}
        return Decision(pruned_at, rungs)

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
    for values in read_lines(run_dir / "evaluations.jsonl"):
        with contextlib.suppress(ValueError, TypeError, KeyError, OverflowError):
            mean = statistics.fmean(values["returns"])
            if math.isfinite(mean):
                found.setdefault(values["global_step"] // every_steps * every_steps, mean)
    return found


def mean_evaluations(runs: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The mean over the runs of a trial at each step at which all have been evaluated."""
    steps = sorted(set.intersection(*(set(run) for run in runs))) if runs else []
    return {step: statistics.fmean(run[step] for run in runs) for step in steps}

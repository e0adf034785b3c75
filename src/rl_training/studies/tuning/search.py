"""The search of a tuning: batches of trials, sampled by Optuna from the results of earlier batches.

Nothing depends on which run is faster: a batch is sampled when the one before is over, by a sampler seeded for that
batch, and results are told in the order of the trials. So a search that was killed and continued has the same trials.
"""

from __future__ import annotations

import signal
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rl_training.studies.launching.driver import Driver, Outcome, Task
from rl_training.studies.launching.launchers import Launcher
from rl_training.studies.tuning.journal import (
    Decision,
    Journal,
    copy_in_memory,
    mean_evaluations,
    quiet_optuna,
    read_evaluations,
)
from rl_training.studies.tuning.search_space import setting_of
from rl_training.studies.tuning.stages import (
    Stage,
    complete_trials,
    failure_of,
    is_repeat,
    tasks_by_setting,
    trial_name,
)
from rl_training.studies.tuning.tune_plan import TunePlan
from rl_training.studies.variation import identity
from rl_training.terminal.streams import tell

MOST_RANDOM_TRIALS = 10


@dataclass(frozen=True)
class TrialEnd:
    """How a trial ended."""

    state: Any
    value: float | None
    notes: dict[str, Any] = field(default_factory=dict)
    rungs: dict[str, float] = field(default_factory=dict)


class Search:
    """Runs the trials of a tuning."""

    def __init__(self, plan: TunePlan, stage: Stage, journal: Journal, launcher: Launcher) -> None:
        self.plan, self._stage, self._journal, self._launcher = plan, stage, journal, launcher
        self.interrupted_by: signal.Signals | None = None
        self._distributions = {key.name: key.distribution() for key in plan.space}
        self._seen: dict[str, int] = {}
        """How many evaluations of each trial were looked at."""

    def run(self) -> bool:
        """Run what is left; returns whether all trials are over."""
        settings = self.plan.settings
        for first in range(0, settings.trials, settings.batch):
            numbers = range(first, min(first + settings.batch, settings.trials))
            self._ask(numbers)
            if all(trial.state.is_finished() for trial in self._batch(numbers)):
                continue
            if not self._try(numbers):
                return False
            tell(self._summary(numbers))
        return True

    def _batch(self, numbers: range) -> list[Any]:
        return self._journal.trials()[numbers.start : numbers.stop]

    def _ask(self, numbers: range) -> None:
        """Add the trials of a batch to the journal, as far as they are not in it."""
        known = self._journal.trials()
        if len(known) >= numbers.stop:
            return
        proposals = self._propose(known[: numbers.start], numbers)
        for number in range(max(numbers.start, len(known)), numbers.stop):
            notes = {"name": trial_name(number)}
            self._journal.add(proposals[number], self._distributions, notes)

    def _propose(self, decided: Sequence[Any], numbers: range) -> dict[int, dict[str, Any]]:
        """The parameters of a whole batch; the same at every call."""
        import numpy

        settings = self.plan.settings
        seed = int(numpy.random.SeedSequence([settings.seed, numbers.start]).generate_state(1)[0])
        num_random = min(MOST_RANDOM_TRIALS, max(settings.batch, settings.trials // 3))
        keys = {key.name: key for key in self.plan.space}
        found: dict[int, dict[str, Any]] = {}
        with quiet_optuna() as optuna:
            sampler = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=num_random, constant_liar=True
            )
            defaults = [self.plan.defaults] if numbers.start == 0 else []
            study = copy_in_memory(self.plan.name, decided, defaults, self._distributions, sampler)
            found |= dict(enumerate(defaults))
            for number in numbers[len(defaults) :]:
                params = study.ask(self._distributions).params
                found[number] = {name: keys[name].rounded(value) for name, value in params.items()}
        return found

    def _try(self, numbers: range) -> bool:
        """Train a batch and tell its results in the order of the trials; False if a signal stopped it."""
        trials = self._journal.trials()
        originals = _originals(trials)
        settings = {
            trial_name(number): setting_of(self.plan.space, trials[number].params)
            for number in numbers
            if originals[number] == number and not trials[number].state.is_finished()
        }
        wrong = self._stage.admit(settings, self._launcher)
        self._seen.clear()
        driver = self._stage.drive(
            settings, self._launcher, lambda driver: self._watch(driver, numbers)
        )
        if driver is not None and driver.interrupted_by is not None:
            self.interrupted_by = driver.interrupted_by
            return False
        tasks = tasks_by_setting(driver)
        for number in numbers:
            if trials[number].state.is_finished():
                continue
            if originals[number] != number:
                end = self._same_as(originals[number])
            elif (name := trial_name(number)) in wrong:
                end = TrialEnd(self._journal.states.FAIL, None, {"reason": wrong[name]})
            else:
                end = self._end(number, numbers, tasks[name])
            self._journal.tell(number, end.state, end.value, notes=end.notes, rungs=end.rungs)
        return True

    def _watch(self, driver: Driver, numbers: range) -> None:
        """Report new evaluations to the journal, and prune what the pruner gives up."""
        tasks = tasks_by_setting(driver)
        for number in numbers:
            name = trial_name(number)
            if name not in tasks or all(task.outcome is Outcome.PRUNED for task in tasks[name]):
                continue
            values = self._evaluations(tasks[name])
            if len(values) == self._seen.get(name, 0):
                continue
            self._seen[name] = len(values)
            decision = self._report(number, numbers, values)
            if decision.step is not None:
                for task in tasks[name]:
                    driver.prune(task, f"behind the others at step {decision.step:,}")

    def _report(self, number: int, numbers: range, values: Mapping[int, float]) -> Decision:
        """Ask the pruner, and add the evaluations up to its decision to the journal."""
        trials = self._journal.trials()
        batch = trials[numbers.start : numbers.stop]
        decision = self.plan.pruning.decide(
            self.plan.name, trials[: numbers.start], batch, number, values
        )
        last = max(values, default=0) if decision.step is None else decision.step
        self._journal.report(
            number, {step: value for step, value in values.items() if step <= last}
        )
        return decision

    def _end(self, number: int, numbers: range, tasks: Sequence[Task]) -> TrialEnd:
        """The end of a trial, from its run folders: pruned by an evaluation, failed, or complete."""
        states = self._journal.states
        values = self._evaluations(tasks)
        decision = self._report(number, numbers, values)
        if decision.step is not None:
            notes = {"reason": f"pruned at step {decision.step:,}"}
            return TrialEnd(states.PRUNED, values[decision.step], notes, decision.rungs)
        reason = failure_of(tasks)
        scores = [
            task.info.last_eval
            for task in tasks
            if task.info is not None and task.info.last_eval is not None
        ]
        if reason is None and len(scores) == len(tasks):
            return TrialEnd(states.COMPLETE, statistics.fmean(scores), rungs=decision.rungs)
        reason = reason or "its last policy has no finite evaluation"
        return TrialEnd(states.FAIL, None, {"reason": reason}, decision.rungs)

    def _same_as(self, number: int) -> TrialEnd:
        """The end of a trial whose settings were tried before: it is not trained again."""
        trial = self._journal.trials()[number]
        notes = {"same_as": trial_name(number)}
        if "reason" in trial.user_attrs:
            notes["reason"] = trial.user_attrs["reason"]
        return TrialEnd(trial.state, trial.value, notes)

    def _evaluations(self, tasks: Sequence[Task]) -> dict[int, float]:
        every = self.plan.eval_every_steps
        return mean_evaluations([read_evaluations(task.run.run_dir, every) for task in tasks])

    def _summary(self, numbers: range) -> str:
        """The state of the search in one line."""
        trials = self._journal.trials()[: numbers.stop]
        own = [trial for trial in trials if not is_repeat(trial)]
        counts = [
            (sum(trial.state == state for trial in own), word) for state, word in self._words()
        ]
        counts.append((len(trials) - len(own), "repeated"))
        best = next(iter(complete_trials(trials)), None)
        text = (
            "none is complete"
            if best is None
            else f"best {trial_name(best.number)} {best.value:.1f}"
        )
        default = trials[0].value
        text += (
            f", default {default:.1f}"
            if default is not None and best is not None and best.number
            else ""
        )
        counted = "".join(f", {count} {word}" for count, word in counts if count)
        return f"trials {numbers.stop} of {self.plan.settings.trials}: {text}{counted}"

    def _words(self) -> list[tuple[Any, str]]:
        return [(self._journal.states.PRUNED, "pruned"), (self._journal.states.FAIL, "failed")]


def _originals(trials: Sequence[Any]) -> list[int]:
    """For each trial the first with the same parameters."""
    first: dict[str, int] = {}
    return [first.setdefault(identity(trial.params), trial.number) for trial in trials]

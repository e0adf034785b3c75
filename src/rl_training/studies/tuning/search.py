"""The search of a tuning: batches of trials, sampled by Optuna from the results of earlier batches.

Nothing depends on which run is faster: a batch is sampled when the one before is over, by a sampler seeded for that
batch, and results are told in the order of the trials. So a search that was killed and continued has the same trials.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rl_training.studies.launching.driver import Driver, Outcome, Task
from rl_training.studies.tuning.journal import (
    Decision,
    add_trial,
    copy_in_memory,
    import_optuna,
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
    runs_by_setting,
    trial_name,
)
from rl_training.studies.tuning.tune_plan import TunePlan
from rl_training.studies.variation import identity
from rl_training.terminal.streams import tell

MOST_RANDOM_TRIALS = 10
NO_DECISION = Decision()


class Search:
    """Runs the trials of a tuning; `journal` is its study of Optuna."""

    def __init__(self, plan: TunePlan, stage: Stage, journal: Any) -> None:
        self.plan, self._stage, self._journal = plan, stage, journal
        self._distributions = {key.name: key.distribution() for key in plan.space}
        self._seen: dict[str, int] = {}
        """How many evaluations of each trial were looked at."""

    def run(self) -> None:
        """Run what is left; raises an `InterruptedStageError` if a signal stopped it."""
        settings = self.plan.settings
        for first in range(0, settings.trials, settings.batch):
            numbers = range(first, min(first + settings.batch, settings.trials))
            self._ask(numbers)
            batch = self._journal.trials[numbers.start : numbers.stop]
            if not all(trial.state.is_finished() for trial in batch):
                self._try(numbers)
                tell(self._summary(numbers))

    def _ask(self, numbers: range) -> None:
        """Add the trials of a batch to the journal, as far as they are not in it."""
        known = self._journal.trials
        if len(known) >= numbers.stop:
            return
        proposals = self._propose(known[: numbers.start], numbers)
        for number in range(max(numbers.start, len(known)), numbers.stop):
            params = proposals[number - numbers.start]
            add_trial(self._journal, params, self._distributions, {"name": trial_name(number)})

    def _propose(self, decided: Sequence[Any], numbers: range) -> list[dict[str, Any]]:
        """The parameters of a whole batch; the same at every call."""
        import numpy

        settings, distributions = self.plan.settings, self._distributions
        seed = int(numpy.random.SeedSequence([settings.seed, numbers.start]).generate_state(1)[0])
        num_random = min(MOST_RANDOM_TRIALS, max(settings.batch, settings.trials // 3))
        keys = {key.name: key for key in self.plan.space}
        found = [self.plan.defaults] if numbers.start == 0 else []
        with quiet_optuna() as optuna:
            sampler = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=num_random, constant_liar=True
            )
            study = copy_in_memory(self.plan.study.name, decided, found, distributions, sampler)
            while len(found) < len(numbers):
                params = study.ask(distributions).params
                found.append({name: keys[name].rounded(value) for name, value in params.items()})
        return found

    def _try(self, numbers: range) -> None:
        """Train a batch and tell its results in the order of the trials."""
        trials = self._journal.trials
        originals = _originals(trials)
        settings = {
            trial_name(number): setting_of(self.plan.space, trials[number].params)
            for number in numbers
            if originals[number] == number and not trials[number].state.is_finished()
        }
        wrong = self._stage.admit(settings)
        self._seen.clear()
        names = settings.keys() - wrong.keys()
        runs = self._stage.drive(names, lambda driver: self._watch(driver, numbers))
        for number in numbers:
            name = trial_name(number)
            if trials[number].state.is_finished():
                continue
            if originals[number] != number:
                self._repeat(number, originals[number])
            elif name in wrong:
                self._tell(number, "FAIL", reason=wrong[name])
            else:
                self._end(number, numbers, runs[name].tasks)

    def _watch(self, driver: Driver, numbers: range) -> None:
        """Report new evaluations to the journal, and prune what the pruner gives up."""
        runs = runs_by_setting(driver)
        for number in numbers:
            name = trial_name(number)
            tasks = runs[name].tasks if name in runs else ()
            if all(task.outcome is Outcome.PRUNED for task in tasks):
                continue
            values = self._evaluations(tasks)
            if len(values) == self._seen.get(name, 0):
                continue
            self._seen[name] = len(values)
            decision = self._report(number, numbers, values)
            if decision.step is not None:
                for task in tasks:
                    driver.prune(task, f"behind the others at step {decision.step:,}")

    def _report(self, number: int, numbers: range, values: Mapping[int, float]) -> Decision:
        """Ask the pruner, and add the evaluations up to its decision to the journal."""
        trials = self._journal.trials
        trial, name = trials[number], self.plan.study.name
        decision = self.plan.pruning.decide(
            name, trials[: numbers.stop], numbers.start, number, values
        )
        for step, value in values.items():
            is_before = decision.step is None or step <= decision.step
            if is_before and step not in trial.intermediate_values:
                self._journal._storage.set_trial_intermediate_value(trial._trial_id, step, value)
        return decision

    def _end(self, number: int, numbers: range, tasks: Sequence[Task]) -> None:
        """Tell the end of a trial, from its run folders: pruned by an evaluation, failed, or complete."""
        values = self._evaluations(tasks)
        decision = self._report(number, numbers, values)
        reason = failure_of(tasks)
        infos = [task.info for task in tasks if task.info is not None]
        scores = [info.last_eval for info in infos if info.last_eval is not None]
        if decision.step is not None:
            reason = f"pruned at step {decision.step:,}"
            self._tell(number, "PRUNED", values[decision.step], decision, reason=reason)
        elif reason is None and len(scores) == len(tasks):
            self._tell(number, "COMPLETE", statistics.fmean(scores), decision)
        else:
            reason = reason or "its last policy has no finite evaluation"
            self._tell(number, "FAIL", None, decision, reason=reason)

    def _repeat(self, number: int, original: int) -> None:
        """Tell the end of a trial whose settings were tried before: it is not trained again."""
        trial = self._journal.trials[original]
        notes = {"same_as": trial_name(original)}
        if "reason" in trial.user_attrs:
            notes["reason"] = trial.user_attrs["reason"]
        self._tell(number, trial.state.name, trial.value, **notes)

    def _tell(
        self,
        number: int,
        state: str,
        value: float | None = None,
        decision: Decision = NO_DECISION,
        /,
        **notes: str,
    ) -> None:
        """Record the end of a trial, with what a pruner noted of it."""
        trial, storage = self._journal.trials[number], self._journal._storage
        for key, note in notes.items():
            storage.set_trial_user_attr(trial._trial_id, key, note)
        for key, rung in decision.rungs.items():
            if key not in trial.system_attrs:
                storage.set_trial_system_attr(trial._trial_id, key, rung)
        ended = import_optuna().trial.TrialState[state]
        values = None if value is None else [value]
        storage.set_trial_state_values(trial._trial_id, ended, values)

    def _evaluations(self, tasks: Sequence[Task]) -> dict[int, float]:
        every = self.plan.eval_every_steps
        return mean_evaluations([read_evaluations(task.run.run_dir, every) for task in tasks])

    def _summary(self, numbers: range) -> str:
        """The state of the search in one line."""
        trials = self._journal.trials[: numbers.stop]
        own = [trial for trial in trials if not is_repeat(trial)]
        text, default = "none is complete", trials[0].value
        for best in complete_trials(trials)[:1]:
            text = f"best {trial_name(best.number)} {best.value:.1f}"
            if default is not None and best.number:
                text += f", default {default:.1f}"
        states = [trial.state.name for trial in own]
        counts = {
            "pruned": states.count("PRUNED"),
            "failed": states.count("FAIL"),
            "repeated": len(trials) - len(own),
        }
        counted = "".join(f", {count} {word}" for word, count in counts.items() if count)
        return f"trials {numbers.stop} of {self.plan.settings.trials}: {text}{counted}"


def _originals(trials: Sequence[Any]) -> list[int]:
    """For each trial the first with the same parameters."""
    first: dict[str, int] = {}
    return [first.setdefault(identity(trial.params), trial.number) for trial in trials]

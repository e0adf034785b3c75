"""The results of a study: every run's score, and for each setting the mean with its interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl_training.studies.driver import Outcome, Task
from rl_training.studies.records import RunRecord
from rl_training.studies.statistics import MeanInterval, mean_interval


@dataclass(frozen=True)
class SettingResult:
    """The runs of one setting."""

    setting: str
    """Label; empty if the study has only one."""
    tasks: Sequence[Task]

    @property
    def scores(self) -> dict[int, float | None]:
        """Last evaluation of each seed; None if its run is not complete or was not evaluated."""
        return {task.run.config.seed: _score(task) for task in self.tasks}

    @property
    def interval(self) -> MeanInterval | None:
        """Mean and interval over the complete runs; None if there are none."""
        scores = [score for score in self.scores.values() if score is not None]
        return mean_interval(scores) if scores else None

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        interval = self.interval
        return {
            "setting": self.setting,
            "scores": {str(seed): score for seed, score in self.scores.items()},
            "mean": None if interval is None else interval.mean,
            "interval": None if interval is None else [interval.low, interval.high],
            "num_runs": 0 if interval is None else interval.count,
        }


def results_by_setting(tasks: Sequence[Task]) -> list[SettingResult]:
    """The tasks grouped by setting, in the order of the plan."""
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(task.run.setting, []).append(task)
    return [SettingResult(setting, members) for setting, members in groups.items()]


class StudyResult(Mapping[str, RunRecord]):
    """The runs of a study by the names of their folders; runs that have no folder yet are left out."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = list(tasks)
        found = [task.run for task in tasks if task.info is not None]
        self._records = {run.run_dir.name: RunRecord(run.run_dir) for run in found}

    def __getitem__(self, name: str) -> RunRecord:
        return self._records[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        return f"<{len(self.tasks)} runs: {', '.join(str(result.interval) for result in self.settings)}>"

    @property
    def settings(self) -> list[SettingResult]:
        """Scores, means and intervals by setting."""
        return results_by_setting(self.tasks)

    @property
    def failed(self) -> dict[str, str]:
        """Why runs failed or were given up, by the names of their folders."""
        return {
            task.run.run_dir.name: task.reason or task.outcome.value
            for task in self.tasks
            if task.outcome in (Outcome.FAILED, Outcome.GIVEN_UP)
        }

    @property
    def is_complete(self) -> bool:
        """Whether every run is finished."""
        return all(task.outcome is Outcome.DONE for task in self.tasks)


def _score(task: Task) -> float | None:
    return task.info.last_eval if task.outcome is Outcome.DONE and task.info is not None else None

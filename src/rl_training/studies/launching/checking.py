"""Checks all settings of a study before its first run, in a worker process: here is no torch and no environment."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rl_training.errors import ConfigError
from rl_training.studies.launching.launchers import describe_exit, give_order, start_worker, worker_values
from rl_training.studies.plan import PlannedRun


@dataclass(frozen=True)
class SettingNeeds:
    """What each run of a setting needs."""

    setting: str
    num_threads: int
    memory_bytes: int
    """Estimate, without the environments and a dataset."""


class SettingsCheck:
    """A check that runs in a process of its own while the caller prepares other things."""

    def __init__(
        self,
        runs: Sequence[PlannedRun],
        plugins: Sequence[str],
        callbacks: Sequence[str],
        *,
        tune: str | None = None,
    ) -> None:
        """Start the check of one run of each setting; `tune`: keys to tune, whose space the answers hold too."""
        self._runs = list({run.setting: run for run in runs}.values())
        self._process = start_worker(subprocess.PIPE)
        configs = [worker_values(run.config) for run in self._runs]
        code = {"plugins": list(plugins), "callbacks": list(callbacks)}
        self._order = json.dumps({"check": configs, "tune": tune, **code})

    def answers(self) -> list[dict[str, Any]]:
        """What the worker says of each setting: its needs, or its `error`."""
        try:
            give_order(self._process, self._order)
            assert self._process.stdout is not None
            answers = [json.loads(line) for line in self._process.stdout]
            self._process.stdout.close()
            code = self._process.wait()
        except BaseException:  # Ctrl-C, for example: nobody reads what the worker would say
            self._process.kill()
            self._process.wait()
            raise
        if len(answers) < len(self._runs):
            run = self._runs[len(answers)]
            where = f"setting {run.setting}" if run.setting else "the settings"
            raise ConfigError(f"checking {where} did not end: {describe_exit(code)}, without an error of its own")
        return answers

    def wait(self) -> list[SettingNeeds]:
        """The needs of each setting; a `ConfigError` names the first setting that could not start."""
        answers = self.answers()
        wrong = [(run, answer["error"]) for run, answer in zip(self._runs, answers, strict=True) if "error" in answer]
        if wrong:
            run, error = wrong[0][0], wrong[0][1].splitlines()[0]
            if not run.setting or len({text for _, text in wrong}) == 1 < len(wrong) == len(self._runs):
                raise ConfigError(error)  # wrong in what all settings share
            more = f" ({len(wrong) - 1} more of {len(self._runs)} settings wrong)" if len(wrong) > 1 else ""
            raise ConfigError(f"setting {run.setting}: {error}{more}")
        return [
            SettingNeeds(run.setting, answer["num_threads"], answer["memory_bytes"])
            for run, answer in zip(self._runs, answers, strict=True)
        ]

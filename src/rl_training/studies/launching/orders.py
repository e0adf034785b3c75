"""What a worker process is told: one run to train, with its configuration as JSON; and the codes with which it ends."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.experiment.config import TrainConfig, serialize_train_config
from rl_training.files import translate_write_errors
from rl_training.studies.plan import PLAN_FILE, PlannedRun, StudyFolder

FAILED, OWNED = 2, 75
"""Exit codes: the run failed, for the reason in its metadata or in the last line printed; another process owns it."""
LOGS = "logs"


@dataclass(frozen=True)
class Order:
    """One run to train: what the worker process is told."""

    run: PlannedRun
    text: str


def log_of(run: PlannedRun, study: StudyFolder) -> Path:
    """The file that the output of a run's worker processes is appended to."""
    return study.path / LOGS / f"{run.run_dir.name}.log"


def make_order(run: PlannedRun, study: StudyFolder, last_attempt: int = 0) -> Order:
    """The order to train a run of a study, of which `last_attempt` is the last attempt known."""
    log = log_of(run, study)
    with translate_write_errors(log.parent):
        log.parent.mkdir(exist_ok=True)
    values = {
        "config": worker_values(run.config),
        "suffix": run.suffix,
        "last_attempt": last_attempt,
        "plugins": study.plan.plugins,
        "callbacks": study.plan.callbacks,
        "working_dir": study.plan.working_dir,
        "study": str((study.path / PLAN_FILE).absolute()),
        "log": str(log.absolute()),
        "command": sys.argv,
    }
    return Order(run, json.dumps(values))


def worker_values(config: TrainConfig) -> dict[str, Any]:
    """A configuration as a worker reads it, with `TrainConfig(**values)`.

    Its folder is absolute, since a worker's working directory may be another.
    """
    return {**serialize_train_config(config), "output_dir": str(config.output_dir.absolute())}

"""MLflow: a run of an experiment, on a server or in a database beside the run folders."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training.experiment.config import leaves
from rl_training.experiment.loggers import MlflowSettings
from rl_training.experiment.tracking.sink import Line, Outcome, TrackedRun, finite_values

ID_TAG = "rl_training.id"
DATABASE = "mlflow.db"
MAX_METRICS = 1000
MAX_PARAMS = 100
"""Entries of one request that MLflow accepts."""
MAX_TEXT = 500
"""Characters of a setting that every store of MLflow accepts."""
STATES = {
    "finished": "FINISHED",
    "stopped": "FINISHED",
    "failed": "FAILED",
    "interrupted": "KILLED",
}


class MlflowTracker:
    """A run of MLflow, found again by a tag with our id; global state of `mlflow` is not touched."""

    def __init__(self, settings: MlflowSettings) -> None:
        self._settings = settings
        self._client: Any = None
        self._run_id = ""
        self._uri = ""
        self._last_step = -1

    def start(self, run: TrackedRun) -> int | None:
        """Begin or continue the run."""
        beside = run.run_dir.absolute().parent
        given = self._settings.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        self._uri = given or f"sqlite:///{beside / DATABASE}"
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # the terminal is ours
        from mlflow import tracking

        with _locked(self._uri):
            self._client = tracking.MlflowClient(tracking_uri=self._uri)
            experiment = self._experiment(beside)
        found = self._find(experiment, run.id)
        if found is None:
            tags = {ID_TAG: run.id, **self._tags(run, experiment)}
            found = self._client.create_run(experiment, run_name=run.name, tags=tags)
        self._run_id = found.info.run_id
        self._client.update_run(self._run_id, status="RUNNING", name=run.name)
        self._log_settings(run.config, found.data.params)
        last = found.data.metrics.get("global_step")
        return None if last is None else int(last)

    def log(self, lines: Sequence[Line]) -> None:
        """Add lines; every value is a metric at our step."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = []
        for values in map(finite_values, lines):
            step = int(values["global_step"])
            if step == self._last_step:  # further values of the same step
                del values["global_step"]
            self._last_step = step
            metrics += [
                Metric(_safe(name), float(value), now, step) for name, value in values.items()
            ]
        for batch in _batches(metrics, MAX_METRICS):
            self._client.log_batch(self._run_id, metrics=batch)

    def finish(self, outcome: Outcome) -> None:
        """End the run with its status; the reason is a tag."""
        if outcome.status == "replaced":  # the other process has set it
            return
        self._client.set_tag(self._run_id, "status", outcome.status)
        self._client.set_tag(self._run_id, "stop_reason", outcome.reason or "")
        self._client.set_terminated(self._run_id, STATES[outcome.status])

    @property
    def place(self) -> str | None:
        """The command that shows a database; a server shows itself."""
        return (
            f"mlflow ui --backend-store-uri {self._uri}"
            if self._uri.startswith("sqlite:")
            else self._uri
        )

    def _experiment(self, beside: Path) -> str:
        name = self._settings.experiment
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        # Else artifacts that users add would go to the working directory.
        place = (beside / "mlartifacts").as_uri() if self._uri.startswith("sqlite:") else None
        try:
            return str(self._client.create_experiment(name, artifact_location=place))
        except Exception:  # another run may have created it at the same moment
            found = self._client.get_experiment_by_name(name)
            if found is None:
                raise
            return str(found.experiment_id)

    def _find(self, experiment: str, run_id: str) -> Any:
        found = self._client.search_runs(
            [experiment], f"tags.`{ID_TAG}` = '{run_id}'", max_results=1
        )
        return found[0] if found else None

    def _tags(self, run: TrackedRun, experiment: str) -> dict[str, str]:
        tags = {
            _safe(name): _text(value)
            for name, value in leaves(dict(run.facts))
            if value is not None
        }
        if run.tags:
            tags["tags"] = ", ".join(run.tags)
        if run.group is not None:
            tags["group"] = run.group
        if run.parent is not None:
            parent = self._find(experiment, run.parent)
            tags["parent"] = run.parent
            tags |= {} if parent is None else {"mlflow.parentRunId": parent.info.run_id}
        return tags

    def _log_settings(self, config: Mapping[str, Any], known: Mapping[str, str]) -> None:
        """Log settings as parameters; those that changed on resume as tags, since parameters cannot change."""
        from mlflow.entities import Param

        values = {_safe(name): _text(value) for name, value in leaves(config)}
        new = [Param(name, value) for name, value in values.items() if name not in known]
        for batch in _batches(new, MAX_PARAMS):
            self._client.log_batch(self._run_id, params=batch)
        for name in values.keys() & known.keys():
            if values[name] != known[name]:
                self._client.set_tag(self._run_id, f"changed.{name}", values[name])


def _safe(name: str) -> str:
    """A name with the characters only that MLflow accepts."""
    return re.sub(r"[^\w.:/ -]", "-", name)


def _text(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value))[:MAX_TEXT]


def _batches(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while batch := list(itertools.islice(rest, size)):
        yield batch


@contextlib.contextmanager
def _locked(uri: str) -> Iterator[None]:
    """Make the tables of a SQLite database in one process at a time: MLflow fails where two do so at once."""
    path = Path(uri.removeprefix("sqlite:///"))
    if not uri.startswith("sqlite:///") or os.name != "posix":
        yield
        return
    import fcntl

    with path.with_name(f".{path.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

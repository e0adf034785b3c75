"""MLflow: a run of an experiment, on a server or in a database beside the run folders."""

from __future__ import annotations

import contextlib
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
from rl_training.experiment.tracking.tracker import Outcome, Row, TrackedRun

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

    def __init__(self, settings: MlflowSettings, run: TrackedRun) -> None:
        """Begin or continue the run."""
        beside = run.run_dir.absolute().parent
        given = settings.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        uri = given or f"sqlite:///{beside / DATABASE}"
        is_database = uri.startswith("sqlite:")
        self.place = f"mlflow ui --backend-store-uri {uri}" if is_database else uri
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # the terminal is ours
        from mlflow import tracking

        # Else artifacts that users add would go to the working directory.
        artifacts = (beside / "mlartifacts").as_uri() if is_database else None
        with _locked(uri):
            self._client: Any = tracking.MlflowClient(tracking_uri=uri)
            self._experiment = self._make_experiment(settings.experiment, artifacts)
        found = self._find(run.id)
        if found is None:
            found = self._client.create_run(
                self._experiment, run_name=run.name, tags=self._tags(run)
            )
        self._run_id = found.info.run_id
        self._client.update_run(self._run_id, status="RUNNING", name=run.name)
        self._log_settings(run.config, found.data.params)
        self.last_step = int(found.data.metrics.get("global_step", -1))

    def log(self, rows: Sequence[Row]) -> None:
        """Add rows; every value is a metric at our step."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [
            Metric(_safe(name), float(value), now, step)
            for step, values in rows
            for name, value in values.items()
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

    def _make_experiment(self, name: str, artifacts: str | None) -> str:
        """The id of the experiment, which is created if there is none."""
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name, artifact_location=artifacts))
            except Exception:  # another run may have created it at the same moment
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _find(self, run_id: str) -> Any:
        query = f"tags.`{ID_TAG}` = '{run_id}'"
        return next(iter(self._client.search_runs([self._experiment], query, max_results=1)), None)

    def _tags(self, run: TrackedRun) -> dict[str, str]:
        facts = {**run.facts, "group": run.group, "parent": run.parent}
        tags = {_safe(name): _text(value) for name, value in leaves(facts) if value is not None}
        if run.tags:
            tags["tags"] = ", ".join(run.tags)
        parent = None if run.parent is None else self._find(run.parent)
        if parent is not None:
            tags["mlflow.parentRunId"] = parent.info.run_id
        return {ID_TAG: run.id, **tags}

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


def _batches(items: list[Any], size: int) -> list[list[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


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

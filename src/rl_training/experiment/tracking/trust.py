"""Refuses a server or database of MLflow that only a checkpoint names.

MLflow sends its user's credentials there, and a database is a file that is written: a changed checkpoint could choose.
"""

from __future__ import annotations

import os

from rl_training.errors import ConfigError
from rl_training.experiment.tracking.settings import MlflowSettings, PlainLoggers, parse_loggers

_allowed: set[str] = set()


def allow_trackers(loggers: PlainLoggers) -> None:
    """Allow the places of a trusted configuration: the user's own, or one already checked."""
    _allowed.update(_places(loggers))


def refuse_unknown_trackers(loggers: PlainLoggers) -> None:
    """Raise a `ConfigError` if the loggers of a checkpoint name a place that the user has not."""
    for place in _places(loggers):
        if place not in _allowed and place != os.environ.get("MLFLOW_TRACKING_URI"):
            raise ConfigError(
                f"tracking_uri of logger mlflow is {place!r} in this checkpoint, and a checkpoint does not choose where"
                f" data is sent: review it, then set the environment variable MLFLOW_TRACKING_URI={place}, or give"
                " loggers=[…] again"
            )


def _places(loggers: PlainLoggers) -> list[str]:
    found = [item.tracking_uri for item in parse_loggers(loggers) if isinstance(item, MlflowSettings)]
    return [place for place in found if place is not None]

"""The errors a user can meet; each message names the value at fault and the remedy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class RLTrainingError(Exception):
    """Anything this package reports on purpose."""


class ConfigError(RLTrainingError, ValueError):
    """A setting is unknown, of the wrong type or impossible."""


class EnvError(RLTrainingError):
    """An environment cannot be made or used."""


class NonFiniteError(RLTrainingError):
    """A number that training depends on is NaN or infinite."""


class CompilationError(RLTrainingError):
    """An update cannot be compiled here, or computes something else when it is."""


class CheckpointError(RLTrainingError):
    """A checkpoint is missing, damaged or of another kind."""

    def __init__(self, message: str, fallback: Path | None = None) -> None:
        super().__init__(message)
        self.fallback = fallback
        """An older checkpoint of the same run that is whole."""


class RunExistsError(RLTrainingError, FileExistsError):
    """A run folder is already there and will not be overwritten."""


class DatasetError(RLTrainingError):
    """A data set is missing, damaged or does not fit."""


@dataclass
class FailureNote:
    """Facts about an exception that ended a run, attached to it; the exception itself stays what it was."""

    run_dir: Path | None = None
    """The folder of the run that it ended."""
    callback: str | None = None
    """Class and event, if a callback raised it."""
    trace: str = ""
    """The lines of the traceback that lie in that callback's code."""


def failure_note(error: BaseException) -> FailureNote:
    """The note on an exception; an empty one is attached to an exception without."""
    attributes = vars(error)
    note: FailureNote = attributes.setdefault("rl_training_note", FailureNote())
    return note


def install_extra(name: str) -> str:
    """The command that installs an extra of this package."""
    return f'pip install "rl-training[{name}]"'

"""The errors a user can meet; each message names the value at fault and the remedy."""

from __future__ import annotations

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


def install_extra(name: str) -> str:
    """The command that installs an extra of this package."""
    return f'pip install "rl-training[{name}]"'

"""Exceptions of this package; each message names the value at fault and the remedy."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path


class RLTrainingError(Exception):
    """Base class of this package's exceptions."""


class ConfigError(RLTrainingError, ValueError):
    """A setting is unknown, of the wrong type or out of range."""


class EnvError(RLTrainingError):
    """An environment cannot be created or used."""


class NonFiniteError(RLTrainingError):
    """A loss, gradient, observation or reward is NaN or infinite."""


class CompilationError(RLTrainingError):
    """An update cannot be compiled on this machine, or its compiled form gives other results."""


class CheckpointError(RLTrainingError):
    """A checkpoint is missing, damaged or not of the expected algorithm or version."""

    def __init__(self, message: str, fallback: Path | None = None) -> None:
        super().__init__(message)
        self.fallback = fallback
        """The newest intact checkpoint of the same run, if there is one."""


class BundleError(RLTrainingError):
    """A policy bundle is missing, damaged, hostile, or does not act as its golden pairs say."""


class RunExistsError(RLTrainingError, FileExistsError):
    """A run folder exists already; it is not overwritten."""


class RunOwnedError(RLTrainingError):
    """A live process owns the run folder; no other process may write it."""

    def __init__(self, run_dir: Path, owner: object) -> None:
        super().__init__(
            f"run '{run_dir}' belongs to {owner}, which is still alive: wait for it to end, or end it by"
            f" `touch {shlex.quote(str(run_dir / 'stop'))}`"
        )
        self.owner = owner
        """The `Owner`."""


class RunChangedError(RLTrainingError):
    """Another process has continued the run since its checkpoint was read."""


class ReplacedError(RLTrainingError):
    """Another process has taken over the run of this one, which must not write it any more."""


class DatasetError(RLTrainingError):
    """A dataset is missing, damaged or does not fit the environment or algorithm."""


@dataclass
class FailureNote:
    """Context of an exception that ended a run. Attached to the exception, whose type and message stay unchanged."""

    run_dir: Path | None = None
    """Folder of the run."""
    callback: str | None = None
    """Class and event of the callback that raised it; None if no callback did."""
    trace: str = ""
    """Lines of the traceback within the callback's code."""


def failure_note(error: BaseException) -> FailureNote:
    """The `FailureNote` of an exception; a new, empty one is attached if it has none."""
    attributes = vars(error)
    note: FailureNote = attributes.setdefault("rl_training_note", FailureNote())
    return note


def install_extra(name: str) -> str:
    """The pip command that installs an extra of this package."""
    return f'pip install "rl-training[{name}]"'

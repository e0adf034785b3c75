"""The log of a run, `run.log` in its folder: a line for its start, each resume, its end, and errors."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from rl_training.files import AppendedFile

LOG_NAME = "run.log"


class RunLogHandler(logging.Handler):
    """Appends each record to a file, opened with the first record; a failed write raises an error."""

    def __init__(self, path: Path, workspace: Path | None = None) -> None:
        super().__init__()
        self._path, self._workspace = path, workspace
        self._file: AppendedFile | None = None
        formatter = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S+00:00")
        formatter.converter = time.gmtime
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        """Append one record."""
        if self._file is None:
            self._file = AppendedFile(self._path, workspace=self._workspace)
        self._file.append(f"{self.format(record)}\n".encode(errors="backslashreplace"))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
        super().close()


def make_run_logger(run_dir: Path, workspace: Path | None = None) -> logging.Logger:
    """A logger that writes to `run.log` only.

    It is not registered with `logging`, so neither the root logger nor another run's handlers receive its records.
    """
    logger = logging.Logger(f"rl_training.{run_dir.name}", logging.INFO)
    logger.addHandler(RunLogHandler(run_dir / LOG_NAME, workspace))
    return logger


def close_run_logger(logger: logging.Logger) -> None:
    """Detach the file; later records are discarded."""
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.addHandler(logging.NullHandler())  # without a handler, Python prints warnings to stderr

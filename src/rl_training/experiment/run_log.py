"""The log of a run, `run.log` in its folder: a line for its start, each resume, its end, and errors."""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path

from rl_training.files import AppendedFile

LOG_NAME = "run.log"


class RunLogHandler(logging.Handler):
    """Appends each record to a file, which is opened and closed each time; a failed write raises an error."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        formatter = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S+00:00")
        formatter.converter = time.gmtime
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        """Append one record."""
        line = f"{self.format(record)}\n".encode(errors="backslashreplace")
        with contextlib.closing(AppendedFile(self._path)) as file:
            file.append(line)


def make_run_logger(run_dir: Path) -> logging.Logger:
    """A logger that writes to `run.log` only.

    It is not registered with `logging`, so neither the root logger nor another run's handlers receive its records.
    """
    logger = logging.Logger(f"rl_training.{run_dir.name}", logging.INFO)
    logger.addHandler(RunLogHandler(run_dir / LOG_NAME))
    return logger


def close_run_logger(logger: logging.Logger) -> None:
    """Detach the file; later records are discarded."""
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.addHandler(logging.NullHandler())  # without a handler, Python prints warnings to stderr

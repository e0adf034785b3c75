"""Values of arguments: whole numbers in any spelling, files to write, and the run that a command names."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import typer

from rl_training.errors import ConfigError


def whole_number(text: str | int) -> int:
    """Parse 20000, 20_000, 1e6 or 1.0e6; a number with a fraction is refused."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
        if number == int(number):
            return int(number)
    except (ValueError, OverflowError):
        from rl_training.validation import spelled_out  # imports pydantic

        example = spelled_out(text) or "an integer, such as 20000 or 1e6"
        raise typer.BadParameter(f"'{text}' is not a whole number: write {example}") from None
    raise typer.BadParameter(f"{text} is not a whole number: write an integer, such as 20000 or 1e6")


def positive_number(text: str | int) -> int:
    """Parse a whole number that is at least 1."""
    number = whole_number(text)
    if number < 1:
        raise typer.BadParameter(f"{text} should be at least 1")
    return number


def output_file(text: str | Path) -> Path:
    """Parse the path of a file to write; one that ends in a slash names a folder and is refused."""
    if str(text).endswith(("/", os.sep)):
        raise typer.BadParameter(f"'{text}' names a folder: give the path of a file, without a slash at its end")
    return Path(text)


def find_run(run: Path | None, checkpoint: Path | None = None) -> Path:
    """The run folder or checkpoint that a command names, as RUN or as --checkpoint; exactly one must be given."""
    if run is not None and checkpoint is not None:
        raise ConfigError(f"the run is given twice, as RUN '{run}' and as --checkpoint '{checkpoint}': remove one")
    found = run or checkpoint
    if found is None:
        raise ConfigError("missing argument RUN (or --checkpoint): name a run folder or a checkpoint in it")
    return named_run(found)


def named_run(name: Path | str) -> Path:
    """The run that `name` means: a path, the unique beginning of a run folder's name in `runs`, or `@last`."""
    with contextlib.suppress(OSError):  # a name longer than any file's
        if Path(name).exists():
            return Path(name)
    from rl_training.studies.run_names import find_run as find_in_catalog

    return find_in_catalog(str(name))

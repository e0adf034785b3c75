"""Printing: results to standard output, messages to standard error, and commands to paste."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rl_training.errors import RLTrainingError
from rl_training.terminal.streams import printable, results_stream, tell

say = tell
"""Print a message to standard error, so that it does not mix with results."""


def show(value: Any, lines: Iterable[str], as_json: bool) -> None:
    """Print a result: `value` as one line of JSON, or `lines`."""
    try:
        print(
            json_text(value) if as_json else printable("\n".join(lines)),
            file=results_stream(),
            flush=True,
        )
    except BrokenPipeError:
        pass  # whoever reads has seen enough: `rl-training runs | head`
    except OSError as error:
        raise RLTrainingError(
            f"cannot write the result to standard output: {error.strerror}"
        ) from None


def put(text: str) -> None:
    """Print one line of a result."""
    show(None, [text], as_json=False)


def json_text(value: Any) -> str:
    """A value as one line of JSON; paths and the like are written as text."""
    return json.dumps(value, default=str)


WIDTH = 80
CONTINUED = " \\"
SAVED = "stopped, all runs saved; to continue:"


def program_command(*words: str) -> str:
    """A command line that starts this program the way the current process was started."""
    program = Path(sys.argv[0])
    start = (
        [_program_word(program)]
        if program.name == "rl-training"
        else [sys.executable, "-m", "rl_training"]
    )
    return shlex.join([*start, *words])


def _program_word(program: Path) -> str:
    """The bare name if the shell finds this file by it, else its path."""
    found = shutil.which(program.name)
    with contextlib.suppress(OSError):
        if found is not None and program.samefile(found):
            return program.name
    return str(program)


def with_command(text: str, *words: str) -> str:
    """A text, and below it a command of this program to paste."""
    return "\n".join([text, *(f"  {line}" for line in wrap_command(program_command(*words), 2))])


def wrap_command(command: str, indent: int) -> list[str]:
    """Wrap a command printed at column `indent` into lines that end with a backslash.

    Lines break between words, never between an option and its value. A word longer than the line is not broken.
    """
    lines: list[str] = []
    room = WIDTH - indent
    for unit in _units(shlex.quote(word) for word in shlex.split(command)):
        if lines and len(lines[-1]) + 1 + len(unit) + len(CONTINUED) <= room:
            lines[-1] += f" {unit}"
        else:
            lines.append(unit if not lines else f"  {unit}")
    # A command that fits without a backslash stays on one line.
    if len(command) <= room:
        return [command]
    return [line + CONTINUED for line in lines[:-1]] + lines[-1:]


def _units(words: Iterable[str]) -> list[str]:
    units: list[str] = []
    for word in words:
        if units and units[-1].startswith("-") and " " not in units[-1]:
            units[-1] += f" {word}"
        else:
            units.append(word)
    return units

"""Commands that a report prints for the user to paste: their program name and their line breaks."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

WIDTH = 80
CONTINUED = " \\"


def program_command(*words: str) -> str:
    """A command line that starts this program the way the current process was started."""
    program = Path(sys.argv[0])
    start = [_program_word(program)] if program.name == "rl-training" else [sys.executable, "-m", "rl_training"]
    return shlex.join([*start, *words])


def _program_word(program: Path) -> str:
    """The bare name if the shell finds this file by it, else its path."""
    found = shutil.which(program.name)
    with contextlib.suppress(OSError):
        if found is not None and program.samefile(found):
            return program.name
    return str(program)


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

"""Commands of this program that a report prints, to be pasted: how they are started, and how they are wrapped."""

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
    """A command of this program, started as it was started now."""
    program = Path(sys.argv[0])
    start = [_program_word(program)] if program.name == "rl-training" else [sys.executable, "-m", "rl_training"]
    return shlex.join([*start, *words])


def _program_word(program: Path) -> str:
    """The bare name where the shell finds this very file by it; else its path."""
    found = shutil.which(program.name)
    with contextlib.suppress(OSError):
        if found is not None and program.samefile(found):
            return program.name
    return str(program)


def wrap_command(command: str, indent: int) -> list[str]:
    """The lines of a command that is printed from column `indent` on; a longer one is continued after a backslash.

    Lines break between words, and an option stays beside its value. A word longer than the line is not broken.
    """
    lines: list[str] = []
    room = WIDTH - indent
    for unit in _units(shlex.quote(word) for word in shlex.split(command)):
        if lines and len(lines[-1]) + 1 + len(unit) + len(CONTINUED) <= room:
            lines[-1] += f" {unit}"
        else:
            lines.append(unit if not lines else f"  {unit}")
    # The last line needs no backslash, so that what fits without one is not broken.
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

"""Reads the new lines of a JSON Lines file: those after the place that an earlier reading reached."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rl_training.errors import CheckpointError
from rl_training.files import open_regular

CHECKED_BYTES = 256
"""Bytes before a place whose checksum shows that the file is still the one that was read."""
TOKEN = re.compile(r"([0-9a-f]{1,15})\.([0-9a-f]{8})")
START = f"0.{0:08x}"
"""Token of the beginning of a file."""


@dataclass(frozen=True)
class NewLines:
    """Lines of a file, and the place after them."""

    lines: list[dict[str, float | None]]
    """Steps and finite numbers; a value that is not finite is None."""
    token: str
    """Place after the last complete line: its offset, and a checksum of the bytes before it."""
    is_whole: bool
    """Whether the lines begin at the file's first: everything read before is void."""
    num_damaged: int = 0
    """Complete lines that hold no object with a step."""


def read_new_lines(path: Path, token: str = START) -> NewLines:
    """The complete lines after the place `token`; all lines if the file before that place has changed."""
    with contextlib.suppress(CheckpointError, OSError), open_regular(path) as file:
        offset = _offset(file, token)
        file.seek(offset)
        data = file.read()
        data = data[: data.rfind(b"\n") + 1]  # what follows the last line break is incomplete
        parsed = [_parse(line) for line in data.splitlines()]
        lines = [line for line in parsed if line is not None]
        return NewLines(lines, _token(file, offset + len(data)), offset == 0, len(parsed) - len(lines))
    return NewLines([], START, is_whole=True)


def _offset(file: BinaryIO, token: str) -> int:
    """The offset of a token; 0 if the token is not of this file."""
    match = TOKEN.fullmatch(token)
    offset = int(match[1], 16) if match else 0
    is_same = offset <= file.seek(0, os.SEEK_END) and _token(file, offset) == token
    return offset if is_same else 0


def _token(file: BinaryIO, offset: int) -> str:
    start = max(0, offset - CHECKED_BYTES)
    file.seek(start)
    return f"{offset:x}.{zlib.crc32(file.read(offset - start)):08x}"


def _parse(line: bytes) -> dict[str, float | None] | None:
    values: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        values = json.loads(line)
    if not isinstance(values, dict):
        return None
    found = {name: finite(value) for name, value in values.items() if value is None or _is_number(value)}
    return found if found.get("global_step") is not None else None


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def finite(value: Any) -> float | None:
    """The value as a number; None if it is none, or not finite."""
    with contextlib.suppress(OverflowError):
        if _is_number(value) and math.isfinite(value):
            return value  # type: ignore[no-any-return]
    return None

"""The files `last` and `best` of a run, each of which names a checkpoint beside it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from rl_training.errors import CheckpointError
from rl_training.experiment.files import read_limited, replace_synced

CHECKPOINT_NAME = re.compile(r"step_[0-9]{1,20}")


def write_pointer(pointer: Path, text: str) -> None:
    """Let a `last` or `best` say `text`, followed by a checksum of it."""
    try:
        replace_synced(pointer, f"{text} {_pointer_checksum(text)}\n".encode())
    except OSError as error:
        raise CheckpointError(f"cannot write '{pointer}': {error.strerror or error}") from error


def read_pointer(pointer: Path) -> list[str]:
    """The words in a `last` or `best`: a checkpoint's name, and for `best` its score."""
    text = read_limited(pointer, 1024).decode("utf-8", errors="replace")
    words = text.split()
    num_words = 2 if pointer.name == "best" else 1
    is_cut = num_words == 2 and not text.endswith("\n")  # a part of a score looks like a score
    if is_cut or (len(words) > num_words and words[-1] != _pointer_checksum(" ".join(words[:-1]))):
        raise CheckpointError(f"'{pointer}' is damaged: its checksum differs")
    if not words or not CHECKPOINT_NAME.fullmatch(words[0]):
        raise CheckpointError(f"'{pointer}' points at '{text.strip():.100}', which is not a checkpoint beside it")
    return words[:num_words]  # the checksum may be missing: older versions wrote none


def _pointer_checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]

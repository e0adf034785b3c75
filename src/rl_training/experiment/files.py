"""Reading and writing the files of a run so that a crash, a full disk or a stranger's file cannot surprise."""

from __future__ import annotations

import os
from pathlib import Path

from rl_training.errors import CheckpointError


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    path.write_bytes(data)
    sync(path)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_synced(path: Path, data: bytes) -> None:
    """Give a file new content: at any moment it has the old one or the new one, never a part."""
    draft = path.with_name(f".{path.name}.draft-{os.getpid()}")
    try:
        write_synced(draft, data)
        draft.replace(path)
        sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def read_limited(path: Path, max_bytes: int) -> bytes:
    """The content of a plain file that is not absurdly large."""
    if path.is_symlink() or not path.is_file():
        raise CheckpointError(f"'{path}' is missing, or is not a plain file")
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise CheckpointError(f"cannot read '{path}': {error.strerror}") from None
    if len(data) > max_bytes:
        raise CheckpointError(f"'{path}' is damaged: it is larger than {max_bytes:,} bytes")
    return data

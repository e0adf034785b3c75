"""Reading and writing the files of a run so that a crash, a full disk or a stranger's file cannot surprise."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from rl_training.errors import CheckpointError, RLTrainingError

DRAFT = ".draft-"


class AppendedFile:
    """A file that grows by whole pieces: one that does not fit on the disk is taken back."""

    def __init__(self, path: Path, keep_bytes: int | None = None) -> None:
        """Open `path` at its end, after cutting it to `keep_bytes` where that is less than it has."""
        self.path = path
        with translate_write_errors(path):
            _own_copy(path)
            # Unbuffered: bytes that could not be written must not be tried again when the file is closed.
            self._file = path.open("ab", buffering=0)
            if keep_bytes is not None and keep_bytes < self.num_bytes:
                self._file.truncate(keep_bytes)

    @property
    def num_bytes(self) -> int:
        """Length of the file as it stands."""
        return os.fstat(self._file.fileno()).st_size

    def append(self, data: bytes) -> None:
        """Add a piece."""
        before = self.num_bytes
        rest = memoryview(data)
        with translate_write_errors(self.path):
            try:
                while rest:
                    rest = rest[self._file.write(rest) :]
            except OSError:
                with contextlib.suppress(OSError):
                    self._file.truncate(before)
                raise

    def sync(self) -> None:
        """Wait until every piece is on the disk."""
        with translate_write_errors(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _own_copy(path: Path) -> None:
    """Replace a file that has other hard links (a folder copied by `cp -al`) by a copy: those must not change."""
    with contextlib.suppress(FileNotFoundError):
        if path.lstat().st_nlink > 1:
            with atomic_write(path) as draft:
                shutil.copyfile(path, draft)


@contextlib.contextmanager
def translate_write_errors(
    path: Path, error_class: type[RLTrainingError] = RLTrainingError, kind: str = ""
) -> Iterator[None]:
    """Turn a failure of the disk into an error that names what could not be written."""
    try:
        yield
    except OSError as error:
        raise error_class(f"cannot write {kind}'{path}': {error.strerror or error}") from error


def write_new(path: Path, data: bytes) -> None:
    """Write a file that is not there yet."""
    with path.open("xb") as file:  # "x": a link that someone left in its place is not followed
        file.write(data)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Where to write what is to become `path`, which at any moment is what it was or what it becomes, never a part."""
    draft = path.with_name(f".{path.name}{DRAFT}{os.getpid()}")
    remove(draft)
    try:
        yield draft
        sync(draft)
        draft.replace(path)
        sync(path.parent)
    finally:
        with contextlib.suppress(OSError):
            remove(draft)


def replace_synced(path: Path, data: bytes) -> None:
    """Give a file new content."""
    with atomic_write(path) as draft:
        write_new(draft, data)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_drafts(folder: Path) -> None:
    """Remove what a process that was killed left half done."""
    for leftover in folder.glob(f".*{DRAFT}*"):
        remove(leftover)


@contextlib.contextmanager
def open_plain(path: Path) -> Iterator[BinaryIO]:
    """A file open for reading, unless it is a link or anything else that is not a plain file."""
    if path.is_symlink() or not path.is_file():
        raise CheckpointError(f"'{path}' is missing, or is not a plain file")
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise CheckpointError(f"cannot read '{path}': {error.strerror}") from None


def read_limited(path: Path, max_bytes: int) -> bytes:
    """The content of a plain file that is not absurdly large."""
    with open_plain(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise CheckpointError(f"'{path}' is damaged: it is larger than {max_bytes:,} bytes")
    return data

"""Reading and writing the files of a run so that a crash, a full disk or a stranger's file cannot surprise."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from rl_training.errors import CheckpointError, RLTrainingError

DRAFT = ".draft-"


class AppendedFile:
    """A file that grows by whole pieces: one that does not fit on the disk is taken back."""

    def __init__(self, path: Path, keep_bytes: int | None = None) -> None:
        """Open `path` at its end, after cutting it to `keep_bytes` where that is less than it has."""
        self._path = path
        with naming_write(path):
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
        with naming_write(self._path):
            try:
                while rest:
                    rest = rest[self._file.write(rest) :]
            except OSError:
                with contextlib.suppress(OSError):
                    self._file.truncate(before)
                raise

    def sync(self) -> None:
        """Wait until every piece is on the disk."""
        with naming_write(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@contextlib.contextmanager
def naming_write(path: Path, error_class: type[RLTrainingError] = RLTrainingError) -> Iterator[None]:
    """Turn a failure of the disk into an error that names what could not be written."""
    try:
        yield
    except OSError as error:
        raise error_class(f"cannot write '{path}': {error.strerror or error}") from error


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


def replace_synced(path: Path, data: bytes) -> None:
    """Give a file new content: at any moment it has the old one or the new one, never a part."""
    draft = draft_beside(path)
    draft.unlink(missing_ok=True)
    try:
        write_new(draft, data)
        sync(draft)
        draft.replace(path)
        sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def draft_beside(path: Path) -> Path:
    """Where to write what is to become `path`."""
    return path.with_name(f".{path.name}{DRAFT}{os.getpid()}")


def remove_drafts(folder: Path) -> None:
    """Remove what a process that was killed left half done."""
    for leftover in folder.glob(f".*{DRAFT}*"):
        is_folder = leftover.is_dir() and not leftover.is_symlink()
        shutil.rmtree(leftover) if is_folder else leftover.unlink()


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

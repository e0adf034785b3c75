"""File access that is safe against crashes, full disks, and links or oversized files in an untrusted folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from rl_training.errors import CheckpointError, RLTrainingError

TEMPORARY = ".tmp-"
"""Part of the names of temporary files and folders."""


class AppendedFile:
    """An append-only file. An append that fails, as on a full disk, is undone."""

    def __init__(
        self, path: Path, keep_bytes: int | None = None, workspace: Path | None = None
    ) -> None:
        """Open a copy of `path`, made in `workspace` and renamed to its place, which has at most `keep_bytes`.

        It is a copy, so that neither other hard links (as after `cp -al`) nor a process that still has the old file
        open share it.
        """
        self.path = path
        with (
            translate_write_errors(path),
            atomic_write(path, workspace, is_synced=False) as temporary,
        ):
            if path.exists():
                shutil.copyfile(path, temporary)
            # Unbuffered: a failed write must not be retried when the file is closed.
            self._file = temporary.open("ab", buffering=0)
            if keep_bytes is not None and keep_bytes < self.num_bytes:
                self._file.truncate(keep_bytes)

    @property
    def num_bytes(self) -> int:
        """Current length of the file."""
        return os.fstat(self._file.fileno()).st_size

    def append(self, data: bytes) -> None:
        """Append `data`; on failure the file is truncated to its former length."""
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
        """Flush the file to the disk (fsync)."""
        with translate_write_errors(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@contextlib.contextmanager
def translate_write_errors(
    path: Path, error_class: type[RLTrainingError] = RLTrainingError, kind: str = ""
) -> Iterator[None]:
    """Raise an `OSError` of the block as `error_class`, naming `path`."""
    try:
        yield
    except OSError as error:
        raise error_class(f"cannot write {kind}'{path}': {error.strerror or error}") from error


def write_new(path: Path, data: bytes) -> None:
    """Write a new file; an existing path, links included, is an error."""
    with path.open("xb") as file:
        file.write(data)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def atomic_write(
    path: Path, workspace: Path | None = None, *, is_synced: bool = True
) -> Iterator[Path]:
    """Atomic write: yield a temporary path to write to, then fsync it and rename it to `path`.

    The temporary path is beside `path`, or in `workspace`, an existing folder of the same file system.
    """
    temporary = (workspace or path.parent) / f".{path.name}{TEMPORARY}{os.getpid()}"
    remove(temporary)
    try:
        yield temporary
        if is_synced:
            sync(temporary)
        temporary.replace(path)
        if is_synced:
            sync(path.parent)
    finally:
        with contextlib.suppress(OSError):
            remove(temporary)


def replace_synced(path: Path, data: bytes, workspace: Path | None = None) -> None:
    """Replace the content of a file atomically; `workspace` as in `atomic_write`."""
    with atomic_write(path, workspace) as temporary:
        write_new(temporary, data)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def removed_if_empty(folder: Path) -> Iterator[None]:
    """Remove `folder` and its parents, as far as the block makes them, unless they hold something at its end."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    finally:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()


def freeze(path: Path, text: str) -> bool:
    """Create a file with its folder, complete from its first moment on; False if there is one already."""
    draft = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    with translate_write_errors(path), removed_if_empty(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_new(draft, text.encode())
            try:
                os.link(draft, path)  # unlike a rename, it does not replace
            except FileExistsError:
                raise
            except OSError:  # no hard links here
                write_new(path, text.encode())
        except FileExistsError:
            return False
        finally:
            draft.unlink(missing_ok=True)
    return True


def is_file(path: Path) -> bool:
    """Whether a path is a file; False for a name that is longer than any file's."""
    try:
        return path.is_file()
    except OSError:
        return False


@contextlib.contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading; a `CheckpointError` for a link, a folder or any other kind of file."""
    if path.is_symlink() or not path.is_file():
        raise CheckpointError(f"'{path}' is missing, or is not a regular file")
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise CheckpointError(f"cannot read '{path}': {error.strerror}") from None


def read_limited(path: Path, max_bytes: int) -> bytes:
    """Content of a regular file; a `CheckpointError` if it is larger than `max_bytes`."""
    with open_regular(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise CheckpointError(f"'{path}' is damaged: it is larger than {max_bytes:,} bytes")
    return data


def read_object(path: Path, max_bytes: int) -> dict[str, Any]:
    """The JSON object in a file; empty if the file is missing, damaged, being written or larger than `max_bytes`."""
    with contextlib.suppress(CheckpointError, ValueError, RecursionError):
        values = json.loads(read_limited(path, max_bytes))
        return values if isinstance(values, dict) else {}
    return {}


def short_checksum(text: str) -> str:
    """A checksum against accidents: the first 16 digits of SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]

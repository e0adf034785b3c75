"""The file of a bundle: a ZIP of uncompressed files in one fixed form, so that every byte of it can be checked.

Any ZIP program opens it. Reading accepts only what `pack` writes: no compression, no other names, no gaps, comments,
dates or attributes.
"""

from __future__ import annotations

import io
import os
import stat
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

from rl_training.errors import BundleError

MANIFEST, SPACES, OPERATIONS = "manifest.json", "spaces.json", "operations.json"
WEIGHTS, GOLDEN = "weights.safetensors", "golden.safetensors"
ONNX, CARD = "policy.onnx", "card.md"
REQUIRED = (MANIFEST, SPACES, OPERATIONS, WEIGHTS, GOLDEN)
NAMES = (*REQUIRED, ONNX, CARD)
MAX_BYTES = 1 << 30
"""Size limit of a bundle."""
DAMAGED = (
    zipfile.BadZipFile,
    struct.error,
    NotImplementedError,
    EOFError,
    ValueError,
    RuntimeError,
    OSError,
)
"""What zipfile raises for files that are no ZIP, or a damaged one."""
UNIX, READABLE = 3, (stat.S_IFREG | 0o644) << 16


def pack(files: Mapping[str, bytes]) -> bytes:
    """A ZIP of these files, in their order; equal content gives equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name)  # of the first day of 1980
            info.create_system, info.external_attr = UNIX, READABLE
            archive.writestr(info, data)
    return buffer.getvalue()


def read_file(path: Path) -> bytes:
    """Content of a regular file of at most `MAX_BYTES`."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise BundleError(
                f"'{path}' is not a regular file: give the path of a bundle that `export` wrote"
            )
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                raise BundleError(
                    f"'{path}' is larger than {MAX_BYTES:,} bytes, the limit of a bundle"
                )
            return file.read(MAX_BYTES)
    except FileNotFoundError:
        raise BundleError(f"'{path}' does not exist (looked from {Path.cwd()})") from None
    except (OSError, ValueError) as error:
        raise BundleError(f"cannot read '{path}': {error}") from None


def unpack(data: bytes) -> dict[str, bytes]:
    """The files of a ZIP that `pack` wrote; anything else is a `BundleError`."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = _read_members(archive, len(data))
        is_intact = pack(files) == data
    except DAMAGED as error:
        raise BundleError(
            f"it is not a bundle, or is damaged or truncated: {error!s:.100}"
        ) from None
    if not is_intact:
        raise BundleError("it is damaged, or was changed by another program")
    missing = [name for name in REQUIRED if name not in files]
    if missing:
        raise BundleError(f"it lacks {', '.join(missing)}")
    return files


def _read_members(archive: zipfile.ZipFile, num_bytes: int) -> dict[str, bytes]:
    """The content of each file, whose claimed sizes are compared with the bytes that exist before they are read."""
    infos = archive.infolist()
    for info in infos:
        if info.filename not in NAMES:
            raise BundleError(
                f"it holds a file named {info.filename!r:.100}, which a bundle does not have"
            )
        if info.compress_type != zipfile.ZIP_STORED:
            raise BundleError(
                f"{info.filename} is compressed: a bundle stores its files uncompressed"
            )
    if len({info.filename for info in infos}) < len(infos):
        raise BundleError("it holds a file twice")
    claimed = sum(info.file_size for info in infos)
    if claimed > num_bytes:
        raise BundleError(
            f"its files claim {claimed:,} bytes, where it has {num_bytes:,}: it is truncated"
        )
    return {info.filename: archive.read(info) for info in infos}

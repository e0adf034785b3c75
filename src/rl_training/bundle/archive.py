"""The file of a bundle: a ZIP of uncompressed files in one fixed form, so that every byte of it can be checked.

Any ZIP program opens it. Reading accepts only what `pack` writes: no compression, no other names, no gaps, comments,
dates or attributes; sizes are compared with the bytes that exist before anything is allocated.
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
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
LOCAL = struct.Struct("<4sHHHHHIIIHH")
CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
END = struct.Struct("<4sHHHHIIH")
LOCAL_MARK, CENTRAL_MARK, END_MARK = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
VERSION, UNIX, FIRST_DAY = 20, 3 << 8, 33
"""ZIP 2.0; made on Unix; 1 January 1980, so that equal content gives equal bytes."""
READABLE = (stat.S_IFREG | 0o644) << 16


def pack(files: Mapping[str, bytes]) -> bytes:
    """A ZIP of these files, in their order."""
    parts: list[bytes] = []
    directory: list[bytes] = []
    offset = 0
    for name, data in files.items():
        crc = zlib.crc32(data)
        parts += [_local(name, crc, len(data)), data]
        directory.append(_central(name, crc, len(data), offset))
        offset += len(parts[-2]) + len(data)
    size = sum(map(len, directory))
    end = END.pack(END_MARK, 0, 0, len(files), len(files), size, offset, 0)
    return b"".join([*parts, *directory, end])


def read_file(path: Path) -> bytes:
    """Content of a regular file of at most `MAX_BYTES`."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise BundleError(f"'{path}' is not a regular file: give the path of a bundle that `export` wrote")
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                raise BundleError(f"'{path}' is larger than {MAX_BYTES:,} bytes, the limit of a bundle")
            return file.read(MAX_BYTES)
    except FileNotFoundError:
        raise BundleError(f"'{path}' does not exist (looked from {Path.cwd()})") from None
    except (OSError, ValueError) as error:
        raise BundleError(f"cannot read '{path}': {error}") from None


def unpack(data: bytes) -> dict[str, bytes]:
    """The files of a ZIP that `pack` wrote; anything else is a `BundleError`."""
    files: dict[str, bytes] = {}
    directory: list[bytes] = []
    offset = 0
    while data[offset : offset + 4] == LOCAL_MARK:
        name, content, end = _member(data, offset)
        if name in files:
            raise BundleError(f"it holds {name} twice")
        directory.append(_central(name, zlib.crc32(content), len(content), offset))
        files[name], offset = content, end
    size = sum(map(len, directory))
    end_record = END.pack(END_MARK, 0, 0, len(files), len(files), size, offset, 0)
    if data[offset:] != b"".join([*directory, end_record]):
        fault = "its directory differs from its files" if files else "it is not a bundle"
        raise BundleError(f"{fault}: it is damaged, truncated, or was changed by another program")
    missing = [name for name in REQUIRED if name not in files]
    if missing:
        raise BundleError(f"it lacks {', '.join(missing)}")
    return files


def _member(data: bytes, offset: int) -> tuple[str, bytes, int]:
    """Name and content of the file whose header is at `offset`, and where it ends."""
    if len(data) - offset < LOCAL.size:
        raise BundleError("it ends within a header: it is truncated")
    _, _, flags, method, _, _, crc, packed, size, name_size, _ = LOCAL.unpack_from(data, offset)
    start = offset + LOCAL.size + name_size
    raw_name = data[offset + LOCAL.size : start]
    name = next((known for known in NAMES if known.encode() == raw_name), None)
    if name is None:
        raise BundleError(f"it holds a file named {raw_name!r:.100}, which a bundle does not have")
    if method != 0 or packed != size:
        raise BundleError(f"{name} is compressed: a bundle stores its files uncompressed")
    if size > len(data) - start:
        raise BundleError(f"{name} claims {size:,} bytes, where {len(data) - start:,} are left: it is truncated")
    content = data[start : start + size]
    if zlib.crc32(content) != crc:
        raise BundleError(f"{name} is damaged: its CRC-32 differs")
    if data[offset:start] != _local(name, crc, size):
        raise BundleError(f"the header of {name} is damaged (flags {flags})")
    return name, content, start + size


def _local(name: str, crc: int, size: int) -> bytes:
    fields = (VERSION, 0, 0, 0, FIRST_DAY, crc, size, size, len(name), 0)
    return LOCAL.pack(LOCAL_MARK, *fields) + name.encode()


def _central(name: str, crc: int, size: int, offset: int) -> bytes:
    fields = (UNIX | VERSION, VERSION, 0, 0, 0, FIRST_DAY, crc, size, size, len(name), 0, 0, 0, 0, READABLE, offset)
    return CENTRAL.pack(CENTRAL_MARK, *fields) + name.encode()

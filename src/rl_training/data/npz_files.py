"""Reading `.npz` files without loading them: members stored uncompressed are mapped, the others read block by block."""

from __future__ import annotations

import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format

from rl_training.data.dataset_fields import BLOCK_BYTES
from rl_training.data.transitions import Array
from rl_training.errors import DatasetError

DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    tokenize.TokenError,
    OSError,
    EOFError,
    ValueError,
    SyntaxError,
    OverflowError,
    RecursionError,
    NotImplementedError,
    RuntimeError,
)
"""What the standard library raises on a truncated, encrypted or hostile archive."""
LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Signature, and the lengths of the name and of the extra field that stand before a member's data."""
OTHER_KINDS = {
    b"\x80": "a pickle, which can run code and is never opened: save the arrays with numpy.savez",
    b"\x93NUMPY": "a single array (.npy): save all fields in one file with numpy.savez",
    b"\x89HDF": "an HDF5 file: convert it with numpy.savez, or read a Minari data set with dataset_kind 'minari'",
}


@dataclass(frozen=True)
class _Header:
    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]
    num_bytes: int
    """Where the data begins, within the member."""

    @property
    def data_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class NpzFile:
    """The arrays of one `.npz` file; object arrays, which are pickles, are refused."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._name = f"'{path}'"
        self._archive = self._open()
        entries = self._archive.infolist()
        self._check_index(entries)
        self._members = {info.filename[:-4]: info for info in entries if info.filename.endswith(".npy")}
        if not self._members and any(info.filename.endswith("data.pkl") for info in entries):
            raise DatasetError(f"{self._name} was written by torch.save: use dataset_kind 'pt'")

    def __enter__(self) -> NpzFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    @property
    def keys(self) -> list[str]:
        """Names of the arrays."""
        return list(self._members)

    def read(self, key: str, choose_dtype: Callable[[np.dtype[Any]], np.dtype[Any]]) -> tuple[Array, bool]:
        """The array of that name in the chosen type, and whether it is mapped rather than in memory."""
        info = self._members[key]
        try:
            with self._archive.open(info) as stream:
                header = _read_header(stream)
                target = choose_dtype(header.dtype)
                if header.num_bytes + header.data_bytes != info.file_size:
                    raise ValueError(f"its header promises {header.data_bytes:,} bytes of data")
                if info.compress_type == zipfile.ZIP_STORED and target == header.dtype and _is_row_major(header):
                    _check_sum(stream)
                    return self._map(info, header), True
                return _read_blocks(stream, header, target), False
        except DAMAGE as error:
            raise DatasetError(f"'{key}' in {self._name} is damaged: {error}") from None
        except MemoryError:
            raise DatasetError(f"'{key}' in {self._name} does not fit into memory") from None

    def _open(self) -> zipfile.ZipFile:
        try:
            if self._path.stat().st_size == 0:
                raise DatasetError(f"{self._name} is empty: it has 0 bytes")
            return zipfile.ZipFile(self._path)
        except DAMAGE as error:
            with self._path.open("rb") as file:
                start = file.read(8)
            kind = next((text for magic, text in OTHER_KINDS.items() if start.startswith(magic)), None)
            if kind is not None:
                raise DatasetError(f"{self._name} is {kind}") from None
            state = "is cut off or damaged" if start.startswith(b"PK") else "is not an .npz file"
            raise DatasetError(f"{self._name} {state}: {error}") from None

    def _check_index(self, entries: list[zipfile.ZipInfo]) -> None:
        """Open every member, which compares its name with the index: a damaged name would look like a missing field."""
        for info in entries:
            try:
                self._archive.open(info).close()
            except DAMAGE as error:
                raise DatasetError(f"'{info.filename}' in {self._name} is damaged: {error}") from None

    def _map(self, info: zipfile.ZipInfo, header: _Header) -> Array:
        with self._path.open("rb") as file:
            file.seek(info.header_offset)
            signature, name_bytes, extra_bytes = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
        if signature != b"PK\x03\x04":
            raise ValueError("no member begins where the index says")
        if header.data_bytes == 0:
            return np.zeros(header.shape, header.dtype)
        offset = info.header_offset + LOCAL_HEADER.size + name_bytes + extra_bytes + header.num_bytes
        return np.memmap(self._path, header.dtype, "r", offset, header.shape).view(np.ndarray)


def _read_header(stream: IO[bytes]) -> _Header:
    version = npy_format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"it has .npy version {version}; plain arrays have 1.0 or 2.0")
    read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
    shape, is_fortran, dtype = read(stream)
    if any(size < 0 for size in shape):
        raise ValueError(f"its shape {shape} is impossible")
    return _Header(shape, is_fortran, dtype, stream.tell())


def _is_row_major(header: _Header) -> bool:
    return not header.is_fortran or len(header.shape) < 2


def _check_sum(stream: IO[bytes]) -> None:
    """Read to the end, where the archive compares its checksum: a mapped file is not checked later."""
    while stream.read(BLOCK_BYTES):
        pass


def _read_blocks(stream: IO[bytes], header: _Header, target: np.dtype[Any]) -> Array:
    """Fill an array of the target type from the stream, holding one block of the file's own type at a time."""
    if not _is_row_major(header):
        data = stream.read(header.data_bytes)
        return np.ascontiguousarray(np.frombuffer(data, header.dtype).reshape(header.shape, order="F"), target)
    array = np.empty(header.shape, target)
    flat = array.reshape(-1)
    size = max(1, BLOCK_BYTES // max(1, header.dtype.itemsize))
    for start in range(0, len(flat), size):
        count = min(size, len(flat) - start)
        data = stream.read(count * header.dtype.itemsize)
        block = np.frombuffer(data, header.dtype)
        if len(block) != count:
            raise EOFError("it ends early")
        if target == np.bool_ and not ((block == 0) | (block == 1)).all():
            raise ValueError("an ending is 0 or 1, and it holds other values")
        flat[start : start + count] = block
    _check_sum(stream)
    return array

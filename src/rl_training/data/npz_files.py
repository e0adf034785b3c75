"""Read `.npz` files: uncompressed members are memory-mapped, compressed ones are read into memory."""

from __future__ import annotations

import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
from numpy.lib import format as npy_format

from rl_training.data.dataset_fields import BLOCK_BYTES, JOIN_EPISODES, find_fields, stored_dtype
from rl_training.errors import DatasetError
from rl_training.memory import check_data_fits
from rl_training.replay.transitions import Array

DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, OSError, EOFError, ValueError),
    *(SyntaxError, OverflowError, RecursionError, NotImplementedError, RuntimeError),
)
"""Exceptions of the standard library and NumPy on a truncated, encrypted or hostile archive."""
LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Zip local file header: signature, and lengths of the name and extra field before a member's data."""
HEADER_READERS = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}
OTHER_KINDS = {
    b"\x80": f"a pickle, which can run code and is not opened: {JOIN_EPISODES}",
    b"\x93NUMPY": "a single array (.npy): save all fields in one file with numpy.savez",
    b"\x89HDF": "an HDF5 file: convert it with numpy.savez, or read a Minari dataset with dataset_kind 'minari'",
}


def read_npz(path: Path) -> Iterator[tuple[str, str, Array]]:
    """Yield field name, key and array of each field, memory-mapped where possible; pickles are not opened."""
    with _open_archive(path) as archive:
        entries = archive.infolist()
        for info in entries:
            # Opening compares the name with the index; a damaged name would otherwise look like a missing field.
            with _translate_damage(info.filename, path):
                archive.open(info).close()
        names = [info.filename for info in entries]
        twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
        if twice is not None:
            raise DatasetError(
                f"'{path}' has the member '{twice}' twice, and readers differ in which counts: save it again"
            )
        members = {info.filename[:-4]: info for info in entries if info.filename.endswith(".npy")}
        if not members and any(info.filename.endswith("data.pkl") for info in entries):
            raise DatasetError(f"'{path}' was written by torch.save: use dataset_kind 'pt'")
        fields = find_fields(members, f"'{path}'")
        headers = {}
        for name, key in fields.items():
            with _translate_damage(key, path), archive.open(members[key]) as stream:
                headers[name] = _read_header(path, name, members[key], stream)
        _check_fits(path, headers)
        for name, key in fields.items():
            with _translate_damage(key, path), archive.open(members[key]) as stream:
                array = _read_member(path, headers[name], members[key], stream)
            yield name, key, array


class _Header(NamedTuple):
    """Header of a member: its array, and how it is stored."""

    shape: tuple[int, ...]
    order: Literal["F", "C"]
    dtype: np.dtype[Any]
    target: np.dtype[Any]
    offset: int
    """Bytes of the .npy header before the data."""
    is_mapped: bool

    @property
    def memory_bytes(self) -> int:
        """Memory of the loaded array; 0 if it stays mapped."""
        stays_mapped = self.is_mapped and self.dtype == self.target and self.order == "C"
        return 0 if stays_mapped else math.prod(self.shape) * self.target.itemsize


def _read_header(path: Path, name: str, info: zipfile.ZipInfo, stream: IO[bytes]) -> _Header:
    version = npy_format.read_magic(stream)
    if version not in HEADER_READERS:
        raise ValueError(f".npy version {version} is not supported; numeric arrays have 1.0 or 2.0")
    shape, is_fortran, dtype = HEADER_READERS[version](stream)
    target = stored_dtype(name, dtype, f"'{path}'")
    offset, num_bytes = stream.tell(), math.prod(shape) * dtype.itemsize
    if offset + num_bytes != info.file_size:
        raise ValueError(
            f"its header announces {num_bytes:,} bytes of data, the member has {info.file_size - offset:,}"
        )
    is_mapped = info.compress_type == zipfile.ZIP_STORED and num_bytes > 0
    return _Header(shape, "F" if is_fortran else "C", dtype, target, offset, is_mapped)


def _check_fits(path: Path, headers: dict[str, _Header]) -> None:
    """Raise a `DatasetError` if the arrays exceed the free memory, before anything is decompressed."""
    needed = sum(header.memory_bytes for header in headers.values())
    if "next_obs" not in headers:  # derived from obs, which is copied too if it has final observations
        num_copies = 1 if headers["obs"].shape[:1] == headers["actions"].shape[:1] else 2
        needed += num_copies * math.prod(headers["obs"].shape) * headers["obs"].target.itemsize
    remedy = (
        "save it with numpy.savez (not savez_compressed), with next_obs, as float32 in C order, to have it"
        " memory-mapped; or keep fewer transitions"
    )
    check_data_fits(needed, f"'{path}'", remedy)


def _read_member(path: Path, header: _Header, info: zipfile.ZipInfo, stream: IO[bytes]) -> Array:
    shape, order, dtype, target, offset, is_mapped = header
    stream.read(offset)
    # Converted block by block, so that no array is in memory twice. Flags keep their dtype: values other than 0 and 1
    # are refused later.
    array = np.empty(0 if is_mapped else shape, dtype if target == np.bool_ else target, order)
    flat, size = array.reshape(-1, order=order), BLOCK_BYTES // dtype.itemsize
    for start in range(0, len(flat), size):
        part = flat[start : start + size]
        part[:] = np.frombuffer(stream.read(part.size * dtype.itemsize), dtype, part.size)
    # Reading to the end checks the CRC; a mapped array is not checked later.
    while stream.read(BLOCK_BYTES):
        pass
    return np.memmap(path, dtype, "r", _data_start(path, info) + offset, shape, order) if is_mapped else array


def _data_start(path: Path, info: zipfile.ZipInfo) -> int:
    with path.open("rb") as file:
        file.seek(info.header_offset)
        signature, name_bytes, extra_bytes = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
    if signature != b"PK\x03\x04":
        raise ValueError("the index points to no member")
    return int(info.header_offset + LOCAL_HEADER.size + name_bytes + extra_bytes)


@contextmanager
def _translate_damage(member: str, path: Path) -> Iterator[None]:
    try:
        yield
    except DAMAGE as error:
        raise DatasetError(f"'{member}' in '{path}' is damaged: {error}; save the file again") from None
    except MemoryError:
        raise DatasetError(f"'{member}' in '{path}' does not fit into memory: keep fewer transitions") from None


def _open_archive(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except DAMAGE as error:
        with path.open("rb") as file:
            start = file.read(8)
        for magic, kind in OTHER_KINDS.items():
            if start.startswith(magic):
                raise DatasetError(f"'{path}' is {kind}") from None
        state = "is truncated or damaged" if start.startswith(b"PK") else "is not an .npz file"
        raise DatasetError(f"'{path}' {state}: {error}; save it with numpy.savez") from None

"""Reads `.npz` archives: uncompressed fields are memory-mapped, damaged or hostile ones refused, pickles not opened."""

from __future__ import annotations

import math
import struct
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.lib import format as npy_format

from rl_training.data.dataset_fields import (
    BLOCK_BYTES,
    JOIN_EPISODES,
    FieldHeader,
    as_stored,
    check_fits,
    find_fields,
    stored_dtype,
)
from rl_training.errors import DatasetError
from rl_training.replay.transitions import Array

LOCAL_HEADER = struct.Struct("<26xHH")
"""Zip local file header: lengths of the name and extra field before a member's data."""
HEADER_READERS = {
    (1, 0): npy_format.read_array_header_1_0,
    (2, 0): npy_format.read_array_header_2_0,
}
OTHER_KINDS = {
    b"\x80": f"a pickle, which can run code and is not opened: {JOIN_EPISODES}",
    b"\x93NUMPY": "a single array (.npy): save all fields in one file with numpy.savez",
    b"\x89HDF": "an HDF5 file: convert it with numpy.savez, or read a Minari dataset with dataset_kind 'minari'",
}
SMALLER = (
    "save it with numpy.savez (not savez_compressed), with next_obs, as float32 in C order, to have it"
    " memory-mapped; or keep fewer transitions"
)


@dataclass(frozen=True, kw_only=True)
class Member(FieldHeader):
    """A field of an archive before it is read."""

    info: zipfile.ZipInfo
    dtype: np.dtype[Any]
    order: Literal["C", "F"]
    offset: int
    """Bytes of the .npy header before the data."""


def read_npz(path: Path, source: str) -> tuple[dict[str, Array], tuple[str, ...]]:
    """The stored fields, memory-mapped where possible, and a note on those that are not."""
    with _open_archive(path) as archive:
        infos = _array_members(archive, path)
        members = {}
        for name, key in find_fields(infos, source).items():
            with _translate_damage(key, path):
                members[name] = _read_header(archive, infos[key], name, source)
        check_fits(members, source, SMALLER)
        fields = {}
        for name, member in members.items():
            with _translate_damage(member.info.filename[:-4], path):
                array = _read_member(archive, path, member)
            fields[name] = as_stored(name, array, source)
    unmapped = [member.info.filename[:-4] for member in members.values() if member.is_copied]
    if not unmapped:
        return fields, ()
    reason = "because compressed or converted arrays cannot be memory-mapped"
    return fields, (f"{', '.join(unmapped)}: read into memory, {reason}",)


def _open_archive(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except Exception as error:  # zipfile raises many types for a damaged file
        with path.open("rb") as file:
            start = file.read(8)
        for magic, kind in OTHER_KINDS.items():
            if start.startswith(magic):
                raise DatasetError(f"'{path}' is {kind}") from None
        state = "is truncated or damaged" if start.startswith(b"PK") else "is not an .npz file"
        raise DatasetError(f"'{path}' {state}: {error}; save it with numpy.savez") from None


@contextmanager
def _translate_damage(member: str, path: Path) -> Iterator[None]:
    try:
        yield
    except DatasetError:
        raise
    except MemoryError:
        raise DatasetError(
            f"'{member}' in '{path}' does not fit into memory: keep fewer transitions"
        ) from None
    except Exception as error:  # zipfile, zlib and NumPy raise many types for a damaged member
        raise DatasetError(
            f"'{member}' in '{path}' is damaged: {error}; save the file again"
        ) from None


def _array_members(archive: zipfile.ZipFile, path: Path) -> dict[str, zipfile.ZipInfo]:
    """The arrays of an archive by key; each name is compared with the index, and occurs once."""
    entries = archive.infolist()
    for info in entries:
        # Opening compares the name with the index; a damaged name would otherwise look like a missing field.
        with _translate_damage(info.filename, path):
            archive.open(info).close()
    for name, count in Counter(info.filename for info in entries).items():
        if count > 1:
            raise DatasetError(
                f"'{path}' has the member '{name}' twice, and readers differ in which counts: save it again"
            )
    arrays = {info.filename[:-4]: info for info in entries if info.filename.endswith(".npy")}
    if not arrays and any(info.filename.endswith("data.pkl") for info in entries):
        raise DatasetError(f"'{path}' was written by torch.save: use dataset_kind 'pt'")
    return arrays


def _read_header(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, source: str) -> Member:
    with archive.open(info) as stream:
        version = npy_format.read_magic(stream)
        if version not in HEADER_READERS:
            raise ValueError(
                f".npy version {version} is not supported; numeric arrays have 1.0 or 2.0"
            )
        shape, is_fortran, dtype = HEADER_READERS[version](stream)
        offset = stream.tell()
    target = stored_dtype(name, dtype, source)
    num_bytes = math.prod(shape) * dtype.itemsize
    if offset + num_bytes != info.file_size:
        raise ValueError(
            f"its header announces {num_bytes:,} bytes of data, the member has {info.file_size - offset:,}"
        )
    is_plain = info.compress_type == zipfile.ZIP_STORED and num_bytes > 0
    return Member(
        shape,
        target,
        is_copied=not (is_plain and dtype == target and not is_fortran),
        info=info,
        dtype=dtype,
        order="F" if is_fortran else "C",
        offset=offset,
    )


def _read_member(archive: zipfile.ZipFile, path: Path, member: Member) -> Array:
    """The array, memory-mapped or read; its checksum is verified."""
    shape, dtype, order = member.shape, member.dtype, member.order
    array: Array
    with archive.open(member.info) as stream:
        stream.read(member.offset)
        if member.is_copied:
            # Converted block by block, so that no array is in memory twice. Flags keep their dtype: values other than 0
            # and 1 are refused later.
            is_flag = member.stored_dtype == np.bool_
            array = np.empty(shape, dtype if is_flag else member.stored_dtype, order)
            flat, size = array.reshape(-1, order=order), BLOCK_BYTES // dtype.itemsize
            for start in range(0, len(flat), size):
                part = flat[start : start + size]
                part[:] = np.frombuffer(stream.read(part.size * dtype.itemsize), dtype, part.size)
        else:
            array = np.memmap(
                path, dtype, "r", _data_start(path, member.info) + member.offset, shape
            )
        # Reading to the end checks the CRC; a mapped array is not checked later.
        while stream.read(BLOCK_BYTES):
            pass
    return array


def _data_start(path: Path, info: zipfile.ZipInfo) -> int:
    with path.open("rb") as file:
        file.seek(info.header_offset)
        lengths = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
    return int(info.header_offset + LOCAL_HEADER.size + sum(lengths))

"""Load datasets from `npz` files (memory-mapped), `pt` and Minari files or random actions; save and mix them."""

from __future__ import annotations

import math
import shlex
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.lib import format as npy_format

from rl_training.data.dataset_fields import (
    BLOCK_BYTES,
    JOIN_EPISODES,
    as_stored,
    find_fields,
    stored_dtype,
)
from rl_training.data.episode_layouts import complete_fields
from rl_training.data.minari_datasets import read_minari
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.errors import DatasetError
from rl_training.files import atomic_write, translate_write_errors
from rl_training.memory import check_data_fits
from rl_training.providers import provided
from rl_training.replay.transitions import Array
from rl_training.validation import suggest

KINDS = ("random", "npz", "pt", "minari")
SMALLER = (
    "keep fewer transitions, or save them with numpy.savez, which is memory-mapped instead of read"
)
DAMAGE = (
    *(
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
        tokenize.TokenError,
        OSError,
        EOFError,
        ValueError,
    ),
    *(SyntaxError, OverflowError, RecursionError, NotImplementedError, RuntimeError),
)
"""Exceptions of the standard library and NumPy on a truncated, encrypted or hostile archive."""
LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Zip local file header: signature, and lengths of the name and extra field before a member's data."""
HEADER_READERS = {
    (1, 0): npy_format.read_array_header_1_0,
    (2, 0): npy_format.read_array_header_2_0,
}
OTHER_KINDS = {
    b"\x80": f"a pickle, which can run code and is not opened: {JOIN_EPISODES}",
    b"\x93NUMPY": "a single array (.npy): save all fields in one file with numpy.savez",
    b"\x89HDF": "an HDF5 file: convert it with numpy.savez, or read a Minari dataset with dataset_kind 'minari'",
}


def load_transition_dataset(
    kind: str,
    *,
    dataset_path: str | Path | None = None,
    dataset_id: str | None = None,
    download: bool = False,
    env_id: str | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    size: int = 10_000,
    seed: int | np.random.SeedSequence = 0,
) -> TransitionDataset:
    """Load a dataset; its `notes` describe dropped rows and derived fields.

    `npz` and `pt` need `dataset_path`, `minari` needs `dataset_id`. `random` needs `env_id` and records `size` steps
    of random actions in that environment, created with `env_kwargs`.
    """
    if kind not in KINDS:
        raise DatasetError(f"unknown dataset_kind '{kind}'{suggest(str(kind), KINDS)}")
    if kind == "random":
        return _record_random(env_id, env_kwargs or {}, size, seed)
    if kind == "minari":
        if dataset_id is None:
            raise DatasetError(
                "dataset_kind 'minari' needs dataset_id: set it, for example to 'D4RL/door/human-v2'"
            )
        fields, notes = read_minari(dataset_id, download=download)
        return TransitionDataset(**fields, notes=notes)
    path = _existing_file(kind, dataset_path, env_id)
    return _load_npz(path) if kind == "npz" else _load_pt(path)


def save_transition_dataset(path: str | Path, dataset: TransitionDataset) -> Path:
    """Write an uncompressed `.npz`, which loads memory-mapped; an existing file is not overwritten."""
    path = check_new_file(path)
    with translate_write_errors(path, DatasetError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as draft, draft.open("xb") as file:
            fields = dataset.arrays()
            if not dataset.has_rewards:
                del fields["rewards"]
            np.savez(file, **fields)  # type: ignore[arg-type]
    return path


def check_new_file(path: str | Path) -> Path:
    """The path, or a `DatasetError` if `save_transition_dataset` cannot write there."""
    path = Path(path)
    if path.suffix != ".npz":
        raise DatasetError(f"cannot write '{path}': give a file name that ends in .npz")
    if path.exists():
        raise DatasetError(f"'{path}' exists already and is not overwritten: choose another name")
    return path


def mix_datasets(
    datasets: Sequence[TransitionDataset], weights: Sequence[float], seed: int
) -> TransitionDataset:
    """Concatenate random whole episodes of each dataset, with transitions in proportion to `weights`.

    The result is as large as possible without repeating an episode; proportions are met to the nearest episode.
    """
    fractions = np.asarray(weights, np.float64)
    if (
        len(datasets) == 0
        or len(fractions) != len(datasets)
        or not ((fractions > 0) & np.isfinite(fractions)).all()
    ):
        given = f"{len(datasets)} datasets with weights {list(weights)}"
        raise DatasetError(f"cannot mix {given}: give one finite weight above 0 per dataset")
    _check_same_fields(datasets)
    counts = fractions * min(
        len(dataset) / fraction for dataset, fraction in zip(datasets, fractions, strict=True)
    )
    rng = np.random.default_rng(seed)
    chosen = [
        (dataset, _choose_rows(dataset, n, rng))
        for dataset, n in zip(datasets, counts, strict=True)
    ]
    needed = sum(dataset.nbytes // len(dataset) * len(rows) for dataset, rows in chosen)
    check_data_fits(
        needed,
        f"a mix of {sum(len(rows) for _, rows in chosen):,} transitions",
        "mix smaller files",
    )
    fields: dict[str, Any] = {
        name: np.concatenate([dataset.arrays()[name][rows] for dataset, rows in chosen])
        for name in datasets[0].arrays()
    }
    return TransitionDataset(**fields, rng=rng, has_rewards=datasets[0].has_rewards)


def _choose_rows(dataset: TransitionDataset, num_wanted: float, rng: np.random.Generator) -> Array:
    """Rows of random whole episodes, in file order, about `num_wanted` in total."""
    episodes = dataset.episodes()
    order = rng.permutation(len(episodes))
    sizes = np.cumsum((episodes[:, 1] - episodes[:, 0])[order])
    count = int(np.argmin(np.abs(sizes - num_wanted))) + 1
    return np.concatenate(
        [np.arange(start, stop) for start, stop in episodes[np.sort(order[:count])]]
    )


def _check_same_fields(datasets: Sequence[TransitionDataset]) -> None:
    if len({dataset.masks is None for dataset in datasets}) > 1:
        raise DatasetError(
            "some datasets have action masks and others have none: mix datasets of one environment"
        )
    if len({dataset.has_rewards for dataset in datasets}) > 1:
        raise DatasetError(
            "some datasets have rewards and others have none: add them, or remove them everywhere"
        )
    for name in datasets[0].arrays():
        arrays = [dataset.arrays()[name] for dataset in datasets]
        kinds = [f"{array.dtype} of shape {array.shape[1:]}" for array in arrays]
        for number, kind in enumerate(kinds):
            if kind != kinds[0]:
                difference = f"{name} of dataset {number} is {kind} and of dataset 0 {kinds[0]}"
                raise DatasetError(f"{difference}: mix datasets of one environment")


def _existing_file(kind: str, dataset_path: str | Path | None, env_id: str | None) -> Path:
    if dataset_path is None:
        raise DatasetError(f"dataset_kind '{kind}' needs dataset_path: set it to a .{kind} file")
    path = Path(dataset_path).expanduser()
    if not path.exists():
        out = str(path) if kind == "npz" else "FILE.npz"
        command = shlex.join(
            ["rl-training", "data", "collect", "RUN", "--steps", "20000", "--out", out]
        )
        remedy = f"record an .npz file with `{command}`, where RUN is a run folder"
        if env_id is not None:
            remedy += f", for example of `{shlex.join(['rl-training', 'train', 'ppo', env_id])}`"
        raise DatasetError(
            f"'{path}' does not exist (looked from {Path.cwd()}): correct the path, or {remedy}"
        )
    if not path.is_file():
        raise DatasetError(f"'{path}' is not a file: dataset_kind '{kind}' reads one .{kind} file")
    try:
        with path.open("rb") as file:
            is_empty = not file.read(1)
    except OSError as error:
        raise DatasetError(f"cannot read '{path}': {error.strerror}") from None
    if is_empty:
        raise DatasetError(f"'{path}' is empty (0 bytes): save the dataset again")
    return path


def _record_random(
    env_id: str | None, env_kwargs: Mapping[str, Any], size: int, seed: int | np.random.SeedSequence
) -> TransitionDataset:
    if env_id is None:
        raise DatasetError(
            "dataset_kind 'random' needs env_id: set it, for example to 'Pendulum-v1'"
        )
    if size < 1:
        raise DatasetError(f"size is {size}: record at least 1 step")
    seeds = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    dataset: TransitionDataset = provided("record_random_actions")(env_id, env_kwargs, size, seeds)
    return dataset


def _load_npz(path: Path) -> TransitionDataset:
    source = f"'{path}'"
    fields: dict[str, Array] = {}
    unmapped = []
    for name, key, array in read_npz(path):
        fields[name] = as_stored(name, array, source)
        if not isinstance(array, np.memmap) or not np.may_share_memory(array, fields[name]):
            unmapped.append(key)
    note = f"{', '.join(unmapped)}: read into memory, because compressed or converted arrays cannot be memory-mapped"
    return _complete(fields, source, note if unmapped else None)


def _load_pt(path: Path) -> TransitionDataset:
    source = f"'{path}'"
    if not zipfile.is_zipfile(path):  # a zip archive is memory-mapped
        check_data_fits(path.stat().st_size, source, SMALLER)
    tensors = _read_tensors(path)
    found, needed = find_fields(tensors, source), 0
    for name, key in found.items():
        tensor = tensors[key]
        if (
            not isinstance(tensor, torch.Tensor)
            or tensor.layout is not torch.strided
            or tensor.is_quantized
        ):
            raise DatasetError(
                f"'{key}' in {source} is not a dense tensor: save a dict of dense tensors with torch.save"
            )
        if tensor.numel() * tensor.element_size() > path.stat().st_size:
            raise DatasetError(
                f"'{key}' in {source} is damaged: it is larger than the file; save the file again"
            )
        needed += _converted_bytes(name, tensor, source)
    if "next_obs" not in found:
        num_copies = (
            1 if tensors[found["obs"]].shape[:1] == tensors[found["actions"]].shape[:1] else 2
        )
        needed += num_copies * 4 * tensors[found["obs"]].numel()
    check_data_fits(needed, source, SMALLER)
    return _complete(
        {name: as_stored(name, tensors.pop(key), source) for name, key in found.items()}, source
    )


def _converted_bytes(name: str, tensor: torch.Tensor, source: str) -> int:
    """Memory for a field whose stored dtype or layout differs from the file's; 0 if the tensor can be kept."""
    dtype = (
        np.dtype(np.float32)
        if tensor.is_floating_point()
        else np.dtype(str(tensor.dtype).removeprefix("torch."))
    )
    target = stored_dtype(name, dtype, source)
    is_same = tensor.dtype is torch.float32 or (not tensor.is_floating_point() and dtype == target)
    return 0 if is_same and tensor.is_contiguous() else tensor.numel() * target.itemsize


def _read_tensors(path: Path) -> dict[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error below describes the fault
            # weights_only: tensors and plain containers; a pickle with other objects is refused before it runs.
            content = torch.load(
                path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
            )
    except Exception as error:  # torch raises many types for a damaged file
        reason = str(error).split("\n")[0][:200]
        if "weights_only" in str(error):
            reason = "it contains objects other than tensors"
        elif ".npy" in reason:
            reason = "it was written by numpy.savez: use dataset_kind 'npz'"
        raise DatasetError(
            f"'{path}' cannot be read: {reason}; save a dict of tensors with torch.save, or arrays as npz"
        ) from None
    if not isinstance(content, dict):
        more = f", or {JOIN_EPISODES}" if isinstance(content, (list, tuple)) else ""
        kind = type(content).__name__
        raise DatasetError(
            f"'{path}' contains a {kind}: save a dict of tensors with torch.save{more}"
        )
    return {str(key): value for key, value in content.items()}


def _complete(fields: dict[str, Array], source: str, note: str | None = None) -> TransitionDataset:
    complete, derived = complete_fields(fields, source)
    return TransitionDataset(**complete, notes=(note, *derived) if note else derived)


def read_npz(path: Path) -> Iterator[tuple[str, str, Array]]:
    """Yield field name, key and array of each field, memory-mapped where possible; pickles are not opened."""
    with _open_archive(path) as archive:
        entries = archive.infolist()
        for info in entries:
            # Opening compares the name with the index; a damaged name would otherwise look like a missing field.
            with _translate_damage(info.filename, path):
                archive.open(info).close()
        names = [info.filename for info in entries]
        twice = (
            next((name for name in names if names.count(name) > 1), None)
            if len(set(names)) < len(names)
            else None
        )
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
    if (
        "next_obs" not in headers
    ):  # derived from obs, which is copied too if it has final observations
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
    return (
        np.memmap(path, dtype, "r", _data_start(path, info) + offset, shape, order)
        if is_mapped
        else array
    )


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
        raise DatasetError(
            f"'{member}' in '{path}' is damaged: {error}; save the file again"
        ) from None
    except MemoryError:
        raise DatasetError(
            f"'{member}' in '{path}' does not fit into memory: keep fewer transitions"
        ) from None


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

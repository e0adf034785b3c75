"""Checkpoints: a folder of safetensors files and a JSON manifest, which cannot run code.

A checkpoint is written to a temporary folder, synced and renamed, so a folder under its final name is complete. The
manifest has the schema version, a checksum of itself, and the size and SHA-256 of every file; reading checks them all.
No name in the manifest is used as a path. A replay buffer is written in segments; a segment that is unchanged since the
previous checkpoint is a hard link to its file there.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import safetensors.torch
import torch

from rl_training.errors import CheckpointError
from rl_training.experiment.checkpoint_folder import (
    CHECKPOINT_NAME,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    is_run_folder,
    list_checkpoints,
    read_pointer,
)
from rl_training.experiment.codec import (
    UnsavableStateError,
    as_array,
    pack,
    pack_section,
    unpack_dict,
    unpack_section,
)
from rl_training.files import (
    atomic_write,
    open_regular,
    read_limited,
    sync,
    translate_write_errors,
    write_new,
)
from rl_training.replay.transitions import Segment

SCHEMA_VERSION = 4
SECTIONS = ("algorithm", "buffer", "trainer")
Known = dict[tuple[int, int], tuple[Path, dict[str, Any]]]
"""Segments of an earlier checkpoint: (version, rows) to its file and its manifest entry."""


@dataclass(frozen=True)
class CheckpointState:
    """Everything needed to resume a run."""

    algorithm_state: dict[str, Any]
    buffer_state: dict[str, Any] | None
    """State of the replay or rollout buffer; None if the checkpoint was saved or read without it."""
    trainer_state: dict[str, Any]
    config: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)


def save_checkpoint(
    path: str | Path,
    state: CheckpointState,
    *,
    base: Path | None = None,
    workspace: Path | None = None,
) -> Path:
    """Write `state` to a new folder `path`; segments unchanged since the checkpoint `base` are linked, not copied.

    The folder is prepared in `workspace` (default: beside `path`).
    """
    path = Path(path)
    if path.exists():
        raise CheckpointError(f"'{path}' exists already and is not overwritten")
    with (
        translate_write_errors(path, CheckpointError, "checkpoint "),
        atomic_write(path, workspace) as temporary,
    ):
        temporary.mkdir(parents=workspace is None)
        _write_files(temporary, state, base)
    return path


def load_checkpoint(path: str | Path, *, include_buffer: bool = True) -> CheckpointState:
    """Read and verify a checkpoint; without `include_buffer` the buffer's files are not read."""
    folder = resolve_checkpoint(path)
    try:
        return _read(folder, include_buffer)
    except CheckpointError as error:
        raise _with_fallback(str(error), folder.parent, damaged=folder) from None


def verify_checkpoint(folder: Path) -> None:
    """Raise a `CheckpointError` unless every file has the size and checksum of the manifest."""
    for name, entry in _files_of(_read_manifest(folder)):
        with _open_checked(folder / name, entry):
            pass


def resolve_checkpoint(path: str | Path) -> Path:
    """The checkpoint folder of `path`: a checkpoint, a run's `last` or `best` file, or a run folder (its last one)."""
    path = Path(path)
    if (path / MANIFEST).is_file():
        return path
    if path.name in ("last", "best") and path.is_file():
        return _follow_pointer(path)
    folder = path / "checkpoints"
    if (folder / "last").is_file():
        return _follow_pointer(folder / "last")
    if not path.exists():
        raise CheckpointError(f"'{path}' does not exist (looked from {Path.cwd()})")
    if CHECKPOINT_NAME.fullmatch(path.name) and path.is_dir():
        raise _with_fallback(
            f"'{path / MANIFEST}' is missing, or is not a regular file", path.parent, damaged=path
        )
    if any(list_checkpoints(folder)):
        raise _with_fallback(f"'{folder / 'last'}' is missing", folder)
    raise CheckpointError(
        f"'{path}' is neither a checkpoint nor a run folder with one{_restart_remedy(path)}"
    )


def _restart_remedy(path: Path) -> str:
    """The command that starts a run again that ended before its first checkpoint; empty for another folder."""
    suffix = re.search(r"__seed[0-9]+__(.+)", path.absolute().name)
    if suffix is None or not is_run_folder(path):
        return ""
    words = [
        "train",
        "--config",
        str(path / "config.yaml"),
        "--output-dir",
        str(path.parent),
        "--run-suffix",
        suffix[1],
    ]
    command = shlex.join(["rl-training", *words, "--resume-or-start"])
    return f": the run ended before its first checkpoint; to start it again: `{command}`"


def _follow_pointer(pointer: Path) -> Path:
    try:
        target = pointer.parent / read_pointer(pointer)[0]
        if target.is_symlink() or not (target / MANIFEST).is_file():
            raise CheckpointError(
                f"'{pointer}' points at '{target.name}', which is not a checkpoint beside it"
            )
    except CheckpointError as error:
        raise _with_fallback(str(error), pointer.parent) from None
    return target


def _with_fallback(message: str, folder: Path, damaged: Path | None = None) -> CheckpointError:
    """The error; it names the newest intact checkpoint of the run, if there is one."""
    for path in list_checkpoints(folder):
        with contextlib.suppress(CheckpointError):
            if path != damaged:
                verify_checkpoint(path)
                return CheckpointError(f"{message}; '{path}' is intact", path)
    return CheckpointError(message)


def check_savable(state: CheckpointState) -> None:
    """Raise a `CheckpointError` that names the part of `state` a checkpoint cannot store; writes nothing."""
    manifest, _ = _pack_state(state)
    _manifest_text(manifest)


def _write_files(folder: Path, state: CheckpointState, base: Path | None) -> None:
    manifest, sections = _pack_state(state)
    for name, tensors in sections.items():
        manifest["sections"][name] |= _write_tensors(folder / f"{name}.safetensors", tensors)
    earlier = _known_segments(base)
    for index, segment in enumerate((state.buffer_state or {}).get("segments", ())):
        manifest["segments"].append(_write_segment(folder / _segment_file(index), segment, earlier))
    manifest["checksum"] = _checksum(manifest)
    write_new(folder / MANIFEST, _manifest_text(manifest))
    for path in folder.iterdir():  # synced after all are written: much faster than one by one
        if path.stat().st_nlink == 1:  # a hard link was synced before
            sync(path)


def _pack_state(
    state: CheckpointState,
) -> tuple[dict[str, Any], dict[str, dict[str, torch.Tensor]]]:
    """The manifest without its file entries, and the tensors of each section."""
    manifest: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "sections": {}, "segments": []}
    for name, values in (("config", state.config), ("metadata", state.metadata)):
        try:
            manifest[name] = pack(values, None)
        except UnsavableStateError as error:
            raise error.within(name) from None
    tensors = {}
    trees = {
        "algorithm": state.algorithm_state,
        "buffer": state.buffer_state,
        "trainer": state.trainer_state,
    }
    for name, tree in trees.items():
        if tree is not None:
            rest = {key: value for key, value in tree.items() if key != "segments"}
            json_state, tensors[name] = pack_section(name, rest)
            manifest["sections"][name] = {"plain": json_state}
    return manifest, tensors


def _manifest_text(manifest: dict[str, Any]) -> bytes:
    text = json.dumps(manifest, indent=1, allow_nan=False).encode()
    if len(text) > MAX_MANIFEST_BYTES:
        raise CheckpointError(
            f"the manifest takes {len(text):,} bytes, more than the limit of {MAX_MANIFEST_BYTES:,}:"
            " make the configuration or metadata smaller"
        )
    return text


def _known_segments(base: Path | None) -> Known:
    if base is not None:
        with contextlib.suppress(CheckpointError):  # an unreadable base is not linked to
            entries = enumerate(_read_manifest(base)["segments"])
            return {
                (entry["version"], entry["rows"]): (base / _segment_file(index), entry)
                for index, entry in entries
            }
    return {}


def _write_segment(path: Path, segment: Segment, earlier: Known) -> dict[str, Any]:
    rows = len(next(iter(segment.arrays.values())))
    known = earlier.get((segment.version, rows)) if segment.version else None
    if known is not None:
        with contextlib.suppress(
            OSError
        ):  # no hard links here, or the file is gone: write it below
            os.link(known[0], path)
            return known[1]
    tensors: dict[str, torch.Tensor] = {}
    pack(segment.arrays, tensors)
    return {**_write_tensors(path, tensors), "version": segment.version, "rows": rows}


def _write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Write a safetensors file and return its manifest entry."""
    data = safetensors.torch.save({key: tensor.clone() for key, tensor in tensors.items()})
    write_new(path, data)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _read(folder: Path, include_buffer: bool) -> CheckpointState:
    manifest = _read_manifest(folder)
    sections = {
        name: unpack_section(
            name, entry["plain"], _read_tensors(folder / f"{name}.safetensors", entry)
        )
        for name, entry in manifest["sections"].items()
        if include_buffer or name != "buffer"
    }
    if "buffer" in sections and manifest["segments"]:
        sections["buffer"]["segments"] = [
            Segment(entry["version"], _read_segment(folder / _segment_file(index), entry))
            for index, entry in enumerate(manifest["segments"])
        ]
    return CheckpointState(
        algorithm_state=sections["algorithm"],
        buffer_state=sections.get("buffer"),
        trainer_state=sections["trainer"],
        config=_without_python_types(unpack_dict(manifest["config"], {}, "config")),
        metadata=unpack_dict(manifest["metadata"], {}, "metadata"),
    )


def _without_python_types(value: Any) -> Any:
    """The settings of an older checkpoint, which may hold tuples, sets and dates, as JSON has them."""
    if isinstance(value, dict):
        return {key: _without_python_types(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_without_python_types(item) for item in value]
    return value.isoformat() if isinstance(value, datetime.date) else value


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(read_limited(path, MAX_MANIFEST_BYTES))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"'{path}' is damaged: {error}") from None
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if type(version) is not int or version != SCHEMA_VERSION:
        raise CheckpointError(
            f"'{path}' has schema version {version!r:.100}; this version of rl-training reads {SCHEMA_VERSION}"
        )
    checksum = manifest.pop("checksum", None)
    if checksum != _checksum(manifest):
        raise CheckpointError(f"'{path}' is damaged: its checksum differs")
    wrong = _find_wrong_entry(manifest)
    if wrong is not None:
        raise CheckpointError(f"'{path}' is damaged: it lacks {wrong}")
    return dict(manifest)


def _find_wrong_entry(manifest: dict[str, Any]) -> str | None:
    """The first missing or malformed entry of a manifest; None if there is none."""
    for name in ("config", "metadata", "sections"):
        if not isinstance(manifest.get(name), dict):
            return name
    if not isinstance(manifest.get("segments"), list):
        return "segments"
    sections = manifest["sections"]
    if not {"algorithm", "trainer"} <= sections.keys() <= set(SECTIONS):
        return "the sections algorithm and trainer, or has unknown ones"
    for name, entry in _files_of(manifest):
        if (
            not isinstance(entry, dict)
            or type(entry.get("bytes")) is not int
            or not isinstance(entry.get("sha256"), str)
        ):
            return f"the size and checksum of {name}"
    for name, entry in sections.items():
        if not isinstance(entry.get("plain"), dict):
            return f"the state in {name}"
    if any(
        type(entry.get(key)) is not int
        for entry in manifest["segments"]
        for key in ("version", "rows")
    ):
        return "the versions of the segments"
    return None


def _files_of(manifest: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, entry in manifest["sections"].items():
        yield f"{name}.safetensors", entry
    for index, entry in enumerate(manifest["segments"]):
        yield _segment_file(index), entry


def _read_segment(path: Path, entry: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    tensors = _read_tensors(path, entry, is_mapped=True)
    arrays = {name.removeprefix("/"): as_array(tensor, name) for name, tensor in tensors.items()}
    if not arrays or {len(array) if array.ndim else 0 for array in arrays.values()} != {
        entry["rows"]
    }:
        raise CheckpointError(
            f"'{path}' is damaged: it does not hold {entry['rows']} rows of each field"
        )
    return arrays


def _read_tensors(
    path: Path, entry: dict[str, Any], *, is_mapped: bool = False
) -> dict[str, torch.Tensor]:
    """Tensors of a file; memory-mapped if `is_mapped`, since a replay buffer can be as large as the memory."""
    with _open_checked(path, entry) as file:
        try:
            return (
                safetensors.torch.load_file(path)
                if is_mapped
                else safetensors.torch.load(file.read())
            )
        except Exception as error:  # the library raises many types of errors for damaged files
            raise CheckpointError(f"'{path}' is not a safetensors file: {error!s:.300}") from None


@contextlib.contextmanager
def _open_checked(path: Path, entry: dict[str, Any]) -> Iterator[BinaryIO]:
    """Open a file after verifying its size and checksum against its manifest entry."""
    with open_regular(path) as file:
        size, expected = os.fstat(file.fileno()).st_size, entry["bytes"]
        if size != expected:
            raise CheckpointError(
                f"'{path}' is damaged: it has {size:,} bytes, the manifest says {expected:,}"
            )
        if _sha(file) != entry["sha256"]:
            raise CheckpointError(
                f"'{path}' is damaged: its checksum is not the one in the manifest"
            )
        file.seek(0)
        yield file


def _sha(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()


def _checksum(manifest: dict[str, Any]) -> str:
    try:
        text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    except RecursionError:
        raise CheckpointError("the manifest is nested too deeply") from None
    return hashlib.sha256(text.encode()).hexdigest()


def _segment_file(index: int) -> str:
    return f"replay_{index:06d}.safetensors"

"""Checkpoints: a folder of safetensors and one JSON manifest. Nothing in it can run code.

A checkpoint is written beside its place, synced and renamed, so a folder under its final name is whole. The manifest
carries the schema version and the size and SHA-256 of every file; all are checked on reading.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

from rl_training.errors import CheckpointError
from rl_training.experiment.tree_codec import pack, unpack

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
SECTIONS = ("algorithm", "buffer", "trainer")


@dataclass(frozen=True)
class CheckpointState:
    """Everything a run needs to go on."""

    algorithm_state: dict[str, Any]
    buffer_state: dict[str, Any] | None
    """What the replay or rollout buffer held; None if the checkpoint was saved or read without it."""
    trainer_state: dict[str, Any]
    config: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)


def save_checkpoint(path: str | Path, state: CheckpointState) -> Path:
    """Write `state` as the folder `path`, which must not exist yet."""
    path = Path(path)
    if path.exists():
        raise CheckpointError(f"'{path}' exists already and is not overwritten")
    draft = path.with_name(f".{path.name}.draft-{os.getpid()}")
    try:
        draft.mkdir(parents=True)
        _write_sections(draft, state)
        draft.rename(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise CheckpointError(f"cannot write checkpoint '{path}': {error.strerror or error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return path


def load_checkpoint(path: str | Path, *, include_buffer: bool = True) -> CheckpointState:
    """Read a checkpoint; without `include_buffer` the buffer's file is not touched."""
    folder = resolve_checkpoint(path)
    manifest = _read_manifest(folder)
    sections = {
        name: _read_section(folder, manifest, name)
        for name in SECTIONS
        if name in manifest["sections"] and (include_buffer or name != "buffer")
    }
    return CheckpointState(
        algorithm_state=sections["algorithm"],
        buffer_state=sections.get("buffer"),
        trainer_state=sections["trainer"],
        config=manifest["config"],
        metadata=manifest["metadata"],
    )


def resolve_checkpoint(path: str | Path) -> Path:
    """The checkpoint folder that `path` means: itself, a run's `last` or `best`, or a run folder's last."""
    path = Path(path)
    if (path / MANIFEST).is_file():
        return path
    if path.is_file() and path.name in ("last", "best"):
        return _follow_pointer(path)
    if (path / "checkpoints" / "last").is_file():
        return _follow_pointer(path / "checkpoints" / "last")
    if not path.exists():
        raise CheckpointError(f"'{path}' does not exist (looked from {Path.cwd()})")
    raise CheckpointError(f"'{path}' is neither a checkpoint nor a run folder with one")


def _follow_pointer(pointer: Path) -> Path:
    name = pointer.read_text(encoding="utf-8", errors="replace").strip()
    target = pointer.parent / name
    if Path(name).name != name or not (target / MANIFEST).is_file():
        raise CheckpointError(f"'{pointer}' points at '{name}', which is not a checkpoint beside it")
    return target


class CheckpointFolder:
    """The `checkpoints/` of a run: numbered checkpoints, and `last` and `best`, which name one of them each."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self._folder = folder
        self._keep = keep

    def save(self, step: int, write: Callable[[Path], object]) -> Path:
        """Let `write` make the checkpoint of `step`, point `last` at it and remove what is no longer needed."""
        path = self._folder / f"step_{step:012d}"
        if not path.exists():
            write(path)
        self.point("last", path)
        self._prune()
        return path

    def point(self, name: str, path: Path) -> None:
        """Let `last` or `best` mean `path`."""
        draft = self._folder / f".{name}.draft-{os.getpid()}"
        _write_synced(draft, f"{path.name}\n".encode())
        draft.replace(self._folder / name)
        _sync_folder(self._folder)

    def discard_after(self, step: int) -> None:
        """Remove checkpoints of steps that a run resumed at `step` will take again."""
        for path in self._folder.glob("step_*"):
            if int(path.name.removeprefix("step_")) > step:
                for pointer in (self._folder / "last", self._folder / "best"):
                    if pointer.is_file() and pointer.read_text(encoding="utf-8").strip() == path.name:
                        pointer.unlink()
                shutil.rmtree(path)

    def _prune(self) -> None:
        kept = {_follow_pointer(p).name for p in (self._folder / "last", self._folder / "best") if p.is_file()}
        found = sorted(self._folder.glob("step_*"))
        kept.update(path.name for path in found[-self._keep :])
        for path in found:
            if path.name not in kept:
                shutil.rmtree(path)


def _write_sections(folder: Path, state: CheckpointState) -> None:
    manifest: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "config": pack(state.config, {}),
        "metadata": state.metadata,
        "sections": {},
    }
    trees = (state.algorithm_state, state.buffer_state, state.trainer_state)
    for name, tree in zip(SECTIONS, trees, strict=True):
        if tree is None:
            continue
        tensors: dict[str, torch.Tensor] = {}
        plain = pack(tree, tensors)
        data = safetensors.torch.save({key: tensor.clone() for key, tensor in tensors.items()})
        file = f"{name}.safetensors"
        _write_synced(folder / file, data)
        digest = hashlib.sha256(data).hexdigest()
        manifest["sections"][name] = {"file": file, "bytes": len(data), "sha256": digest, "plain": plain}
    _write_synced(folder / MANIFEST, json.dumps(manifest, indent=1, allow_nan=False).encode())
    _sync_folder(folder)


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"'{path}' is damaged: {error}") from None
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if version != SCHEMA_VERSION:
        raise CheckpointError(f"'{path}' has schema version {version!r}; this package reads {SCHEMA_VERSION}")
    parts = {name: manifest.get(name) for name in ("config", "metadata", "sections")}
    sections = parts["sections"] if isinstance(parts["sections"], dict) else {}
    parts |= {name: sections.get(name) for name in ("algorithm", "trainer")}
    parts |= {f"the state in {name}": entry.get("plain") for name, entry in sections.items() if isinstance(entry, dict)}
    missing = [name for name, value in parts.items() if not isinstance(value, dict)]
    if missing:
        raise CheckpointError(f"'{path}' is damaged: it lacks {', '.join(missing)}")
    return {**manifest, "config": unpack(manifest["config"], {})}


def _read_section(folder: Path, manifest: dict[str, Any], name: str) -> dict[str, Any]:
    path = folder / f"{name}.safetensors"
    entry = manifest["sections"][name]
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read '{path}': {error.strerror}") from None
    if len(data) != entry.get("bytes") or hashlib.sha256(data).hexdigest() != entry.get("sha256"):
        raise CheckpointError(
            f"'{path}' is damaged: it has {len(data)} bytes where the manifest says {entry.get('bytes')},"
            " or its checksum differs"
        )
    try:
        tensors = safetensors.torch.load(data)
    except SafetensorError as error:
        raise CheckpointError(f"'{path}' is not a safetensors file: {error}") from None
    tree = unpack(entry["plain"], tensors)
    return dict(tree)


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

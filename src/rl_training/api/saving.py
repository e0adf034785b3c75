"""Saving a policy as a checkpoint folder, in place of one that was saved before if the user asks for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rl_training.errors import CheckpointError
from rl_training.experiment.checkpoint_folder import MANIFEST
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.files import TEMPORARY, remove, translate_write_errors
from rl_training.runtime.run_utils import save_training_checkpoint

FILES = {MANIFEST, "algorithm.safetensors", "trainer.safetensors"}
"""Files of a saved policy."""


def save_policy(path: str | Path, *, overwrite: bool, **values: Any) -> Path:
    """Write a checkpoint without buffer and trainer state; with `overwrite`, in place of one written by this."""
    path = Path(path)
    if not overwrite and path.exists():
        remedy = "choose another path, or replace a saved policy with overwrite=True"
        raise CheckpointError(f"'{path}' exists already and is not overwritten: {remedy}")
    if not (path.exists() or path.is_symlink()):
        return save_training_checkpoint(path, trainer_state={}, **values)
    _refuse_other(path)
    new, old = (
        path.parent / f".{path.name}{TEMPORARY}{kind}-{os.getpid()}" for kind in ("new", "old")
    )
    remove(new)
    try:
        save_training_checkpoint(new, trainer_state={}, **values)
        with translate_write_errors(path, CheckpointError, "checkpoint "):
            _swap(new, path, old)
    finally:
        remove(new)
    return path


def _swap(new: Path, path: Path, old: Path) -> None:
    """Put the complete folder `new` in the place of `path`; on a failure `path` is as it was."""
    remove(old)
    path.rename(old)
    try:
        new.rename(path)
    except OSError:
        old.rename(path)
        raise
    remove(old)


def _refuse_other(path: Path) -> None:
    """Raise unless `path` is a folder that holds a saved policy and nothing else."""
    fault = None
    if path.is_symlink() or not (path / MANIFEST).is_file():
        fault = "is not a policy that save wrote"
    elif load_checkpoint(path, include_buffer=False).trainer_state:
        fault = "is a checkpoint of a run"
    else:
        others = sorted(entry.name for entry in path.iterdir() if entry.name not in FILES)
        fault = f"holds '{others[0]}', which save does not write" if others else None
    if fault is not None:
        raise CheckpointError(
            f"'{path}' {fault}, and is not overwritten: choose another path, or remove it yourself"
        )

"""The `checkpoints/` folder of a run: numbered checkpoints, and the files `last` and `best`, which each name one."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rl_training.errors import CheckpointError
from rl_training.files import (
    TEMPORARY,
    read_limited,
    read_object,
    remove,
    replace_synced,
    short_checksum,
    translate_write_errors,
)

MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 1 << 26
CHECKPOINT_NAME = re.compile(r"step_([0-9]{1,20})(?:_r([0-9]{1,9}))?")
Position = tuple[int, ...]
"""Progress of a run: its step, then counters that distinguish two states of the same step."""


class Best(NamedTuple):
    """Content of the `best` file."""

    name: str
    """Name of the checkpoint."""
    score: float


def is_run_folder(path: Path) -> bool:
    """Whether a folder is a run folder."""
    return (path / "config.yaml").is_file() and (path / "checkpoints").is_dir()


def list_checkpoints(folder: Path) -> list[Path]:
    """The numbered checkpoints in a run's `checkpoints/`, newest first."""
    named = [path for path in folder.glob("step_*") if CHECKPOINT_NAME.fullmatch(path.name)]
    found = [path for path in named if path.is_dir() and not path.is_symlink()]
    return sorted(found, key=lambda path: checkpoint_order(path.name), reverse=True)


def checkpoint_order(name: str) -> tuple[int, int]:
    """Step and revision in a checkpoint's name: `step_64` is revision 0, `step_64_r1` was written after it."""
    match = CHECKPOINT_NAME.fullmatch(name)
    if match is None:
        raise CheckpointError(
            f"'{name}' is not the name of a checkpoint, which is like step_000000000064"
        )
    return int(match[1]), int(match[2] or 0)


def read_pointer(pointer: Path) -> list[str]:
    """Content of a `last` or `best` file: a checkpoint's name, and for `best` its score."""
    text = read_limited(pointer, 1024).decode("utf-8", errors="replace")
    words = text.split()
    num_words = 2 if pointer.name == "best" else 1
    is_cut = num_words == 2 and not text.endswith("\n")  # a truncated score is still a number
    if is_cut or (len(words) > num_words and words[-1] != short_checksum(" ".join(words[:-1]))):
        raise CheckpointError(f"'{pointer}' is damaged: its checksum differs")
    if not words or not CHECKPOINT_NAME.fullmatch(words[0]):
        raise CheckpointError(
            f"'{pointer}' points at '{text.strip():.100}', which is not a checkpoint beside it"
        )
    return words[:num_words]  # the checksum is optional: a pointer written by hand has none


class CheckpointFolder:
    """Writes checkpoints, and removes old ones: the best and the newest `keep` (a number or `all`) stay."""

    def __init__(
        self, folder: Path, keep: int | Literal["all"] = 2, workspace: Path | None = None
    ) -> None:
        """Manage `folder`; files are written to, and removed from, `workspace` (default: the folder itself)."""
        self._folder = folder
        self._workspace = workspace
        self._keep = keep
        self._newest: tuple[Position, Path] | None = None

    @property
    def last(self) -> Path | None:
        """The checkpoint that `last` names."""
        words = self._words("last")
        return self._folder / words[0] if words else None

    @property
    def best(self) -> Best | None:
        """The checkpoint that `best` names, and its score."""
        words = self._words("best")
        with contextlib.suppress(ValueError, IndexError):
            return Best(words[0], float(words[1]))
        return None

    def save(self, position: Position, write: Callable[[Path, Path | None], object]) -> Path:
        """Call `write(path, base)` to write the checkpoint of `position`, point `last` at it, and remove old ones.

        A run stopped within an iteration completes it at the same step: the position differs, and the checkpoint is a
        further revision of the step.
        """
        if self._newest is None or self._newest[0] != position or not self._newest[1].is_dir():
            path = self._unused_name(position[0])
            write(path, self.last)
            self._newest = position, path
        path = self._newest[1]
        self._point("last", path.name)
        with translate_write_errors(self._folder, CheckpointError):
            self._prune()
        return path

    def offer_best(self, path: Path, score: float) -> None:
        """Point `best` at `path` if `score` is higher than the best one so far."""
        if self.best is None or score > self.best.score:
            self._point("best", f"{path.name} {score!r}")

    def rewind_to(self, name: str, position: Position | None, best: Best | None) -> None:
        """Resume from the checkpoint `name`: remove later ones.

        If the `best` file names a later one, it is reset to `best`. `position` is None if the settings have changed
        since the checkpoint: the next save at its step then writes a new one.
        """
        self._newest = None if position is None else (position, self._folder / name)
        self._point("last", name)
        with translate_write_errors(self._folder, CheckpointError):
            for path in list_checkpoints(self._folder):
                if checkpoint_order(path.name) > checkpoint_order(name):
                    if self._words("best")[:1] == [path.name]:
                        self.restore_best(best)
                    self._remove(path)

    def restore_best(self, best: Best | None) -> None:
        """Write the `best` file again; remove it if `best` is None or its checkpoint does not exist."""
        if best is not None and (self._folder / best.name).is_dir():
            self._point("best", f"{best.name} {best.score!r}")
        else:
            with translate_write_errors(self._folder, CheckpointError):
                if (self._folder / "best").exists():
                    self._remove(self._folder / "best")

    def _unused_name(self, step: int) -> Path:
        """Path of a new checkpoint, which sorts after every other of the same step."""
        orders = [checkpoint_order(path.name) for path in list_checkpoints(self._folder)]
        revision = max((revision + 1 for known, revision in orders if known == step), default=0)
        return self._folder / (f"step_{step:012d}_r{revision}" if revision else f"step_{step:012d}")

    def _point(self, name: str, text: str) -> None:
        """Write `text` and its checksum to the `last` or `best` file."""
        path = self._folder / name
        with translate_write_errors(path, CheckpointError):
            replace_synced(path, f"{text} {short_checksum(text)}\n".encode(), self._workspace)

    def _words(self, name: str) -> list[str]:
        """Content of a `last` or `best` file; empty if it is missing or damaged."""
        with contextlib.suppress(CheckpointError):
            return read_pointer(self._folder / name)
        return []

    def _prune(self) -> None:
        if self._keep == "all":
            return
        if (self._folder / "best").exists() and not self._words("best"):
            return  # damaged: any checkpoint may be the best, so none is removed
        kept = {word for name in ("last", "best") for word in self._words(name)[:1]}
        found = list_checkpoints(self._folder)
        newest_of_step = {checkpoint_order(path.name)[0]: path.name for path in reversed(found)}
        kept.update(sorted(newest_of_step.values(), key=checkpoint_order)[-self._keep :])
        for path in found:
            if path.name not in kept:
                self._remove(path)

    def _remove(self, path: Path) -> None:
        """Rename a checkpoint before removing it, so that a partly removed one is never read."""
        leftover = (self._workspace or self._folder) / f".{path.name}{TEMPORARY}removed"
        path.rename(leftover)
        remove(leftover)


def last_metadata(run_dir: Path) -> dict[str, Any]:
    """Metadata of a run's last checkpoint: machine, threads, why it is not exact. Empty if it cannot be read."""
    last = CheckpointFolder(run_dir / "checkpoints").last
    manifest = {} if last is None else read_object(last / MANIFEST, MAX_MANIFEST_BYTES)
    metadata = manifest.get("metadata")
    return metadata if isinstance(metadata, dict) else {}

"""The `checkpoints/` of a run: numbered checkpoints, and `last` and `best`, which name one of them each."""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from rl_training.errors import CheckpointError
from rl_training.files import DRAFT, naming_write, read_limited, remove_drafts, replace_synced

CHECKPOINT_NAME = re.compile(r"step_[0-9]{1,20}")


def list_checkpoints(folder: Path) -> list[Path]:
    """The numbered checkpoints in a run's `checkpoints/`, the newest first."""
    named = [path for path in folder.glob("step_*") if CHECKPOINT_NAME.fullmatch(path.name)]
    found = [path for path in named if path.is_dir() and not path.is_symlink()]
    return sorted(found, key=lambda path: int(path.name[5:]), reverse=True)


def read_pointer(pointer: Path) -> list[str]:
    """The words in a `last` or `best`: a checkpoint's name, and for `best` its score."""
    text = read_limited(pointer, 1024).decode("utf-8", errors="replace")
    words = text.split()
    num_words = 2 if pointer.name == "best" else 1
    is_cut = num_words == 2 and not text.endswith("\n")  # a part of a score looks like a score
    if is_cut or (len(words) > num_words and words[-1] != _checksum(" ".join(words[:-1]))):
        raise CheckpointError(f"'{pointer}' is damaged: its checksum differs")
    if not words or not CHECKPOINT_NAME.fullmatch(words[0]):
        raise CheckpointError(f"'{pointer}' points at '{text.strip():.100}', which is not a checkpoint beside it")
    return words[:num_words]  # the checksum may be missing: older versions wrote none


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class CheckpointFolder:
    """Keeps the last `keep` checkpoints and the best one."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self._folder = folder
        self._keep = keep

    @property
    def last(self) -> Path | None:
        """The newest whole checkpoint."""
        words = self._words("last")
        return self._folder / words[0] if words else None

    @property
    def best_score(self) -> float | None:
        """The score of the checkpoint that `best` names."""
        words = self._words("best")
        with contextlib.suppress(ValueError, IndexError):
            return float(words[1])
        return None

    def save(self, step: int, write: Callable[[Path, Path | None], object]) -> Path:
        """Let `write(path, base)` make the checkpoint of `step`, point `last` at it, remove what is not needed."""
        path = self._folder / f"step_{step:012d}"
        if path.is_symlink() or not path.exists():
            write(path, self.last)
        self._point("last", path.name)
        with naming_write(self._folder, CheckpointError):
            self._prune()
        return path

    def offer_best(self, path: Path, score: float) -> None:
        """Let `best` name `path`, unless it names one with a score at least as good."""
        if self.best_score is None or score > self.best_score:
            self._point("best", f"{path.name} {score!r}")

    def go_back_to(self, step: int) -> None:
        """Remove checkpoints of steps that a run resumed at `step` will take again, and what a killed process left."""
        resumed = self._folder / f"step_{step:012d}"
        if resumed.is_dir():
            self._point("last", resumed.name)
        with naming_write(self._folder, CheckpointError):
            remove_drafts(self._folder)
            for path in list_checkpoints(self._folder):
                if int(path.name[5:]) > step:
                    for name in ("last", "best"):
                        if self._words(name)[:1] == [path.name]:
                            (self._folder / name).unlink()
                    self._remove(path)

    def _point(self, name: str, text: str) -> None:
        """Let a `last` or `best` say `text`, followed by a checksum of it."""
        path = self._folder / name
        with naming_write(path, CheckpointError):
            replace_synced(path, f"{text} {_checksum(text)}\n".encode())

    def _words(self, name: str) -> list[str]:
        """What a pointer says; nothing if it is missing or damaged, since it is then about to be written anew."""
        with contextlib.suppress(CheckpointError):
            return read_pointer(self._folder / name)
        return []

    def _prune(self) -> None:
        if (self._folder / "best").exists() and not self._words("best"):
            return  # which one is the best cannot be told any more, so none is removed
        kept = {word for name in ("last", "best") for word in self._words(name)[:1]}
        found = list_checkpoints(self._folder)
        kept.update(path.name for path in found[: self._keep])
        for path in found:
            if path.name not in kept:
                self._remove(path)

    def _remove(self, path: Path) -> None:
        """Take a checkpoint's name away first, so that a part of it is never taken for the whole."""
        leftover = path.with_name(f".{path.name}{DRAFT}removed")
        path.rename(leftover)
        shutil.rmtree(leftover)

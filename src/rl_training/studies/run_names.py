"""Runs by name: a path, the unique beginning of a folder's name, or `@last`."""

from __future__ import annotations

import contextlib
from pathlib import Path

from rl_training.errors import ConfigError
from rl_training.experiment.run_folder import TrainingRun
from rl_training.studies.catalog import find_run_folders

LAST = "@last"


def find_run(name: str, folder: Path = Path("runs")) -> Path:
    """The run that `name` means: a path, a unique prefix of a run folder's name, or `@last`.

    A prefix is looked for in the folder that it names (`out/ppo__Cart`), else in `folder`. `@last` is the run that was
    created last in `folder`. A checkpoint of the run may follow: `@last:best`, `@last/checkpoints/best`.
    """
    with contextlib.suppress(OSError):  # a name longer than any file's
        if Path(name).exists():
            return Path(name)
    run, inner = _split(name)
    found = _newest(folder) if run == LAST else _find_prefix(run, folder)
    if inner and not (found / inner).exists():
        raise ConfigError(f"'{name}': run '{found}' has no {inner}")
    return found / inner


def _split(name: str) -> tuple[str, str]:
    """The name of the run, and the path within it."""
    run, colon, pointer = name.rpartition(":")
    if colon and pointer in ("best", "last"):
        return run, f"checkpoints/{pointer}"
    run, slash, rest = name.partition("/checkpoints/")
    if slash:
        return run, f"checkpoints/{rest}"
    head, _, rest = name.partition("/")
    return (head, rest) if head == LAST else (name, "")


def _find_prefix(name: str, folder: Path) -> Path:
    place, prefix = Path(name).parent, Path(name).name
    where = folder if place == Path() else place
    where = where if where.is_dir() else folder / place
    matches = [path for path in find_run_folders(where) if path.name.startswith(prefix)]
    matches = [path for path in matches if path.name == prefix] or matches
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise ConfigError(
            f"'{name}' does not exist (looked from {Path.cwd()}), and no run folder in '{where}' has a name that begins"
            " so: `rl-training runs` lists the runs"
        )
    listed = ", ".join(f"'{path}'" for path in matches[:4]) + (", …" if len(matches) > 4 else "")
    raise ConfigError(f"'{name}' is the beginning of {len(matches):,} run folders' names in '{where}': {listed}")


def _newest(folder: Path) -> Path:
    paths = find_run_folders(folder)
    if not paths:
        raise ConfigError(f"{LAST}: there is no run in '{folder}' (looked from {Path.cwd()})")
    return max(paths, key=_created_at)


def _created_at(run_dir: Path) -> tuple[str, float]:
    created = TrainingRun(run_dir).metadata().get("created")
    changed = 0.0
    with contextlib.suppress(OSError):
        changed = (run_dir / "config.yaml").stat().st_mtime
    return created if isinstance(created, str) else "", changed

"""The catalog of run folders: what each run is, how far it is, and whether a process trains it. Reads only."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpoint_folder import CheckpointFolder, checkpoint_order
from rl_training.experiment.checkpoint_folder import is_run_folder as is_run_folder
from rl_training.experiment.config import leaves, load_config_file
from rl_training.experiment.ownership import Owner, is_alive, read_heartbeat, read_owner
from rl_training.experiment.run_folder import TrainingRun, is_interruption
from rl_training.files import open_regular
from rl_training.validation import suggest

State = Literal["running", "finished", "stopped", "failed", "dead"]
STATES: tuple[State, ...] = get_args(State)
ENDED: tuple[State, ...] = ("finished", "stopped", "failed")
DEEPEST = 4
"""Levels below a folder at which run folders are found."""
TAIL_BYTES = 1 << 16
LARGEST_SCORE = 1e300
"""Means and intervals of larger scores overflow."""
LISTED = "`rl-training runs show RUN` lists them"
DESCRIBED = ("algo", "env_id", "seed", "total_timesteps")
"""Settings that the metadata repeat; those of older versions do not."""
LARGEST_COUNT = 1 << 63
"""A larger number of steps is damage: divided, it overflows."""


@dataclass(frozen=True)
class RunInfo:
    """One run, read from its folder."""

    run_dir: Path
    state: State
    """`running`: a live process owns it; `dead`: its process ended without recording an end."""
    algo: str | None
    env_id: str | None
    seed: int | None
    step: int
    total: int | None
    last_eval: float | None
    """Mean return of the last evaluation."""
    best_eval: float | None
    rate: float | None
    """Steps per second: of the last seconds while it runs, else of its last process."""
    created: str | None
    attempt: int
    """How many processes have trained it."""
    owner: Owner | None
    reason: str | None
    """Why it stopped or failed."""
    exactness: str | None
    """`approximate` if it may differ from a run that was never stopped."""
    has_checkpoint: bool

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.run_dir.name

    @property
    def share(self) -> float | None:
        """Fraction of the run done, 0 to 1."""
        return min(1.0, self.step / self.total) if self.total else None

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until the run's last step, while it runs."""
        if self.state != "running" or not self.rate or self.total is None:
            return None
        return max(0, self.total - self.step) / self.rate

    @property
    def age_seconds(self) -> float | None:
        """Seconds since the run was created."""
        with contextlib.suppress(TypeError, ValueError):
            created = datetime.fromisoformat(self.created or "")
            return max(0.0, (datetime.now(timezone.utc) - created).total_seconds())
        return None

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """The values of `config.yaml`; empty if it is missing or damaged."""
        return read_settings(self.run_dir)

    def as_dict(self) -> dict[str, Any]:
        """The run as one object of `runs --json`."""
        values = asdict(self)
        owner = values.pop("owner")
        own = {"run_dir": str(self.run_dir), "name": self.name, "share": self.share}
        return {**values, **own, "owner": owner}


def read_run(run_dir: Path, now: float | None = None) -> RunInfo:
    """Read the facts of a run from its folder; `now` is the time on the clock that dates its files."""
    metadata, owner = TrainingRun(run_dir).metadata(), read_owner(run_dir)
    described = {key: metadata.get(key) for key in DESCRIBED}
    if None in described.values():
        settings = read_settings(run_dir)
        described |= {key: settings.get(key) for key in DESCRIBED if described[key] is None}
    state = _state(run_dir, metadata, owner, now)
    is_running = state == "running"
    beat = read_heartbeat(run_dir, owner) if owner is not None and is_running else {}
    checkpoints = CheckpointFolder(run_dir / "checkpoints")
    best, last = checkpoints.best, checkpoints.last
    saved = 0 if last is None else checkpoint_order(last.name)[0]
    logged = last_line(run_dir / "metrics.jsonl").get("global_step")
    steps = [_count(step) for step in (saved, logged, beat.get("step"))]
    return RunInfo(
        run_dir=run_dir,
        state=state,
        algo=_text(described["algo"]),
        env_id=_text(described["env_id"]),
        seed=_count(described["seed"]),
        step=max(step for step in steps if step is not None),
        total=_count(described["total_timesteps"]),
        last_eval=_last_score(run_dir, logged if state == "finished" else None),
        best_eval=None if best is None else _finite(best.score),
        rate=_finite(beat.get("rate") if is_running else metadata.get("steps_per_second")),
        created=_text(metadata.get("created")),
        attempt=0 if owner is None else owner.attempt,
        owner=owner,
        reason=_text(metadata.get("stop_reason")) if state in ("stopped", "failed") else None,
        exactness=_text(metadata.get("exactness")),
        has_checkpoint=last is not None,
    )


def read_settings(run_dir: Path) -> Mapping[str, Any]:
    """The values of `config.yaml`; empty if it is missing or damaged."""
    with contextlib.suppress(ConfigError):
        return load_config_file(run_dir / "config.yaml")
    return {}


def _state(
    run_dir: Path, metadata: Mapping[str, Any], owner: Owner | None, now: float | None
) -> State:
    """Computed from the owner and its heartbeat; a recorded end counts only if the last owner recorded it."""
    if is_alive(run_dir, owner, now):
        return "running"
    is_last = owner is None or metadata.get("attempt") == owner.attempt
    recorded = metadata.get("status") if is_last else None
    return next((state for state in ENDED if state == recorded), "dead")


def _last_score(run_dir: Path, step: object) -> float | None:
    """Mean return of the last evaluation; None if it is not of `step`, at which a finished run was evaluated."""
    line = last_line(run_dir / "evaluations.jsonl")
    if step is None or line.get("global_step") == step:
        with contextlib.suppress(KeyError, OverflowError, TypeError, ValueError):
            score = statistics.fmean(line["returns"])
            return score if abs(score) <= LARGEST_SCORE else None
    return None


def is_complete(info: RunInfo) -> bool:
    """Whether a run has nothing left to do: it reached its last step, or stopped early by its own rule."""
    return info.state == "finished" or (
        info.state == "stopped" and not is_interruption(info.reason)
    )


def find_run_folders(folder: Path) -> list[Path]:
    """The run folders in `folder` and below, by name; `folder` itself if it is one."""
    if is_run_folder(folder):
        return [folder]
    return sorted(_walk(folder, DEEPEST))


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or not entry.is_dir(follow_symlinks=False):
                continue
            path = Path(entry.path)
            if is_run_folder(path):
                yield path
            elif depth > 1:
                yield from _walk(path, depth - 1)


def list_runs(folder: Path, filters: Sequence[str] = ()) -> list[RunInfo]:
    """The runs in `folder` that match every filter: `key=value` of a run or its settings, or a part of its name."""
    for text in filters:
        key, _, wanted = text.partition("=")
        if key == "state" and wanted not in STATES:
            raise ConfigError(f"bad value '{wanted}' for the filter state: use {', '.join(STATES)}")
    infos = [read_run(path) for path in find_run_folders(folder)]
    found = [info for info in infos if all(_matches(info, text) for text in filters)]
    if infos and not found:
        _refuse_unknown_keys(filters, infos)
    return found


def _refuse_unknown_keys(filters: Sequence[str], infos: Sequence[RunInfo]) -> None:
    """Raise a `ConfigError` for a filter by a key that no run has."""
    known = dict.fromkeys(infos[0].as_dict())
    for info in infos[:100]:
        for key, _ in leaves(info.settings):
            parts = key.split(".")
            known |= dict.fromkeys(".".join(parts[: end + 1]) for end in range(len(parts)))
    for key in (text.partition("=")[0] for text in filters if "=" in text):
        if key not in known and f"algo_kwargs.{key}" not in known:
            ends = [name for name in known if name.endswith(f".{key}")]
            hint = f": did you mean '{ends[0]}'?" if ends else suggest(key, known, LISTED)
            raise ConfigError(f"no run has a setting '{key}'{hint}")


def _matches(info: RunInfo, text: str) -> bool:
    key, equals, wanted = text.partition("=")
    if not equals:
        return text in info.name
    known = info.as_dict()
    if key in known:
        value = known[key]
    else:
        is_of_run = key.partition(".")[0] in info.settings
        value = info.settings if is_of_run else info.settings.get("algo_kwargs")
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        with contextlib.suppress(ValueError):
            return (int(wanted) if re.fullmatch(r"\d{1,40}", wanted) else float(wanted)) == value
    return (value if isinstance(value, str) else json.dumps(value, default=str)) == wanted


def last_line(path: Path) -> dict[str, Any]:
    """The last complete line of a JSON Lines file; empty if there is none."""
    with (
        contextlib.suppress(CheckpointError, OSError, ValueError, RecursionError),
        open_regular(path) as file,
    ):
        size = file.seek(0, os.SEEK_END)
        for length in (min(size, TAIL_BYTES), size):
            file.seek(size - length)
            lines = file.read(length).split(b"\n")[
                :-1
            ]  # what follows the last line break is incomplete
            if len(lines) > 1 or (lines and length == size):
                values = json.loads(lines[-1])
                return values if isinstance(values, dict) else {}
    return {}


def format_age(seconds: float | None) -> str:
    """A duration in its largest unit: 5s, 12m, 3h, 2d."""
    if seconds is None:
        return "-"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value < LARGEST_COUNT else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _finite(value: Any) -> float | None:
    with contextlib.suppress(OverflowError, TypeError):
        return float(value) if math.isfinite(value) else None
    return None


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
    if run == LAST:
        raise ConfigError(f"'{name}': write {LAST}:best or {LAST}:last, or {LAST}/checkpoints/NAME")
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
    raise ConfigError(
        f"'{name}' is the beginning of {len(matches):,} run folders' names in '{where}': {listed}"
    )


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

"""The folder of a run: name, configuration, metadata, log, and how its last process ended."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import logging
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rl_training.errors import (
    CheckpointError,
    ConfigError,
    RLTrainingError,
    RunExistsError,
    RunOwnedError,
)
from rl_training.experiment.checkpoint_folder import list_checkpoints
from rl_training.experiment.config import TrainConfig, load_config_file, serialize_train_config
from rl_training.experiment.logs import LOG_NAME, TIMING_NAME, close_run_logger, make_run_logger
from rl_training.experiment.ownership import (
    OWNER_FOLDER,
    REPLACED,
    STOP_FILE,
    STOP_REQUEST,
    Lease,
    acquire,
)
from rl_training.experiment.yaml_text import dump_yaml, is_unedited, sign
from rl_training.files import (
    read_limited,
    read_object,
    remove,
    replace_synced,
    translate_write_errors,
)

MAX_METADATA_BYTES = 1 << 24
INTERRUPTED = "interrupted by "
INTERRUPTIONS = {
    INTERRUPTED + source for source in (*signal.Signals.__members__, STOP_REQUEST, REPLACED)
}
"""Reasons of a stop that leaves more to do; a callback's reason may begin with the same words."""
LOG_FILES = ("metrics.jsonl", "evaluations.jsonl", TIMING_NAME, LOG_NAME)
RUN_FOLDERS = ("tensorboard", "wandb", "checkpoints", OWNER_FOLDER)
RUN_FILES = {"config.yaml", "metadata.json", *LOG_FILES, *RUN_FOLDERS, STOP_FILE}
"""Files and folders that a run writes in its folder."""


@dataclasses.dataclass(frozen=True)
class TrainingRun:
    """The folder of one run, and its log."""

    run_dir: Path
    lease: Lease | None = dataclasses.field(default=None, compare=False)
    """The right to write the folder; None: this object only reads."""

    @functools.cached_property
    def logger(self) -> logging.Logger:
        """Logger that writes to `run.log` in the run folder only."""
        return make_run_logger(self.run_dir, self.workspace)

    @property
    def workspace(self) -> Path | None:
        """Folder in which files are prepared, while this process owns the run."""
        return None if self.lease is None or self.lease.is_released else self.lease.workspace

    def owned(self) -> TrainingRun:
        """The same folder with the right to write it; a `RunOwnedError` if a live process has it."""
        return dataclasses.replace(self, lease=acquire(self.run_dir))

    @property
    def config_path(self) -> Path:
        """Path of the resolved configuration."""
        return self.run_dir / "config.yaml"

    @property
    def checkpoints_dir(self) -> Path:
        """Folder of the checkpoints."""
        return self.run_dir / "checkpoints"

    def __fspath__(self) -> str:
        return str(self.run_dir)

    def close(self) -> None:
        """Detach the log file, and let another process own the run."""
        logger = vars(self).pop("logger", None)
        if logger is not None:
            close_run_logger(logger)
        if self.lease is not None:
            self.lease.release()

    def refuse_links(self) -> None:
        """Refuse links in place of files that a resumed run writes: in an untrusted folder they may lead anywhere."""
        for name in RUN_FILES - {"metadata.json"}:  # which is replaced, whatever it is
            path = self.run_dir / name
            is_expected = path.is_file() if path.suffix or name == STOP_FILE else path.is_dir()
            if path.is_symlink() or (path.exists() and not is_expected):
                raise CheckpointError(
                    f"'{path}' is a link or another unexpected kind of file: remove it, or resume with --output-dir"
                )

    def write_config(self, config: TrainConfig) -> None:
        """Write `config.yaml`; a checksum in its last line shows later whether it was edited."""
        self._write("config.yaml", sign(dump_yaml(serialize_train_config(config))))

    def read_config(self) -> tuple[dict[str, Any] | None, bool]:
        """The values in `config.yaml` (None without the file), and whether the file is unedited."""
        path = self.run_dir / "config.yaml"
        if not path.exists():
            return None, True
        values = load_config_file(path)
        return values, is_unedited(path.read_text(encoding="utf-8"))

    def read_pointer(self) -> bytes | None:
        """Content of the file that names the last checkpoint; None if there is none."""
        with contextlib.suppress(CheckpointError):
            return read_limited(self.checkpoints_dir / "last", MAX_METADATA_BYTES)
        return None

    def update_metadata(self, **values: Any) -> None:
        """Change some values of `metadata.json`, atomically."""
        self._write("metadata.json", json.dumps({**self.metadata(), **values}, indent=2) + "\n")

    @property
    def was_cut_short(self) -> bool:
        """Whether the last process of the run was killed, failed or was interrupted."""
        metadata = self.metadata()
        return metadata.get("status") not in ("finished", "stopped") or is_interruption(
            metadata.get("stop_reason")
        )

    def resume(self, config: TrainConfig, **metadata: Any) -> None:
        """Record that a new process continues the run."""
        self.write_config(config)
        plugins = _loaded_code()
        self.record_start(config, **({"plugins": plugins} if plugins else {}), **metadata)

    def finish(self, status: str, reason: str | None, **metadata: Any) -> None:
        """Record the status and reason of the run's end in the metadata and the log, then close the log."""
        self.update_metadata(status=status, stop_reason=reason, ended=now(), **metadata)
        level = logging.ERROR if status == "failed" else logging.INFO
        text = status if reason is None else f"{status}: {reason}"
        self.logger.log(level, "%s", text, exc_info=sys.exc_info()[0] is not None)
        self.close()

    def record_start(self, config: TrainConfig, **metadata: Any) -> None:
        """Record in the metadata that this attempt is running, with what lists of runs show of its settings."""
        self.update_metadata(
            status="running",
            attempt=None if self.lease is None else self.lease.attempt,
            algo=config.algo,
            env_id=config.env_id,
            seed=config.seed,
            total_timesteps=config.total_timesteps,
            tags=list(config.tags),
            **metadata,
        )

    def metadata(self) -> dict[str, Any]:
        """Content of `metadata.json`; empty if it is missing or damaged, which must not prevent a resume."""
        return read_object(self.run_dir / "metadata.json", MAX_METADATA_BYTES)

    def _write(self, name: str, text: str) -> None:
        path = self.run_dir / name
        with translate_write_errors(path):
            replace_synced(path, text.encode(), self.workspace)


def check_suffix(suffix: str | None) -> None:
    """Raise a `ConfigError` for an empty suffix: an unset variable of a job script, for example."""
    if suffix is not None and not suffix.strip():
        raise ConfigError(
            "the run suffix is empty: give --run-suffix a name (in Python: run_suffix=...), or leave it out"
        )


def run_name(config: TrainConfig, suffix: str) -> str:
    """Name of a run's folder."""
    stem = f"{safe_name(config.algo)}__{safe_name(config.env_id or 'offline')}__seed{config.seed}"
    return f"{stem}__{safe_name(suffix)}"


def create_training_run(
    config: TrainConfig, *, run_suffix: str | None = None, is_restart: bool = False, **metadata: Any
) -> TrainingRun:
    """Create a run folder with `config.yaml`, `metadata.json` and `run.log`; an existing folder is refused.

    The result has `run_dir`, `config_path`, `logger` (a `logging.Logger` that writes to `run.log`) and `close()`, and
    this process owns the folder until it is closed. With `is_restart`, the folder of a run that was killed before its
    first checkpoint is used again.
    """
    check_suffix(run_suffix)
    run = _own_new_folder(config, run_suffix, is_restart=is_restart)
    try:
        _clear(run)
        with translate_write_errors(run.checkpoints_dir):
            run.checkpoints_dir.mkdir()
        run.write_config(config)
        run.record_start(
            config,
            command=[Path(sys.argv[0]).name, *sys.argv[1:]],
            created=now(),
            plugins=_loaded_code(),
            versions=package_versions(),
            git_commit=_git_commit(),
            **metadata,
        )
        where, length = config.env_id or "a dataset", f"{config.total_timesteps:,} timesteps"
        run.logger.info("created: %s on %s, seed %d, %s", config.algo, where, config.seed, length)
    except BaseException:
        run.close()
        shutil.rmtree(run.run_dir, ignore_errors=True)  # nothing was trained in it yet
        raise
    return run


def _own_new_folder(config: TrainConfig, suffix: str | None, *, is_restart: bool) -> TrainingRun:
    """A folder without a checkpoint that this process owns."""
    folder, is_new = _make_new_folder(config, suffix, is_restart=is_restart)
    try:
        run = TrainingRun(folder).owned()
    except BaseException as error:
        if is_new and not isinstance(error, RunOwnedError):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if has_checkpoint(folder):
        run.close()
        raise RunExistsError(
            f"run '{folder}' was started by another process meanwhile: repeat the command"
        )
    return run


def has_checkpoint(run_dir: Path) -> bool:
    """Whether a run folder holds a checkpoint."""
    folder = run_dir / "checkpoints"
    return (folder / "last").exists() or any(list_checkpoints(folder))


def refuse_other_files(run_dir: Path) -> None:
    """Raise a `ConfigError` if a run folder that is to be cleared holds files that no run writes."""
    others = sorted(
        path.name
        for path in run_dir.iterdir()
        if path.name not in RUN_FILES and path.name[0] != "."
    )
    if others:
        raise ConfigError(
            f"'{run_dir}' has no checkpoint and holds '{others[0]}', which no run writes: move it away"
        )


def _clear(run: TrainingRun) -> None:
    """Remove what a killed run left in its folder before its first checkpoint."""
    with translate_write_errors(run.run_dir):
        for name in RUN_FILES - {OWNER_FOLDER}:
            remove(run.run_dir / name)


def is_interruption(stop_reason: object) -> bool:
    """Whether a run was interrupted, by a signal or a stop file: it has more to do, and resuming continues it."""
    return isinstance(stop_reason, str) and stop_reason in INTERRUPTIONS


def _loaded_code() -> list[str]:
    from rl_training.plugins.user_code import (
        loaded_code,
    )  # imports Gymnasium, which readers of runs do not need

    return loaded_code()


def interrupting_signal(stop_reason: str | None) -> signal.Signals | None:
    """The signal that ended a run; None if none did."""
    return next(
        (number for number in signal.Signals if stop_reason == INTERRUPTED + number.name), None
    )


def safe_name(text: str) -> str:
    """`text` with characters that are unsafe in a folder name replaced by `-`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "unnamed"


def _make_new_folder(
    config: TrainConfig, suffix: str | None, *, is_restart: bool
) -> tuple[Path, bool]:
    """The run's folder, and whether it was made here."""
    parent = config.output_dir
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    stamps = itertools.chain([stamp], (f"{stamp}-{number}" for number in itertools.count(1)))
    for ending in [suffix] if suffix else stamps:
        folder = parent / run_name(config, ending)
        try:
            folder.mkdir(parents=True)
            return folder, True
        except FileExistsError:
            if not parent.is_dir():
                raise RLTrainingError(f"output folder '{parent}' is not a folder") from None
            if is_restart and folder.is_dir() and not folder.is_symlink():
                refuse_other_files(folder)
                return folder, False
        except OSError as error:
            raise RLTrainingError(
                f"cannot create run folder '{folder}': {error.strerror}"
            ) from None
    raise RunExistsError(
        f"run folder '{folder}' exists already: add --resume-or-start to continue it (in Python:"
        " DefaultExperimentManager().resume_or_start), or choose another suffix"
    )


def now() -> str:
    """Current time in UTC, in ISO format."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of the packages that are installed; others are left out.

    A loaded package says its version itself: builds of torch differ in it (`2.13.0+cu130`), their distributions do not.
    """
    found = {}
    for name in packages:
        with contextlib.suppress(PackageNotFoundError):
            own = getattr(sys.modules.get(name), "__version__", None)
            found[name] = _version(name) if own is None else str(own)
    return found


@functools.cache
def _version(package: str) -> str:
    """The version of a package, which each checkpoint asks for: reading it takes longer than writing a small one."""
    return version(package)


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages that affect results."""
    return {
        "python": platform.python_version(),
        **installed_versions(("rl-training", "torch", "gymnasium", "numpy")),
    }


def _git_commit() -> str | None:
    """Git commit of the working directory; None outside a repository."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None

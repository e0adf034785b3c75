"""Imports a model of SB3: reads it, converts it, compares it with SB3 if asked to, and writes a run folder."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.bundle.sb3.archive import read_archive
from rl_training.bundle.sb3.conversion import Conversion, convert
from rl_training.bundle.sb3.vecnormalize import read_vecnormalize
from rl_training.bundle.sb3.verification import Verification, verify
from rl_training.experiment.run_folder import TrainingRun
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import run_training
from rl_training.runtime.trainer import TrainerState, TrainResult
from rl_training.terminal.streams import quieted

STOP_REASON = "imported from Stable-Baselines3"


@dataclass(frozen=True)
class Imported:
    """An imported model: its run, what was taken and left, and how it compares with SB3's policy."""

    result: TrainResult
    conversion: Conversion
    verification: Verification | None

    def as_dict(self) -> dict[str, Any]:
        """All of it, JSON-compatible."""
        conversion, result = self.conversion, self.result
        return {
            "run": str(result.run_dir),
            "checkpoint": str(result.checkpoint_path),
            "algo": conversion.config.algo,
            "env_id": conversion.config.env_id,
            "global_step": conversion.global_step,
            "sb3_version": conversion.archive.version,
            **conversion.report.as_dict(),
            "verified": None if self.verification is None else vars(self.verification),
            "metrics": result.metrics,
        }


def import_sb3(
    path: str | Path,
    env_id: str,
    *,
    vecnormalize: str | Path | None = None,
    changes: Mapping[str, Any] | None = None,
    run_suffix: str | None = None,
    verify_with_sb3: bool = False,
    sb3_python: str | None = None,
) -> Imported:
    """Import the zip file of an SB3 model as a run folder, which can be evaluated, resumed and started from.

    `changes` are settings of the run (`{"env_kwargs": …}`), which win over those of the model. Without
    `verify_with_sb3` nothing of the file is unpickled; with it SB3 loads the file itself, in a process of its own.
    """
    statistics_file = None if vecnormalize is None else Path(vecnormalize)
    archive = read_archive(Path(path))
    statistics = None if statistics_file is None else read_vecnormalize(statistics_file)
    conversion = convert(archive, statistics, {**(changes or {}), "env_id": env_id})
    verification = verify(conversion, statistics_file, sb3_python) if verify_with_sb3 else None
    with quieted():
        callbacks = [_Load(conversion)]
        result = run_training(conversion.config, run_suffix=run_suffix or Path(path).stem, callbacks=callbacks)
    imported = Imported(result, conversion, verification)
    _record_origin(imported)
    return imported


class _Load(Callback):
    """Puts the imported state into a new run, and ends it at once: it saves and evaluates as any run does."""

    def __init__(self, conversion: Conversion) -> None:
        self._conversion = conversion

    def on_train_start(self, trainer: TrainerState) -> None:
        """Load the state, and set the counters to where SB3 stopped."""
        state = copy.deepcopy(self._conversion.algorithm.state_dict())
        own = trainer.algorithm.state_dict()
        trainer.algorithm.load_state_dict({**state, "generator": own["generator"], "progress": 1.0})
        trainer.global_step, trainer.update_count = self._conversion.global_step, self._conversion.num_updates
        # No update is due for steps that are not in the replay buffer.
        trainer.warm_start_step = trainer.update_calls = trainer.global_step
        trainer.request_stop(STOP_REASON)


def _record_origin(imported: Imported) -> None:
    """Write into the run's metadata where it comes from."""
    archive = imported.conversion.archive
    facts = {"file": archive.path.name, "package": "stable-baselines3", "version": archive.version}
    verified = None if imported.verification is None else vars(imported.verification)
    origin = {**facts, **imported.conversion.report.as_dict(), "verified": verified}
    # Written without owning the folder again, which would count as another attempt at the run.
    TrainingRun(imported.result.run_dir).update_metadata(imported=origin, steps_per_second=None)

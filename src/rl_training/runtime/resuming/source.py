"""The checkpoint to resume from, and the run folder that holds it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rl_training.errors import CheckpointError
from rl_training.experiment.checkpoint_folder import CHECKPOINT_NAME, checkpoint_order
from rl_training.experiment.checkpointing import (
    CheckpointState,
    load_checkpoint,
    resolve_checkpoint,
    verify_checkpoint,
)
from rl_training.experiment.run_folder import TrainingRun


@dataclass(frozen=True)
class ResumeSource:
    """A loaded checkpoint and its place."""

    checkpoint_path: Path
    state: CheckpointState
    run_dir: Path | None
    """The run folder that holds the checkpoint; None: the checkpoint was copied out of its run."""
    is_fallback: bool
    """Whether the checkpoint replaces a damaged one."""


def read_source(path: str | Path, *, fall_back: bool) -> ResumeSource:
    """Load a checkpoint, or the last one of a run folder.

    With `fall_back`, the newest intact checkpoint of the run replaces a damaged one.
    """
    is_fallback = False
    try:
        checkpoint_path = resolve_checkpoint(path)
        state = load_checkpoint(checkpoint_path)
    except CheckpointError as error:
        if error.fallback is None or not fall_back:
            raise
        checkpoint_path, is_fallback = error.fallback, True
        state = load_checkpoint(checkpoint_path)
    if state.buffer_state is None:
        raise CheckpointError(f"'{checkpoint_path}' holds a policy only: to resume, use a checkpoint of a run folder")
    return ResumeSource(checkpoint_path, state, find_run_folder(checkpoint_path), is_fallback)


def find_run_folder(checkpoint_path: Path) -> Path | None:
    """The run folder that holds a checkpoint, in the user's spelling where links do not lead elsewhere."""
    real = checkpoint_path.resolve()
    run_dir = real.parent.parent
    if real.parent.name != "checkpoints" or CHECKPOINT_NAME.fullmatch(real.name) is None:
        return None
    if not any((run_dir / name).is_file() for name in ("config.yaml", "metadata.json")):
        return None
    written = checkpoint_path.parent.parent
    return written if written.resolve() == run_dir else run_dir


def refuse_to_discard(run: TrainingRun, checkpoint_path: Path) -> None:
    """Raise if the run has an intact checkpoint newer than `checkpoint_path`, which resuming would discard."""
    try:
        newest = resolve_checkpoint(run.run_dir)
        if newest.name != checkpoint_path.resolve().name:
            verify_checkpoint(newest)
    except CheckpointError as error:
        if error.fallback is None:
            return
        newest = error.fallback
    order, newest_order = checkpoint_order(checkpoint_path.resolve().name), checkpoint_order(newest.name)
    if newest_order > order:
        raise CheckpointError(
            f"'{checkpoint_path}' is step {order[0]:,} of a run that continued to step {newest_order[0]:,}, whose later"
            " checkpoints and metrics would be discarded: give --output-dir DIR to continue in a new run folder that"
            " records its parent, or --rewind to discard them (in Python: output_dir=..., rewind=True)"
        )

"""Where a run starts: at step 0 in a new folder, or from a checkpoint; this process becomes the folder's owner."""

from __future__ import annotations

from dataclasses import dataclass

from rl_training.errors import RunChangedError
from rl_training.experiment.checkpointing import CheckpointState
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.run_folder import TrainingRun, create_training_run, is_interruption
from rl_training.runtime.resuming.initial_weights import InitialWeights
from rl_training.runtime.resuming.restore import Resumption
from rl_training.runtime.resuming.saved_state import translate_state_errors


@dataclass(frozen=True)
class Origin:
    """Where a run starts: at step 0, or from a checkpoint, in its own folder or in a new one (a fork)."""

    state: CheckpointState | None = None
    resumption: Resumption | None = None
    weights: InitialWeights | None = None
    """Initial weights of a new run; None: random ones, or those of the checkpoint."""

    @property
    def first_step(self) -> int:
        """Step at which the run starts or resumes."""
        return self.state.trainer_state["session"]["global_step"] if self.state else 0

    @property
    def warm_start_step(self) -> int:
        """Step at which the run took over a trained policy."""
        return self.state.trainer_state["session"].get("warm_start_step") or 0 if self.state else 0

    @property
    def folder(self) -> TrainingRun | None:
        """The existing run folder to continue in; None: a new one."""
        return self.resumption.run if self.resumption else None

    def open_folder(
        self, config: TrainConfig, run_suffix: str | None, *, is_restart: bool
    ) -> tuple[TrainingRun, str | None]:
        """The folder, which this process owns from here on, and the stop reason of a process that was killed.

        The reason is one that the process had saved and not yet recorded as the run's end.
        """
        metadata = self.resumption.metadata(self.first_step) if self.resumption else {}
        if self.weights is not None:
            metadata["init_from"] = self.weights.metadata()
        if self.folder is None or self.resumption is None:
            return create_training_run(config, run_suffix=run_suffix, is_restart=is_restart, **metadata), None
        folder = self.folder.owned()
        try:
            if self.resumption.is_outdated:
                raise RunChangedError(f"run '{folder.run_dir}' was continued meanwhile: repeat the command")
            reason = _standing_reason(config, folder, self.state)
            metadata["resumed"]["stop_reason"] = reason
            folder.resume(config, **metadata)
        except BaseException:
            folder.close()
            raise
        return folder, reason


def _standing_reason(config: TrainConfig, run: TrainingRun, checkpoint_state: CheckpointState | None) -> str | None:
    """Stop reason saved in the checkpoint, if the process was killed before it recorded the end."""
    if checkpoint_state is None or not run.was_cut_short:
        return None
    with translate_state_errors():
        session = checkpoint_state.trainer_state["session"]
        reason: str | None = session["stop_reason"]
        is_extended = session["training_progress"]["total"] != config.total_timesteps
        step = session["global_step"]
    resumed = run.metadata().get("resumed")
    if isinstance(resumed, dict) and resumed.get("from_step") == step and resumed.get("stop_reason") is None:
        return None  # the killed process had already resumed from this checkpoint and cleared the reason
    return None if is_extended or is_interruption(reason) else reason

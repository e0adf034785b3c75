"""How a run ends, and what resuming an ended run says and does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conftest import small_config

from rl_training.runtime.callbacks import Callback
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.training import run_training


def status_of(run_dir: Path) -> tuple[str, str | None]:
    metadata = json.loads((run_dir / "metadata.json").read_text())
    return metadata["status"], metadata["stop_reason"]


class SetStop(Callback):
    """Stops by the attribute, without a reason."""

    def on_update_end(self, trainer: TrainerState, result: Any) -> None:
        trainer.should_stop = True


def test_a_stop_without_a_reason_is_a_stop(tmp_path: Path) -> None:
    result = run_training(small_config("ppo", tmp_path), callbacks=[SetStop()])
    assert result.metrics["global_step"] == 16
    assert status_of(result.run_dir) == ("stopped", "a callback set should_stop without giving a reason")
    assert result.stop_reason == "a callback set should_stop without giving a reason"

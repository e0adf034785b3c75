"""Weights & Biases: a run of a project, online or in files of the run folder."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rl_training.errors import RLTrainingError
from rl_training.experiment.loggers import WandbSettings
from rl_training.experiment.tracking.tracker import Outcome, Row, TrackedRun

SECONDS_TO_FINISH = 25.0
"""How long wandb may upload at the end; the rest stays in the run folder."""
EXIT_CODES = {"finished": 0, "stopped": 0, "failed": 1, "interrupted": 255, "replaced": 255}
"""Of these, W&B makes the state: finished, failed, or killed for 255."""
BLOCK_BYTES = 32768
HEADER = struct.Struct("<IHB")
"""Of each piece of a record: checksum, length, kind."""
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


class WandbTracker:
    """A run of Weights & Biases, whose step is our `global_step`."""

    def __init__(self, settings: WandbSettings, run: TrackedRun) -> None:
        """Begin or continue the run; wandb's files go to `wandb` in the run folder."""
        import wandb

        folder = run.run_dir / "wandb"
        written = [last_step(path) for path in folder.glob(f"*run-*-{run.id}/*.wandb")]
        options = wandb.Settings(
            console="off",  # the terminal is ours
            silent=True,
            finish_timeout=SECONDS_TO_FINISH,
        )
        mode = settings.mode or options.mode
        if mode == "online" and not wandb.login(prompt=False):  # never ask on the terminal of a run
            raise RLTrainingError("you are not logged in: run `wandb login`, or set mode: offline")
        self._run: Any = wandb.init(
            project=settings.project,
            entity=settings.entity,
            name=run.name,
            group=run.group,
            id=run.id,
            resume="allow",
            mode=mode,
            tags=list(run.tags) or None,
            dir=str(run.run_dir),
            reinit="create_new",  # a run that the user started stays as it is
            settings=options,
        )
        self._run.config.update(
            {**run.config, "run": {**run.facts, "parent": run.parent}}, allow_val_change=True
        )
        self._run.define_metric("global_step")
        self._run.define_metric("*", step_metric="global_step")
        self.last_step = max(self._run.starting_step - 1, *written, -1)
        self.place = str(self._run.url)
        if self._run.offline:
            self.place = f"offline; to upload: wandb sync {folder}/offline-run-*-{run.id}"

    def log(self, rows: Sequence[Row]) -> None:
        """Add rows; wandb's own process writes and uploads each when the next step, or the end, comes."""
        for step, values in rows:
            self._run.log(dict(values), step=step, commit=False)

    def finish(self, outcome: Outcome) -> None:
        """End the run with its status and reason in the summary."""
        self._run.summary.update({"status": outcome.status, "stop_reason": outcome.reason})
        self._run.finish(exit_code=EXIT_CODES[outcome.status])


def last_step(path: Path) -> int:
    """The last step in a file of wandb, as far as it can be read; -1 if there is none."""
    from wandb.proto import wandb_internal_pb2 as records

    last = -1
    try:
        for data in _records(path.read_bytes()):
            record = records.Record.FromString(data)
            if record.WhichOneof("record_type") == "history":
                last = max(last, record.history.step.num)
    except Exception:  # a process that was killed leaves a torn end
        return last
    return last


def _records(data: bytes) -> Iterator[bytes]:
    """Records of a LevelDB log, which wandb's files are after seven bytes of their own."""
    position, record = 7, b""
    while position + HEADER.size <= len(data):
        left = BLOCK_BYTES - position % BLOCK_BYTES
        if left < HEADER.size:  # the rest of a block that no header fits in
            position += left
            continue
        _, length, kind = HEADER.unpack_from(data, position)
        start = position + HEADER.size
        if kind not in (FULL, FIRST, MIDDLE, LAST) or start + length > len(data):
            return
        piece = data[start : start + length]
        record = piece if kind in (FULL, FIRST) else record + piece
        if kind in (FULL, LAST):
            yield record
        position = start + length

"""What tests of whole runs share: a callback that stops them, and comparisons of what they leave behind."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.logs import read_metrics
from rl_training.replay.transitions import Segment
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.trainer import TrainerState, TrainResult


class StopAt(Callback):
    """Asks for a stop as soon as a step is reached, wherever in the round that is."""

    def __init__(self, step: int, event: str) -> None:
        self.step, self.event = step, event

    def on_collect_end(self, trainer: TrainerState, result: object) -> None:
        self._check(trainer, "collect")

    def on_update_end(self, trainer: TrainerState, result: object) -> None:
        self._check(trainer, "update")

    def on_eval_end(self, trainer: TrainerState, metrics: object) -> None:
        self._check(trainer, "eval")

    def _check(self, trainer: TrainerState, event: str) -> None:
        if event == self.event and trainer.global_step >= self.step:
            trainer.request_stop("test")


def assert_equal(one: Any, other: Any, path: str = "") -> None:
    """Two states are bit-exactly the same."""
    assert type(one) is type(other), path
    if isinstance(one, Segment):
        assert_equal(vars(one), vars(other), path)
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_equal(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), path
        for index, pair in enumerate(zip(one, other, strict=True)):
            assert_equal(*pair, f"{path}/{index}")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), path
    elif isinstance(one, np.ndarray):
        assert np.array_equal(one, other, equal_nan=True), path
    else:
        assert one == other, path


def assert_same_checkpoint(one: Path, other: Path) -> None:
    """Two checkpoints hold the same weights, optimizers, buffer, generators, simulators, counters."""
    first, second = load_checkpoint(one), load_checkpoint(other)
    assert_equal(first.algorithm_state, second.algorithm_state, "algorithm")
    assert_equal(first.buffer_state, second.buffer_state, "buffer")
    assert_equal(first.trainer_state["collector"], second.trainer_state["collector"], "collector")
    # Only one of them may have been written at a stop.
    sessions = [
        {**state.trainer_state["session"], "stop_reason": None} for state in (first, second)
    ]
    assert_equal(*sessions, "session")


def assert_same_end(one: TrainResult, other: TrainResult) -> None:
    """Two runs ended in the same state and logged the same; their `best` is the same, with the same score."""
    assert_same_checkpoint(one.checkpoint_path, other.checkpoint_path)
    assert list(read_metrics(one.run_dir / "metrics.jsonl")) == list(
        read_metrics(other.run_dir / "metrics.jsonl")
    )
    assert len({(result.run_dir / "evaluations.jsonl").read_text() for result in (one, other)}) == 1
    bests = [result.run_dir / "checkpoints" / "best" for result in (one, other)]
    assert_same_checkpoint(*bests)
    assert len({best.read_text().split()[1] for best in bests}) == 1


def assert_identical(one: Any, other: Any) -> None:
    """Two values are the same, and of the same types."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert [(type(key), key) for key in one] == [(type(key), key) for key in other]
        for key in one:
            assert_identical(one[key], other[key])
    elif isinstance(one, (list, tuple, deque)):
        assert len(one) == len(other)
        assert getattr(one, "maxlen", None) == getattr(other, "maxlen", None)
        for pair in zip(one, other, strict=True):
            assert_identical(*pair)
    elif isinstance(one, (np.ndarray, np.generic)):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.flags.f_contiguous == other.flags.f_contiguous or not other.flags.forc
        assert np.array_equal(one, other)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, (set, frozenset)):
        assert ordered(one) == ordered(other)
    elif isinstance(one, int):
        assert one == other
    else:
        assert repr(one) == repr(other)


def ordered(value: Any) -> str:
    """A `repr` in which the members of sets have an order, which the sets themselves do not have."""
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__}({sorted(map(ordered, value))})"
    return f"({', '.join(map(ordered, value))})" if isinstance(value, tuple) else repr(value)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }

"""Checkpoints on disk: atomic writes, retention, checks on reading, and workflows on them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import small_config

from rl_training.errors import CheckpointError
from rl_training.experiment import checkpointing
from rl_training.experiment.checkpoint_folder import Best, CheckpointFolder, list_checkpoints
from rl_training.experiment.checkpointing import (
    CheckpointState,
    load_checkpoint,
    resolve_checkpoint,
    save_checkpoint,
)
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import evaluate_checkpoint, predict_checkpoint, resume_training


class StopAfter(Callback):
    def __init__(self, updates: int) -> None:
        self.updates = updates

    def on_update_end(self, trainer, result) -> None:
        if trainer.epoch + 1 >= self.updates:
            trainer.request_stop("enough")


def some_state() -> CheckpointState:
    return CheckpointState(
        algorithm_state={"w": torch.ones(3), "n": 1},
        buffer_state={"x": np.zeros((2, 2))},
        trainer_state={"step": 5},
        config={"algo": "ppo"},
        metadata={"note": "hello"},
    )


def test_a_saved_state_is_loaded_unchanged(tmp_path: Path) -> None:
    state = load_checkpoint(save_checkpoint(tmp_path / "c", some_state()))
    assert torch.equal(state.algorithm_state["w"], torch.ones(3))
    assert state.buffer_state["x"].shape == (2, 2)
    assert (state.trainer_state, state.config, state.metadata) == (
        {"step": 5},
        {"algo": "ppo"},
        {"note": "hello"},
    )


def test_reading_a_policy_does_not_read_the_replay(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "c", some_state())
    (path / "buffer.safetensors").unlink()
    assert load_checkpoint(path, include_buffer=False).buffer_state is None
    with pytest.raises(CheckpointError, match=r"buffer\.safetensors"):
        load_checkpoint(path)


def test_a_checkpoint_is_not_overwritten_and_a_failed_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path / "c", some_state())
    with pytest.raises(CheckpointError, match="not overwritten"):
        save_checkpoint(tmp_path / "c", some_state())

    def full_disk(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpointing, "sync", full_disk)
    with pytest.raises(CheckpointError, match=r"other.*No space left"):
        save_checkpoint(tmp_path / "other", some_state())
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path / "c", some_state())
    file = path / "algorithm.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"algorithm\.safetensors' is damaged"):
        load_checkpoint(path)
    (path / "manifest.json").write_text('{"schema_version": 99}')
    with pytest.raises(CheckpointError, match="schema version 99"):
        load_checkpoint(path)
    (path / "manifest.json").write_text('{"schema')
    with pytest.raises(CheckpointError, match=r"manifest\.json' is damaged"):
        load_checkpoint(path)


def test_a_run_keeps_its_last_two_checkpoints_and_the_best(tmp_path: Path) -> None:
    result = run_training(
        small_config("ppo", tmp_path, total_timesteps=160, checkpoint_interval=16)
    )
    folder = result.run_dir / "checkpoints"
    kept = sorted(path.name for path in folder.glob("step_*"))
    last, best = (resolve_checkpoint(folder / name).name for name in ("last", "best"))
    assert last == "step_000000000160"
    assert set(kept) == {"step_000000000144", "step_000000000160", best}
    assert resolve_checkpoint(result.run_dir).name == last


def test_another_state_of_the_same_step_replaces_it_as_a_new_revision(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=1)
    first = folder.save((64, 10), write_some)
    assert folder.save((64, 10), write_some) == first  # the same state
    second = folder.save((64, 12), write_some)
    assert (first.name, second.name) == ("step_000000000064", "step_000000000064_r1")
    assert list_checkpoints(tmp_path) == [second]
    assert folder.save((64, 14), write_some).name == "step_000000000064_r2"
    third = folder.save((80, 14), write_some)
    assert third.name == "step_000000000080"
    folder.rewind_to(third.name, (80, 14), None)
    assert folder.save((80, 14), write_some) == third
    assert resolve_checkpoint(tmp_path / "last") == third


def write_some(path: Path, base: Path | None) -> None:
    save_checkpoint(path, some_state(), base=base)


@pytest.mark.parametrize("kind", ["save", "go_back"])
def test_last_names_a_checkpoint_after_a_kill_before_any_file_operation(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class DeathError(Exception):
        pass

    for count in range(1, 100):
        folder = CheckpointFolder(tmp_path / str(count), keep=1)
        first = folder.save((64, 10), write_some)
        folder.offer_best(first, 1.0)
        if kind == "go_back":
            folder.offer_best(folder.save((64, 12), write_some), 2.0)
        calls = itertools.count(1)

        def dying(
            function: Callable[..., Any], calls: Iterator[int] = calls, last: int = count
        ) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                if next(calls) >= last:
                    raise DeathError
                return function(*args, **kwargs)

            return call

        with monkeypatch.context() as patch, contextlib.suppress(DeathError):
            for name in ("rename", "replace", "unlink", "rmdir", "mkdir", "fsync"):
                patch.setattr(os, name, dying(getattr(os, name)))
            if kind == "save":
                folder.save((64, 12), write_some)
            else:
                folder.rewind_to(first.name, (64, 10), Best(first.name, 1.0))
            assert count > 5
            return
        for name in ("last", "best"):
            load_checkpoint(tmp_path / str(count) / name)
    raise AssertionError("it never ended")


def test_resume_from_an_older_checkpoint_discards_newer_ones(tmp_path: Path) -> None:
    whole = run_training(small_config("ppo", tmp_path, total_timesteps=160, checkpoint_interval=16))
    older = whole.run_dir / "checkpoints" / "step_000000000144"
    lines = (whole.run_dir / "metrics.jsonl").read_text()
    again = resume_training(older, rewind=True)
    assert again.run_dir == whole.run_dir
    assert (whole.run_dir / "metrics.jsonl").read_text() == lines
    assert again.metrics["eval_return_mean"] == whole.metrics["eval_return_mean"]


def test_a_finished_run_is_returned_as_it_is(tmp_path: Path) -> None:
    result = run_training(small_config("dqn", tmp_path))
    before = (result.run_dir / "metrics.jsonl").read_text()
    again = resume_training(result.run_dir)
    assert again.checkpoint_path == result.checkpoint_path
    assert again.metrics["global_step"] == 128
    assert (result.run_dir / "metrics.jsonl").read_text() == before


@pytest.mark.parametrize(
    "name", ["", "checkpoints/last", "checkpoints/best", "checkpoints/step_000000000128"]
)
def test_every_way_to_name_a_checkpoint_works(name: str, tmp_path: Path) -> None:
    result = run_training(small_config("ppo", tmp_path))
    path = result.run_dir / name
    assert evaluate_checkpoint(path, num_episodes=1)["eval_episodes"] == 1
    assert predict_checkpoint(path, np.zeros(4)) in (0, 1)


def test_a_pointer_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    result = run_training(small_config("ppo", tmp_path))
    save_checkpoint(tmp_path / "elsewhere", some_state())
    (result.run_dir / "checkpoints" / "last").write_text("../../elsewhere")
    with pytest.raises(CheckpointError, match="not a checkpoint beside it"):
        load_checkpoint(result.run_dir)


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_a_path_without_a_checkpoint_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=name):
        load_checkpoint(tmp_path / name)


def test_schedules_are_stretched_over_an_extension_and_never_jump(tmp_path: Path) -> None:
    rates = []

    class Rates(Callback):
        def on_update_end(self, trainer, result) -> None:
            rates.append(trainer.algorithm.optimizer._learning_rate.item())

    schedule = {"kind": "linear", "start": 1.0, "end": 0.0}
    config = small_config(
        "ppo", tmp_path, total_timesteps=64, algo_kwargs={"learning_rate": schedule}
    )
    first = run_training(config, callbacks=[Rates(), StopAfter(2)])
    resume_training(first.run_dir, total_timesteps=96, callbacks=[Rates()])
    assert rates == pytest.approx([1.0, 0.75, 0.5, 0.375, 0.25, 0.125])


def test_the_manifest_is_valid_json(tmp_path: Path) -> None:
    result = run_training(small_config("sac", tmp_path))
    manifest = json.loads((result.checkpoint_path / "manifest.json").read_text())
    assert manifest["schema_version"] == checkpointing.SCHEMA_VERSION
    sections = {f"{name}.safetensors" for name in manifest["sections"]}
    segments = {f"replay_{index:06d}.safetensors" for index in range(len(manifest["segments"]))}
    assert sections | segments == {path.name for path in result.checkpoint_path.iterdir()} - {
        "manifest.json"
    }

"""Replay in segments: a checkpoint writes what is new, and links the rest."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoint_tools import stored_rows
from conftest import small_config, step_of
from gymnasium.spaces import Box

from rl_training.experiment.checkpointing import (
    CheckpointState,
    load_checkpoint,
    save_checkpoint,
    verify_checkpoint,
)
from rl_training.replay import transitions
from rl_training.replay.replay_buffer import ReplayBuffer
from rl_training.replay.transitions import rows_per_segment
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import resume_training
from rl_training.spaces.spec import describe_spaces

SPACES = describe_spaces(Box(-1, 1, (17,), np.float32), Box(-1, 1, (6,), np.float32))


def make_buffer(capacity: int = 40_000) -> ReplayBuffer:
    return ReplayBuffer(
        SPACES, capacity, 1, rng=np.random.default_rng(0), device=torch.device("cpu")
    )


def fill(buffer: ReplayBuffer, count: int, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        obs = rng.normal(size=(1, 17)).astype(np.float32)
        buffer.add(step_of(obs, obs[:, :6], np.ones(1), obs, np.zeros(1, bool), np.zeros(1, bool)))


def save(path: Path, buffer: ReplayBuffer, base: Path | None = None) -> Path:
    return save_checkpoint(path, CheckpointState({}, buffer.state_dict(), {}, {}), base=base)


def new_bytes(path: Path, base: Path) -> int:
    """Bytes of a checkpoint that it does not share with another."""
    shared = {file.stat().st_ino for file in base.iterdir()}
    return sum(file.stat().st_size for file in path.iterdir() if file.stat().st_ino not in shared)


def assert_same_rows(path: Path, buffer: ReplayBuffer) -> None:
    verify_checkpoint(path)
    one, other = stored_rows(load_checkpoint(path).buffer_state), stored_rows(buffer.state_dict())
    assert all(np.array_equal(one[name], other[name]) for name in other)


def test_a_checkpoint_writes_only_what_is_new(tmp_path: Path) -> None:
    buffer = make_buffer()
    fill(buffer, 30_000)
    first = save(tmp_path / "first", buffer)
    fill(buffer, 300, seed=1)
    second = save(tmp_path / "second", buffer, first)
    total = sum(file.stat().st_size for file in first.iterdir())
    assert 300 * 166 < new_bytes(second, first) < 0.2 * total
    assert_same_rows(second, buffer)


def test_a_ring_that_goes_round_rewrites_only_the_segments_it_passes(tmp_path: Path) -> None:
    buffer = make_buffer()
    fill(buffer, 40_000)
    first = save(tmp_path / "first", buffer)
    fill(buffer, 500, seed=1)
    second = save(tmp_path / "second", buffer, first)
    assert new_bytes(second, first) < 0.2 * sum(file.stat().st_size for file in first.iterdir())
    assert_same_rows(second, buffer)
    first_rows = stored_rows(load_checkpoint(first).buffer_state)["obs"]
    assert not np.array_equal(first_rows[:500], stored_rows(buffer.state_dict())["obs"][:500])


def test_a_row_that_is_cut_after_a_save_is_written_again(tmp_path: Path) -> None:
    buffer = make_buffer(1000)
    fill(buffer, 10)
    first = save(tmp_path / "first", buffer)
    buffer.truncate_newest()
    second = save(tmp_path / "second", buffer, first)
    assert stored_rows(load_checkpoint(second).buffer_state)["truncated"][-1].all()
    assert not stored_rows(load_checkpoint(first).buffer_state)["truncated"].any()


def test_removing_the_older_checkpoint_leaves_the_newer_whole(tmp_path: Path) -> None:
    buffer = make_buffer()
    fill(buffer, 20_000)
    first = save(tmp_path / "first", buffer)
    second = save(tmp_path / "second", buffer, first)
    for file in first.iterdir():
        file.unlink()
    assert_same_rows(second, buffer)


def test_where_links_are_not_possible_segments_are_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*names: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    buffer = make_buffer()
    fill(buffer, 10_000)
    first = save(tmp_path / "first", buffer)
    assert_same_rows(save(tmp_path / "second", buffer, first), buffer)


def test_another_size_of_segments_is_read_and_never_linked_by_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = make_buffer()
    fill(buffer, 10_000)
    first = save(tmp_path / "first", buffer)
    for size in (1 << 18, 1 << 22):
        monkeypatch.setattr(transitions, "SEGMENT_BYTES", size)
        other = make_buffer()
        other.load_state_dict(load_checkpoint(first).buffer_state)
        assert_same_rows(save(tmp_path / str(size), other, first), buffer)


def test_a_resumed_run_links_to_the_checkpoint_it_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transitions, "SEGMENT_BYTES", 256)
    config = small_config("dqn", tmp_path, total_timesteps=96, checkpoint_interval=1000)
    first = run_training(config.replace(algo_kwargs={**config.algo_kwargs, "eval_interval": 1000}))
    kept = {file.stat().st_ino for file in first.checkpoint_path.glob("replay_*")}
    second = resume_training(first.run_dir, total_timesteps=128)
    assert (
        len(kept & {file.stat().st_ino for file in second.checkpoint_path.glob("replay_*")})
        >= len(kept) - 1
    )


@pytest.mark.parametrize(
    ("num_rows", "row_bytes", "rows"), [(1_000_000, 166, 4096), (100, 10, 65536), (10, 10**7, 1)]
)
def test_segments_are_about_a_megabyte(num_rows: int, row_bytes: int, rows: int) -> None:
    assert rows_per_segment(num_rows, row_bytes) == rows


def test_there_are_never_too_many_segments() -> None:
    assert 1_000_000 / rows_per_segment(1_000_000, 56_448) <= transitions.MAX_SEGMENTS

"""Frame replay: every frame is stored once, and samples equal those of a plain replay buffer."""

from __future__ import annotations

import dataclasses
from copy import deepcopy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import small_config, step_of
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import FrameStackObservation
from run_tools import StopAt, assert_equal, assert_same_end

from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import CheckpointState, load_checkpoint, save_checkpoint
from rl_training.replay import transitions
from rl_training.replay.frame_replay import FrameReplayBuffer, replay_bytes, replay_class
from rl_training.replay.replay_buffer import ReplayBuffer
from rl_training.runtime import assembly
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import resume_training
from rl_training.spaces.spec import describe_spaces

SIDE = 36
SHAPES = [(4, SIDE, SIDE), (SIDE, SIDE), (SIDE, SIDE, 3), (3, SIDE, SIDE), (2, SIDE, SIDE, 3)]
NUM_ENVS = 2
GAMMA = 0.9


def spaces_of(shape: tuple[int, ...]):
    return describe_spaces(Box(0, 255, shape, np.uint8), Discrete(3))


def make_buffer(
    kind: type[ReplayBuffer],
    shape=SHAPES[0],
    capacity: int = 30,
    num_envs: int = NUM_ENVS,
    **options,
):
    rng = np.random.default_rng(1)
    device = torch.device("cpu")
    return kind(
        spaces_of(shape), capacity, num_envs, rng=rng, device=device, gamma=GAMMA, **options
    )


def make_steps(
    count: int, shape=SHAPES[0], num_envs: int = NUM_ENVS, ending_rate: float = 0.1
) -> list[Any]:
    """What a collector stores: stacks that move on by one, padded at a reset, and now and then a repeated frame."""
    rng = np.random.default_rng(0)
    frame = shape[1:] if shape[0] in (2, 4) else shape

    def frame_after(last=None):
        return (
            last
            if last is not None and rng.random() < 0.2
            else rng.integers(0, 256, frame, np.uint8)
        )

    def padded():
        return [frame_after()] * (1 if frame == shape else shape[0])

    stacks = [padded() for _ in range(num_envs)]
    steps = []
    for _ in range(count):
        obs = np.stack([np.stack(stack) for stack in stacks]).reshape(num_envs, *shape)
        stacks = [[*stack[1:], frame_after(stack[-1])] for stack in stacks]
        next_obs = np.stack([np.stack(stack) for stack in stacks]).reshape(num_envs, *shape)
        terminated, truncated = rng.random((2, num_envs)) < ending_rate
        for env in np.flatnonzero(terminated | truncated):
            if rng.random() < 0.8:  # the rest goes on from where it was, as after a lost life
                stacks[env] = padded()
        steps.append(
            (
                obs,
                rng.integers(0, 3, num_envs),
                rng.normal(size=num_envs),
                next_obs,
                terminated,
                truncated,
            )
        )
    return steps


def fill(buffer: ReplayBuffer, steps) -> None:
    for step in steps:
        buffer.add(step_of(*step))


def assert_same_draws(one: ReplayBuffer, other: ReplayBuffer, count: int = 64) -> None:
    first, second = one.sample(count), other.sample(count)
    for name, value in first.tensors().items():
        assert value is getattr(second, name) is None or torch.equal(
            value, getattr(second, name)
        ), name


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"n_step": 3}, {"priority_alpha": 0.7}, {"n_step": 4, "priority_alpha": 0.5}]
)
def test_what_is_drawn_is_what_a_plain_replay_draws(shape, options):
    """While it fills, when it is full and as it is overwritten several times; after `truncate_newest` too."""
    frames, plain = (
        make_buffer(kind, shape, **options) for kind in (FrameReplayBuffer, ReplayBuffer)
    )
    for index, step in enumerate(make_steps(80, shape)):
        frames.add(step_of(*step))
        plain.add(step_of(*step))
        if index % 17 == 16:
            frames.truncate_newest()
            plain.truncate_newest()
        assert len(frames) == len(plain)
        if index % 5 == 0:
            assert_same_draws(frames, plain, 16)
            if "priority_alpha" in options:
                for buffer in (frames, plain):
                    buffer.update_priorities(batch := buffer.sample(16), batch.rewards.abs())


@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_frame_is_stored_once(num_envs):
    buffer = make_buffer(FrameReplayBuffer, capacity=60, num_envs=num_envs)
    steps = make_steps(200, num_envs=num_envs)
    for count in range(len(steps)):
        buffer.add(step_of(*steps[count]))
        kept = steps[max(0, count + 1 - buffer.num_rows) : count + 1]
        shown = {
            (env, frame.tobytes())
            for step in kept
            for i in (0, 3)
            for env in range(num_envs)
            for frame in step[i][env]
        }
        assert buffer._num_allocated - len(buffer._free_frames) == len(shown)


def test_frames_that_are_not_a_stack_are_kept_too():
    """Nothing is assumed: where no frame comes twice, the frame array grows."""
    rng = np.random.default_rng(0)
    frames, plain = (make_buffer(kind) for kind in (FrameReplayBuffer, ReplayBuffer))
    for _ in range(50):
        obs = rng.integers(0, 256, (2, NUM_ENVS, *SHAPES[0]), np.uint8)
        step = (obs[0], np.zeros(NUM_ENVS, np.int64), rng.normal(size=NUM_ENVS), obs[1])
        for buffer in (frames, plain):
            buffer.add(step_of(*step, np.zeros(NUM_ENVS, bool), np.zeros(NUM_ENVS, bool)))
    assert_same_draws(frames, plain, 500)


@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_the_smallest_buffers(capacity):
    frames, plain = (
        make_buffer(kind, capacity=capacity, num_envs=1)
        for kind in (FrameReplayBuffer, ReplayBuffer)
    )
    for step in make_steps(30, num_envs=1):
        frames.add(step_of(*step))
        plain.add(step_of(*step))
        assert_same_draws(frames, plain)


@pytest.mark.parametrize("saved_after", [0, 9, 40])
@pytest.mark.parametrize("options", [{"n_step": 3}, {"priority_alpha": 0.6}])
def test_a_restored_buffer_continues_identically(saved_after, options, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(transitions, "SEGMENT_BYTES", 10_000)
    steps = make_steps(70)
    buffer, restored = (make_buffer(FrameReplayBuffer, **options) for _ in range(2))
    fill(buffer, steps[:saved_after])
    if saved_after:
        buffer.sample(7)
    save_checkpoint(tmp_path / "saved", CheckpointState({}, deepcopy(buffer.state_dict()), {}, {}))
    restored.load_state_dict(load_checkpoint(tmp_path / "saved").buffer_state)
    for step in steps[saved_after:]:
        buffer.add(step_of(*step))
        restored.add(step_of(*step))
        assert_same_draws(buffer, restored, 8)
    one, other = buffer.state_dict(), restored.state_dict()
    assert [part.version for part in one["segments"]] == [
        part.version for part in other["segments"]
    ]
    for part, same in zip(one["segments"], other["segments"], strict=True):
        assert all(np.array_equal(part.arrays[name], same.arrays[name]) for name in part.arrays)


def test_a_checkpoint_writes_only_the_frames_that_are_new(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(transitions, "SEGMENT_BYTES", 20_000)
    buffer = make_buffer(FrameReplayBuffer, capacity=600)
    steps = make_steps(420)
    base, shared = None, set()
    for new in (steps[:200], steps[200:210], steps[210:410], steps[410:]):
        fill(buffer, new)
        path = save_checkpoint(
            tmp_path / f"{len(shared)}", CheckpointState({}, buffer.state_dict(), {}, {}), base=base
        )
        sizes = {file.stat().st_ino: file.stat().st_size for file in path.iterdir()}
        written = sum(size for node, size in sizes.items() if node not in shared)
        if len(new) == 10:  # while the buffer fills, and when it overwrites
            assert 20 * SIDE * SIDE * 0.7 < written < 0.25 * sum(sizes.values())
        restored = make_buffer(FrameReplayBuffer, capacity=600)
        restored.load_state_dict(load_checkpoint(path).buffer_state)
        assert_same_draws(deepcopy(buffer), restored, 300)
        base, shared = path, set(sizes)


def test_a_forged_state_is_refused():
    buffer = make_buffer(FrameReplayBuffer)
    fill(buffer, make_steps(40))
    state = buffer.state_dict()
    rows, frames = state["segments"][0], state["segments"][-1]
    beyond = dataclasses.replace(rows, arrays={**rows.arrays, "obs": rows.arrays["obs"] + 10_000})
    negative = dataclasses.replace(rows, arrays={**rows.arrays, "obs": rows.arrays["obs"] - 10_000})
    other = dataclasses.replace(frames, arrays={"frames": frames.arrays["frames"][:, :-1]})
    for change in (
        {"segments": [beyond, frames]},
        {"segments": [negative, frames]},
        {"segments": [rows, other]},
        {"segments": [rows]},
        {"free_frames": np.array([3])},
        {"free_frames": np.array([10**6])},
    ):
        with pytest.raises(ValueError, match=r"frames|position"):
            make_buffer(FrameReplayBuffer).load_state_dict({**state, **change})


def test_memory_of_atari_is_a_seventh_and_the_estimate_is_what_the_arrays_take():
    spaces = spaces_of((4, 84, 84))
    device = torch.device("cpu")
    buffer = FrameReplayBuffer(spaces, 1000, 8, rng=np.random.default_rng(0), device=device)
    assert buffer.nbytes * 100 < 0.8e9
    assert replay_bytes(spaces, 1000) == buffer.nbytes
    assert replay_bytes(spaces, 100_000) < 0.8e9
    assert (
        7 * buffer.nbytes
        < ReplayBuffer(spaces, 1000, 8, rng=np.random.default_rng(0), device=device).nbytes
    )


def test_a_replay_of_images_that_cannot_fit_is_refused(monkeypatch):
    monkeypatch.setattr(assembly, "available_memory", lambda: 10**9)
    assembly.check_replay_fits(spaces_of((4, 84, 84)), 100_000, 10**6)
    with pytest.raises(ConfigError, match=r"200,000 transitions needs 1\.51 GB"):
        assembly.check_replay_fits(spaces_of((4, 84, 84)), 200_000, 10**6)


def test_images_among_other_things_stay_with_the_plain_replay():
    pictures = gym.spaces.Dict(picture=Box(0, 255, (SIDE, SIDE), np.uint8), speed=Box(-1, 1, (2,)))
    assert replay_class(describe_spaces(pictures, Discrete(2))) is ReplayBuffer
    assert replay_class(describe_spaces(Box(0, 255, (8,), np.uint8), Discrete(2))) is ReplayBuffer
    assert replay_class(spaces_of((SIDE, SIDE))) is FrameReplayBuffer


class Pictures(gym.Env):
    """Random pictures; the brighter one asks for the larger action."""

    observation_space = Box(0, 255, (SIDE, SIDE), np.uint8)
    action_space = Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self.np_random.integers(0, 256, (SIDE, SIDE), np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return (
            self.np_random.integers(0, 256, (SIDE, SIDE), np.uint8),
            float(action),
            self.time == 11,
            False,
            {},
        )


class Stacked(FrameStackObservation):
    """Four of them at once."""

    def __init__(self) -> None:
        super().__init__(Pictures(), 4)


@pytest.mark.parametrize("replay", [{}, {"replay": {"kind": "prioritized"}, "n_step": 3}])
def test_a_run_on_pictures_resumes_exactly_and_equals_one_with_a_plain_replay(
    replay, tmp_path: Path, monkeypatch
):
    changes = {
        "env_id": "test_frame_replay:Stacked",
        "total_timesteps": 128,
        "num_envs": 2,
        "checkpoint_interval": 1000,
        "algo_kwargs": {"buffer_capacity": 40, "eval_interval": 1000, **replay},
    }
    whole = run_training(small_config("dqn", tmp_path / "whole", **changes))
    stopped = run_training(
        small_config("dqn", tmp_path / "stopped", **changes), callbacks=[StopAt(90, "collect")]
    )
    assert_same_end(whole, resume_training(stopped.run_dir))
    monkeypatch.setattr(
        "rl_training.runtime.loops.off_policy.replay_class", lambda spaces: ReplayBuffer
    )
    plain = run_training(small_config("dqn", tmp_path / "plain", **changes))
    one, other = (load_checkpoint(run.checkpoint_path) for run in (whole, plain))
    assert_equal(one.algorithm_state, other.algorithm_state)
    assert (
        one.buffer_state["segments"][0].arrays["obs"].dtype
        != other.buffer_state["segments"][0].arrays["obs"].dtype
    )

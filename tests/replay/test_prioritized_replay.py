"""Prioritized replay: the sum tree, samples and importance weights, and runs that use it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import TRY_ALL, env_of, small_config, step_of
from run_tools import StopAt, assert_same_end

from rl_training.envs.factory import make_env
from rl_training.errors import ConfigError
from rl_training.experiment.registry import Loop, get_algorithm_spec, list_algorithm_specs
from rl_training.replay.replay_buffer import PrioritizedSampler, ReplayBuffer, SumTree
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import resume_training
from rl_training.spaces.spec import describe_spaces

OFF_POLICY = [spec.name for spec in list_algorithm_specs() if spec.loop is Loop.OFF_POLICY]


@pytest.mark.parametrize("size", [1, 15, 16, 17, 300, 5000])
def test_the_tree_finds_the_leaf_at_which_the_running_sum_passes_a_target(size):
    rng = np.random.default_rng(size)
    tree, values = SumTree(size), rng.random(size) * (rng.random(size) < 0.7)
    values[0] = 0.5
    for part in np.array_split(rng.permutation(size), 3):
        tree.set(part, values[part])
    assert tree.total == pytest.approx(values.sum())
    targets = rng.random(200) * values.sum()
    np.testing.assert_array_equal(
        tree.find(targets), np.searchsorted(values.cumsum(), targets, side="right")
    )


def test_a_target_carried_past_the_end_by_rounding_means_the_last_leaf_that_is_not_empty():
    tree = SumTree(100)
    tree.set(np.array([3, 40, 60]), np.array([0.1, 0.2, 0.3]))
    assert tree.find(np.array([0.0, tree.total, 2 * tree.total])).tolist() == [3, 60, 60]


def test_a_tree_made_anew_from_its_leaves_is_equal_to_the_bit():
    rng = np.random.default_rng(0)
    tree = SumTree(3000)
    for _ in range(300):
        tree.set(rng.integers(0, 3000, 37), rng.random(37))
    again = SumTree(3000)
    again.set(np.arange(len(again.leaves)), tree.leaves)
    assert all((one == other).all() for one, other in zip(tree._levels, again._levels, strict=True))


def test_draws_follow_the_priorities_and_weights_undo_them():
    sampler = PrioritizedSampler(4, 0.5, np.random.default_rng(0))
    sampler.add(np.arange(4))
    sampler.update_priorities(np.arange(4), np.array([1.0, 4.0, 9.0, 0.0]))
    slots, weights = sampler.sample(60_000, 4)
    fractions = np.bincount(slots, minlength=4) / 60_000
    np.testing.assert_allclose(
        fractions, np.array([1, 2, 3, 0.001]) / 6.001, atol=0.002
    )  # the root of each error
    np.testing.assert_allclose(weights[slots == 1], 1 / (4 * 2 / 6.001), rtol=1e-3)  # 1 / (N P)


def test_a_new_transition_is_drawn_like_the_one_with_the_largest_error():
    sampler = PrioritizedSampler(4, 1.0, np.random.default_rng(0))
    sampler.add(np.array([0]))
    sampler.update_priorities(np.array([0]), np.array([7.0]))
    sampler.add(np.array([1]))
    slots, _ = sampler.sample(10_000, 2)
    assert np.mean(slots == 1) == pytest.approx(0.5, abs=0.02)


def make_buffer(capacity: int = 8, num_envs: int = 2) -> ReplayBuffer:
    import gymnasium as gym

    spaces = describe_spaces(gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2))
    options = {
        "rng": np.random.default_rng(3),
        "device": torch.device("cpu"),
        "priority_alpha": 1.0,
    }
    return ReplayBuffer(spaces, capacity, num_envs, **options)


def fill(buffer: ReplayBuffer, count: int) -> None:
    for step in range(count):
        values = np.array([[10.0 * step], [10.0 * step + 1]], np.float32)
        flags = np.zeros(2, bool)
        buffer.add(step_of(values, np.zeros(2, np.int64), values[:, 0], values + 1, flags, flags))


def test_only_what_is_stored_is_drawn_and_errors_reach_the_transition_they_belong_to():
    buffer = make_buffer()
    fill(buffer, 2)
    batch = buffer.sample(64)
    assert set(batch.rewards.tolist()) == {0.0, 1.0, 10.0, 11.0}
    assert batch.unscaled_weights.tolist() == [1.0] * 64
    buffer.update_priorities(batch, (batch.rewards == 10.0).float())
    assert set(buffer.sample(100).rewards.tolist()) == {10.0}
    fill(buffer, 4)  # the buffer is full and overwrites its oldest rows
    drawn = set(buffer.sample(400).rewards.tolist())
    assert drawn == {0.0, 1.0, 10.0, 11.0, 20.0, 21.0, 30.0, 31.0}


def test_a_batch_is_drawn_after_the_errors_of_the_one_before_are_known():
    buffer = make_buffer()
    fill(buffer, 2)
    batches = buffer.sample_batches(16, 2)
    first = next(batches)
    buffer.update_priorities(first, (first.rewards == 11.0).float())
    assert set(next(batches).rewards.tolist()) == {11.0}


@pytest.mark.parametrize("algo", OFF_POLICY if TRY_ALL else ["dqn", "sac"])
def test_a_stopped_and_resumed_run_with_priorities_equals_one_that_never_stopped(
    algo, tmp_path: Path
):
    replay = {
        "kind": "prioritized",
        "alpha": 0.7,
        "beta": {"kind": "linear", "start": 0.5, "end": 1.0},
    }
    changes = {"num_envs": 2, "algo_kwargs": {"replay": replay, "n_step": 3, "buffer_capacity": 60}}
    whole = run_training(small_config(algo, tmp_path / "whole", **changes))
    stopped = run_training(
        small_config(algo, tmp_path / "stopped", **changes), callbacks=[StopAt(80, "update")]
    )
    assert stopped.stop_reason == "test"
    assert_same_end(whole, resume_training(stopped.run_dir))


@pytest.mark.parametrize("algo", OFF_POLICY)
def test_weights_scale_each_transition_and_errors_come_back(algo, tmp_path: Path):
    """With all weights equal, an update is that of the plain batch; the error of each transition is told."""
    import dataclasses

    from rl_training.algorithms.base import Resources

    spec = get_algorithm_spec(algo)
    env = make_env(env_of(algo))
    spaces = describe_spaces(env.observation_space, env.action_space)
    rng = np.random.default_rng(0)
    buffer = ReplayBuffer(spaces, 64, 1, rng=rng, device=torch.device("cpu"))
    for _ in range(64):
        obs = rng.normal(size=(2, 1, *spaces.obs.shape)).astype(np.float32)
        if spaces.action.choices:
            action = rng.integers(0, spaces.action.choices[0], 1)
        else:
            action = rng.uniform(-1, 1, (1, *spaces.action.model_shape))
        buffer.add(
            step_of(
                obs[0], action, rng.normal(size=1), obs[1], np.zeros(1, bool), np.zeros(1, bool)
            )
        )
    plain = buffer.sample(32)

    def update(batch):
        config = spec.parse_kwargs({"replay": {"kind": "prioritized"}, "hidden_sizes": [8, 8]})
        resources = Resources(torch.device("cpu"), torch.Generator().manual_seed(0))
        return spec.algorithm_class()(config, spaces, resources).update(batch)

    alone = update(plain)
    weighted = update(dataclasses.replace(plain, unscaled_weights=torch.full((32,), 0.3)))
    assert alone.td_errors is None
    assert weighted.td_errors.shape == (32,)
    assert (weighted.td_errors >= 0).all()
    torch.testing.assert_close(weighted.metrics["critic_loss"], alone.metrics["critic_loss"])
    half = torch.ones(32)
    half[16:] = 1e-12
    first_half = dataclasses.replace(plain, unscaled_weights=half)
    few = update(first_half).metrics["critic_loss"]
    assert not torch.isclose(few, alone.metrics["critic_loss"])


def test_dqn_has_a_short_form():
    parse = get_algorithm_spec("dqn").parse_kwargs
    assert parse({"prioritized": True}).replay == parse({"replay": {"kind": "prioritized"}}).replay
    assert parse({"prioritized": False}).replay.kind == "uniform"
    assert parse({"prioritized": True, "replay": {"alpha": 0.5}}).replay.alpha == 0.5
    with pytest.raises(ConfigError, match="exclude each other"):
        parse({"prioritized": True, "replay": {"kind": "her"}})
    with pytest.raises(ConfigError, match="strategy is for kind 'her'"):
        parse({"replay": {"kind": "prioritized", "strategy": "final"}})


def test_an_unknown_kind_of_replay_is_named():
    with pytest.raises(ConfigError, match="replay"):
        get_algorithm_spec("dqn").parse_kwargs({"replay": {"kind": "priority"}})
    with pytest.raises(ConfigError, match="alfa"):
        get_algorithm_spec("dqn").parse_kwargs({"replay": {"kind": "prioritized", "alfa": 0.5}})

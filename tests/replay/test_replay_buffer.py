"""The replay ring: what it keeps, what it samples, and n-step returns against a brute-force loop."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from rl_training.replay.replay_buffer import ReplayBuffer
from rl_training.replay.transitions import FIELDS
from rl_training.spaces.spec import describe_spaces

NUM_ENVS = 3
GAMMA = 0.9
SPACES = describe_spaces(Box(-np.inf, np.inf, (2,)), Discrete(100))


def make_buffer(capacity=30, *, n_step=1, seed=0):
    rng = np.random.default_rng(seed)
    device = torch.device("cpu")
    return ReplayBuffer(
        SPACES, capacity, NUM_ENVS, rng=rng, device=device, n_step=n_step, gamma=GAMMA
    )


def make_steps(count, ending_rate=0.15):
    """One array per field, [count, envs]; an observation is (step, env), so that samples can be traced back."""
    rng = np.random.default_rng(7)
    step, env = np.meshgrid(np.arange(count), np.arange(NUM_ENVS), indexing="ij")
    return {
        "obs": np.stack([step, env], -1).astype(np.float32),
        "actions": rng.integers(0, 100, (count, NUM_ENVS)),
        "rewards": rng.normal(size=(count, NUM_ENVS)).astype(np.float32),
        "next_obs": np.stack([step + 0.5, env], -1).astype(np.float32),
        "terminated": rng.random((count, NUM_ENVS)) < ending_rate,
        "truncated": rng.random((count, NUM_ENVS)) < ending_rate,
    }


def fill(buffer, steps, first=0, stop=None):
    for row in range(first, len(steps["rewards"]) if stop is None else stop):
        buffer.add({name: steps[name][row] for name in FIELDS})


def origins(batch):
    return batch.obs.numpy().astype(int)


@pytest.mark.parametrize(
    ("num_steps", "kept"), [(4, range(4)), (10, range(10)), (23, range(13, 23))]
)
def test_samples_are_the_latest_steps_and_nothing_else(num_steps, kept):
    buffer = make_buffer(capacity=30)
    steps = make_steps(num_steps)
    fill(buffer, steps)
    assert len(buffer) == len(kept) * NUM_ENVS
    batch = buffer.sample(2000)
    drawn = origins(batch)
    assert {tuple(pair) for pair in drawn} == {
        (step, env) for step in kept for env in range(NUM_ENVS)
    }
    for name in FIELDS:
        np.testing.assert_array_equal(
            getattr(batch, name).numpy(), steps[name][drawn[:, 0], drawn[:, 1]]
        )
    assert batch.discounts is None


def test_samples_are_spread_evenly_over_the_stored_steps():
    buffer = make_buffer(capacity=30)
    fill(buffer, make_steps(23))
    drawn = origins(buffer.sample(30_000))
    counts = np.bincount((drawn[:, 0] - 13) * NUM_ENVS + drawn[:, 1])
    # 1000 expected in each of 30 cells, with a deviation of about 31.
    assert abs(counts - 1000).max() < 150


def test_a_capacity_that_the_environments_do_not_divide_is_rounded_up():
    buffer = make_buffer(capacity=10)
    fill(buffer, make_steps(9))
    assert len(buffer) == 12


def brute_force(steps, step, env, newest, n_step):
    """Sum of rewards, discount and last step of the window that begins at `step`."""
    total, discount = 0.0, 1.0
    for offset in range(n_step):
        last = step + offset
        total += discount * float(steps["rewards"][last, env])
        discount *= GAMMA
        if steps["terminated"][last, env] or steps["truncated"][last, env] or last == newest:
            break
    return total, discount, last


@pytest.mark.parametrize("n_step", [2, 4, 25])
@pytest.mark.parametrize(
    "num_steps", [6, 10, 23, 40], ids=["part", "full", "wrapped", "wrapped_to_the_edge"]
)
@pytest.mark.parametrize("ending_rate", [0.0, 0.15])
def test_n_step_returns_equal_a_brute_force_loop(n_step, num_steps, ending_rate):
    buffer = make_buffer(capacity=30, n_step=n_step)
    steps = make_steps(num_steps, ending_rate)
    fill(buffer, steps)
    batch = buffer.sample(400)
    for i, (step, env) in enumerate(origins(batch)):
        total, discount, last = brute_force(steps, step, env, num_steps - 1, n_step)
        assert batch.rewards[i].item() == pytest.approx(total, abs=1e-5)
        assert batch.discounts[i].item() == pytest.approx(discount, abs=1e-6)
        assert batch.actions[i] == steps["actions"][step, env]
        assert batch.next_obs[i].tolist() == [last + 0.5, env]
        assert batch.terminated[i] == steps["terminated"][last, env]
        assert batch.truncated[i] == steps["truncated"][last, env]


def test_one_seed_gives_one_sequence_of_samples():
    one, same, other = make_buffer(seed=1), make_buffer(seed=1), make_buffer(seed=2)
    for buffer in (one, same, other):
        fill(buffer, make_steps(10))
    first = origins(one.sample(50))
    np.testing.assert_array_equal(first, origins(same.sample(50)))
    assert not np.array_equal(first, origins(other.sample(50)))
    assert not np.array_equal(first, origins(one.sample(50)))


@pytest.mark.parametrize("saved_after", [6, 23], ids=["part", "wrapped"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_a_restored_buffer_continues_identically(saved_after, n_step):
    steps = make_steps(30)
    buffer = make_buffer(n_step=n_step, seed=1)
    fill(buffer, steps, stop=saved_after)
    buffer.sample(5)
    restored = make_buffer(n_step=n_step, seed=2)
    restored.load_state_dict(deepcopy(buffer.state_dict()))
    assert len(restored) == len(buffer)
    for first in range(saved_after, saved_after + 6, 2):
        one, other = buffer.sample(50), restored.sample(50)
        for name in FIELDS:
            assert torch.equal(getattr(one, name), getattr(other, name))
        fill(buffer, steps, first, first + 2)
        fill(restored, steps, first, first + 2)

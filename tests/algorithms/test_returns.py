"""Targets, averages and schedules against hand-worked numbers and independent numpy loops."""

import numpy as np
import pytest
import torch

from rl_training.algorithms.awac import exponential_weights
from rl_training.algorithms.config import Schedule, value_at
from rl_training.algorithms.iql import expectile_loss
from rl_training.algorithms.on_policy import explained_variance, gae
from rl_training.algorithms.td3 import smoothed_actions


def column(*numbers):
    return torch.tensor(numbers, dtype=torch.float32).unsqueeze(1)


def flags(*marked, length=3):
    return torch.tensor([[t in marked] for t in range(length)])


# With gamma = lambda = 0.5 the decay is 0.25, and without endings
#   delta_0 = 1 + 0.5 * 2 - 4 = -2,  delta_1 = 2 + 0.5 * 6 - 2 = 3,  delta_2 = 3 + 0.5 * 8 - 6 = 1
#   A_2 = 1,  A_1 = 3 + 0.25 * 1 = 3.25,  A_0 = -2 + 0.25 * 3.25 = -1.1875
# Termination at 1: delta_1 = 2 - 2 = 0 and nothing is added to it, so A_1 = 0 and A_0 = -2 + 0.25 * 0 = -2
# Truncation at 1: delta_1 = 3 and nothing is added to it, so A_1 = 3 and A_0 = -2 + 0.25 * 3 = -1.25
@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [
        (flags(), flags(), (-1.1875, 3.25, 1.0)),
        (flags(1), flags(), (-2.0, 0.0, 1.0)),
        (flags(), flags(1), (-1.25, 3.0, 1.0)),
        (flags(1), flags(1), (-2.0, 0.0, 1.0)),
    ],
    ids=["no_ending", "terminated", "truncated", "both"],
)
def test_gae_equals_the_hand_worked_example(terminated, truncated, expected):
    advantages = gae(
        column(1, 2, 3),
        column(4, 2, 6),
        column(2, 6, 8),
        terminated,
        truncated,
        gamma=0.5,
        gae_lambda=0.5,
    )
    assert torch.equal(advantages, column(*expected))


def numpy_gae(rewards, values, next_values, terminated, truncated, gamma, gae_lambda):
    """The definition read forwards: each step sums its own discounted deltas until an ending."""
    advantages = np.zeros_like(rewards)
    num_steps, num_envs = rewards.shape
    for env in range(num_envs):
        for start in range(num_steps):
            weight = 1.0
            for t in range(start, num_steps):
                bootstrap = 0.0 if terminated[t, env] else gamma * next_values[t, env]
                advantages[start, env] += weight * (rewards[t, env] + bootstrap - values[t, env])
                if terminated[t, env] or truncated[t, env]:
                    break
                weight *= gamma * gae_lambda
    return advantages


@pytest.fixture
def rollout():
    rng = np.random.default_rng(0)
    numbers = [rng.normal(size=(40, 5)) for _ in range(3)]
    return *numbers, rng.random((40, 5)) < 0.1, rng.random((40, 5)) < 0.1


def as_tensors(arrays):
    return [
        torch.tensor(a, dtype=torch.float32 if a.dtype == np.float64 else torch.bool)
        for a in arrays
    ]


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(0.99, 0.95), (0.9, 0.0), (1.0, 1.0)])
def test_gae_equals_an_independent_loop_with_random_endings(rollout, gamma, gae_lambda):
    expected = numpy_gae(*rollout, gamma, gae_lambda)
    actual = gae(*as_tensors(rollout), gamma=gamma, gae_lambda=gae_lambda)
    np.testing.assert_allclose(actual.numpy(), expected, atol=1e-5)


def test_gae_reads_the_next_value_at_a_truncation_but_not_at_a_termination(rollout):
    rewards, values, next_values, terminated, truncated = as_tensors(rollout)
    ended_by_truncation_only = truncated & ~terminated
    assert terminated.any()
    assert ended_by_truncation_only.any()
    shifted = gae(
        rewards, values, next_values + 1, terminated, truncated, gamma=0.9, gae_lambda=0.95
    )
    plain = gae(rewards, values, next_values, terminated, truncated, gamma=0.9, gae_lambda=0.95)
    assert torch.equal(shifted[terminated], plain[terminated])
    torch.testing.assert_close(
        shifted[ended_by_truncation_only], plain[ended_by_truncation_only] + 0.9
    )


def test_explained_variance_is_one_for_perfect_zero_for_constant_and_negative_for_worse_predictions():
    targets = torch.tensor([1.0, 2.0, 4.0, 9.0])
    assert explained_variance(targets, targets) == pytest.approx(1.0)
    assert explained_variance(torch.full((4,), 3.0), targets) == pytest.approx(0.0, abs=1e-6)
    # The errors are twice the targets: 1 - 4 var / var.
    assert explained_variance(-targets, targets) == pytest.approx(-3.0, abs=1e-6)


def test_explained_variance_equals_numpy():
    predictions, targets = np.random.default_rng(1).normal(size=(2, 30))
    expected = 1.0 - np.var(targets - predictions) / np.var(targets)
    actual = explained_variance(torch.tensor(predictions), torch.tensor(targets))
    assert actual.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "progress", "expected"),
    [
        ("linear", 0.0, 1.0),
        ("linear", 0.25, 0.8),
        ("linear", 1.0, 0.2),
        ("cosine", 0.0, 1.0),
        # 1 - 0.8 * (1 - cos(pi / 4)) / 2, where cos(pi / 4) = 0.70710678
        ("cosine", 0.25, 0.88284271),
        ("cosine", 0.5, 0.6),
        ("cosine", 1.0, 0.2),
    ],
)
def test_schedule_moves_from_start_to_end(kind, progress, expected):
    assert value_at(Schedule(kind=kind, start=1.0, end=0.2), progress) == pytest.approx(
        expected, abs=1e-8
    )


def test_a_number_stays_the_same_at_every_progress():
    assert [value_at(0.3, progress) for progress in (0.0, 0.5, 1.0)] == [0.3, 0.3, 0.3]


# The errors 2, -1 and 0 weigh 0.7, 0.3 and nothing: (0.7 * 4 + 0.3 * 1 + 0) / 3.
@pytest.mark.parametrize(
    ("expectile", "expected"), [(0.7, 3.1 / 3), (0.5, 2.5 / 3), (0.9, 3.7 / 3), (1.0, 4.0 / 3)]
)
def test_the_expectile_loss_equals_the_hand_worked_example(expectile, expected):
    assert expectile_loss(torch.tensor([2.0, -1.0, 0.0]), expectile).item() == pytest.approx(
        expected
    )


def test_the_value_that_least_expectile_loss_gives_leans_to_the_greater_numbers():
    numbers = torch.tensor([0.0, 10.0])
    candidates = torch.linspace(0, 10, 1001)
    best = min(candidates, key=lambda value: expectile_loss(numbers - value, 0.9).item())
    assert best.item() == pytest.approx(9.0, abs=0.01)  # 0.9 * (10 - v) = 0.1 * v


def test_exponential_weights_are_cut_above_and_never_overflow():
    weights = exponential_weights(torch.tensor([-1e30, -1.0, 0.0, 1.0, 4.0, 1e30]), 10.0)
    np.testing.assert_allclose(weights, [0.0, np.exp(-1), 1.0, np.e, 10.0, 10.0], rtol=1e-6)


def test_smoothed_actions_clip_the_noise_and_then_the_action():
    actions, noise = (
        torch.tensor([0.0, 0.0, 0.0, 0.9, -0.9]),
        torch.tensor([1.0, 4.0, -4.0, 4.0, -1.0]),
    )
    np.testing.assert_allclose(
        smoothed_actions(actions, noise, 0.2, 0.5), [0.2, 0.5, -0.5, 1.0, -1.0], rtol=1e-6
    )

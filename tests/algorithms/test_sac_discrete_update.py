"""SAC for Discrete actions against an independent numpy computation of its whole update."""

import numpy as np
import pytest
import torch
from conftest import TRY_ALL
from gymnasium.spaces import Discrete
from numpy_reference import (
    BATCH,
    LEARNING_RATE,
    StepWatch,
    arrays,
    assert_compiled_equals_plain,
    assert_moved_by_tau,
    doubles,
    make_algorithm,
    make_batch,
    mlp,
    small,
)

from rl_training.algorithms.sac import DISCRETE_ENTROPY_FRACTION, SACAlgorithm, SACConfig

CHOICES = Discrete(4)


def make(**settings):
    return make_algorithm(SACAlgorithm, small(SACConfig, **settings), action_space=CHOICES)


def numpy_values(params, obs):
    """Weight [member, in, out] and bias of each layer alternate; the result is [member, B, action]."""
    x = obs[None]
    for layer in range(3):
        x = x @ params[2 * layer] + params[2 * layer + 1]
        x = np.tanh(x) if layer < 2 else x
    return x


def numpy_policy(params, obs):
    unscaled = np.exp(mlp(params, obs))
    return unscaled / unscaled.sum(1, keepdims=True)


def test_a_whole_update_equals_numpy():
    algorithm = make(tau=0.05, target_entropy=0.9)
    algorithm.temperature.log_alpha.data.fill_(-0.7)
    alpha, tensors, rows = np.exp(-0.7), make_batch(CHOICES), np.arange(BATCH)
    batch, state = doubles(tensors), algorithm.generator.get_state()
    actor_before, critic_before = arrays(algorithm.actor), arrays(algorithm.critic)
    target_before = arrays(algorithm.target_critic)
    probs = numpy_policy(actor_before, batch.next_obs)
    soft_values = numpy_values(target_before, batch.next_obs).min(0) - alpha * np.log(probs)
    targets = batch.rewards + batch.discounts * (probs * soft_values).sum(1)

    def critic_loss(params):
        return sum(
            0.5 * ((v[rows, batch.actions] - targets) ** 2).mean()
            for v in numpy_values(params, batch.obs)
        )

    critic_watch, actor_watch = (
        StepWatch(algorithm.critic_optimizer),
        StepWatch(algorithm.actor_optimizer),
    )
    metrics = {name: value.item() for name, value in algorithm.update(tensors).metrics.items()}
    assert metrics["critic_loss"] == pytest.approx(critic_loss(critic_before), abs=1e-5)
    q_mean = numpy_values(critic_before, batch.obs)[:, rows, batch.actions].mean()
    assert metrics["q_mean"] == pytest.approx(q_mean, abs=1e-5)
    critic_watch.assert_stepped_down(critic_loss, critic_before, metrics["critic_grad_norm"])

    critic_after = arrays(algorithm.critic)  # the actor is judged by the critics just improved

    def actor_loss(params):
        own = numpy_policy(params, batch.obs)
        return (
            (own * (alpha * np.log(own) - numpy_values(critic_after, batch.obs).min(0)))
            .sum(1)
            .mean()
        )

    assert metrics["actor_loss"] == pytest.approx(actor_loss(actor_before), abs=1e-5)
    actor_watch.assert_stepped_down(actor_loss, actor_before, metrics["actor_grad_norm"])
    own = numpy_policy(actor_before, batch.obs)
    entropy = -(own * np.log(own)).sum(1).mean()
    assert metrics["entropy"] == pytest.approx(entropy, abs=1e-5)
    assert metrics["alpha"] == pytest.approx(alpha, abs=1e-6)
    assert metrics["alpha_loss"] == pytest.approx(0.7 * (0.9 - entropy), abs=1e-5)
    # The temperature rises where the policy is less random than it should be.
    expected = -0.7 + LEARNING_RATE * np.sign(0.9 - entropy)
    assert algorithm.temperature.log_alpha.item() == pytest.approx(expected, abs=1e-6)
    assert_moved_by_tau(target_before, arrays(algorithm.target_critic), critic_after, 0.05)
    assert torch.equal(algorithm.generator.get_state(), state)  # nothing here is random


def test_the_target_entropy_is_a_share_of_a_uniform_policys_unless_given():
    for settings, expected in (
        ({}, DISCRETE_ENTROPY_FRACTION * np.log(4)),
        ({"target_entropy": 0.5}, 0.5),
    ):
        algorithm = make(**settings)
        algorithm.temperature.log_alpha.data.fill_(-1.0)
        metrics = algorithm.update(make_batch(CHOICES)).metrics
        assert metrics["alpha_loss"].item() == pytest.approx(
            expected - metrics["entropy"].item(), abs=1e-5
        )


def test_it_draws_by_the_probabilities_and_else_takes_the_most_likely():
    algorithm, obs = make(), make_batch().obs[:1]
    probs = numpy_policy(arrays(algorithm.actor), obs.double().numpy())[0]
    assert algorithm.act(obs, explore=False).actions.item() == probs.argmax()
    drawn = algorithm.act(obs.expand(20_000, -1), explore=True).actions
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 20_000, probs, atol=0.015)


@pytest.mark.skipif(not TRY_ALL, reason="seconds of compiling: RL_TRAINING_TEST_ALL=1 runs it")
def test_a_compiled_update_equals_a_plain_one():
    assert_compiled_equals_plain(SACAlgorithm, small(SACConfig), action_space=CHOICES)

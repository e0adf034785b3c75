"""AWAC against an independent numpy computation of its targets, losses, gradients and whole update."""

import numpy as np
import pytest
import torch
from numpy_reference import (
    BATCH,
    NUM_ACTIONS,
    StepWatch,
    arrays,
    assert_moved_by_tau,
    coming_normals,
    critic,
    doubles,
    gaussian_log_density,
    make_algorithm,
    make_batch,
    mlp,
    small,
)

from rl_training.algorithms.awac import AWACAlgorithm, AWACConfig


def make(**settings):
    return make_algorithm(AWACAlgorithm, small(AWACConfig, **settings))


def draw(params, obs, noise):
    return np.clip(np.tanh(mlp(params[1:], obs)) + np.exp(params[0]) * noise, -1.0, 1.0)


def test_a_whole_update_equals_numpy():
    algorithm = make(awac_lambda=0.5, max_advantage_weight=1.5, tau=0.05)
    tensors = make_batch()
    batch = doubles(tensors)
    obs, actions = batch.obs, batch.actions
    actor_before, critic_before = arrays(algorithm.actor), arrays(algorithm.critic)
    target_before = arrays(algorithm.target_critic)
    noise, next_noise = coming_normals(algorithm, *[(BATCH, NUM_ACTIONS)] * 2)
    next_actions = draw(actor_before, batch.next_obs, next_noise)
    assert (np.abs(next_actions) == 1.0).any()
    targets = batch.rewards + batch.discounts * critic(
        target_before, batch.next_obs, next_actions
    ).min(0)

    def critic_loss(params):
        return ((critic(params, obs, actions) - targets) ** 2).mean(1).sum()

    critic_watch, actor_watch = (
        StepWatch(algorithm.critic_optimizer),
        StepWatch(algorithm.actor_optimizer),
    )
    metrics = algorithm.update(tensors).metrics
    assert metrics["critic_loss"].item() == pytest.approx(critic_loss(critic_before), abs=1e-5)
    assert metrics["q_mean"].item() == pytest.approx(
        critic(critic_before, obs, actions).mean(), abs=1e-5
    )
    critic_watch.assert_stepped_down(critic_loss, critic_before, metrics["critic_grad_norm"])

    own_values = critic(critic_before, obs, draw(actor_before, obs, noise)).min(0)
    advantages = critic(critic_before, obs, actions).min(0) - own_values
    weights = np.minimum(np.exp(advantages / 0.5), 1.5)
    assert (weights == 1.5).any()
    assert (weights < 1.5).any()

    def actor_loss(params):
        return -(
            weights * gaussian_log_density(np.tanh(mlp(params[1:], obs)), params[0], actions)
        ).mean()

    assert metrics["advantage_mean"].item() == pytest.approx(advantages.mean(), abs=1e-5)
    assert metrics["actor_loss"].item() == pytest.approx(actor_loss(actor_before), abs=1e-5)
    actor_watch.assert_stepped_down(actor_loss, actor_before, metrics["actor_grad_norm"])
    assert_moved_by_tau(
        target_before, arrays(algorithm.target_critic), arrays(algorithm.critic), 0.05
    )


def test_actions_at_the_bounds_have_a_likelihood_and_a_gradient():
    policy = make().actor
    corners = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]])
    losses = policy.imitation_loss(torch.zeros(3, 3), corners)
    gradients = torch.autograd.grad(losses.sum(), list(policy.parameters()))
    assert losses.isfinite().all()
    assert all(gradient.isfinite().all() and gradient.abs().max() < 100.0 for gradient in gradients)


def test_an_action_far_better_or_worse_than_the_policys_keeps_the_loss_finite():
    algorithm = make(awac_lambda=1e-6)
    assert all(metric.isfinite() for metric in algorithm.update(make_batch()).metrics.values())

"""IQL against an independent numpy computation of its targets, losses, gradients and whole update."""

import numpy as np
import pytest
import torch
from numpy_reference import (
    LEARNING_RATE,
    StepWatch,
    arrays,
    assert_moved_by_tau,
    critic,
    doubles,
    gaussian_log_density,
    make_algorithm,
    make_batch,
    mlp,
    small,
)

from rl_training.algorithms.iql import IQLAlgorithm, IQLConfig


def make(**settings):
    return make_algorithm(IQLAlgorithm, small(IQLConfig, **settings))


def value(params, obs):
    return mlp(params, obs)[:, 0]


def imitation_losses(policy, params, obs, actions):
    if policy == "deterministic":
        return ((np.tanh(mlp(params, obs)) - actions) ** 2).mean(1)
    return -gaussian_log_density(np.tanh(mlp(params[1:], obs)), params[0], actions)


@pytest.mark.parametrize("policy", ["gaussian", "deterministic"])
def test_a_whole_update_equals_numpy(policy):
    algorithm = make(
        policy=policy,
        expectile=0.8,
        beta=2.0,
        max_advantage_weight=5.0,
        tau=0.05,
        actor_learning_rate=2e-3,
    )
    tensors = make_batch()
    batch = doubles(tensors)
    obs, actions = batch.obs, batch.actions
    actor_before, critic_before, value_before = (
        arrays(part) for part in (algorithm.actor, algorithm.critic, algorithm.value)
    )
    target_before = arrays(algorithm.target_critic)
    target_values = critic(target_before, obs, actions).min(0)
    advantages = target_values - value(value_before, obs)
    assert (advantages > 0).any()
    assert (advantages < 0).any()

    def value_loss(params):
        errors = target_values - value(params, obs)
        return (np.abs(0.8 - (errors < 0)) * errors**2).mean()

    value_watch, critic_watch = (
        StepWatch(algorithm.value_optimizer),
        StepWatch(algorithm.critic_optimizer),
    )
    actor_watch = StepWatch(algorithm.actor_optimizer)
    metrics = algorithm.update(tensors).metrics
    assert metrics["value_loss"].item() == pytest.approx(value_loss(value_before), abs=1e-5)
    assert metrics["advantage_mean"].item() == pytest.approx(advantages.mean(), abs=1e-5)
    value_watch.assert_stepped_down(value_loss, value_before, metrics["value_grad_norm"])

    targets = batch.rewards + batch.discounts * value(arrays(algorithm.value), batch.next_obs)

    def critic_loss(params):
        return ((critic(params, obs, actions) - targets) ** 2).mean(1).sum()

    assert metrics["critic_loss"].item() == pytest.approx(critic_loss(critic_before), abs=1e-5)
    assert metrics["q_mean"].item() == pytest.approx(
        critic(critic_before, obs, actions).mean(), abs=1e-5
    )
    critic_watch.assert_stepped_down(critic_loss, critic_before, metrics["critic_grad_norm"])

    weights = np.minimum(np.exp(2.0 * advantages), 5.0)
    assert (weights == 5.0).any()
    assert (weights < 5.0).any()

    def actor_loss(params):
        return (weights * imitation_losses(policy, params, obs, actions)).mean()

    assert metrics["actor_loss"].item() == pytest.approx(
        actor_loss(actor_before), rel=1e-5, abs=1e-5
    )
    actor_watch.assert_stepped_down(
        actor_loss, actor_before, metrics["actor_grad_norm"], learning_rate=2e-3
    )
    assert_moved_by_tau(
        target_before, arrays(algorithm.target_critic), arrays(algorithm.critic), 0.05
    )


def test_the_metrics_stand_in_the_order_in_which_a_mistake_would_spread():
    names = [
        "value_loss",
        "value_grad_norm",
        "critic_loss",
        "critic_grad_norm",
        "q_mean",
        "advantage_mean",
    ]
    assert list(make().update(make_batch()).metrics) == [*names, "actor_loss", "actor_grad_norm"]


@pytest.mark.parametrize(("progress", "expected"), [(0.0, 3e-4), (0.5, 1.5e-4), (1.0, 0.0)])
def test_by_default_the_actor_slows_down_along_a_cosine_and_the_others_do_not(progress, expected):
    algorithm = make()
    algorithm.global_step, algorithm.progress = 0, progress
    algorithm.update(make_batch())
    assert algorithm.actor_optimizer._learning_rate.item() == pytest.approx(expected, abs=1e-9)
    for optimizer in (algorithm.critic_optimizer, algorithm.value_optimizer):
        assert optimizer._learning_rate.item() == pytest.approx(LEARNING_RATE)


def test_without_beta_every_action_weighs_the_same():
    batch = make_batch()
    algorithm = make(beta=0.0)
    expected = algorithm.actor.imitation_loss(batch.obs, batch.actions).mean().item()
    assert algorithm.update(batch).metrics["actor_loss"].item() == pytest.approx(expected)


def test_a_huge_advantage_weighs_as_much_as_is_allowed_and_stays_finite():
    algorithm = make(beta=1e4)
    metrics = algorithm.update(make_batch()).metrics
    assert all(metric.isfinite() for metric in metrics.values())
    weights = torch.tensor([1e30, 0.0, -1e30])
    loss = algorithm._actor_loss(torch.zeros(3, 3), torch.zeros(3, 2), weights)
    one = algorithm.actor.imitation_loss(torch.zeros(1, 3), torch.zeros(1, 2))
    assert loss.item() == pytest.approx((100.0 + 1.0 + 0.0) / 3.0 * one.item(), rel=1e-5)

"""Behaviour cloning against an independent numpy computation of its losses, gradients and whole update."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete, MultiDiscrete
from numpy_reference import (
    BATCH,
    StepWatch,
    arrays,
    doubles,
    gaussian_log_density,
    make_algorithm,
    make_batch,
    mlp,
    small,
)

from rl_training.algorithms.bc import BCAlgorithm, BCConfig


def make(action_space=None, **settings):
    return make_algorithm(BCAlgorithm, small(BCConfig, **settings), action_space=action_space)


def assert_update_equals(algorithm, tensors, loss):
    before = arrays(algorithm.actor)
    watch = StepWatch(algorithm.actor_optimizer)
    metrics = algorithm.update(tensors).metrics
    assert list(metrics) == ["actor_loss", "actor_grad_norm"]
    assert metrics["actor_loss"].item() == pytest.approx(loss(before), abs=1e-5)
    watch.assert_stepped_down(loss, before, metrics["actor_grad_norm"])


def test_the_deterministic_policy_steps_down_the_mean_squared_error():
    tensors = make_batch()
    batch = doubles(tensors)
    assert_update_equals(
        make(), tensors, lambda p: ((np.tanh(mlp(p, batch.obs)) - batch.actions) ** 2).mean()
    )


def test_the_gaussian_policy_steps_down_the_negative_log_likelihood():
    tensors = make_batch()
    batch = doubles(tensors)

    def loss(params):
        log_std, *network = params
        return -gaussian_log_density(
            np.tanh(mlp(network, batch.obs)), log_std, batch.actions
        ).mean()

    assert_update_equals(make(policy="gaussian"), tensors, loss)


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def test_discrete_actions_step_down_the_cross_entropy():
    space = Discrete(4)
    tensors = make_batch(space)
    batch = doubles(tensors)
    assert_update_equals(
        make(space),
        tensors,
        lambda p: -log_softmax(mlp(p, batch.obs))[np.arange(BATCH), batch.actions].mean(),
    )


def test_several_discrete_components_add_their_cross_entropies():
    space = MultiDiscrete([2, 3])
    tensors = make_batch(space)
    batch, rows = doubles(tensors), np.arange(BATCH)

    def loss(params):
        logits = mlp(params, batch.obs)
        first, second = log_softmax(logits[:, :2]), log_softmax(logits[:, 2:])
        return -(first[rows, batch.actions[:, 0]] + second[rows, batch.actions[:, 1]]).mean()

    assert_update_equals(make(space), tensors, loss)


def test_rewards_and_next_observations_play_no_part():
    tensors, other = make_batch(seed=2), make_batch(seed=3)
    mixed = type(tensors)(**{**vars(other), "obs": tensors.obs, "actions": tensors.actions})
    one, two = make(), make()
    one.update(tensors)
    two.update(mixed)
    assert all(
        np.array_equal(a, b) for a, b in zip(arrays(one.actor), arrays(two.actor), strict=True)
    )


@pytest.mark.parametrize(("log_std", "kept"), [(-9.0, -5.0), (-4.0, -4.0), (1.5, 1.5), (7.0, 2.0)])
def test_the_deviation_of_the_gaussian_keeps_within_its_limits(log_std, kept):
    policy = make(policy="gaussian").actor
    policy.log_std.data.fill_(log_std)
    obs = make_batch().obs
    # At the mean each of the two components has the log-density -log_std - log(2 pi) / 2.
    losses = policy.imitation_loss(obs, policy.mode(obs)).detach()
    np.testing.assert_allclose(losses, 2 * (kept + 0.5 * np.log(2 * np.pi)), atol=1e-5)


def test_exploring_draws_from_the_gaussian_within_the_bounds():
    algorithm = make(policy="gaussian")
    algorithm.actor.log_std.data.fill_(np.log(0.1))
    obs = torch.zeros(20_000, 3)
    mean = algorithm.act(obs[:1], explore=False).actions
    assert mean.abs().max() < 0.7
    draws = algorithm.act(obs, explore=True).actions
    np.testing.assert_allclose(draws.mean(0), mean[0], atol=5e-3)
    np.testing.assert_allclose(draws.std(0), 0.1, atol=5e-3)
    algorithm.actor.log_std.data.fill_(2.0)
    assert algorithm.act(obs, explore=True).actions.abs().max() == 1.0


def test_exploring_draws_discrete_actions_by_their_probabilities():
    algorithm = make(Discrete(3))
    obs = torch.full((30_000, 3), 0.4)
    probabilities = np.exp(log_softmax(mlp(arrays(algorithm.actor), obs[:1].double().numpy())))[0]
    drawn = algorithm.act(obs, explore=True).actions
    np.testing.assert_allclose(
        torch.bincount(drawn, minlength=3) / len(obs), probabilities, atol=0.01
    )
    assert algorithm.act(obs, explore=False).actions.unique().tolist() == [probabilities.argmax()]

"""TD3 and DDPG against an independent numpy computation of their targets, losses, gradients and whole update."""

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
    make_algorithm,
    make_batch,
    mlp,
    small,
)

from rl_training.algorithms.ddpg import DDPGAlgorithm, DDPGConfig
from rl_training.algorithms.td3 import TD3Algorithm, TD3Config

RULES = {"td3": (TD3Algorithm, TD3Config), "ddpg": (DDPGAlgorithm, DDPGConfig)}


def make(name="td3", **settings):
    algorithm_class, config_class = RULES[name]
    return make_algorithm(algorithm_class, small(config_class, **settings))


def actor(params, obs):
    return np.tanh(mlp(params, obs))


@pytest.mark.parametrize(
    ("name", "num_critics", "settings"),
    [
        ("td3", 2, {"policy_delay": 1, "policy_noise": 0.4}),
        ("td3", 3, {"policy_delay": 1, "policy_noise": 0.4, "num_critics": 3}),
        ("ddpg", 1, {}),
    ],
)
def test_a_whole_update_equals_numpy(name, num_critics, settings):
    algorithm = make(name, tau=0.05, **settings)
    tensors = make_batch()
    batch = doubles(tensors)
    actor_before, critic_before = arrays(algorithm.actor), arrays(algorithm.critic)
    target_actor_before, target_critic_before = (
        arrays(algorithm.target_actor),
        arrays(algorithm.target_critic),
    )

    next_actions = actor(target_actor_before, batch.next_obs)
    if name == "td3":
        (noise,) = coming_normals(algorithm, (BATCH, NUM_ACTIONS))
        assert (np.abs(0.4 * noise) > 0.5).any()
        next_actions = np.clip(next_actions + np.clip(0.4 * noise, -0.5, 0.5), -1, 1)
        assert (np.abs(next_actions) == 1).any() or num_critics == 3
    next_values = critic(target_critic_before, batch.next_obs, next_actions)
    assert next_values.shape == (num_critics, BATCH)
    targets = batch.rewards + batch.discounts * next_values.min(0)

    def critic_loss(params):
        return sum(
            ((values - targets) ** 2).mean() for values in critic(params, batch.obs, batch.actions)
        )

    critic_watch, actor_watch = (
        StepWatch(algorithm.critic_optimizer),
        StepWatch(algorithm.actor_optimizer),
    )
    metrics = algorithm.update(tensors).metrics
    assert metrics["critic_loss"].item() == pytest.approx(critic_loss(critic_before), abs=1e-5)
    assert metrics["q_mean"].item() == pytest.approx(
        critic(critic_before, batch.obs, batch.actions).mean(), abs=1e-5
    )
    critic_watch.assert_stepped_down(critic_loss, critic_before, metrics["critic_grad_norm"])

    critic_after = arrays(algorithm.critic)  # the actor is judged by the critics just improved

    def actor_loss(params):
        return -critic(critic_after, batch.obs, actor(params, batch.obs))[0].mean()

    assert metrics["actor_loss"].item() == pytest.approx(actor_loss(actor_before), abs=1e-5)
    actor_watch.assert_stepped_down(actor_loss, actor_before, metrics["actor_grad_norm"])
    assert_moved_by_tau(target_critic_before, arrays(algorithm.target_critic), critic_after, 0.05)
    assert_moved_by_tau(
        target_actor_before, arrays(algorithm.target_actor), arrays(algorithm.actor), 0.05
    )


def test_the_actor_waits_for_every_second_update_in_td3_and_moves_at_each_in_ddpg():
    for name, expected in (("td3", [False, True, False, True]), ("ddpg", [True] * 4)):
        algorithm, moved = make(name), []
        for seed in range(4):
            before = arrays(algorithm.actor)
            algorithm.update(make_batch(seed=seed))
            moved.append(not np.array_equal(before[0], arrays(algorithm.actor)[0]))
        assert moved == expected


def test_exploring_adds_noise_of_the_given_deviation_and_keeps_to_the_bounds():
    algorithm = make(exploration_noise=0.3)
    for parameter in algorithm.actor.parameters():
        parameter.data.zero_()  # so that the policy's action is 0 in both components
    obs = torch.zeros(20_000, 3)
    assert not algorithm.act(obs, explore=False).actions.any()
    actions = algorithm.act(obs, explore=True).actions
    assert actions.std().item() == pytest.approx(0.3, abs=0.01)
    assert actions.mean().item() == pytest.approx(0.0, abs=0.01)
    algorithm.actor.network.biases[-1].data.fill_(1.5)
    actions = algorithm.act(obs, explore=True).actions
    assert actions.max() == 1.0
    assert actions.mean().item() < np.tanh(1.5)

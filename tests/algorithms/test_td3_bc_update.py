"""TD3+BC against an independent numpy computation of its targets, losses, gradients and whole update."""

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

from rl_training.algorithms.td3_bc import TD3BCAlgorithm, TD3BCConfig


def make(**settings):
    return make_algorithm(TD3BCAlgorithm, small(TD3BCConfig, **settings))


def actor(params, obs):
    return np.tanh(mlp(params, obs))


def test_a_whole_update_equals_numpy():
    algorithm = make(policy_delay=1, policy_noise=0.4, noise_clip=0.5, bc_alpha=1.7, tau=0.05)
    data = 3.0 + 2.0 * torch.randn(500, 3, generator=torch.Generator().manual_seed(4))
    algorithm.fit_observations(data)
    tensors = make_batch()
    batch = doubles(tensors)
    mean, std = data.double().numpy().mean(0), data.double().numpy().std(0)
    obs, next_obs = (batch.obs - mean) / std, (batch.next_obs - mean) / std  # TD3+BC eq. 4
    actor_before, critic_before = arrays(algorithm.actor), arrays(algorithm.critic)
    target_actor_before, target_critic_before = (
        arrays(algorithm.target_actor),
        arrays(algorithm.target_critic),
    )

    (noise,) = coming_normals(algorithm, (BATCH, NUM_ACTIONS))
    assert (np.abs(0.4 * noise) > 0.5).any()
    next_actions = np.clip(
        actor(target_actor_before, next_obs) + np.clip(0.4 * noise, -0.5, 0.5), -1, 1
    )
    assert (np.abs(next_actions) == 1).any()
    targets = batch.rewards + batch.discounts * critic(
        target_critic_before, next_obs, next_actions
    ).min(0)

    def critic_loss(params):
        first, second = critic(params, obs, batch.actions)
        return ((first - targets) ** 2).mean() + ((second - targets) ** 2).mean()

    critic_watch, actor_watch = (
        StepWatch(algorithm.critic_optimizer),
        StepWatch(algorithm.actor_optimizer),
    )
    metrics = algorithm.update(tensors).metrics
    assert metrics["critic_loss"].item() == pytest.approx(critic_loss(critic_before), abs=1e-5)
    assert metrics["q_mean"].item() == pytest.approx(
        critic(critic_before, obs, batch.actions).mean(), abs=1e-5
    )
    critic_watch.assert_stepped_down(critic_loss, critic_before, metrics["critic_grad_norm"])

    critic_after = arrays(algorithm.critic)  # the actor is judged by the critics just improved
    scale = (
        1.7 / np.abs(critic(critic_after, obs, actor(actor_before, obs))[0]).mean()
    )  # held fixed

    def actor_loss(params):
        own = actor(params, obs)
        return ((own - batch.actions) ** 2).mean() - scale * critic(critic_after, obs, own)[
            0
        ].mean()

    assert metrics["actor_loss"].item() == pytest.approx(actor_loss(actor_before), abs=1e-5)
    imitation_loss = ((actor(actor_before, obs) - batch.actions) ** 2).mean()
    assert metrics["imitation_loss"].item() == pytest.approx(imitation_loss, abs=1e-5)
    actor_watch.assert_stepped_down(actor_loss, actor_before, metrics["actor_grad_norm"])
    assert_moved_by_tau(target_critic_before, arrays(algorithm.target_critic), critic_after, 0.05)
    assert_moved_by_tau(
        target_actor_before, arrays(algorithm.target_actor), arrays(algorithm.actor), 0.05
    )


def test_the_actor_loss_equals_a_hand_worked_example():
    algorithm = make(bc_alpha=2.5)
    for parameter in algorithm.actor.parameters():
        parameter.data.zero_()  # so that the policy's action is 0 in both components
    algorithm.critic.first = lambda obs, actions: torch.tensor([-4.0, 2.0])
    actions = torch.tensor([[1.0, 0.0], [-0.5, 0.5]])
    loss, metrics = algorithm._actor_loss(torch.zeros(2, 3), actions)
    # Squared distances 1, 0, 0.25 and 0.25: their mean is 0.375.
    # lambda = 2.5 / ((4 + 2) / 2) = 5 / 6, and the mean value is -1: the loss is 0.375 + 5 / 6.
    assert metrics["imitation_loss"].item() == pytest.approx(0.375)
    assert loss.item() == pytest.approx(0.375 + 5 / 6)


def test_the_actor_and_the_targets_move_at_every_third_update_alone_when_the_delay_is_three():
    algorithm = make(policy_delay=3)
    moved = []
    for update in range(1, 8):
        before = [
            arrays(part)
            for part in (algorithm.actor, algorithm.target_actor, algorithm.target_critic)
        ]
        metrics = algorithm.update(make_batch(seed=update)).metrics
        after = [
            arrays(part)
            for part in (algorithm.actor, algorithm.target_actor, algorithm.target_critic)
        ]
        changes = [not np.array_equal(a[0], b[0]) for a, b in zip(before, after, strict=True)]
        assert all(changes) == any(changes)
        moved.append(changes[0])
        assert ("actor_loss" in metrics) == ("imitation_loss" in metrics) == changes[0]
    assert moved == [False, False, True, False, False, True, False]


def test_the_delay_continues_where_a_saved_state_left_off():
    one, other = make(policy_delay=3), make(policy_delay=3)
    for seed in range(4):
        one.update(make_batch(seed=seed))
    other.load_state_dict(one.state_dict())
    for seed in range(4, 8):
        expected = one.update(make_batch(seed=seed)).metrics
        actual = other.update(make_batch(seed=seed)).metrics
        assert {name: value.item() for name, value in actual.items()} == {
            name: value.item() for name, value in expected.items()
        }
    assert all(
        np.array_equal(a, b) for a, b in zip(arrays(one.actor), arrays(other.actor), strict=True)
    )


def test_the_actor_step_leaves_the_critics_untouched():
    algorithm = make(policy_delay=1)
    algorithm.critic_optimizer.step = lambda gradients, scale: None
    before = arrays(algorithm.critic)
    algorithm.update(make_batch())
    assert all(np.array_equal(a, b) for a, b in zip(arrays(algorithm.critic), before, strict=True))


def test_one_member_of_the_critics_alone_gives_what_it_gives_among_both():
    critics, batch = make().critic, make_batch()
    values = critics(batch.obs, batch.actions)
    torch.testing.assert_close(
        critics.first(batch.obs, batch.actions), values[0], rtol=0, atol=1e-6
    )

"""CrossQ against an independent numpy computation of its joint batch, targets, losses, gradients and averages."""

import numpy as np
import pytest
import torch
from numpy_reference import (
    BATCH,
    NUM_ACTIONS,
    StepWatch,
    arrays,
    coming_normals,
    doubles,
    make_algorithm,
    make_batch,
    small,
)
from test_cql_update import actor

from rl_training.algorithms.crossq import CrossQAlgorithm, CrossQConfig
from rl_training.errors import ConfigError
from rl_training.experiment.registry import get_algorithm_spec

NUM_LAYERS = 3


def make(**settings):
    algorithm = make_algorithm(CrossQAlgorithm, small(CrossQConfig, **settings))
    rng = torch.Generator().manual_seed(5)
    for norm in algorithm.critic.networks.norms:
        norm.mean += 0.3 * torch.randn(norm.mean.shape, generator=rng)
        norm.variance += torch.rand(norm.variance.shape, generator=rng)
    return algorithm


def averages(algorithm):
    norms = algorithm.critic.networks.norms
    return [
        (norm.mean.double().numpy().copy(), norm.variance.double().numpy().copy()) for norm in norms
    ]


def numpy_critic(params, obs, actions, by=None):
    """Values [member, B] and the statistics of each layer's input; `by` are the averages, None means by this batch.

    First weight [member, in, out] and bias of each layer alternate, then scale and offset of each normalization.
    """
    x, seen = np.concatenate([obs, actions], -1)[None].repeat(2, 0), []
    for layer in range(NUM_LAYERS):
        seen.append((x.mean(1, keepdims=True), x.var(1, keepdims=True)))
        mean, variance = seen[-1] if by is None else by[layer]
        scale, offset = params[2 * NUM_LAYERS + 2 * layer], params[2 * NUM_LAYERS + 2 * layer + 1]
        x = (x - mean) / np.sqrt(variance + 1e-3) * scale + offset
        x = x @ params[2 * layer] + params[2 * layer + 1]
        x = np.tanh(x) if layer < NUM_LAYERS - 1 else x
    return x[..., 0], seen


def test_a_whole_update_equals_numpy():
    algorithm = make(target_entropy=-1.5)
    algorithm.temperature.log_alpha.data.fill_(-0.7)
    alpha, tensors = np.exp(-0.7), make_batch()
    batch = doubles(tensors)
    noise, next_noise = coming_normals(algorithm, (BATCH, NUM_ACTIONS), (BATCH, NUM_ACTIONS))
    actor_before, critic_before, averages_before = (
        arrays(algorithm.actor),
        arrays(algorithm.critic),
        averages(algorithm),
    )

    next_actions, next_log_probs = actor(actor_before, batch.next_obs, next_noise)
    joint_obs = np.concatenate([batch.obs, batch.next_obs])
    joint_actions = np.concatenate([batch.actions, next_actions])
    joint, seen = numpy_critic(critic_before, joint_obs, joint_actions)
    targets = batch.rewards + batch.discounts * (joint[:, BATCH:].min(0) - alpha * next_log_probs)

    def critic_loss(params):
        values = numpy_critic(params, joint_obs, joint_actions)[0][:, :BATCH]
        return sum(0.5 * ((member - targets) ** 2).mean() for member in values)

    critic_watch, actor_watch = (
        StepWatch(algorithm.critic_optimizer),
        StepWatch(algorithm.actor_optimizer),
    )
    metrics = {name: value.item() for name, value in algorithm.update(tensors).metrics.items()}
    assert metrics["critic_loss"] == pytest.approx(critic_loss(critic_before), abs=1e-5)
    assert metrics["q_mean"] == pytest.approx(joint[:, :BATCH].mean(), abs=1e-5)
    critic_watch.assert_stepped_down(critic_loss, critic_before, metrics["critic_grad_norm"])
    averages_after = averages(algorithm)
    for before, now, after in zip(averages_before, seen, averages_after, strict=True):
        for old, batch_value, new in zip(before, now, after, strict=True):
            np.testing.assert_allclose(new, 0.99 * old + 0.01 * batch_value, atol=1e-5)

    critic_after = arrays(
        algorithm.critic
    )  # the actor is judged by the critics just improved, by their averages

    def actor_loss(params):
        actions, log_probs = actor(params, batch.obs, noise)
        return (
            alpha * log_probs
            - numpy_critic(critic_after, batch.obs, actions, averages_after)[0].min(0)
        ).mean()

    assert metrics["actor_loss"] == pytest.approx(actor_loss(actor_before), abs=1e-5)
    actor_watch.assert_stepped_down(actor_loss, actor_before, metrics["actor_grad_norm"])


def test_there_is_no_target_network():
    assert set(make().stateful_members()) == {
        *(
            "actor",
            "critic",
            "temperature",
            "actor_optimizer",
            "critic_optimizer",
            "alpha_optimizer",
        )
    }


def test_the_averages_are_saved():
    algorithm, again = make(), make()
    algorithm.update(make_batch())
    again.load_state_dict(algorithm.state_dict())
    for one, other in zip(averages(algorithm), averages(again), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_only_target_networks_need_is_refused():
    with pytest.raises(ConfigError, match="unknown key 'tau' for crossq"):
        get_algorithm_spec("crossq").parse_kwargs({"tau": 0.01})

"""TQC against an independent numpy computation of its truncated targets, losses, gradients and whole update."""

import numpy as np
import pytest
from numpy_reference import (
    BATCH,
    NUM_ACTIONS,
    StepWatch,
    arrays,
    assert_moved_by_tau,
    coming_normals,
    doubles,
    make_algorithm,
    make_batch,
    small,
)
from test_cql_update import actor
from test_qrdqn_update import numpy_losses

from rl_training.algorithms.tqc import TQCAlgorithm, TQCConfig
from rl_training.errors import ConfigError
from rl_training.experiment.registry import get_algorithm_spec

QUANTILES = 5


def make(**settings):
    return make_algorithm(TQCAlgorithm, small(TQCConfig, num_quantiles=QUANTILES, **settings))


def numpy_quantiles(params, obs, actions):
    """Weight [member, in, out] and bias of each layer alternate; the result is [member, B, quantile]."""
    x = np.concatenate([obs, actions], -1)[None]
    for layer in range(3):
        x = x @ params[2 * layer] + params[2 * layer + 1]
        x = np.tanh(x) if layer < 2 else x
    return x


@pytest.mark.parametrize(("num_critics", "drop"), [(2, 2), (3, 1), (2, 0)])
def test_a_whole_update_equals_numpy(num_critics, drop):
    algorithm = make(num_critics=num_critics, quantiles_to_drop=drop, tau=0.05, target_entropy=-1.5)
    algorithm.temperature.log_alpha.data.fill_(-0.7)
    alpha, tensors = np.exp(-0.7), make_batch()
    batch = doubles(tensors)
    noise, next_noise = coming_normals(algorithm, (BATCH, NUM_ACTIONS), (BATCH, NUM_ACTIONS))
    actor_before, critic_before = arrays(algorithm.actor), arrays(algorithm.critic)
    target_before = arrays(algorithm.target_critic)

    next_actions, next_log_probs = actor(actor_before, batch.next_obs, next_noise)
    target_quantiles = numpy_quantiles(target_before, batch.next_obs, next_actions)
    assert target_quantiles.shape == (num_critics, BATCH, QUANTILES)
    targets = []
    for row in range(BATCH):
        pooled = sorted(target_quantiles[:, row].reshape(-1))[: num_critics * (QUANTILES - drop)]
        soft = np.array(pooled) - alpha * next_log_probs[row]
        targets.append(batch.rewards[row] + batch.discounts[row] * soft)
    targets = np.array(targets)

    def critic_loss(params):
        members = numpy_quantiles(params, batch.obs, batch.actions)
        return sum(numpy_losses(member, targets).mean() / QUANTILES for member in members)

    critic_watch, actor_watch = (
        StepWatch(algorithm.critic_optimizer),
        StepWatch(algorithm.actor_optimizer),
    )
    metrics = {name: value.item() for name, value in algorithm.update(tensors).metrics.items()}
    assert metrics["critic_loss"] == pytest.approx(critic_loss(critic_before), abs=1e-5)
    q_mean = numpy_quantiles(critic_before, batch.obs, batch.actions).mean()
    assert metrics["q_mean"] == pytest.approx(q_mean, abs=1e-5)
    critic_watch.assert_stepped_down(critic_loss, critic_before, metrics["critic_grad_norm"])

    critic_after = arrays(algorithm.critic)  # the actor is judged by the critics just improved

    def actor_loss(params):
        actions, log_probs = actor(params, batch.obs, noise)
        return (
            alpha * log_probs - numpy_quantiles(critic_after, batch.obs, actions).mean((0, 2))
        ).mean()

    assert metrics["actor_loss"] == pytest.approx(actor_loss(actor_before), abs=1e-5)
    actor_watch.assert_stepped_down(actor_loss, actor_before, metrics["actor_grad_norm"])
    log_prob = actor(actor_before, batch.obs, noise)[1].mean()
    assert metrics["entropy"] == pytest.approx(-log_prob, abs=1e-5)
    assert metrics["alpha_loss"] == pytest.approx(0.7 * (log_prob - 1.5), abs=1e-5)
    assert_moved_by_tau(target_before, arrays(algorithm.target_critic), critic_after, 0.05)


def test_dropping_every_quantile_is_refused():
    with pytest.raises(
        ConfigError, match="quantiles_to_drop 25 leaves none of 25 quantiles: drop fewer"
    ):
        get_algorithm_spec("tqc").parse_kwargs({"quantiles_to_drop": 25})

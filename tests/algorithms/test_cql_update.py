"""CQL, for Box and for Discrete actions, against an independent numpy computation of its whole update."""

import numpy as np
import pytest
import torch
from conftest import TRY_ALL
from gymnasium.spaces import Discrete
from numpy_reference import (
    BATCH,
    LEARNING_RATE,
    NUM_ACTIONS,
    StepWatch,
    arrays,
    assert_compiled_equals_plain,
    assert_moved_by_tau,
    critic,
    doubles,
    make_algorithm,
    make_batch,
    mlp,
    small,
)

from rl_training.algorithms import cql
from rl_training.algorithms.cql import CQLAlgorithm, CQLConfig
from rl_training.errors import ConfigError

SAMPLES = 3
CHOICES = Discrete(4)


def make(action_space=None, **settings):
    if action_space is None:
        settings = {"num_cql_samples": SAMPLES, "actor_learning_rate": 2e-3, **settings}
    return make_algorithm(CQLAlgorithm, small(CQLConfig, **settings), action_space=action_space)


def coming_draws(algorithm):
    """Uniform actions [N, B, A], and normal noise [1 + N, B, A] for the current and for the next observation."""
    generator = torch.Generator()
    generator.set_state(algorithm.generator.get_state())
    uniform = torch.empty(SAMPLES, BATCH, NUM_ACTIONS).uniform_(-1.0, 1.0, generator=generator)
    normal = [
        torch.empty(1 + SAMPLES, BATCH, NUM_ACTIONS).normal_(generator=generator) for _ in range(2)
    ]
    return [draw.double().numpy() for draw in (uniform, *normal)]


def actor(params, obs, noise):
    """Squashed actions and their log-densities."""
    mean, log_std = np.split(mlp(params, obs), 2, axis=1)
    std = np.exp(np.clip(log_std, -20, 2))
    before_tanh = mean + std * noise
    actions = np.tanh(before_tanh)
    slope = (
        np.cosh(before_tanh) ** -2.0
    )  # the derivative of tanh; 1 - tanh² cancels where an action is near a bound
    density = np.exp(-0.5 * ((before_tanh - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi)) / slope
    return actions, np.log(density).sum(-1)


def conservative_gaps(params, obs, data_actions, candidates, log_densities):
    """For each critic the mean over the batch of log sum exp(Q) / density, less the value of the data's actions."""
    repeated = np.broadcast_to(obs, (len(candidates), *obs.shape))
    ratios = np.exp(critic(params, repeated, candidates)) / np.exp(log_densities)  # [2, 3N, B]
    return (np.log(ratios.sum(1)) - critic(params, obs, data_actions)).mean(1)


@pytest.mark.parametrize("backup", ["value", "entropy", "mean"])
@pytest.mark.parametrize("lagrange_threshold", [None, 4.0])
def test_a_whole_update_equals_numpy(backup, lagrange_threshold):
    algorithm = make(
        backup_entropy=backup == "entropy",
        backup_mean=backup == "mean",
        lagrange_threshold=lagrange_threshold,
        cql_alpha=0.7,
        tau=0.05,
        target_entropy=-1.5,
    )
    algorithm.temperature.log_alpha.data.fill_(-0.7)
    algorithm.lagrange_multiplier.log_alpha.data.fill_(0.3 if lagrange_threshold else 0.0)
    alpha, lagrange_multiplier = np.exp(-0.7), np.exp(0.3 if lagrange_threshold else 0.0)
    tensors = make_batch()
    batch = doubles(tensors)
    obs, actions = batch.obs, batch.actions
    actor_before, critic_before, target_before = (
        arrays(part) for part in (algorithm.actor, algorithm.critic, algorithm.target_critic)
    )

    uniform, noise, next_noise = coming_draws(algorithm)
    next_actions, next_log_probs = actor(actor_before, batch.next_obs, next_noise)
    own_actions, own_log_probs = actor(actor_before, obs, noise)
    if backup == "mean":
        next_actions_valued = np.tanh(mlp(actor_before, batch.next_obs)[:, :NUM_ACTIONS])
    else:
        next_actions_valued = next_actions[0]
    next_values = critic(target_before, batch.next_obs, next_actions_valued).min(0)
    if backup == "entropy":
        next_values = next_values - alpha * next_log_probs[0]
    targets = batch.rewards + batch.discounts * next_values
    candidates = np.concatenate([uniform, own_actions[1:], next_actions[1:]])
    log_densities = np.concatenate(
        [np.full((SAMPLES, BATCH), np.log(0.25)), own_log_probs[1:], next_log_probs[1:]]
    )

    def td_loss(params):
        return ((critic(params, obs, actions) - targets) ** 2).mean(1).sum()

    def critic_loss(params):
        gaps = conservative_gaps(params, obs, actions, candidates, log_densities)
        return td_loss(params) + lagrange_multiplier * 0.7 * gaps.sum()

    critic_watch, actor_watch = (
        StepWatch(algorithm.critic_optimizer),
        StepWatch(algorithm.actor_optimizer),
    )
    metrics = {name: value.item() for name, value in algorithm.update(tensors).metrics.items()}
    gap = conservative_gaps(critic_before, obs, actions, candidates, log_densities).mean()
    assert metrics["td_loss"] == pytest.approx(td_loss(critic_before), abs=1e-5)
    assert metrics["conservative_gap"] == pytest.approx(gap, abs=1e-5)
    assert metrics["lagrange_multiplier"] == pytest.approx(lagrange_multiplier, abs=1e-6)
    assert metrics["critic_loss"] == pytest.approx(critic_loss(critic_before), abs=1e-5)
    assert metrics["q_mean"] == pytest.approx(critic(critic_before, obs, actions).mean(), abs=1e-5)
    critic_watch.assert_stepped_down(critic_loss, critic_before, metrics["critic_grad_norm"])

    critic_after = arrays(algorithm.critic)  # the actor is judged by the critics just improved

    def actor_loss(params):
        drawn, log_probs = actor(params, obs, noise[0])
        return (alpha * log_probs - critic(critic_after, obs, drawn).min(0)).mean()

    assert metrics["actor_loss"] == pytest.approx(actor_loss(actor_before), abs=1e-5)
    actor_watch.assert_stepped_down(
        actor_loss, actor_before, metrics["actor_grad_norm"], learning_rate=2e-3
    )
    log_prob = own_log_probs[0].mean()
    assert metrics["entropy"] == pytest.approx(-log_prob, abs=1e-5)
    assert metrics["alpha"] == pytest.approx(alpha, abs=1e-6)
    assert metrics["alpha_loss"] == pytest.approx(0.7 * (log_prob - 1.5), abs=1e-5)
    expected = -0.7 + 2e-3 * np.sign(log_prob - 1.5)
    assert algorithm.temperature.log_alpha.item() == pytest.approx(expected, abs=1e-6)
    assert_moved_by_tau(target_before, arrays(algorithm.target_critic), critic_after, 0.05)


@pytest.mark.parametrize(("threshold", "direction"), [(-50.0, 1.0), (50.0, -1.0), (None, 0.0)])
def test_the_multiplier_rises_while_the_gap_is_above_the_threshold_and_falls_below(
    threshold, direction
):
    algorithm = make(lagrange_threshold=threshold)
    for part in (algorithm.lagrange_multiplier, algorithm.temperature):
        part.log_alpha.data.zero_()
    algorithm.update(make_batch())
    assert algorithm.lagrange_multiplier.log_alpha.item() == pytest.approx(
        direction * LEARNING_RATE, abs=1e-7
    )


def test_the_conservative_gap_equals_a_hand_worked_example():
    # One row, its own action and two others, of densities 1/4 and 1/2. Each critic values all of them the same, so
    # log(e^q / (1/4) + e^q / (1/2)) - q = log(4 + 2) for each.
    values = torch.tensor([1.0, 2.0]).view(2, 1, 1).expand(2, 3, 1)
    gaps = cql.conservative_gaps(values, torch.tensor([[0.25], [0.5]]).log())
    np.testing.assert_allclose(gaps, np.log([6.0, 6.0]), atol=1e-6)


def test_a_fixed_alpha_stays_fixed():
    algorithm = make_algorithm(CQLAlgorithm, small(CQLConfig, alpha=0.2))
    before = algorithm.temperature.log_alpha.item()
    metrics = algorithm.update(make_batch()).metrics
    assert metrics["alpha_loss"].item() == 0.0
    assert algorithm.temperature.log_alpha.item() == before


def numpy_discrete(params, target_params, batch, cql_alpha):
    """Loss as a function of the network's parameters, and its two terms at `params`."""
    rows = np.arange(BATCH)
    best = mlp(params, batch.next_obs).argmax(1)
    targets = batch.rewards + batch.discounts * mlp(target_params, batch.next_obs)[rows, best]

    def terms(at):
        values = mlp(at, batch.obs)
        data_values = values[rows, batch.actions]
        errors = np.abs(data_values - targets)
        huber = np.where(errors < 1, 0.5 * errors**2, errors - 0.5).mean()
        return huber, (np.log(np.exp(values).sum(1)) - data_values).mean()

    def loss(at):
        huber, gap = terms(at)
        return huber + cql_alpha * gap

    return loss, terms(params)


def test_a_whole_discrete_update_equals_numpy():
    algorithm = make(CHOICES, cql_alpha=0.6, tau=0.05)
    tensors = make_batch(CHOICES)
    batch, before, target_before = (
        doubles(tensors),
        arrays(algorithm.network),
        arrays(algorithm.target_network),
    )
    loss, (huber, gap) = numpy_discrete(
        [param.copy() for param in before], target_before, batch, 0.6
    )
    watch = StepWatch(algorithm.optimizer)
    metrics = {name: value.item() for name, value in algorithm.update(tensors).metrics.items()}
    assert metrics["td_loss"] == pytest.approx(huber, abs=1e-5)
    assert metrics["conservative_gap"] == pytest.approx(gap, abs=1e-5)
    assert metrics["critic_loss"] == pytest.approx(loss(before), abs=1e-5)
    data_values = mlp(before, batch.obs)[np.arange(BATCH), batch.actions]
    assert metrics["q_mean"] == pytest.approx(data_values.mean(), abs=1e-5)
    watch.assert_stepped_down(loss, before, metrics["critic_grad_norm"])
    assert_moved_by_tau(
        target_before, arrays(algorithm.target_network), arrays(algorithm.network), 0.05
    )


def test_discrete_actions_are_the_best_valued():
    algorithm, obs = make(CHOICES), make_batch().obs
    expected = mlp(arrays(algorithm.network), obs.double().numpy()).argmax(1)
    for explore in (False, True):
        assert algorithm.act(obs, explore=explore).actions.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("name", "value"), [("alpha", 0.5), ("num_cql_samples", 4), ("lagrange_threshold", 5.0)]
)
def test_a_setting_that_discrete_actions_do_not_use_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"algo_kwargs.{name} of cql is {value}.*: remove it"):
        make(CHOICES, **{name: value})


@pytest.mark.skipif(
    not TRY_ALL, reason="half a minute of compiling: RL_TRAINING_TEST_ALL=1 runs it"
)
@pytest.mark.parametrize("action_space", [None, CHOICES], ids=["box", "discrete"])
def test_a_compiled_update_equals_a_plain_one(action_space):
    settings = (
        {"num_cql_samples": SAMPLES, "lagrange_threshold": 4.0} if action_space is None else {}
    )
    assert_compiled_equals_plain(
        CQLAlgorithm, small(CQLConfig, normalize_obs=True, **settings), action_space=action_space
    )

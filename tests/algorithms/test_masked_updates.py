"""Action masks in targets, losses, sampling and random actions, against numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import TRY_ALL, as_collected
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from numpy_reference import (
    BATCH,
    StepWatch,
    arrays,
    doubles,
    make_algorithm,
    make_batch,
    mlp,
    small,
)
from test_c51_update import SUPPORT, numpy_log_probs, numpy_projection
from test_c51_update import settings as c51_settings
from test_qrdqn_update import QUANTILES, numpy_losses, numpy_quantiles
from test_sac_discrete_update import numpy_values

from rl_training.algorithms.a2c import A2CAlgorithm, A2CConfig
from rl_training.algorithms.bc import BCAlgorithm, BCConfig
from rl_training.algorithms.c51 import C51Algorithm
from rl_training.algorithms.cql import CQLAlgorithm, CQLConfig
from rl_training.algorithms.dqn import DQNAlgorithm, DQNConfig
from rl_training.algorithms.ppo import PPOAlgorithm, PPOConfig
from rl_training.algorithms.qrdqn import QRDQNAlgorithm, QRDQNConfig
from rl_training.algorithms.sac import SACAlgorithm, SACConfig
from rl_training.models.actions import masked, random_actions
from rl_training.models.actor_critic import CategoricalHead
from rl_training.spaces.spec import describe_spaces

CHOICES = Discrete(4)
ROWS = np.arange(BATCH)
for_single_and_double = pytest.mark.parametrize("double", [False, True], ids=["plain", "double"])


def with_masks(batch, num_options=4, choices=(4,), seed=7):
    """The batch with masks that permit its actions, and next masks of which some permit one action only."""
    rng = np.random.default_rng(seed)
    masks, next_masks = rng.random((2, BATCH, num_options)) < 0.4
    starts = np.cumsum([0, *choices[:-1]])
    for start, count in zip(starts, choices, strict=True):
        next_masks[ROWS, start + rng.integers(0, count, BATCH)] = True
    masks[ROWS[:, None], batch.actions.numpy().reshape(BATCH, -1) + starts] = True
    assert (next_masks.sum(1) == len(choices)).any()
    return replace(batch, masks=torch.from_numpy(masks), next_masks=torch.from_numpy(next_masks))


def masked_batch(action_space=CHOICES):
    batch = with_masks(make_batch(action_space))
    numbers = doubles(batch)
    return batch, numbers, batch.masks.numpy(), batch.next_masks.numpy()


def best_valid(values, masks):
    """The best of the valid actions, row by row, and that the mask matters."""
    best = np.array(
        [
            max(np.flatnonzero(mask), key=row.__getitem__)
            for row, mask in zip(values, masks, strict=True)
        ]
    )
    assert (best != values.argmax(1)).sum() > BATCH // 4
    return best


def huber(errors):
    errors = np.abs(errors)
    return np.where(errors < 1, 0.5 * errors**2, errors - 0.5)


def probabilities(logits, masks):
    unscaled = np.exp(logits) * masks
    return unscaled / unscaled.sum(-1, keepdims=True)


def log_of(probs):
    """Logarithms, and 0 for what is multiplied by 0."""
    return np.log(np.where(probs > 0, probs, 1.0))


def updated(algorithm, batch):
    return {name: value.item() for name, value in algorithm.update(batch).metrics.items()}


@for_single_and_double
def test_dqn_chooses_the_next_action_among_the_valid_ones(double):
    config = small(DQNConfig, double=double, max_grad_norm=None)
    algorithm = make_algorithm(DQNAlgorithm, config, action_space=CHOICES)
    tensors, batch, _, next_masks = masked_batch()
    before, target = arrays(algorithm.network), arrays(algorithm.target_network)
    best = best_valid(mlp(before if double else target, batch.next_obs), next_masks)
    targets = batch.rewards + batch.discounts * mlp(target, batch.next_obs)[ROWS, best]

    def loss(params):
        return huber(mlp(params, batch.obs)[ROWS, batch.actions] - targets).mean()

    watch = StepWatch(algorithm.optimizer)
    metrics = updated(algorithm, tensors)
    assert metrics["critic_loss"] == pytest.approx(loss(before), abs=1e-5)
    watch.assert_stepped_down(loss, before, metrics["grad_norm"])


@for_single_and_double
def test_qrdqn_chooses_the_next_action_among_the_valid_ones(double):
    config = small(QRDQNConfig, num_quantiles=QUANTILES, max_grad_norm=None, double=double)
    algorithm = make_algorithm(QRDQNAlgorithm, config, action_space=CHOICES)
    tensors, batch, _, next_masks = masked_batch()
    before, target = arrays(algorithm.network), arrays(algorithm.target_network)
    next_quantiles = numpy_quantiles(target, batch.next_obs, False)
    chooser = numpy_quantiles(before, batch.next_obs, False) if double else next_quantiles
    best = best_valid(chooser.mean(-1), next_masks)
    targets = batch.rewards[:, None] + batch.discounts[:, None] * next_quantiles[ROWS, best]

    def loss(params):
        return numpy_losses(
            numpy_quantiles(params, batch.obs, False)[ROWS, batch.actions], targets
        ).mean()

    watch = StepWatch(algorithm.optimizer)
    metrics = updated(algorithm, tensors)
    assert metrics["critic_loss"] == pytest.approx(loss(before), abs=1e-5)
    watch.assert_stepped_down(loss, before, metrics["grad_norm"])


@for_single_and_double
def test_c51_chooses_the_next_action_among_the_valid_ones(double):
    algorithm = make_algorithm(C51Algorithm, c51_settings(double=double), action_space=CHOICES)
    tensors, batch, _, next_masks = masked_batch()
    before, target = arrays(algorithm.network), arrays(algorithm.target_network)
    next_probs = np.exp(numpy_log_probs(target, batch.next_obs, False))
    chooser = np.exp(numpy_log_probs(before, batch.next_obs, False)) if double else next_probs
    best = best_valid((chooser * SUPPORT).sum(-1), next_masks)
    returns = batch.rewards[:, None] + batch.discounts[:, None] * SUPPORT
    targets = numpy_projection(returns, next_probs[ROWS, best], SUPPORT)

    def loss(params):
        return (
            -(targets * numpy_log_probs(params, batch.obs, False)[ROWS, batch.actions])
            .sum(-1)
            .mean()
        )

    watch = StepWatch(algorithm.optimizer)
    metrics = updated(algorithm, tensors)
    assert metrics["critic_loss"] == pytest.approx(loss(before), abs=1e-5)
    watch.assert_stepped_down(loss, before, metrics["grad_norm"])


def test_discrete_sac_takes_expectations_over_the_valid_actions():
    config = small(SACConfig, tau=0.05, target_entropy=0.9)
    algorithm = make_algorithm(SACAlgorithm, config, action_space=CHOICES)
    algorithm.temperature.log_alpha.data.fill_(-0.7)
    alpha, (tensors, batch, masks, next_masks) = np.exp(-0.7), masked_batch()
    actor_before, critic_before = arrays(algorithm.actor), arrays(algorithm.critic)
    probs = probabilities(mlp(actor_before, batch.next_obs), next_masks)
    next_values = numpy_values(arrays(algorithm.target_critic), batch.next_obs).min(0)
    targets = batch.rewards + batch.discounts * (probs * (next_values - alpha * log_of(probs))).sum(
        1
    )

    def critic_loss(params):
        return sum(
            0.5 * ((v[ROWS, batch.actions] - targets) ** 2).mean()
            for v in numpy_values(params, batch.obs)
        )

    critic_watch, actor_watch = (
        StepWatch(algorithm.critic_optimizer),
        StepWatch(algorithm.actor_optimizer),
    )
    metrics = updated(algorithm, tensors)
    assert metrics["critic_loss"] == pytest.approx(critic_loss(critic_before), abs=1e-5)
    critic_watch.assert_stepped_down(critic_loss, critic_before, metrics["critic_grad_norm"])
    values = numpy_values(arrays(algorithm.critic), batch.obs).min(0)

    def actor_loss(params):
        probs = probabilities(mlp(params, batch.obs), masks)
        return (probs * (alpha * log_of(probs) - values)).sum(1).mean()

    assert metrics["actor_loss"] == pytest.approx(actor_loss(actor_before), abs=1e-5)
    actor_watch.assert_stepped_down(actor_loss, actor_before, metrics["actor_grad_norm"])
    probs = probabilities(mlp(actor_before, batch.obs), masks)
    entropy = -(probs * log_of(probs)).sum(1).mean()
    assert metrics["entropy"] == pytest.approx(entropy, abs=1e-5)
    assert metrics["alpha_loss"] == pytest.approx(-0.7 * (entropy - 0.9), abs=1e-4)


def test_discrete_cql_penalizes_the_valid_actions_only():
    config = small(CQLConfig, cql_alpha=0.6, tau=0.05)
    algorithm = make_algorithm(CQLAlgorithm, config, action_space=CHOICES)
    tensors, batch, masks, next_masks = masked_batch()
    before, target = arrays(algorithm.network), arrays(algorithm.target_network)
    best = best_valid(mlp(before, batch.next_obs), next_masks)
    targets = batch.rewards + batch.discounts * mlp(target, batch.next_obs)[ROWS, best]

    def terms(params):
        values = mlp(params, batch.obs)
        data_values = values[ROWS, batch.actions]
        gap = (np.log((np.exp(values) * masks).sum(1)) - data_values).mean()
        return huber(data_values - targets).mean(), gap

    watch = StepWatch(algorithm.optimizer)
    metrics = updated(algorithm, tensors)
    td_loss, gap = terms(before)
    assert metrics["td_loss"] == pytest.approx(td_loss, abs=1e-5)
    assert metrics["conservative_gap"] == pytest.approx(gap, abs=1e-5)
    watch.assert_stepped_down(
        lambda params: np.dot(terms(params), [1, 0.6]), before, metrics["critic_grad_norm"]
    )


@pytest.mark.parametrize(
    "space", [CHOICES, MultiDiscrete([2, 3])], ids=["discrete", "multi_discrete"]
)
def test_bc_raises_the_probability_among_the_valid_actions(space):
    algorithm = make_algorithm(BCAlgorithm, small(BCConfig), action_space=space)
    choices = [4] if space is CHOICES else [2, 3]
    tensors = with_masks(make_batch(space), sum(choices), choices)
    batch, masks, before = doubles(tensors), tensors.masks.numpy(), arrays(algorithm.actor)

    def loss(params):
        total, start = 0.0, 0
        for n, chosen in zip(choices, batch.actions.reshape(BATCH, -1).T, strict=True):
            part = slice(start, start + n)
            probs = probabilities(mlp(params, batch.obs)[:, part], masks[:, part])
            total, start = total - np.log(probs[ROWS, chosen]).mean(), start + n
        return total

    watch = StepWatch(algorithm.actor_optimizer)
    metrics = updated(algorithm, tensors)
    assert metrics["actor_loss"] == pytest.approx(loss(before), abs=1e-5)
    watch.assert_stepped_down(loss, before, metrics["actor_grad_norm"])


OFF_POLICY = {
    "dqn": (DQNAlgorithm, DQNConfig),
    "double": (DQNAlgorithm, DQNConfig),
    "qrdqn": (QRDQNAlgorithm, QRDQNConfig),
    "c51": (C51Algorithm, None),
    "sac": (SACAlgorithm, SACConfig),
    "cql": (CQLAlgorithm, CQLConfig),
    "bc": (BCAlgorithm, BCConfig),
}


def make_off_policy(name, **options):
    algorithm_class, config_class = OFF_POLICY[name]
    settings = {"double": True} if name == "double" else {}
    config = c51_settings() if config_class is None else small(config_class, **settings)
    return make_algorithm(algorithm_class, config, action_space=CHOICES, **options)


def two_updates(name, first, second, **options):
    """The metrics of an update with each batch, from the same weights."""
    return [make_off_policy(name, **options).update(batch).metrics for batch in (first, second)]


@pytest.mark.parametrize("name", OFF_POLICY)
def test_a_mask_that_permits_nothing_after_a_terminated_step_is_not_used(name):
    batch = with_masks(make_batch(CHOICES))
    next_masks = batch.next_masks.clone()
    next_masks[batch.terminated] = False
    first, second = two_updates(name, batch, replace(batch, next_masks=next_masks))
    for key, value in first.items():
        torch.testing.assert_close(second[key], value, msg=key)


@pytest.mark.parametrize("name", OFF_POLICY)
def test_masks_that_permit_everything_equal_none(name):
    batch, everything = make_batch(CHOICES), torch.ones(BATCH, 4, dtype=torch.bool)
    first, second = two_updates(
        name, batch, replace(batch, masks=everything, next_masks=everything)
    )
    for key, value in first.items():
        assert torch.equal(second[key], value), key


@pytest.mark.skipif(not TRY_ALL, reason="a minute of compiling: RL_TRAINING_TEST_ALL=1 runs it")
@pytest.mark.parametrize("name", OFF_POLICY)
def test_a_compiled_update_with_masks_equals_a_plain_one(name):
    batch = with_masks(make_batch(CHOICES))
    plain, compiled = (
        make_off_policy(name, compile=flag).update(batch).metrics for flag in (False, True)
    )
    for key, value in plain.items():
        torch.testing.assert_close(compiled[key], value, rtol=1e-4, atol=1e-5, msg=key)


def categorical(choices):
    space = Discrete(choices[0]) if len(choices) == 1 else MultiDiscrete(choices)
    return CategoricalHead(describe_spaces(Box(-1.0, 1.0), space).action)


@pytest.mark.parametrize("choices", [[4], [2, 3]])
@pytest.mark.parametrize("as_sequences", [False, True])
def test_log_probabilities_and_entropies_of_masked_logits(choices, as_sequences):
    space = CHOICES if len(choices) == 1 else MultiDiscrete(choices)
    batch = with_masks(make_batch(space), sum(choices), choices)
    logits, masks = (
        torch.randn(BATCH, sum(choices), generator=torch.Generator().manual_seed(0)),
        batch.masks,
    )
    shape = (6, BATCH // 6) if as_sequences else (BATCH,)
    outputs = masked(logits, masks).unflatten(0, shape)
    log_probs, entropies = categorical(choices).log_prob_and_entropy(
        outputs, batch.actions.unflatten(0, shape)
    )
    assert log_probs.shape == entropies.shape == shape
    expected, entropy, start = np.zeros(BATCH), np.zeros(BATCH), 0
    for n, chosen in zip(choices, batch.actions.numpy().reshape(BATCH, -1).T, strict=True):
        part = slice(start, start + n)
        probs = probabilities(logits.double().numpy()[:, part], masks.numpy()[:, part])
        expected, entropy, start = (
            expected + np.log(probs[ROWS, chosen]),
            entropy - (probs * log_of(probs)).sum(1),
            start + n,
        )
    np.testing.assert_allclose(log_probs.flatten(), expected, atol=1e-5)
    np.testing.assert_allclose(entropies.flatten(), entropy, atol=1e-5)


def test_one_valid_action_has_probability_one_and_no_gradient():
    logits = torch.tensor([[50.0, -50.0, 0.0]], requires_grad=True)
    log_probs, entropies = categorical([3]).log_prob_and_entropy(
        masked(logits, torch.tensor([[False, True, False]])), torch.tensor([1])
    )
    assert log_probs.item() == entropies.item() == 0.0
    (log_probs.sum() + entropies.sum()).backward()
    assert not logits.grad.any()


@pytest.mark.parametrize("choices", [[4], [2, 3]])
def test_samples_follow_the_masked_distribution_and_the_mode_is_its_maximum(choices):
    head, count = categorical(choices), 40_000
    logits = torch.tensor([2.0, 0.5, 1.5, 3.0, 1.0][: sum(choices)])
    mask = torch.tensor([False, True, True, True, False][: sum(choices)])
    outputs = masked(logits.expand(count, -1), mask.expand(count, -1))
    actions = head.sample(outputs, torch.Generator().manual_seed(0)).view(count, -1)
    start = 0
    for n, column in zip(choices, actions.T, strict=True):
        part = slice(start, start + n)
        probs = probabilities(logits[part].double().numpy(), mask[part].numpy())
        frequencies = np.bincount(column.numpy(), minlength=n) / count
        assert not frequencies[probs == 0].any()
        np.testing.assert_allclose(frequencies, probs, atol=5 * (0.25 / count) ** 0.5)
        assert (head.mode(outputs).view(count, -1)[0, choices.index(n)]).item() == probs.argmax()
        start += n


RANDOM_SPACES = {
    "discrete": (Discrete(5), [5], [[1, 0, 1, 0, 1], [0, 0, 0, 1, 0]]),
    "started": (Discrete(5, start=7), [5], [[1, 0, 1, 0, 1], [0, 1, 1, 0, 0]]),
    "multi_discrete": (MultiDiscrete([2, 3]), [2, 3], [[1, 1, 0, 1, 1], [0, 1, 1, 0, 0]]),
    "multi_binary": (MultiBinary(2), [2, 2], [[1, 1, 0, 1], [1, 0, 1, 1]]),
}


@pytest.mark.parametrize("name", RANDOM_SPACES)
@pytest.mark.parametrize(
    "make_generator", [lambda: torch.Generator().manual_seed(0), lambda: np.random.default_rng(0)]
)
def test_random_actions_are_uniform_over_the_valid_ones(name, make_generator):
    space, choices, rows = RANDOM_SPACES[name]
    spec, count = describe_spaces(Box(-1.0, 1.0), space).action, 20_000
    masks = torch.tensor(rows, dtype=torch.bool).repeat(count, 1)
    actions = random_actions(spec, 2 * count, make_generator(), masks)
    assert actions.shape == (2 * count, *spec.model_shape)
    assert actions.dtype == torch.int64
    for row, mask in enumerate(np.array(rows, float)):
        parts = zip(
            np.split(mask, np.cumsum(choices)[:-1]), actions[row::2].view(count, -1).T, strict=True
        )
        for part, column in parts:
            frequencies = np.bincount(column.numpy(), minlength=len(part)) / count
            np.testing.assert_allclose(
                frequencies, part / part.sum(), atol=5 * (0.25 / count) ** 0.5
            )
            assert not frequencies[part == 0].any()
    for action in spec.to_env(actions.numpy())[:100]:
        assert space.contains(action.astype(space.dtype))


@pytest.mark.parametrize("name", ["dqn", "sac", "bc", "cql"])
def test_replacing_and_exploring_at_random_takes_valid_actions(name):
    algorithm = make_off_policy(name)
    masks = torch.zeros(4000, 4, dtype=torch.bool)
    masks[torch.arange(4000), torch.arange(4000) % 4] = True
    masks[::2, 1] = True
    obs = torch.randn(4000, 3, generator=torch.Generator().manual_seed(0))
    for explore in (True, False):
        actions = algorithm.act(obs, explore=explore, mask=masks).actions
        assert masks.gather(1, actions.unsqueeze(1)).all()
        for probability in (0.3, 1.0):
            for change in (algorithm.replace_at_random, algorithm.add_exploration_noise):
                changed = change(actions, probability, masks)
                assert masks.gather(1, changed.unsqueeze(1)).all()
    differs = (changed != actions)[masks.sum(1) == 2].float().mean().item()
    assert 0.4 < differs < 0.6


@pytest.mark.parametrize(
    ("algorithm_class", "config_class"), [(PPOAlgorithm, PPOConfig), (A2CAlgorithm, A2CConfig)]
)
def test_an_on_policy_update_with_masks_leaves_invalid_actions_out(algorithm_class, config_class):
    """The policy loss and the entropy equal those of a policy whose logits of invalid actions are minus infinity."""
    single = {"update_epochs": 1, "minibatch_size": 1000} if config_class is PPOConfig else {}
    config = config_class(hidden_sizes=(6, 5), ent_coef=0.1, normalize_advantage=False, **single)
    algorithm = make_algorithm(algorithm_class, config, action_space=CHOICES)
    flat = with_masks(make_batch(CHOICES))
    rollout = type(flat).from_tensors(
        {k: v.unflatten(0, (BATCH // 2, 2)) for k, v in flat.tensors().items()}
    )
    rollout.next_obs[:-1] = torch.where(
        rollout.dones[:-1, :, None], rollout.next_obs[:-1], rollout.obs[1:]
    )
    rollout = as_collected(algorithm, rollout)
    with torch.no_grad():
        logits = algorithm.policy(flat.obs)[0].double().numpy()
    probs = probabilities(logits, flat.masks.numpy())
    samples, _ = algorithm.prepare(rollout)
    metrics = updated(algorithm, rollout)
    assert metrics["entropy"] == pytest.approx(-(probs * log_of(probs)).sum(1).mean(), abs=1e-5)
    np.testing.assert_allclose(
        samples.log_probs, np.log(probs[ROWS, flat.actions.numpy()]), atol=1e-5
    )
    advantages = samples.advantages.double().numpy()
    ratio = 1.0 if config_class is PPOConfig else np.log(probs[ROWS, flat.actions.numpy()])
    assert metrics["policy_loss"] == pytest.approx(-(advantages * ratio).mean(), abs=1e-5)

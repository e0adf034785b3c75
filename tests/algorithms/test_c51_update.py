"""C51's projection against hand-worked numbers and a numpy loop, and its whole update against numpy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import TRY_ALL
from gymnasium.spaces import Discrete
from numpy_reference import (
    BATCH,
    GAMMA,
    StepWatch,
    arrays,
    assert_compiled_equals_plain,
    doubles,
    make_algorithm,
    make_batch,
    mlp,
    small,
)

from rl_training.algorithms.c51 import C51Algorithm, C51Config, project
from rl_training.errors import ConfigError

CHOICES = Discrete(4)
ATOMS, V_MIN, V_MAX = 6, -1.5, 2.0
SUPPORT = V_MIN + (V_MAX - V_MIN) * np.arange(ATOMS) / (ATOMS - 1)
BETA = 0.4


def settings(**others):
    return small(C51Config, num_atoms=ATOMS, v_min=V_MIN, v_max=V_MAX, max_grad_norm=None, **others)


def make(**others):
    return make_algorithm(C51Algorithm, settings(**others), action_space=CHOICES)


def numpy_log_probs(params, obs, dueling):
    """Log-probabilities [B, num_actions, atoms]."""
    logits = mlp(params, obs).reshape(len(obs), -1, ATOMS)
    if dueling:
        logits = logits[:, :1] + logits[:, 1:] - logits[:, 1:].mean(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def numpy_projection(returns, probs, support):
    """C51 algorithm 1, atom by atom; a return that falls on an atom keeps its probability there."""
    spacing = (support[-1] - support[0]) / (len(support) - 1)
    projected = np.zeros((len(returns), len(support)))
    for row in range(len(returns)):
        for value, prob in zip(returns[row], probs[row], strict=True):
            position = (min(max(value, support[0]), support[-1]) - support[0]) / spacing
            position = min(position, len(support) - 1.0)
            lower, upper = int(np.floor(position)), int(np.ceil(position))
            if lower == upper:
                projected[row, lower] += prob
            else:
                projected[row, lower] += prob * (upper - position)
                projected[row, upper] += prob * (position - lower)
    return projected


def numpy_targets(network, target_network, batch, config):
    next_probs = np.exp(numpy_log_probs(target_network, batch.next_obs, config.dueling))
    chooser = (
        np.exp(numpy_log_probs(network, batch.next_obs, config.dueling))
        if config.double
        else next_probs
    )
    best = (chooser * SUPPORT).sum(-1).argmax(1)
    returns = batch.rewards[:, None] + batch.discounts[:, None] * SUPPORT
    assert returns.min() < V_MIN - 0.5
    assert returns.max() > V_MAX + 0.5
    return numpy_projection(returns, next_probs[np.arange(BATCH), best], SUPPORT)


def make_sampled_batch(n_step, prioritized):
    """A batch as tensors, the same in double precision, and the importance weights of its transitions."""
    rng = np.random.default_rng(5)
    tensors = make_batch(CHOICES)
    batch, weights = doubles(tensors), np.ones(BATCH)
    if n_step:
        discounts = GAMMA ** rng.integers(1, 4, BATCH)
        tensors = replace(tensors, discounts=torch.tensor(discounts, dtype=torch.float32))
        batch.discounts = discounts * (1.0 - batch.terminated)
    if prioritized:
        unscaled_weights = rng.uniform(0.1, 4.0, BATCH)
        tensors = replace(
            tensors, unscaled_weights=torch.tensor(unscaled_weights, dtype=torch.float32)
        )
        weights = unscaled_weights**BETA / (unscaled_weights**BETA).max()
    return tensors, batch, weights


@pytest.mark.parametrize("prioritized", [False, True], ids=["uniform", "prioritized"])
@pytest.mark.parametrize("n_step", [False, True], ids=["one_step", "n_step"])
@pytest.mark.parametrize("dueling", [False, True], ids=["plain", "dueling"])
@pytest.mark.parametrize("double", [False, True], ids=["single", "double"])
def test_a_whole_update_equals_numpy(double, dueling, n_step, prioritized):
    replay = {"kind": "prioritized", "beta": BETA} if prioritized else {}
    algorithm = make(double=double, dueling=dueling, replay=replay)
    tensors, batch, weights = make_sampled_batch(n_step, prioritized)
    before, rows = arrays(algorithm.network), np.arange(BATCH)
    targets = numpy_targets(before, arrays(algorithm.target_network), batch, algorithm.config)

    def losses(params):
        return -(targets * numpy_log_probs(params, batch.obs, dueling)[rows, batch.actions]).sum(-1)

    def loss(params):
        return (weights * losses(params)).mean()

    watch = StepWatch(algorithm.optimizer)
    result = algorithm.update(tensors)
    metrics = {name: value.item() for name, value in result.metrics.items()}
    assert metrics["critic_loss"] == pytest.approx(loss(before), abs=1e-5)
    probs = np.exp(numpy_log_probs(before, batch.obs, dueling)[rows, batch.actions])
    assert metrics["q_mean"] == pytest.approx((probs * SUPPORT).sum(-1).mean(), abs=1e-5)
    if prioritized:
        ratios = np.where(targets > 0, targets, 1.0) / probs
        np.testing.assert_allclose(result.td_errors, (targets * np.log(ratios)).sum(-1), atol=1e-5)
    else:
        assert result.td_errors is None
    watch.assert_stepped_down(loss, before, metrics["grad_norm"])


def test_the_projection_equals_a_hand_worked_example():
    support = torch.tensor([0.0, 2.0, 4.0, 6.0])
    probs = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    # Reward 1, discount 1/2: the atoms move to 1, 2, 3, 4. Of 0.1 at 1, half goes to 0 and half to 2; 0.2 at 2 stays
    # there; of 0.3 at 3, half goes to 2 and half to 4; 0.4 at 4 stays there.
    moved = project(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), probs, support)
    torch.testing.assert_close(moved, torch.tensor([[0.05, 0.05 + 0.2 + 0.15, 0.15 + 0.4, 0.0]]))
    # Reward 5.5 and the episode terminated: the whole mass at 5.5, a quarter of the spacing below 6.
    ended = project(torch.full((1, 4), 5.5), probs, support)
    torch.testing.assert_close(ended, torch.tensor([[0.0, 0.0, 0.25, 0.75]]))
    # Reward 3, discount 1: the atoms move to 3, 5, 7, 9; the last two are clipped to 6.
    above = project(torch.tensor([[3.0, 5.0, 7.0, 9.0]]), probs, support)
    torch.testing.assert_close(above, torch.tensor([[0.0, 0.05, 0.05 + 0.1, 0.1 + 0.7]]))
    # Reward -5, discount 1: the atoms move to -5, -3, -1, 1; the first three are clipped to 0.
    below = project(torch.tensor([[-5.0, -3.0, -1.0, 1.0]]), probs, support)
    torch.testing.assert_close(below, torch.tensor([[0.6 + 0.2, 0.2, 0.0, 0.0]]))


@pytest.mark.parametrize(
    ("v_min", "v_max", "atoms"), [(-10.0, 10.0, 51), (0.0, 200.0, 51), (-0.3, 0.1, 7), (1, 2, 2)]
)
def test_the_projection_equals_a_loop_over_atoms(v_min, v_max, atoms):
    rng = np.random.default_rng(3)
    support = np.linspace(v_min, v_max, atoms)
    width = v_max - v_min
    returns = rng.uniform(v_min - 0.3 * width, v_max + 0.3 * width, (40, atoms))
    returns[:5] = support  # exactly on the atoms: reward 0, discount 1
    returns[5:9] = returns[5:9, :1]  # one return: terminated
    probs = rng.dirichlet(np.ones(atoms), 40)
    actual = project(
        *(torch.tensor(array, dtype=torch.float32) for array in (returns, probs, support))
    )
    np.testing.assert_allclose(actual, numpy_projection(returns, probs, support), atol=2e-5)


@pytest.mark.parametrize(
    ("v_min", "v_max"), [(-10.0, 10.0), (0.0, 100.0), (1000.0, 1001.0), (-5000.0, -4990.0)]
)
def test_the_projection_keeps_the_probability_mass(v_min, v_max):
    generator = torch.Generator().manual_seed(0)
    support = torch.linspace(v_min, v_max, 51)
    returns = v_min + (v_max - v_min) * (1.4 * torch.rand(200, 51, generator=generator) - 0.2)
    probs = torch.rand(200, 51, generator=generator).softmax(-1)
    projected = project(returns, probs, support)
    torch.testing.assert_close(projected.sum(-1), torch.ones(200), rtol=0, atol=1e-5)
    assert (projected >= 0).all()


def test_a_return_with_two_outcomes_is_learned_as_two_peaks():
    algorithm, batch = make(learning_rate=1e-2), make_batch(CHOICES)
    rewards = torch.tensor(SUPPORT[[1, 4]], dtype=torch.float32).repeat(BATCH // 2)
    batch = replace(
        batch,
        obs=torch.zeros_like(batch.obs),
        actions=torch.zeros_like(batch.actions),
        rewards=rewards,
    )
    batch = replace(batch, terminated=torch.ones_like(batch.terminated))
    for _ in range(300):
        algorithm.update(batch)
    with torch.no_grad():
        probs = algorithm.network.distribution(batch.obs[:1]).softmax(-1)[0, 0]
    np.testing.assert_allclose(probs, [0.0, 0.5, 0.0, 0.0, 0.5, 0.0], atol=0.02)


@pytest.mark.parametrize("dueling", [False, True])
def test_it_acts_by_the_mean_of_the_distribution(dueling):
    algorithm, obs = make(epsilon_start=0.0, epsilon_end=0.0, dueling=dueling), make_batch().obs
    probs = np.exp(numpy_log_probs(arrays(algorithm.network), obs.double().numpy(), dueling))
    expected = (probs * SUPPORT).sum(-1).argmax(1)
    assert len(set(expected)) > 1
    for explore in (False, True):
        assert algorithm.act(obs, explore=explore).actions.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"v_min": 3.0, "v_max": 3.0}, "v_min 3.0 is not below v_max 3.0"),
        ({"v_min": 20.0}, "v_min 20.0 is not below v_max 10.0"),
        ({"v_max": -11}, "v_min -10.0 is not below v_max -11.0"),
        ({"num_atoms": 1}, "num_atoms"),
        ({"v_max": float("inf")}, "v_max"),
        ({"v_min": float("nan")}, "v_min"),
        ({"num_quantiles": 5}, "num_quantiles"),
    ],
)
def test_settings_without_a_support_are_refused(others, message):
    with pytest.raises(ConfigError, match=message):
        C51Config(**others)


@pytest.mark.skipif(not TRY_ALL, reason="seconds of compiling: RL_TRAINING_TEST_ALL=1 runs it")
@pytest.mark.parametrize("double", [False, True])
def test_a_compiled_update_equals_a_plain_one(double):
    assert_compiled_equals_plain(
        C51Algorithm, settings(double=double, dueling=double), action_space=CHOICES
    )


@pytest.mark.parametrize(("v_min", "v_max"), [(0, 1e300), (-3e38, 3e38), (9.9999999, 10)])
def test_a_support_that_float32_cannot_hold_is_refused(v_min, v_max):
    with pytest.raises(ConfigError, match="float32 cannot hold 51 atoms"):
        C51Config(v_min=v_min, v_max=v_max)

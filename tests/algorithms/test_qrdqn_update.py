"""QR-DQN's loss against hand-worked numbers, and its whole update against an independent numpy computation."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete
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

from rl_training.algorithms.qrdqn import QRDQNAlgorithm, QRDQNConfig, quantile_huber_losses

CHOICES = Discrete(4)
QUANTILES = 5


def make(**settings):
    config = small(QRDQNConfig, num_quantiles=QUANTILES, max_grad_norm=None, **settings)
    return make_algorithm(QRDQNAlgorithm, config, action_space=CHOICES)


def numpy_quantiles(params, obs, dueling):
    outputs = mlp(params, obs).reshape(len(obs), -1, QUANTILES)
    if not dueling:
        return outputs
    return outputs[:, :1] + outputs[:, 1:] - outputs[:, 1:].mean(1, keepdims=True)


def numpy_losses(quantiles, targets):
    """The definition, quantile by quantile."""
    losses = np.zeros(len(quantiles))
    for number, column in enumerate(quantiles.T):
        level = (2 * number + 1) / (2 * quantiles.shape[1])
        errors = targets - column[:, None]
        huber = np.where(np.abs(errors) <= 1, 0.5 * errors**2, np.abs(errors) - 0.5)
        losses += (np.abs(level - (errors < 0)) * huber).mean(1)
    return losses


@pytest.mark.parametrize(("double", "dueling"), [(False, False), (True, False), (True, True)])
def test_a_whole_update_equals_numpy(double, dueling):
    algorithm = make(double=double, dueling=dueling)
    tensors = make_batch(CHOICES)
    batch, rows = doubles(tensors), np.arange(BATCH)
    before, target_before = arrays(algorithm.network), arrays(algorithm.target_network)
    next_quantiles = numpy_quantiles(target_before, batch.next_obs, dueling)
    chooser = numpy_quantiles(before, batch.next_obs, dueling) if double else next_quantiles
    best = chooser.mean(-1).argmax(1)
    targets = batch.rewards[:, None] + batch.discounts[:, None] * next_quantiles[rows, best]

    def loss(params):
        return numpy_losses(
            numpy_quantiles(params, batch.obs, dueling)[rows, batch.actions], targets
        ).mean()

    watch = StepWatch(algorithm.optimizer)
    metrics = {name: value.item() for name, value in algorithm.update(tensors).metrics.items()}
    assert metrics["critic_loss"] == pytest.approx(loss(before), abs=1e-5)
    own = numpy_quantiles(before, batch.obs, dueling)[rows, batch.actions]
    assert metrics["q_mean"] == pytest.approx(own.mean(), abs=1e-5)
    watch.assert_stepped_down(loss, before, metrics["grad_norm"])


def test_the_quantile_loss_equals_a_hand_worked_example():
    # Levels 1/4 and 3/4. Errors of quantile 0: 2 and -0.5, of quantile 3: -1 and -3.5.
    # Huber: 1.5 and 0.125; 0.5 and 3. Weights: 1/4 and 3/4; 1/4 and 1/4.
    losses = quantile_huber_losses(torch.tensor([[0.0, 3.0]]), torch.tensor([[2.0, -0.5]]))
    expected = (1.5 / 4 + 0.125 * 3 / 4) / 2 + (0.5 / 4 + 3.0 / 4) / 2
    torch.testing.assert_close(losses, torch.tensor([expected]))


def test_the_quantiles_of_a_known_return_are_learned():
    returns = torch.rand(1, 1000, generator=torch.Generator().manual_seed(0)) * 40.0
    quantiles = torch.zeros(1, 4, requires_grad=True)
    for _ in range(800):
        (gradient,) = torch.autograd.grad(
            quantile_huber_losses(quantiles, returns).sum(), quantiles
        )
        quantiles.data -= 0.5 * gradient
    np.testing.assert_allclose(quantiles.detach()[0], [5.0, 15.0, 25.0, 35.0], atol=1.0)


def test_it_acts_by_the_mean_of_the_quantiles():
    algorithm, obs = make(epsilon_start=0.0, epsilon_end=0.0), make_batch().obs
    expected = (
        numpy_quantiles(arrays(algorithm.network), obs.double().numpy(), dueling=False)
        .mean(-1)
        .argmax(1)
    )
    for explore in (False, True):
        assert algorithm.act(obs, explore=explore).actions.tolist() == expected.tolist()

"""DQN's targets, loss, target copies and exploration against independent computations."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium.spaces import Box, Discrete

from rl_training.algorithms.base import Resources
from rl_training.algorithms.dqn import DQNAlgorithm, DQNConfig
from rl_training.algorithms.optim import Adam
from rl_training.algorithms.replay import Batch, bootstrap_discounts
from rl_training.replay.transitions import Transitions
from rl_training.spaces.spec import describe_spaces

NUM_ACTIONS = 4
BATCH = 64

for_every_variant = pytest.mark.parametrize(
    ("double", "dueling"), [(False, False), (True, False), (False, True), (True, True)]
)
with_and_without_n_step = pytest.mark.parametrize(
    "n_step", [False, True], ids=["one_step", "n_step"]
)


def make(**settings):
    config = DQNConfig(hidden_sizes=(16, 8), gamma=0.9, **settings)
    spaces = describe_spaces(Box(-np.inf, np.inf, (3,)), Discrete(NUM_ACTIONS))
    return DQNAlgorithm(
        config, spaces, Resources(torch.device("cpu"), torch.Generator().manual_seed(0))
    )


def with_other_target(algorithm):
    """Let the target network differ, so that mistaking one for the other shows."""
    generator = torch.Generator().manual_seed(1)
    for parameter in (*algorithm.network.parameters(), *algorithm.target_network.parameters()):
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return algorithm


def make_batch(n_step=False):
    rng = np.random.default_rng(2)
    obs, next_obs = rng.normal(size=(2, BATCH, 3)).astype(np.float32)
    terminated, truncated = rng.random((2, BATCH)) < 0.3
    return Transitions(
        obs=torch.from_numpy(obs),
        actions=torch.from_numpy(rng.integers(0, NUM_ACTIONS, BATCH)),
        rewards=torch.from_numpy(rng.normal(scale=2.0, size=BATCH).astype(np.float32)),
        next_obs=torch.from_numpy(next_obs),
        terminated=torch.from_numpy(terminated),
        truncated=torch.from_numpy(truncated),
        discounts=torch.from_numpy(0.9 ** rng.integers(1, 4, BATCH).astype(np.float32))
        if n_step
        else None,
    )


def network_outputs(network, obs):
    x = obs.double().numpy()
    layers = list(zip(network.network.weights, network.network.biases, strict=True))
    for index, (weight, bias) in enumerate(layers):
        x = x @ weight.detach().double().numpy().T + bias.detach().double().numpy()
        x = x if index == len(layers) - 1 else np.maximum(x, 0.0)
    return x


def q_values(network, obs, dueling):
    outputs = network_outputs(network, obs)
    if not dueling:
        return outputs
    return outputs[:, [0]] + outputs[:, 1:] - outputs[:, 1:].mean(1, keepdims=True)


def numpy_targets(algorithm, batch):
    config = algorithm.config
    next_values = q_values(algorithm.target_network, batch.next_obs, config.dueling)
    chooser = (
        q_values(algorithm.network, batch.next_obs, config.dueling)
        if config.double
        else next_values
    )
    discounts = (
        np.full(BATCH, config.gamma)
        if batch.discounts is None
        else batch.discounts.double().numpy()
    )
    bootstrap = np.where(
        batch.terminated, 0.0, discounts * next_values[np.arange(BATCH), chooser.argmax(1)]
    )
    return batch.rewards.double().numpy() + bootstrap


@for_every_variant
@with_and_without_n_step
def test_targets_loss_and_mean_value_equal_numpy(double, dueling, n_step):
    algorithm = with_other_target(make(double=double, dueling=dueling))
    batch = make_batch(n_step)
    targets = numpy_targets(algorithm, batch)
    values = q_values(algorithm.network, batch.obs, dueling)[np.arange(BATCH), batch.actions]
    errors = np.abs(values - targets)
    assert (errors < 1).any()
    assert (errors > 1).any()
    huber = np.where(errors < 1, 0.5 * errors**2, errors - 0.5).mean()

    actual = algorithm._targets(
        Batch(
            batch.obs, batch.actions, batch.rewards, batch.next_obs, bootstrap_discounts(batch, 0.9)
        )
    )
    np.testing.assert_allclose(actual, targets, atol=1e-5)
    metrics = algorithm.update(batch).metrics
    assert metrics["critic_loss"].item() == pytest.approx(huber, abs=1e-5)
    assert metrics["q_mean"].item() == pytest.approx(values.mean(), abs=1e-5)


@for_every_variant
def test_an_update_steps_down_the_loss_with_the_targets_held_fixed(double, dueling):
    algorithm = with_other_target(
        make(double=double, dueling=dueling, learning_rate=1e-2, max_grad_norm=0.1)
    )
    batch = make_batch()
    targets = torch.tensor(numpy_targets(algorithm, batch), dtype=torch.float32)
    parameters = list(algorithm.network.parameters())
    algorithm.optimizer = Adam(
        parameters, 1e-2, eps=0.1
    )  # large, so that a step shows the length of the gradient
    expected = [parameter.detach().clone().requires_grad_() for parameter in parameters]
    names = [name for name, _ in algorithm.network.named_parameters()]
    values = torch.func.functional_call(
        algorithm.network, dict(zip(names, expected, strict=True)), (batch.obs,)
    )
    F.smooth_l1_loss(values[torch.arange(BATCH), batch.actions], targets).backward()
    norm = torch.nn.utils.clip_grad_norm_(expected, 0.1)
    torch.optim.Adam(expected, lr=1e-2, eps=0.1).step()

    assert algorithm.update(batch).metrics["grad_norm"].item() == pytest.approx(
        norm.item(), rel=1e-5
    )
    for parameter, wanted in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter, wanted, rtol=0, atol=1e-5)


def weights_of(network):
    return torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()])


def test_the_target_network_begins_as_a_copy_that_training_does_not_touch():
    algorithm = make()
    assert torch.equal(weights_of(algorithm.network), weights_of(algorithm.target_network))
    assert not any(parameter.requires_grad for parameter in algorithm.target_network.parameters())


def test_the_target_network_is_copied_when_its_interval_has_been_crossed_and_never_otherwise():
    algorithm = make(target_update_interval=10, learning_rate=1e-2)
    batch = make_batch()
    copied_at = []
    for step in (0, 4, 9, 10, 11, 19, 23, 28, 29, 55, 56, 59, 60):
        algorithm.global_step, algorithm.progress = step, 0.5
        network, target = weights_of(algorithm.network), weights_of(algorithm.target_network)
        algorithm.update(batch)
        after = weights_of(algorithm.target_network)
        if torch.equal(after, target):
            continue
        assert torch.equal(after, network)  # as it was before this update's gradient step
        copied_at.append(step)
    assert copied_at == [10, 23, 55, 60]


@pytest.mark.parametrize(
    ("progress", "expected"),
    [(0.0, 1.0), (0.05, 0.775), (0.1, 0.55), (0.2, 0.1), (0.6, 0.1), (1.0, 0.1)],
)
def test_epsilon_falls_linearly_over_the_exploration_fraction_and_then_stays(progress, expected):
    algorithm = make(epsilon_start=1.0, epsilon_end=0.1, exploration_fraction=0.2)
    algorithm.global_step, algorithm.progress = 0, progress
    assert algorithm.epsilon() == pytest.approx(expected)


def test_epsilon_is_at_its_end_from_the_first_step_without_an_exploration_fraction():
    assert make(exploration_fraction=0.0, epsilon_end=0.1).epsilon() == pytest.approx(0.1)


@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.0])
def test_exploring_takes_any_action_with_probability_epsilon(epsilon):
    algorithm = make(epsilon_start=epsilon, epsilon_end=epsilon)
    obs = torch.randn(20_000, 3, generator=torch.Generator().manual_seed(3))
    greedy = torch.from_numpy(q_values(algorithm.network, obs, dueling=False).argmax(1))
    assert torch.equal(algorithm.act(obs, explore=False).actions, greedy)
    share_of_others = (algorithm.act(obs, explore=True).actions != greedy).float().mean().item()
    # A random action is the greedy one in a quarter of the cases.
    assert share_of_others == pytest.approx(epsilon * 0.75, abs=0.02 * epsilon)


def test_the_mean_over_actions_of_a_dueling_network_is_its_value_output():
    network = with_other_target(make(dueling=True)).network
    obs = make_batch().obs
    outputs = network_outputs(network, obs)
    values = network(obs).detach().numpy()
    assert values.shape == (BATCH, NUM_ACTIONS)
    np.testing.assert_allclose(values.mean(1), outputs[:, 0], atol=1e-5)
    np.testing.assert_allclose(values - values[:, [0]], outputs[:, 1:] - outputs[:, [1]], atol=1e-5)

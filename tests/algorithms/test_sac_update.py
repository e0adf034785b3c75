"""SAC against an independent numpy computation of its targets, losses, gradients and whole update."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from numpy_reference import numeric_gradient
from torch import nn
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from rl_training.algorithms.base import Resources
from rl_training.algorithms.replay import Batch, bootstrap_discounts
from rl_training.algorithms.sac import SACAlgorithm, SACConfig
from rl_training.replay.transitions import Transitions
from rl_training.spaces.spec import describe_spaces

BATCH = 48
LEARNING_RATE = 1e-3


def make(num_actions=2, **settings):
    # tanh, because numeric gradients need a smooth network.
    config = SACConfig(
        hidden_sizes=(7, 6), activation="tanh", gamma=0.9, learning_rate=LEARNING_RATE, **settings
    )
    spaces = describe_spaces(Box(-np.inf, np.inf, (3,)), Box(-2.0, 1.0, (num_actions,)))
    algorithm = SACAlgorithm(
        config, spaces, Resources(torch.device("cpu"), torch.Generator().manual_seed(0))
    )
    generator = torch.Generator().manual_seed(1)
    for module in (algorithm.actor, algorithm.critic, algorithm.target_critic):
        for parameter in module.parameters():
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return algorithm


def make_batch(n_step=False):
    rng = np.random.default_rng(2)
    terminated, truncated = rng.random((2, BATCH)) < 0.3
    fields = {
        "obs": rng.normal(size=(BATCH, 3)),
        "actions": rng.uniform(-1, 1, (BATCH, 2)),
        "rewards": rng.normal(size=BATCH),
        "next_obs": rng.normal(size=(BATCH, 3)),
        "discounts": 0.9 ** rng.integers(1, 4, BATCH),
    }
    tensors = {name: torch.tensor(value, dtype=torch.float32) for name, value in fields.items()}
    if not n_step:
        del tensors["discounts"]
    return Transitions(
        **tensors, terminated=torch.from_numpy(terminated), truncated=torch.from_numpy(truncated)
    )


def doubles(batch):
    return SimpleNamespace(
        **{name: value.double().numpy() for name, value in batch.tensors().items()}
    )


def arrays(module):
    return [parameter.detach().double().numpy().copy() for parameter in module.parameters()]


def coming_noise(algorithm, count=BATCH, num_actions=2):
    """The two draws the next update will make."""
    generator = torch.Generator()
    generator.set_state(algorithm.generator.get_state())
    return [
        torch.empty(count, num_actions).normal_(generator=generator).double().numpy()
        for _ in range(2)
    ]


def actor(params, obs, noise):
    """Weight [out, in] and bias of each layer alternate; the density is that of the Gaussian over 1 - tanh^2."""
    for weight, bias in zip(params[:-2:2], params[1:-2:2], strict=True):
        obs = np.tanh(obs @ weight.T + bias)
    mean, log_std = np.split(obs @ params[-2].T + params[-1], 2, axis=1)
    std = np.exp(np.clip(log_std, -20, 2))
    before_tanh = mean + std * noise
    actions = np.tanh(before_tanh)
    density = (
        np.exp(-0.5 * ((before_tanh - mean) / std) ** 2)
        / (std * np.sqrt(2 * np.pi))
        / (1 - actions**2)
    )
    return actions, np.log(density).sum(1)


def critic(params, obs, actions):
    """Weight [member, in, out] and bias of each layer alternate; the result is [member, B]."""
    inputs = np.concatenate([obs, actions], 1)
    values = []
    for member in range(2):
        x = inputs
        for layer in range(3):
            x = x @ params[2 * layer][member] + params[2 * layer + 1][member]
            x = np.tanh(x) if layer < 2 else x
        values.append(x[:, 0])
    return np.stack(values)


def record_gradients(optimizer):
    """Adam's first step shows little more than signs, so the gradients are compared as they reach it."""
    gradients, step = [], optimizer.step

    def recording_step(given, scale):
        gradients.extend(gradient.double().numpy().copy() for gradient in given)
        step(given, scale)

    optimizer.step = recording_step
    return gradients


def assert_close(gradients, expected):
    for gradient, wanted in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(gradient, wanted, atol=1e-5)


@pytest.mark.parametrize("n_step", [False, True], ids=["one_step", "n_step"])
def test_a_whole_update_equals_numpy(n_step):
    algorithm = make(alpha="auto", target_entropy=-1.5)
    algorithm.temperature.log_alpha.data.fill_(-0.7)
    tensors = make_batch(n_step)
    batch, alpha = doubles(tensors), np.exp(-0.7)
    noise, next_noise = coming_noise(algorithm)
    actor_before, critic_before = arrays(algorithm.actor), arrays(algorithm.critic)
    next_actions, next_log_probs = actor(actor_before, batch.next_obs, next_noise)
    target_values = critic(arrays(algorithm.target_critic), batch.next_obs, next_actions)
    discounts = (batch.discounts if n_step else 0.9) * (1 - batch.terminated)
    targets = batch.rewards + discounts * (target_values.min(0) - alpha * next_log_probs)

    def critic_loss(params):
        return 0.5 * ((critic(params, batch.obs, batch.actions) - targets) ** 2).mean(1).sum()

    critic_gradients = record_gradients(algorithm.critic_optimizer)
    actor_gradients = record_gradients(algorithm.actor_optimizer)
    metrics = algorithm.update(tensors).metrics
    assert metrics["critic_loss"].item() == pytest.approx(critic_loss(critic_before), abs=1e-5)
    assert metrics["q_mean"].item() == pytest.approx(
        critic(critic_before, batch.obs, batch.actions).mean(), abs=1e-5
    )
    assert_close(critic_gradients, numeric_gradient(critic_loss, critic_before))

    critic_after = arrays(algorithm.critic)  # the actor is judged by the critics just improved

    def actor_loss(params):
        actions, log_probs = actor(params, batch.obs, noise)
        return (alpha * log_probs - critic(critic_after, batch.obs, actions).min(0)).mean()

    assert metrics["actor_loss"].item() == pytest.approx(actor_loss(actor_before), abs=1e-5)
    assert_close(actor_gradients, numeric_gradient(actor_loss, actor_before))

    log_prob = actor(actor_before, batch.obs, noise)[1].mean()
    assert metrics["entropy"].item() == pytest.approx(-log_prob, abs=1e-5)
    assert metrics["alpha"].item() == pytest.approx(alpha, abs=1e-6)
    assert metrics["alpha_loss"].item() == pytest.approx(0.7 * (log_prob - 1.5), abs=1e-5)
    # The gradient of the temperature is minus (log-probability + target entropy).
    assert algorithm.temperature.log_alpha.item() == pytest.approx(
        -0.7 + LEARNING_RATE * np.sign(log_prob - 1.5), abs=1e-6
    )


def test_critic_targets_equal_numpy_row_by_row():
    algorithm = make()
    tensors = make_batch()
    batch, (next_noise, _) = doubles(tensors), coming_noise(algorithm)
    next_actions, log_probs = actor(arrays(algorithm.actor), batch.next_obs, next_noise)
    values = (
        critic(arrays(algorithm.target_critic), batch.next_obs, next_actions).min(0)
        - 0.3 * log_probs
    )
    step_batch = Batch(
        tensors.obs,
        tensors.actions,
        tensors.rewards,
        tensors.next_obs,
        bootstrap_discounts(tensors, 0.9),
    )
    actual = algorithm._targets(
        step_batch, torch.tensor(next_noise, dtype=torch.float32), torch.tensor(0.3)
    )
    np.testing.assert_allclose(
        actual, batch.rewards + 0.9 * (1 - batch.terminated) * values, atol=1e-5
    )


def test_the_target_critic_moves_by_tau_towards_the_updated_critic():
    algorithm = make(tau=0.05)
    before = arrays(algorithm.target_critic)
    algorithm.update(make_batch())
    for after, old, new in zip(
        arrays(algorithm.target_critic), before, arrays(algorithm.critic), strict=True
    ):
        np.testing.assert_allclose(after, old + 0.05 * (new - old), rtol=0, atol=1e-7)


def test_a_fixed_alpha_stays_fixed():
    algorithm = make(alpha=0.2)
    for _ in range(3):
        assert algorithm.update(make_batch()).metrics["alpha"].item() == pytest.approx(0.2)
    assert algorithm.temperature.log_alpha.item() == pytest.approx(np.log(0.2))


@pytest.mark.parametrize(("target_entropy", "expected"), [("auto", -2.0), (-0.5, -0.5)])
def test_the_target_entropy_is_minus_the_number_of_action_components_unless_given(
    target_entropy, expected
):
    algorithm = make(target_entropy=target_entropy)
    algorithm.temperature.log_alpha.data.fill_(-1.0)
    metrics = algorithm.update(make_batch()).metrics
    assert metrics["alpha_loss"].item() == pytest.approx(
        -metrics["entropy"].item() + expected, abs=1e-5
    )


def test_the_actor_step_leaves_the_critics_untouched():
    algorithm = make()
    # The critics' own step is switched off; what is left could only come from the actor's.
    algorithm.critic_optimizer.step = lambda gradients, scale: None
    actor_before, critic_before = arrays(algorithm.actor), arrays(algorithm.critic)
    algorithm.update(make_batch())
    assert all(
        np.array_equal(a, b) for a, b in zip(arrays(algorithm.critic), critic_before, strict=True)
    )
    assert not any(
        np.array_equal(a, b) for a, b in zip(arrays(algorithm.actor), actor_before, strict=True)
    )


def test_log_prob_equals_the_transformed_distribution_of_torch():
    policy = make().actor
    obs, noise = torch.randn(200, 5, generator=torch.Generator().manual_seed(3)).split([3, 2], 1)
    actions, log_probs = policy(obs, noise)
    mean, log_std = policy.network(obs).double().chunk(2, -1)
    normal = Normal(mean, log_std.clamp(-20, 2).exp())
    squashed = TransformedDistribution(Independent(normal, 1), [TanhTransform(cache_size=1)])
    reference = squashed.transforms[0](mean + normal.scale * noise)
    torch.testing.assert_close(actions.double(), reference, atol=1e-5, rtol=0)
    torch.testing.assert_close(
        log_probs.double(), squashed.log_prob(reference), atol=1e-4, rtol=1e-5
    )


def test_the_density_of_actions_integrates_to_one():
    policy = make(num_actions=1).actor
    noise = torch.linspace(-8, 8, 20_001).unsqueeze(1)
    actions, log_probs = policy(torch.tensor([[0.5, -1.0, 2.0]]).expand(len(noise), -1), noise)
    density, at = log_probs.detach().double().exp().numpy(), actions.detach().double().numpy()[:, 0]
    assert np.trapezoid(density, at) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    ("output", "log_std"), [(50.0, 2.0), (1.5, 1.5), (-15.0, -15.0), (-50.0, -20.0)]
)
def test_the_log_deviation_is_kept_between_minus_twenty_and_two(output, log_std):
    policy = make(num_actions=1).actor
    with torch.no_grad():
        policy.network.weights[-1].zero_()
        policy.network.biases[-1].copy_(torch.tensor([0.0, output]))
    # At the mean 0 tanh neither moves nor stretches, so this is the Gaussian's log-density there.
    _, log_prob = policy(torch.zeros(1, 3), torch.zeros(1, 1))
    assert log_prob.item() == pytest.approx(-log_std - 0.5 * np.log(2 * np.pi), abs=1e-5)


def test_log_prob_stays_finite_where_tanh_saturates():
    policy = make().actor
    with torch.no_grad():
        policy.network.biases[-1][:2] = torch.tensor([60.0, -60.0])
    actions, log_probs = policy(torch.zeros(4, 3), torch.zeros(4, 2))
    assert actions.abs().eq(1.0).all()
    assert log_probs.isfinite().all()
    # log(1 - tanh(x)^2) tends to 2 log 2 - 2 |x|, so each component adds about 2 * 60.
    assert log_probs.gt(200.0).all()


def test_the_batched_twin_critic_equals_two_separate_networks():
    algorithm = make()
    batch = make_batch()
    values = algorithm.critic(batch.obs, batch.actions)
    networks = algorithm.critic.networks
    for member in range(2):
        x = torch.cat([batch.obs, batch.actions], 1)
        for index, (weight, bias) in enumerate(zip(networks.weights, networks.biases, strict=True)):
            linear = nn.Linear(*weight.shape[1:])
            linear.weight.data, linear.bias.data = weight.data[member].T, bias.data[member, 0]
            x = linear(x).tanh() if index < 2 else linear(x)
        torch.testing.assert_close(values[member], x.squeeze(1), rtol=0, atol=1e-5)
    assert not torch.allclose(values[0], values[1])

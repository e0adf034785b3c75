"""PPO against an independent numpy computation of its losses, its gradient and its whole update."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import as_collected
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from numpy_reference import numeric_gradient

from rl_training.algorithms.base import Resources
from rl_training.algorithms.config import Schedule
from rl_training.algorithms.ppo import PPOAlgorithm, PPOConfig
from rl_training.replay.transitions import Transitions
from rl_training.spaces.spec import describe_spaces

ACTION_SPACES = [Discrete(4), MultiDiscrete([2, 3]), Box(-1.0, 1.0, (2,))]
for_every_action_space = pytest.mark.parametrize(
    "space", ACTION_SPACES, ids=["discrete", "multi_discrete", "box"]
)


def make(space=ACTION_SPACES[0], *, num_obs=3, num_envs=2, hidden_sizes=(6, 5), **settings):
    config = PPOConfig(
        hidden_sizes=hidden_sizes, minibatch_size=1000, **{"update_epochs": 1, **settings}
    )
    spaces = describe_spaces(Box(-np.inf, np.inf, (num_obs,)), space)
    return PPOAlgorithm(
        config, spaces, Resources(torch.device("cpu"), torch.Generator().manual_seed(0), num_envs)
    )


def shake(algorithm):
    """Move away from the initial weights, whose policy is almost uniform."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in algorithm.policy.parameters():
            parameter += 0.4 * torch.randn(parameter.shape, generator=generator)
    return algorithm


def make_rollout(space, num_steps=6, num_envs=2, num_obs=3, seed=2):
    rng = np.random.default_rng(seed)
    spec = describe_spaces(Box(-1.0, 1.0), space).action
    space.seed(seed)
    actions = np.stack(
        [
            spec.to_model(np.stack([space.sample() for _ in range(num_envs)]))
            for _ in range(num_steps)
        ]
    )
    next_obs = rng.normal(size=(num_steps, num_envs, num_obs)).astype(np.float32)
    terminated, truncated = rng.random((2, num_steps, num_envs)) < 0.2
    obs = np.concatenate(
        [rng.normal(size=(1, num_envs, num_obs)).astype(np.float32), next_obs[:-1]]
    )
    ended_before = np.concatenate([np.zeros((1, num_envs), bool), (terminated | truncated)[:-1]])
    obs[ended_before] = rng.normal(size=(ended_before.sum(), num_obs))
    rewards = rng.normal(size=(num_steps, num_envs)).astype(np.float32)
    fields = (obs, actions, rewards, next_obs, terminated, truncated)
    return Transitions(*(torch.from_numpy(field) for field in fields))


def tensors(policy):
    """Weights [2, in, out] of the three layers, their biases and, for a Box, the log-deviation."""
    return [*policy.networks.weights, *policy.networks.biases, *policy.head.parameters()]


def arrays(policy):
    return [tensor.detach().double().numpy().copy() for tensor in tensors(policy)]


def network(params, obs, member):
    x = obs
    for layer in range(3):
        x = x @ params[layer][member] + params[3 + layer][member]
        x = np.tanh(x) if layer < 2 else x
    return x


def log_prob_and_entropy(space, params, obs, actions):
    outputs = network(params, obs, 0)
    if isinstance(space, Box):
        std = np.exp(params[6])
        density = np.exp(-0.5 * ((actions - outputs) / std) ** 2) / np.sqrt(2 * np.pi * std**2)
        return np.log(density).sum(1), 0.5 * np.log(2 * np.pi * np.e * std**2).sum()
    log_prob, entropy, first = 0.0, 0.0, 0
    choices = [space.n] if isinstance(space, Discrete) else space.nvec
    for n, chosen in zip(choices, actions.reshape(len(obs), -1).T, strict=True):
        unscaled = np.exp(outputs[:, first : first + n])
        probs = unscaled / unscaled.sum(1, keepdims=True)
        log_prob = log_prob + np.log(probs[np.arange(len(obs)), chosen])
        entropy = entropy - (probs * np.log(probs)).sum(1)
        first += n
    return log_prob, entropy.mean()


def losses(space, params, samples, config, clip=0.2):
    obs, actions, old_log_probs, advantages, returns = samples
    log_probs, entropy = log_prob_and_entropy(space, params, obs, actions)
    advantages = (advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-8)
    ratio = np.exp(log_probs - old_log_probs)
    bounded = np.where(advantages > 0, np.minimum(ratio, 1 + clip), np.maximum(ratio, 1 - clip))
    policy_loss = -(bounded * advantages).mean()
    value_loss = ((network(params, obs, 1)[:, 0] - returns) ** 2).mean()
    return SimpleNamespace(
        total=policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy,
        metrics=[
            policy_loss,
            value_loss,
            entropy,
            (ratio - 1 - np.log(ratio)).mean(),
            ((ratio < 1 - clip) | (ratio > 1 + clip)).mean(),
        ],
    )


def norm(gradients):
    return np.sqrt(sum((gradient**2).sum() for gradient in gradients))


@for_every_action_space
def test_losses_away_from_the_old_policy_equal_numpy(space):
    algorithm = shake(make(space, ent_coef=0.3, vf_coef=0.7))
    batch = as_collected(algorithm, make_rollout(space, num_steps=20))
    samples, _ = algorithm.prepare(batch)
    samples.log_probs.add_(0.4 * torch.randn(40, generator=torch.Generator().manual_seed(3)))
    params, as_arrays = (
        arrays(algorithm.policy),
        [field.numpy() for field in samples if field is not None],
    )
    expected = losses(space, params, as_arrays, algorithm.config)
    assert 0.2 < expected.metrics[4] < 0.8
    metrics = algorithm._minibatch_step(samples, torch.tensor(0.2)).numpy()
    np.testing.assert_allclose(metrics[:5], expected.metrics, rtol=1e-5, atol=1e-5)
    gradients = numeric_gradient(
        lambda p: losses(space, p, as_arrays, algorithm.config).total, params
    )
    assert metrics[5] == pytest.approx(norm(gradients), rel=1e-5)


@for_every_action_space
def test_a_whole_update_with_one_minibatch_equals_numpy(space):
    algorithm = shake(make(space, ent_coef=0.3, learning_rate=1e-2, adam_eps=0.1))
    config, params = algorithm.config, arrays(algorithm.policy)
    batch = as_collected(algorithm, make_rollout(space))
    rewards, terminated = batch.rewards.double().numpy(), batch.terminated.numpy()
    values, next_values = (
        network(params, obs.double().numpy(), 1)[..., 0] for obs in (batch.obs, batch.next_obs)
    )
    deltas = rewards + config.gamma * next_values * ~terminated - values
    advantages = deltas.copy()
    for t in range(len(deltas) - 2, -1, -1):
        advantages[t] += (
            config.gamma * config.gae_lambda * ~batch.dones[t].numpy() * advantages[t + 1]
        )
    obs, actions = batch.obs.flatten(0, 1).double().numpy(), batch.actions.flatten(0, 1).numpy()
    returns = (advantages + values).reshape(-1)
    old_log_probs, _ = log_prob_and_entropy(space, params, obs, actions)
    samples = (obs, actions, old_log_probs, advantages.reshape(-1), returns)
    expected = losses(space, params, samples, config)
    gradients = numeric_gradient(lambda p: losses(space, p, samples, config).total, params)
    scale = min(1.0, config.max_grad_norm / norm(gradients))
    assert scale < 1.0

    result = algorithm.update(batch)
    unexplained = np.var(returns - values.reshape(-1)) / np.var(returns)
    actual = [result.metrics[name].item() for name in result.metrics]
    np.testing.assert_allclose(
        actual, [*expected.metrics, norm(gradients), 1 - unexplained], rtol=1e-5, atol=1e-5
    )
    assert result.gradient_steps == 1
    for after, before, gradient in zip(arrays(algorithm.policy), params, gradients, strict=True):
        # Adam's first step: both corrected moments are those of the one gradient.
        step = 1e-2 * scale * gradient / (np.abs(scale * gradient) + config.adam_eps)
        np.testing.assert_allclose(after, before - step, atol=1e-5)


def test_advantages_at_a_truncation_use_the_value_of_the_true_final_observation():
    algorithm = make(
        num_obs=1, num_envs=1, hidden_sizes=(1,), activation="relu", gamma=0.5, gae_lambda=0.5
    )
    with torch.no_grad():
        for weight in algorithm.policy.networks.weights:
            weight.fill_(1.0)  # the value of a positive observation is the observation
    batch = Transitions(
        obs=torch.tensor([1.0, 2.0, 6.0]).view(3, 1, 1),
        actions=torch.zeros(3, 1, dtype=torch.int64),
        rewards=torch.tensor([[1.0], [2.0], [3.0]]),
        next_obs=torch.tensor([2.0, 10.0, 8.0]).view(3, 1, 1),
        terminated=torch.zeros(3, 1, dtype=torch.bool),
        truncated=torch.tensor([[False], [True], [False]]),
    )
    samples, _ = algorithm.prepare(as_collected(algorithm, batch))
    # A_2 = 3 + 0.5 * 8 - 6 = 1; A_1 = 2 + 0.5 * 10 - 2 = 5 (10 is the final observation, 6 the next episode's first);
    # A_0 = (1 + 0.5 * 2 - 1) + 0.25 * 5 = 2.25; each return is the advantage plus the value.
    assert samples.advantages.tolist() == [2.25, 5.0, 1.0]
    assert samples.returns.tolist() == [3.25, 7.0, 7.0]


@pytest.mark.parametrize(("target_kl", "steps"), [(1e-4, 2), (1e4, 10), (None, 10)])
def test_target_kl_ends_the_update_with_the_first_minibatch_that_exceeds_it(target_kl, steps):
    algorithm = make(target_kl=target_kl, update_epochs=10, learning_rate=0.1)
    assert (
        algorithm.update(as_collected(algorithm, make_rollout(ACTION_SPACES[0]))).gradient_steps
        == steps
    )


@pytest.mark.parametrize(
    ("progress", "rate", "clip"), [(0.0, 1e-3, 0.2), (0.5, 5e-4, 0.15), (1.0, 0.0, 0.1)]
)
def test_the_update_uses_the_learning_rate_and_clip_of_this_point_of_the_run(progress, rate, clip):
    algorithm = make(
        learning_rate=Schedule(kind="linear", start=1e-3),
        clip_coef=Schedule(kind="cosine", start=0.2, end=0.1),
    )
    algorithm.global_step, algorithm.progress = 100, progress
    before, clips, step = arrays(algorithm.policy), [], algorithm._step
    algorithm._step = lambda *samples: (clips.append(samples[-1].item()), step(*samples))[1]
    algorithm.update(as_collected(algorithm, make_rollout(ACTION_SPACES[0])))
    assert algorithm.optimizer.state_dict()["learning_rate"].item() == pytest.approx(rate, abs=1e-9)
    assert clips == pytest.approx([clip] * len(clips), abs=1e-7)
    unmoved = all(
        np.array_equal(a, b) for a, b in zip(arrays(algorithm.policy), before, strict=True)
    )
    assert unmoved == (rate == 0.0)


def test_initial_layers_are_orthogonal_with_small_policy_outputs_and_zero_biases():
    policy = make(hidden_sizes=(16, 8)).policy
    for member, last_gain in enumerate((0.01, 1.0)):
        for weight, gain in zip(policy.networks.weights, (2**0.5, 2**0.5, last_gain), strict=True):
            matrix = weight[member].detach().double().numpy()
            wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
            np.testing.assert_allclose(wide @ wide.T, gain**2 * np.eye(len(wide)), atol=1e-6 * gain)
    assert all(not bias.any() for bias in policy.networks.biases)


def test_the_initial_value_output_has_gain_one_when_there_are_more_actions_than_hidden_units():
    policy = make(Discrete(40), hidden_sizes=(8,)).policy
    value_output = policy.networks.weights[-1][1, :, 0]
    assert value_output.norm().item() == pytest.approx(1.0, abs=1e-5)


def test_observation_statistics_cover_every_rollout_and_stand_still_while_acting():
    algorithm = shake(make(normalize_obs=True, learning_rate=1e-3))
    rollouts = [make_rollout(ACTION_SPACES[0], seed=seed) for seed in (4, 5)]
    for rollout in rollouts:
        rollout.obs.mul_(3.0).add_(2.0)
        # The policy that is improved is the one that acted, so the ratio of the first step is 1.
        assert algorithm.update(as_collected(algorithm, rollout)).metrics["approx_kl"].abs() < 1e-6
    seen = torch.cat([rollout.obs.flatten(0, 1) for rollout in rollouts]).double().numpy()
    algorithm.act(torch.full((4, 3), 1e3), explore=True)
    normalizer = algorithm.policy.preprocessor.normalizer
    np.testing.assert_allclose(normalizer.mean, seen.mean(0), atol=1e-9)
    np.testing.assert_allclose(normalizer.variance, seen.var(0), atol=1e-9)

    obs = np.array([[1.0, 2.0, 3.0], [1e3, 0.0, -1e3]])
    scaled = np.clip((obs - seen.mean(0)) / np.sqrt(seen.var(0)), -10, 10)
    outputs, _ = algorithm.policy(torch.tensor(obs, dtype=torch.float32))
    np.testing.assert_allclose(
        outputs.detach(), network(arrays(algorithm.policy), scaled, 0), atol=1e-5
    )


def test_rewards_are_scaled_by_the_deviation_of_the_running_return_over_two_rollouts():
    algorithm = make(normalize_reward=True, gamma=0.9, gae_lambda=0.0)
    with torch.no_grad():
        for weight in algorithm.policy.networks.weights:
            weight.zero_()  # all values are 0, so with lambda 0 an advantage is the scaled reward
    running, returns = np.zeros(2), []
    for seed in (6, 7):
        rollout = make_rollout(ACTION_SPACES[0], num_steps=200, seed=seed)
        rollout.rewards[3, 0], rollout.terminated[3, 0] = 500.0, True
        rewards = rollout.rewards.double().numpy()
        for reward, done in zip(rewards, rollout.dones.numpy(), strict=True):
            running = 0.9 * running + reward
            returns.extend(running)
            running = np.where(done, 0.0, running)
        samples, _ = algorithm.prepare(as_collected(algorithm, rollout))
        expected = np.clip(rewards / np.std(returns), -10, 10)
        assert expected.max() == 10.0
        np.testing.assert_allclose(samples.advantages.view(200, 2), expected, atol=1e-5)

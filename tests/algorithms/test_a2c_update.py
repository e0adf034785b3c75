"""A2C against an independent numpy computation of its advantages, losses, gradient and whole update."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import as_collected
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from numpy_reference import numeric_gradient
from test_ppo_update import (
    arrays,
    log_prob_and_entropy,
    make_rollout,
    network,
    norm,
    shake,
    tensors,
)

from rl_training.algorithms.a2c import A2CAlgorithm, A2CConfig
from rl_training.algorithms.base import Resources
from rl_training.spaces.spec import describe_spaces

SPACES = [Discrete(4), MultiDiscrete([2, 3]), Box(-1.0, 1.0, (2,))]
GAMMA = 0.9


def make(space=SPACES[0], **settings):
    config = A2CConfig(hidden_sizes=(6, 5), gamma=GAMMA, **settings)
    spaces = describe_spaces(Box(-np.inf, np.inf, (3,)), space)
    resources = Resources(torch.device("cpu"), torch.Generator().manual_seed(0), 2)
    return shake(A2CAlgorithm(config, spaces, resources))


def numpy_advantages(params, rollout, gae_lambda):
    """Each as the sum of what the steps after it surprised by, up to the end of its episode or of the rollout."""
    obs, next_obs = rollout.obs.double().numpy(), rollout.next_obs.double().numpy()
    values, next_values = network(params, obs, 1)[..., 0], network(params, next_obs, 1)[..., 0]
    terminated, ended = rollout.terminated.numpy(), rollout.dones.numpy()
    surprises = (
        rollout.rewards.double().numpy() + GAMMA * np.where(terminated, 0.0, next_values) - values
    )
    advantages = np.zeros_like(values)
    for (start, env), _ in np.ndenumerate(values):
        for step in range(start, len(values)):
            advantages[start, env] += (GAMMA * gae_lambda) ** (step - start) * surprises[step, env]
            if ended[step, env]:
                break
    return advantages.reshape(-1), (advantages + values).reshape(-1)


@pytest.mark.parametrize("gae_lambda", [1.0, 0.8])
@pytest.mark.parametrize("space", SPACES, ids=["discrete", "multi_discrete", "box"])
def test_a_whole_update_equals_numpy(space, gae_lambda):
    settings = {"ent_coef": 0.03, "vf_coef": 0.4, "max_grad_norm": 0.05, "learning_rate": 1e-2}
    algorithm = make(
        space, gae_lambda=gae_lambda, adam_eps=0.1, **settings
    )  # large, so that a step shows its length
    rollout = make_rollout(space, num_steps=12)
    assert rollout.terminated[:-1].any()
    assert rollout.truncated[:-1].any()
    before = arrays(algorithm.policy)
    advantages, returns = numpy_advantages(before, rollout, gae_lambda)
    obs, actions = rollout.obs.flatten(0, 1).double().numpy(), rollout.actions.flatten(0, 1).numpy()

    def losses(params):
        log_probs, entropy = log_prob_and_entropy(space, params, obs, actions)
        return (
            -(advantages * log_probs).mean(),
            ((network(params, obs, 1)[:, 0] - returns) ** 2).mean(),
            entropy,
        )

    def loss(params):
        policy_loss, value_loss, entropy = losses(params)
        return policy_loss + 0.4 * value_loss - 0.03 * entropy

    expected, gradient = losses(before), numeric_gradient(loss, before)
    metrics = {
        name: value.item()
        for name, value in algorithm.update(as_collected(algorithm, rollout)).metrics.items()
    }
    for name, wanted in zip(("policy_loss", "value_loss", "entropy"), expected, strict=True):
        assert metrics[name] == pytest.approx(wanted, abs=1e-5)
    assert metrics["grad_norm"] == pytest.approx(norm(gradient), abs=1e-5)
    fit = 1 - (returns - network(before, obs, 1)[:, 0]).var() / returns.var()
    assert metrics["explained_variance"] == pytest.approx(fit, abs=1e-5)
    assert norm(gradient) > 0.05
    for tensor, old, slope in zip(tensors(algorithm.policy), before, gradient, strict=True):
        clipped = slope * 0.05 / norm(gradient)
        np.testing.assert_allclose(
            tensor.detach(), old - 1e-2 * clipped / (np.abs(clipped) + 0.1), atol=1e-5
        )


def test_normalized_advantages_do_not_depend_on_the_scale_of_their_spread():
    rollout = make_rollout(SPACES[0])
    algorithm, plain = make(normalize_advantage=True, vf_coef=0.0), make(vf_coef=0.0)
    advantages, _ = numpy_advantages(arrays(algorithm.policy), rollout, 1.0)
    obs, actions = rollout.obs.flatten(0, 1).double().numpy(), rollout.actions.flatten(0, 1).numpy()
    log_probs, _ = log_prob_and_entropy(SPACES[0], arrays(algorithm.policy), obs, actions)
    scaled = (advantages - advantages.mean()) / advantages.std(ddof=1)
    for rule, wanted in ((algorithm, scaled), (plain, advantages)):
        loss = rule.update(as_collected(rule, rollout)).metrics["policy_loss"].item()
        assert loss == pytest.approx(-(wanted * log_probs).mean(), abs=1e-5)


def test_rewards_and_observations_are_scaled_when_asked_to():
    algorithm = make(normalize_reward=True, normalize_obs=True)
    rollout = as_collected(algorithm, make_rollout(SPACES[0]))
    algorithm.update(rollout)
    normalizer = algorithm.policy.preprocessor.normalizer
    np.testing.assert_allclose(
        normalizer.mean, rollout.obs.flatten(0, 1).double().mean(0), atol=1e-6
    )
    one = make(normalize_reward=True).update(rollout).metrics["value_loss"].item()
    other = make(normalize_reward=True).update(replace(rollout, rewards=1000 * rollout.rewards))
    assert other.metrics["value_loss"].item() == pytest.approx(one, rel=0.1)


def test_one_gradient_step_for_each_rollout():
    assert A2CConfig().gradient_steps_in(500_000, 8) == 12_500
    assert A2CConfig().gradient_steps_in(41, 8) == 2

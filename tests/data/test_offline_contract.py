"""Every offline update rule, besides the conformance suite: scaled observations, endings and bounds."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from numpy_reference import make_algorithm, make_batch, small

from rl_training.algorithms.awac import AWACAlgorithm, AWACConfig
from rl_training.algorithms.base import Resources
from rl_training.algorithms.bc import BCAlgorithm, BCConfig
from rl_training.algorithms.cql import CQLAlgorithm, CQLConfig
from rl_training.algorithms.iql import IQLAlgorithm, IQLConfig
from rl_training.algorithms.td3_bc import TD3BCAlgorithm, TD3BCConfig
from rl_training.spaces.spec import describe_spaces

VALUE_BASED = {
    "td3_bc": (TD3BCAlgorithm, TD3BCConfig, None),
    "iql": (IQLAlgorithm, IQLConfig, None),
    "awac": (AWACAlgorithm, AWACConfig, None),
    "cql": (CQLAlgorithm, CQLConfig, None),
    "cql_discrete": (CQLAlgorithm, CQLConfig, Discrete(3)),
}
EVERY = {
    "bc": (BCAlgorithm, BCConfig, None),
    "bc_discrete": (BCAlgorithm, BCConfig, Discrete(3)),
    **VALUE_BASED,
}
for_every_rule = pytest.mark.parametrize("case", EVERY.values(), ids=EVERY.keys())
for_every_value_based_rule = pytest.mark.parametrize(
    "case", VALUE_BASED.values(), ids=VALUE_BASED.keys()
)


def make(case, **settings):
    algorithm_class, config_class, action_space = case
    return make_algorithm(
        algorithm_class, small(config_class, **settings), action_space=action_space
    )


def updated_weights(algorithm, batch):
    for _ in range(2):
        algorithm.update(batch)
    modules = [
        part for part in algorithm.stateful_members().values() if isinstance(part, torch.nn.Module)
    ]
    return torch.cat(
        [parameter.detach().reshape(-1) for module in modules for parameter in module.parameters()]
    )


@for_every_rule
def test_observations_scaled_by_the_data_give_what_scaled_data_gives(case):
    batch = make_batch(case[2])
    data = 4.0 + 3.0 * torch.randn(300, 3, generator=torch.Generator().manual_seed(5))
    mean, deviation = data.double().mean(0), data.double().std(0, correction=0)
    scaled = {
        name: ((getattr(batch, name) - mean) / deviation).float() for name in ("obs", "next_obs")
    }

    scaling, plain = make(case, normalize_obs=True), make(case, normalize_obs=False)
    for part in data.split(70):
        scaling.fit_observations(part)
    np.testing.assert_allclose(
        updated_weights(scaling, batch), updated_weights(plain, replace(batch, **scaled)), atol=1e-5
    )
    acted = (
        scaling.act(batch.obs, explore=False).actions,
        plain.act(scaled["obs"], explore=False).actions,
    )
    np.testing.assert_allclose(*acted, atol=1e-4)


@for_every_rule
def test_the_scale_is_frozen_once_updates_have_begun_and_travels_with_the_state(case):
    algorithm = make(case, normalize_obs=True)
    algorithm.fit_observations(
        5.0 * torch.randn(100, 3, generator=torch.Generator().manual_seed(6))
    )
    before = {name: value.clone() for name, value in algorithm.preprocessor.state_dict().items()}
    batch = make_batch(case[2])
    algorithm.update(batch)
    assert all(
        torch.equal(value, before[name])
        for name, value in algorithm.preprocessor.state_dict().items()
    )

    restored = make(case, normalize_obs=True)
    restored.load_state_dict(algorithm.state_dict())
    assert torch.equal(
        restored.act(batch.obs, explore=False).actions,
        algorithm.act(batch.obs, explore=False).actions,
    )


@for_every_rule
def test_without_scaling_the_data_is_looked_at_in_vain(case):
    shown, not_shown, batch = (
        make(case, normalize_obs=False),
        make(case, normalize_obs=False),
        make_batch(case[2]),
    )
    shown.fit_observations(100.0 + torch.zeros(50, 3))
    assert torch.equal(updated_weights(shown, batch), updated_weights(not_shown, batch))


@for_every_value_based_rule
def test_termination_cuts_the_bootstrap_and_truncation_does_not(case):
    batch = make_batch(case[2])
    nowhere, everywhere = torch.zeros_like(batch.terminated), torch.ones_like(batch.terminated)
    going_on = replace(batch, terminated=nowhere, truncated=nowhere)

    def weights(ending, **changes):
        return updated_weights(make(case), replace(ending, **changes))

    assert torch.equal(weights(going_on), weights(going_on, truncated=everywhere))
    assert not torch.equal(weights(going_on), weights(going_on, terminated=everywhere))


@pytest.mark.parametrize("name", ["td3_bc", "iql", "awac", "cql_discrete"])
def test_after_termination_the_next_observation_means_nothing(name):
    case = VALUE_BASED[name]
    batch = replace(make_batch(case[2]), terminated=torch.ones(48, dtype=torch.bool))
    elsewhere = replace(batch, next_obs=batch.next_obs + 1.0)
    assert torch.equal(updated_weights(make(case), batch), updated_weights(make(case), elsewhere))


@for_every_rule
def test_continuous_actions_keep_to_their_bounds_and_optimizers_report_their_gradient(case):
    algorithm = make(case)
    for explore in (True, False):
        actions = algorithm.act(10.0 * make_batch().obs, explore=explore).actions
        assert case[2] is not None or actions.abs().max() <= 1.0
    metrics = algorithm.update(make_batch(case[2])).metrics
    assert any(name.endswith("grad_norm") for name in metrics)


@pytest.mark.parametrize(
    "obs_space", [Discrete(5), Box(0, 255, (2, 2), np.uint8)], ids=["category", "bytes"]
)
def test_categories_and_bytes_are_encoded_once(obs_space):
    spaces = describe_spaces(obs_space, Box(-1.0, 1.0, (2,)))
    resources = Resources(torch.device("cpu"), torch.Generator().manual_seed(0))
    algorithm = IQLAlgorithm(small(IQLConfig), spaces, resources)
    obs = torch.from_numpy(np.stack([obs_space.sample() for _ in range(48)]))
    batch = replace(make_batch(), obs=obs, next_obs=obs.flip(0))
    assert all(metric.isfinite() for metric in algorithm.update(batch).metrics.values())
    features = algorithm.preprocessor(obs)
    assert features.min() >= 0.0
    assert features.max() <= 1.0
    assert torch.equal(
        algorithm.act(obs, explore=False).actions, algorithm.actor.mode(features).detach()
    )

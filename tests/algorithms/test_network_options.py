"""Settings of networks and optimizers: each changes what it says and nothing else, in every algorithm that has it."""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from conftest import TRY_ALL, as_collected, env_of
from gymnasium.spaces import Box, Discrete
from numpy_reference import assert_compiled_equals_plain, make_algorithm, make_batch, small
from test_ppo_update import make_rollout
from torch import Tensor, nn

from rl_training.algorithms.a2c import A2CAlgorithm, A2CConfig
from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.config import ActorCriticConfig, Schedule
from rl_training.algorithms.cql import CQLAlgorithm, CQLConfig
from rl_training.algorithms.optim import Adam
from rl_training.algorithms.ppo import PPOAlgorithm, PPOConfig
from rl_training.algorithms.sac import SACAlgorithm, SACConfig
from rl_training.errors import ConfigError
from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs
from rl_training.models.actor_critic import PolicyAndValue, StackedPolicyAndValue
from rl_training.models.mlp import Activation
from rl_training.runtime.assembly import count_weights
from rl_training.testing import AlgorithmCase, check_resume, check_state

SHARED: dict[str, Any] = {
    "activation": "gelu",
    "layer_norm": True,
    "adam_beta1": 0.8,
    "adam_beta2": 0.99,
    "weight_decay": 0.01,
}
SEPARATE: dict[str, Any] = {
    "actor_hidden_sizes": [6],
    "critic_hidden_sizes": [7, 5],
    "actor_learning_rate": {"kind": "linear", "start": 1e-3},
    "critic_learning_rate": {"kind": "cosine", "start": 2e-3, "end": 1e-3},
}
ALGOS = [spec.name for spec in list_algorithm_specs()]
ACTOR_CRITICS = [
    name for name in ALGOS if issubclass(get_algorithm_spec(name).config_class(), ActorCriticConfig)
]
OFF_POLICY = [name for name in ACTOR_CRITICS if name not in ("ppo", "a2c")]


def every_option(algo: str) -> dict[str, Any]:
    options = {**SHARED, **(SEPARATE if algo in ACTOR_CRITICS else {})}
    return {
        name: value for name, value in options.items() if (algo, name) != ("crossq", "layer_norm")
    }


def case_of(algo: str, **algo_kwargs: Any) -> AlgorithmCase:
    spec = get_algorithm_spec(algo)
    return AlgorithmCase(
        spec.algorithm_class(), spec.config_class(), spec.loop, env_of(algo), algo_kwargs
    )


def networks_of(algorithm: Algorithm[Any]) -> dict[str, dict[str, Tensor]]:
    members = algorithm.stateful_members().items()
    return {name: dict(one.state_dict()) for name, one in members if isinstance(one, nn.Module)}


def shapes_of(algorithm: Algorithm[Any], name: str) -> dict[str, torch.Size]:
    return {key: value.shape for key, value in networks_of(algorithm)[name].items()}


def rates_of(algorithm: Algorithm[Any]) -> dict[str, float]:
    members = algorithm.stateful_members().items()
    return {
        name: float(one.state_dict()["learning_rate"])
        for name, one in members
        if isinstance(one, Adam)
    }


def test_the_algorithms_with_an_actor_and_critics_have_settings_for_each() -> None:
    without = {"bc", "c51", "dqn", "qrdqn"}
    assert set(ACTOR_CRITICS) == set(ALGOS) - without
    with pytest.raises(ConfigError, match="unknown key 'actor_hidden_sizes' for dqn"):
        get_algorithm_spec("dqn").parse_kwargs({"actor_hidden_sizes": [8]})


EVERY_KIND = ("ppo", "a2c", "sac", "td3", "dqn", "iql", "cql")


@pytest.mark.parametrize("algo", EVERY_KIND if TRY_ALL else ("ppo", "sac", "iql"))
def test_a_run_with_every_option_resumes_exactly(algo: str) -> None:
    case = case_of(algo, **every_option(algo))
    check_state(case)
    check_resume(case)


@pytest.mark.parametrize("algo", ALGOS)
def test_every_option_trains(algo: str) -> None:
    case = case_of(algo, **every_option(algo))
    metrics = case.train(case.make(), 1)[1].metrics
    assert all(value.isfinite() for value in metrics.values())


@pytest.mark.parametrize("algo", ACTOR_CRITICS)
@pytest.mark.parametrize(
    "settings", [{"actor": [90]}, {"critic": [90]}, {"actor": [1], "critic": [90]}, {"actor": []}]
)
def test_the_weights_of_the_largest_network_are_counted_and_not_overestimated(
    algo: str, settings: dict[str, list[int]]
) -> None:
    case = case_of(algo, **{f"{name}_hidden_sizes": sizes for name, sizes in settings.items()})
    sizes, count = count_weights(case.algo_config, case.spaces)
    assert sizes[1:-1] == ((90,) if [90] in settings.values() else (8, 8))
    members = {
        name: state for name, state in networks_of(case.make()).items() if "target" not in name
    }
    assert count <= max(
        sum(tensor.numel() for tensor in state.values()) for state in members.values()
    )


@pytest.mark.parametrize("algo", ALGOS if TRY_ALL else EVERY_KIND)
@pytest.mark.parametrize(
    "option", ["activation", "adam_beta1", "adam_beta2", "adam_eps", "weight_decay"]
)
def test_an_option_without_weights_leaves_the_initial_networks_and_changes_the_updates(
    algo: str, option: str
) -> None:
    value = {"adam_eps": 1e-3, **SHARED}[option]
    plain, changed = case_of(algo).make(), case_of(algo, **{option: value}).make()
    case = case_of(algo)
    for name, state in networks_of(plain).items():
        for key, tensor in state.items():
            assert torch.equal(tensor, networks_of(changed)[name][key])
    for number in range(1, 4):
        for algorithm in (plain, changed):
            case.train(algorithm, number)
    states = [
        [t for state in networks_of(one).values() for t in state.values()]
        for one in (plain, changed)
    ]
    assert not all(torch.equal(one, other) for one, other in zip(*states, strict=True))


@pytest.mark.parametrize("algo", OFF_POLICY)
def test_sizes_of_the_actor_and_of_the_critics_are_their_own(algo: str) -> None:
    plain = case_of(algo).make()
    actor = case_of(algo, actor_hidden_sizes=[5]).make()
    critic = case_of(algo, critic_hidden_sizes=[5]).make()
    is_critic = {name: "critic" in name or name == "value" for name in networks_of(plain)}
    assert any(is_critic.values())
    for name, wanted in is_critic.items():
        if "actor" not in name and not wanted:
            continue
        assert (shapes_of(actor, name) == shapes_of(plain, name)) == wanted
        assert (shapes_of(critic, name) == shapes_of(plain, name)) == (not wanted)


@pytest.mark.parametrize("algo", OFF_POLICY)
def test_every_optimizer_follows_its_own_schedule(algo: str) -> None:
    case = case_of(algo, learning_rate=0.5, **SEPARATE)
    algorithm = case.make()
    actor, critic = (
        Schedule(kind="linear", start=1e-3),
        Schedule(kind="cosine", start=2e-3, end=1e-3),
    )
    for number in (10, 60):
        case.train(algorithm, number)
        for name, rate in rates_of(algorithm).items():
            schedule = actor if name in ("actor_optimizer", "alpha_optimizer") else critic
            assert rate == pytest.approx(schedule.at(number / 100)), name


@pytest.mark.parametrize("algo", OFF_POLICY)
def test_without_rates_of_their_own_all_follow_the_learning_rate(algo: str) -> None:
    rates = rates_of(case_of(algo, learning_rate=0.25).make())
    own_rate = (
        ("actor_optimizer", "alpha_optimizer") if algo in ("cql", "iql") else ()
    )  # with a default of its own
    assert {rate for name, rate in rates.items() if name not in own_rate} == {0.25}


def test_temperatures_and_multipliers_have_no_weight_decay() -> None:
    settings = {"lagrange_threshold": 1.0, "actor_learning_rate": 1e-3}
    plain, decayed = (
        make_algorithm(CQLAlgorithm, small(CQLConfig, weight_decay=decay, **settings))
        for decay in (0.0, 10.0)
    )
    before = {name: tensor.clone() for name, tensor in networks_of(plain)["critic"].items()}
    for algorithm in (plain, decayed):
        algorithm.update(make_batch())
    for name in ("temperature", "lagrange_multiplier"):
        assert torch.equal(
            networks_of(plain)[name]["log_alpha"], networks_of(decayed)[name]["log_alpha"]
        )
    for name, tensor in networks_of(decayed)["critic"].items():
        expected = networks_of(plain)["critic"][name] - 1e-3 * 10.0 * before[name]
        torch.testing.assert_close(tensor, expected, rtol=0, atol=1e-6)


def test_options_that_an_algorithm_cannot_use_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"layer_norm is not available: the critics have batch normalization"
    ):
        get_algorithm_spec("crossq").parse_kwargs({"layer_norm": True})
    with pytest.raises(
        ConfigError, match=r"layer_norm normalizes hidden layers, but hidden_sizes is empty"
    ):
        get_algorithm_spec("dqn").parse_kwargs({"layer_norm": True, "hidden_sizes": []})
    get_algorithm_spec("sac").parse_kwargs(
        {"layer_norm": True, "hidden_sizes": [], "actor_hidden_sizes": [8]}
    )
    for name, value in (
        ("critic_hidden_sizes", (8,)),
        ("actor_hidden_sizes", (8,)),
        ("critic_learning_rate", 1e-3),
    ):
        with pytest.raises(
            ConfigError,
            match=f"algo_kwargs.{name} of cql .*Discrete actions do not use it: remove it",
        ):
            make_algorithm(CQLAlgorithm, CQLConfig(**{name: value}), action_space=Discrete(3))
    for name in ("adam_beta1", "adam_beta2"):
        with pytest.raises(ConfigError, match=f"bad value 1.0 for '{name}'"):
            get_algorithm_spec("ppo").parse_kwargs({name: 1.0})


def on_policy(algorithm_class: Any, config: Any, space: Any) -> Any:
    algorithm = make_algorithm(algorithm_class, config, action_space=space)
    assert isinstance(algorithm, algorithm_class)
    return algorithm


@pytest.mark.parametrize("space", [Discrete(3), Box(-1.0, 1.0, (2,))], ids=["discrete", "box"])
@pytest.mark.parametrize(
    "settings",
    [
        {"actor_hidden_sizes": (6, 5), "critic_hidden_sizes": (6, 5)},
        {"actor_learning_rate": 3e-4, "critic_learning_rate": 3e-4},
    ],
    ids=["sizes", "rates"],
)
def test_equal_settings_of_policy_and_value_function_change_no_bit(
    space: Any, settings: dict[str, Any]
) -> None:
    plain, other = (
        on_policy(PPOAlgorithm, PPOConfig(hidden_sizes=(6, 5), minibatch_size=4, **own), space)
        for own in ({}, settings)
    )
    for algorithm in (plain, other):
        assert isinstance(algorithm.policy.networks, StackedPolicyAndValue)
        algorithm.update(as_collected(algorithm, make_rollout(space)))
    for name, tensor in networks_of(plain)["policy"].items():
        assert torch.equal(tensor, networks_of(other)["policy"][name])


def torch_copy(network: Any, activation: nn.Module) -> nn.Sequential:
    """The same MLP from modules of torch."""
    layers: list[nn.Module] = []
    norms = list(network.layer_norms or [])
    for number, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        linear = nn.Linear(*weight.T.shape)
        linear.weight.data.copy_(weight)
        linear.bias.data.copy_(bias)
        layers.append(linear)
        if number < len(network.weights) - 1:
            norm = nn.LayerNorm(len(bias))
            norm.weight.data.copy_(norms[number].scale)
            norm.bias.data.copy_(norms[number].offset)
            layers += [norm, activation]
    return nn.Sequential(*layers)


class TorchActorCritic:
    """Policy, value function and optimizer of torch with the weights of an algorithm."""

    def __init__(self, algorithm: Any, rates: tuple[float, float]) -> None:
        networks, config = algorithm.policy.networks, algorithm.config
        assert isinstance(networks, PolicyAndValue)
        self.config = config
        self.policy, self.value = (
            torch_copy(networks.policy, nn.SiLU()),
            torch_copy(networks.value, nn.SiLU()),
        )
        self.log_std = [
            nn.Parameter(one.detach().clone()) for one in algorithm.policy.head.parameters()
        ]
        groups = [
            {"params": [*self.log_std, *self.policy.parameters()], "lr": rates[0]},
            {"params": list(self.value.parameters()), "lr": rates[1]},
        ]
        betas = (config.adam_beta1, config.adam_beta2)
        self.optimizer = torch.optim.AdamW(
            groups, betas=betas, eps=config.adam_eps, weight_decay=config.weight_decay
        )

    def log_probs_and_entropy(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.policy(obs)
        if self.log_std:
            normal = torch.distributions.Normal(outputs, self.log_std[0].exp())
            return normal.log_prob(actions).sum(-1), normal.entropy().sum(-1)
        choices = torch.distributions.Categorical(logits=outputs)
        return choices.log_prob(actions), choices.entropy()

    def step(self, policy_loss: Tensor, value_loss: Tensor, entropy: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        (policy_loss + self.config.vf_coef * value_loss - self.config.ent_coef * entropy).backward()
        parameters = [one for group in self.optimizer.param_groups for one in group["params"]]
        norm = nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm)
        self.optimizer.step()
        return norm

    def assert_equals(self, policy: Any) -> None:
        for own, copy in (
            (policy.networks.policy, self.policy),
            (policy.networks.value, self.value),
        ):
            linears = [layer for layer in copy if isinstance(layer, nn.Linear)]
            norms = [layer for layer in copy if isinstance(layer, nn.LayerNorm)]
            expected = [one for layer in linears for one in (layer.weight, layer.bias)]
            expected += [one for layer in norms for one in (layer.weight, layer.bias)]
            torch.testing.assert_close(list(own.parameters()), expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(list(policy.head.parameters()), self.log_std, rtol=0, atol=1e-5)


RATES = (1e-2, 1e-3)
TWO_NETWORKS: dict[str, Any] = {
    "activation": "silu",
    "layer_norm": True,
    "adam_beta1": 0.8,
    "weight_decay": 0.5,
    "actor_hidden_sizes": (6,),
    "critic_hidden_sizes": (7, 5),
    "actor_learning_rate": RATES[0],
    "critic_learning_rate": {"kind": "linear", "start": RATES[1]},
    "ent_coef": 0.1,
    "max_grad_norm": 0.3,
}


@pytest.mark.parametrize("space", [Discrete(3), Box(-1.0, 1.0, (2,))], ids=["discrete", "box"])
def test_ppo_with_two_networks_and_two_rates_equals_torch(space: Any) -> None:
    config = PPOConfig(minibatch_size=1000, update_epochs=4, **TWO_NETWORKS)
    algorithm = on_policy(PPOAlgorithm, config, space)
    copy, batch = TorchActorCritic(algorithm, RATES), as_collected(algorithm, make_rollout(space))
    obs, actions, old_log_probs, advantages, returns, *_ = algorithm.prepare(batch)[0]
    norms = []
    for _ in range(4):
        log_probs, entropies = copy.log_probs_and_entropy(obs, actions)
        ratio = (log_probs - old_log_probs).exp()
        scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        surrogate = torch.minimum(ratio * scaled, ratio.clamp(0.8, 1.2) * scaled).mean()
        value_loss = (copy.value(obs).squeeze(-1) - returns).square().mean()
        norms.append(copy.step(-surrogate, value_loss, entropies.mean()))
    metrics = algorithm.update(batch).metrics
    copy.assert_equals(algorithm.policy)
    torch.testing.assert_close(
        metrics["grad_norm"], torch.stack(norms).mean(), rtol=1e-4, atol=1e-5
    )


def test_a2c_with_two_networks_and_two_rates_equals_torch() -> None:
    space = Discrete(3)
    algorithm = on_policy(A2CAlgorithm, A2CConfig(**TWO_NETWORKS), space)
    algorithm.progress = 0.5
    copy = TorchActorCritic(algorithm, (RATES[0], RATES[1] / 2))
    batch = as_collected(algorithm, make_rollout(space))
    obs, actions, _, advantages, returns, *_ = algorithm.prepare(batch)[0]
    log_probs, entropies = copy.log_probs_and_entropy(obs, actions)
    value_loss = (copy.value(obs).squeeze(-1) - returns).square().mean()
    copy.step(-(advantages * log_probs).mean(), value_loss, entropies.mean())
    algorithm.update(batch)
    copy.assert_equals(algorithm.policy)


def test_different_sizes_with_one_rate_have_one_optimizer() -> None:
    algorithm = on_policy(PPOAlgorithm, PPOConfig(critic_hidden_sizes=(5,)), Discrete(3))
    assert isinstance(algorithm.policy.networks, PolicyAndValue)
    assert list(rates_of(algorithm)) == ["optimizer"]
    assert len(algorithm.optimizer.parameters) == len(list(algorithm.policy.parameters()))


def test_both_learning_rates_of_ppo_are_scheduled() -> None:
    case = case_of("ppo", **SEPARATE)
    algorithm = case.make()
    case.train(algorithm, 40)
    expected = [1e-3 * 0.6, Schedule(kind="cosine", start=2e-3, end=1e-3).at(0.4)]
    assert list(rates_of(algorithm).values()) == pytest.approx(expected)


@pytest.mark.skipif(not TRY_ALL, reason="a minute of compiling: RL_TRAINING_TEST_ALL=1 runs it")
@pytest.mark.parametrize("activation", get_args(Activation))
def test_a_compiled_update_with_every_option_equals_a_plain_one(activation: Activation) -> None:
    settings = {**every_option("sac"), "activation": activation}
    assert_compiled_equals_plain(SACAlgorithm, small(SACConfig, **settings))


@pytest.mark.skipif(not TRY_ALL, reason="seconds of compiling: RL_TRAINING_TEST_ALL=1 runs it")
def test_a_compiled_update_of_two_networks_equals_a_plain_one() -> None:
    config = PPOConfig(minibatch_size=1000, update_epochs=2, **TWO_NETWORKS)
    plain, compiled = (
        make_algorithm(PPOAlgorithm, config, action_space=Discrete(3), compile=flag)
        for flag in (False, True)
    )
    for algorithm in (plain, compiled):
        algorithm.update(as_collected(algorithm, make_rollout(Discrete(3))))
    for name, tensor in networks_of(plain)["policy"].items():
        torch.testing.assert_close(
            networks_of(compiled)["policy"][name], tensor, rtol=1e-3, atol=1e-5
        )

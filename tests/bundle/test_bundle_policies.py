"""A policy acts the same in torch, from a bundle in NumPy, and as an ONNX model in ONNX Runtime."""

from __future__ import annotations

import contextlib
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from bundle_tools import bundle_of, make_policy, samples
from gymnasium import Space
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from torch import nn

from rl_training.algorithms.ppo import PPOAlgorithm
from rl_training.bundle.exporting.describing import describe
from rl_training.bundle.exporting.modules import UndescribableError
from rl_training.bundle.exporting.onnx_model import (
    ONNX_OPERATIONS,
    PACKAGES,
    input_names,
    make_onnx,
)
from rl_training.bundle.loading import BundlePolicy, load_bytes
from rl_training.bundle.operations import OPERATIONS
from rl_training.errors import BundleError, ConfigError, EnvError
from rl_training.evaluation.prediction import predict
from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs
from rl_training.spaces.observations import ObsSpec
from rl_training.spaces.spec import describe_spaces

VECTOR = Box(-2, 2, (3,), np.float32)
GOALS = Dict(
    {
        name: Box(-1, 1, (2,), np.float32)
        for name in ("observation", "achieved_goal", "desired_goal")
    }
)
BOUNDED = Box(np.array([-1.0, 0.0], np.float32), np.array([3.0, 0.5], np.float32))
UNBOUNDED = Box(-np.inf, np.inf, (2,), np.float64)
HALF_BOUNDED = Box(np.array([0.0, -np.inf], np.float32), np.array([np.inf, 1.0], np.float32))
ACTIONS = {
    "discrete": Discrete(4, start=2),
    "multi_discrete": MultiDiscrete([[3, 2], [4, 2]]),
    "multi_binary": MultiBinary(3),
    "box": BOUNDED,
    "unbounded": UNBOUNDED,
    "half_bounded": HALF_BOUNDED,
    "float16": Box(-1, 1, (2,), np.float16),
    "uint8": MultiDiscrete([3, 2], dtype=np.uint8),
}
OBSERVATIONS = {
    "matrix": Box(-5, 5, (2, 3), np.float64),
    "scalar": Box(-5, 5, (), np.float32),
    "bytes": Box(0, 255, (5,), np.uint8),
    "discrete": Discrete(5),
    "multi_discrete": MultiDiscrete([3, 4], start=[1, -2]),
    "multi_binary": MultiBinary((2, 3)),
    "channels_last": Box(0, 255, (36, 40, 3), np.uint8),
    "channels_first": Box(0, 255, (2, 36, 40), np.uint8),
    "stacked": Box(0, 255, (2, 36, 36, 3), np.uint8),
    "gray": Box(0, 255, (36, 40), np.uint8),
    "tuple": Tuple([VECTOR, Discrete(3)]),
    "dict": Dict(
        a=VECTOR,
        b=Discrete(4, start=1),
        inner=Dict(c=MultiBinary(2), d=Box(0, 255, (4,), np.uint8)),
    ),
    "dict_with_images": Dict(
        a=VECTOR, left=Box(0, 255, (36, 36), np.uint8), right=Box(0, 255, (36, 40, 3), np.uint8)
    ),
}
OPTIONS: dict[str, tuple[str, Space, dict[str, Any]]] = {
    **{
        f"activation-{name}": ("sac", BOUNDED, {"activation": name})
        for name in ("relu", "tanh", "silu", "gelu", "elu")
    },
    "layer_norm": ("ppo", ACTIONS["discrete"], {"layer_norm": True}),
    "layer_norm-two-networks": ("ppo", BOUNDED, {"layer_norm": True, "critic_hidden_sizes": [4]}),
    "actor-sizes": ("td3", BOUNDED, {"actor_hidden_sizes": [5], "critic_hidden_sizes": [7, 7]}),
    "no-hidden-layer": ("dqn", ACTIONS["discrete"], {"hidden_sizes": []}),
    **{
        f"dueling-{algo}": (algo, ACTIONS["discrete"], {"dueling": True})
        for algo in ("dqn", "c51", "qrdqn")
    },
    "normalize_obs-on-policy": ("ppo", BOUNDED, {"normalize_obs": True}),
    "normalize_obs-off-policy": ("dqn", ACTIONS["discrete"], {"normalize_obs": True}),
    "normalize_obs-offline": ("iql", BOUNDED, {"normalize_obs": True}),
    "gaussian-bc": ("bc", BOUNDED, {"policy": "gaussian"}),
    "lstm": ("ppo", ACTIONS["discrete"], {"memory": {"kind": "lstm", "size": 5}}),
    "gru": ("a2c", BOUNDED, {"memory": {"kind": "gru", "size": 5}}),
    "own-network": ("dqn", ACTIONS["discrete"], {"network": f"{__name__}:LayersEncoder"}),
    "lstm-two-networks": (
        "ppo",
        BOUNDED,
        {"memory": {"kind": "lstm", "size": 5}, "critic_hidden_sizes": [4]},
    ),
}

HAS_ONNX = all(find_spec(name) for name in PACKAGES)


def check(algo: str, obs: Space, action: Space, **settings: Any) -> BundlePolicy:
    """Compare the three on random observations, over a few steps; returns the loaded policy."""
    algorithm = make_policy(algo, obs, action, **settings)
    data, description, golden = bundle_of(algorithm, obs, algo)
    policy = load_bytes(data)
    run = onnx_runner(make_onnx(description, golden), policy) if HAS_ONNX else None
    torch_state = state = model_state = None
    if algorithm.initial_state(1) is not None:
        state = model_state = np.zeros((8, policy.spaces.state_size), np.float32)
    for step in range(3):
        batch, mask = samples(obs, 8, seed=step), None
        if settings.get("has_masks"):
            mask = random_masks(policy.spaces.action.choices, 8, step)
        expected, torch_state = predict(algorithm, batch, state=torch_state, mask=mask)
        actions, state = policy.act(batch, state=state, mask=mask)
        assert_same(actions, expected)
        if run is not None:
            model_actions, model_state = run(batch, model_state, mask)
            assert_same(model_actions, expected)
    return policy


def random_masks(choices: tuple[int, ...], count: int, seed: int) -> np.ndarray:
    """Masks in which each component has a valid option."""
    masks = np.random.default_rng(seed).random((count, sum(choices))) < 0.4
    masks[:, np.cumsum([0, *choices[:-1]])] = True
    return masks


def assert_same(actions: np.ndarray, expected: np.ndarray) -> None:
    assert actions.dtype == expected.dtype
    assert actions.shape == expected.shape
    if actions.dtype.kind == "f":
        tolerance = 1e-5 if actions.dtype != np.float16 else 2e-3
        np.testing.assert_allclose(actions, expected, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(actions, expected)


def onnx_runner(data: bytes, policy: BundlePolicy) -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    names = input_names(policy.spaces)

    def run(batch: Any, state: Any, mask: Any) -> tuple[np.ndarray, Any]:
        leaves, _ = policy.spaces.as_batch(batch)
        values = {f"obs.{index}": leaf for index, leaf in enumerate(leaves)}
        values |= {"state": state, "mask": mask}
        action, *rest = session.run(None, {name: values[key] for key, name in names.items()})
        return action, rest[0] if rest else None

    return run


def spaces_of(algo: str) -> list[tuple[Space, Space]]:
    """The spaces that an algorithm of the registry is tried with: each kind of action that it accepts."""
    found = []
    for obs in (VECTOR, GOALS):
        for action in ACTIONS.values():
            with contextlib.suppress(EnvError):
                spaces = describe_spaces(obs, action)
                get_algorithm_spec(algo).algorithm_class().check_spaces(spaces)
                found.append((obs, action))
        if found:
            break
    return found


@pytest.mark.parametrize("algo", [spec.name for spec in list_algorithm_specs()])
def test_every_algorithm_and_action_space(algo: str) -> None:
    pairs = spaces_of(algo)
    assert pairs
    for obs, action in pairs:
        check(algo, obs, action)


def test_these_policies_have_every_operation() -> None:
    policies = [
        make_policy(algo, VECTOR, action, **settings) for algo, action, settings in OPTIONS.values()
    ]
    policies += [make_policy("ppo", obs, ACTIONS["discrete"]) for obs in OBSERVATIONS.values()]
    used = {operation["op"] for policy in policies for operation in describe(policy).operations}
    assert used == OPERATIONS.keys() == ONNX_OPERATIONS.keys()


@pytest.mark.parametrize("name", list(OBSERVATIONS))
@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_observation_spaces(algo: str, name: str) -> None:
    check(algo, OBSERVATIONS[name], ACTIONS["discrete"])


@pytest.mark.parametrize("name", list(OPTIONS))
def test_options_of_networks(name: str) -> None:
    algo, action, settings = OPTIONS[name]
    check(algo, VECTOR, action, **settings)


@pytest.mark.parametrize(
    ("algo", "action"), [("ppo", "multi_discrete"), ("dqn", "discrete"), ("bc", "multi_binary")]
)
def test_masks(algo: str, action: str) -> None:
    check(algo, VECTOR, ACTIONS[action], has_masks=True)


def test_one_observation_has_an_action_without_batch() -> None:
    for space, action in ((VECTOR, ACTIONS["discrete"]), (OBSERVATIONS["dict"], BOUNDED)):
        algorithm = make_policy("ppo", space, action)
        policy = load_bytes(bundle_of(algorithm, space)[0])
        space.seed(0)
        obs = space.sample()
        assert action.contains(policy.act(obs))
        assert_same(np.asarray(policy.act(obs)), np.asarray(predict(algorithm, obs)))
        assert policy.act(obs, state=None)[1] is None


def test_a_policy_with_memory_takes_and_returns_its_state() -> None:
    algorithm = make_policy("ppo", VECTOR, BOUNDED, memory={"kind": "lstm", "size": 4})
    policy = load_bytes(bundle_of(algorithm, VECTOR)[0])
    obs = np.ones(3)
    first, state = policy.act(obs, state=None)
    second, _ = policy.act(obs, state=state)
    assert state.shape == (8,)
    assert not np.allclose(first, second)
    with pytest.raises(
        ConfigError, match="this policy has memory: pass state=None at the first step"
    ):
        policy.act(obs)
    with pytest.raises(
        ConfigError, match=r"the policy state has shape \(3,\), where \(8,\) is expected"
    ):
        policy.act(obs, state=np.zeros(3))


def test_wrong_inputs_are_refused_like_those_of_predict() -> None:
    algorithm = make_policy("ppo", OBSERVATIONS["dict"], ACTIONS["discrete"])
    policy = load_bytes(bundle_of(algorithm, OBSERVATIONS["dict"])[0])
    batch = samples(OBSERVATIONS["dict"], 3)
    wrong: list[tuple[Any, dict[str, Any]]] = [
        ({"a": batch["a"]}, {}),
        ({**batch, "a": np.zeros(5)}, {}),
        ({**batch, "a": np.zeros(3)}, {}),
        ({**batch, "b": np.full(3, 9)}, {}),
        (batch, {"state": np.zeros(2)}),
        (batch, {"mask": np.ones(4)}),
        (batch, {"mask": np.zeros((3, 4))}),
        (batch, {"mask": np.ones((3, 5))}),
        (batch, {"mask": "all"}),
        (batch, {"mask": [[1, 0], [1, 0, 1]]}),
    ]
    for obs, arguments in wrong:
        with pytest.raises((ConfigError, EnvError)) as ours:
            policy.act(obs, **arguments)
        with pytest.raises((ConfigError, EnvError)) as torchs:
            predict(algorithm, obs, **arguments)
        assert (ours.type, str(ours.value)) == (torchs.type, str(torchs.value))


def test_a_policy_trained_with_masks_asks_for_them() -> None:
    policy = check("ppo", VECTOR, Discrete(3), has_masks=True)
    with pytest.raises(ConfigError, match="this policy was trained with action masks: pass mask="):
        policy.act(np.zeros(3))
    assert policy.act(np.zeros(3), mask=[False, False, True]) == 2
    space = Dict(action_mask=MultiBinary(3), x=VECTOR)
    inside = load_bytes(bundle_of(make_policy("ppo", space, Discrete(3), has_masks=True), space)[0])
    obs = {"action_mask": np.array([0, 1, 0], np.int8), "x": np.zeros(3, np.float32)}
    assert inside.act(obs) == 1
    plain = load_bytes(bundle_of(make_policy("sac", VECTOR, BOUNDED), VECTOR)[0])
    with pytest.raises(ConfigError, match="does not obey action masks"):
        plain.act(np.zeros(3), mask=np.ones(2))


class LayersEncoder(nn.Module):
    """An encoder of torch's layers, one after the other."""

    def __init__(self, obs: ObsSpec) -> None:
        super().__init__()
        self.num_features = 6
        self.first = nn.Sequential(
            nn.Linear(obs.num_features, 6), nn.LayerNorm(6), nn.SiLU(), nn.Dropout(0.5)
        )
        self.second, self.norm = nn.Linear(6, 6, bias=False), nn.BatchNorm1d(6)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.second(self.first(obs))))


class ProductEncoder(nn.Module):
    """An encoder that multiplies two layers, which a bundle cannot hold."""

    def __init__(self, obs: ObsSpec) -> None:
        super().__init__()
        self.num_features = 4
        self.left, self.right = nn.Linear(obs.num_features, 4), nn.Linear(obs.num_features, 4)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.left(obs) * self.right(obs)


class PowerPPO(PPOAlgorithm):
    """An algorithm with an `act` of its own."""

    def act(self, obs: Any, state: Any = None, *, explore: bool, mask: Any = None) -> Any:
        return super().act(obs**2, state, explore=explore, mask=mask)


def test_what_cannot_be_described_is_refused_with_the_reason() -> None:
    with pytest.raises(
        UndescribableError, match="ProductEncoder, a network of your own, uses mul, which a bundle"
    ):
        describe(make_policy("sac", VECTOR, BOUNDED, network=f"{__name__}:ProductEncoder"))
    algorithm = make_policy("ppo", VECTOR, BOUNDED)
    algorithm.__class__ = PowerPPO
    with pytest.raises(UndescribableError, match="PowerPPO has an `act` of its own"):
        describe(algorithm)


def test_a_description_that_acts_otherwise_is_not_written() -> None:
    algorithm = make_policy("ppo", VECTOR, BOUNDED)
    algorithm.policy.register_forward_hook(
        lambda module, inputs, output: (output[0] + 0.1, output[1])
    )
    message = "its operations in NumPy do not act like it: golden pair 0"
    with pytest.raises(BundleError, match=message):
        bundle_of(algorithm, VECTOR)


def test_weights_that_are_not_numbers_are_refused() -> None:
    algorithm = make_policy("sac", VECTOR, BOUNDED)
    with torch.no_grad():
        algorithm.actor.network.weights[0][0, 0] = float("nan")
    with pytest.raises(UndescribableError, match="the policy's weights hold NaN"):
        describe(algorithm)


def test_golden_pairs_hold_extremes_and_every_category() -> None:
    space = Dict(a=Box(-3, 7, (2,), np.float32), b=Discrete(6, start=1))
    golden = bundle_of(make_policy("ppo", space, BOUNDED), space)[2]
    assert set(golden["obs.1"].tolist()) == set(range(1, 7))
    values = set(golden["obs.0"].reshape(-1).tolist())
    assert {0.0, -3.0, 7.0, 1e6, -1e6} <= values

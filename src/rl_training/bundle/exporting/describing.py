"""The deterministic policy of an algorithm as spaces and a list of operations.

The way from observations to actions is found by the algorithm's `act`, and by the class of its networks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.c51 import CategoricalQNetwork
from rl_training.algorithms.cql import DiscreteCQLAlgorithm
from rl_training.algorithms.dqn import DQNAlgorithm
from rl_training.algorithms.on_policy import OnPolicyActorCritic
from rl_training.algorithms.replay import ReplayAlgorithm
from rl_training.algorithms.td3 import TD3Algorithm
from rl_training.bundle.exporting.modules import (
    Observation,
    OperationList,
    UndescribableError,
    encode,
    mlp,
    normalize,
    policy_network,
    read_observation,
    remember,
)
from rl_training.bundle.reading import Array
from rl_training.models.actor_critic import ActorCritic
from rl_training.models.critics import QNetwork, QuantileQNetwork
from rl_training.models.memory import EnsembleMemory, RecurrentActorCritic
from rl_training.models.policies import (
    CategoricalPolicy,
    DeterministicPolicy,
    Policy,
    SquashedGaussianPolicy,
    TanhMeanGaussianPolicy,
)
from rl_training.spaces.actions import ActionKind, ActionSpec
from rl_training.spaces.given import ObsLeaf

SQUASHED = (SquashedGaussianPolicy, DeterministicPolicy, TanhMeanGaussianPolicy)


@dataclass(frozen=True)
class Description:
    """A policy as the content of a bundle."""

    spaces: dict[str, Any]
    operations: list[dict[str, Any]]
    tensors: dict[str, Array]


def describe(algorithm: Algorithm[Any]) -> Description:
    """The deterministic policy of an algorithm, or an `UndescribableError` that says what a bundle cannot hold."""
    ops, spaces = OperationList(), algorithm.spaces
    describe_policy = ACTING.get(type(algorithm).act)
    if describe_policy is None:
        raise UndescribableError(
            f"{type(algorithm).__name__} has an `act` of its own, which cannot be written as operations: algorithms"
            " that inherit `act` from this package's can be exported"
        )
    outputs = describe_policy(ops, algorithm, read_observation(ops, spaces.obs))
    _finish(ops, outputs, spaces.action)
    obeys_masks = algorithm.obeys_masks and bool(spaces.action.choices)
    described = {
        "observation": [_leaf(leaf) for leaf in spaces.obs.parts],
        "action": _action(spaces.action),
        "mask_use": "none" if not obeys_masks else "required" if spaces.has_masks else "optional",
        "state_size": len(state_columns(algorithm)),
    }
    return Description(described, ops.operations, ops.tensors)


def state_columns(algorithm: Algorithm[Any]) -> list[int]:
    """Columns of the algorithm's policy state that the policy reads: hidden vector and cell of its own memory."""
    memory = _memory_of(algorithm)
    if memory is None:
        return []
    columns = np.arange(memory.state_size).reshape(-1, memory._num_members, memory._spec.size)
    return [int(column) for column in columns[:, 0].reshape(-1)]


def _memory_of(algorithm: Algorithm[Any]) -> EnsembleMemory | None:
    policy = getattr(algorithm, "policy", None)
    if not isinstance(policy, RecurrentActorCritic):
        return None
    return cast("EnsembleMemory", policy.memories[0])


def _actor_critic(ops: OperationList, algorithm: Any, obs: Observation) -> str:
    """Outputs of the policy of PPO and A2C."""
    policy = algorithm.policy
    if type(policy) not in (ActorCritic, RecurrentActorCritic):
        raise _unknown(policy)
    features = encode(ops, normalize(ops, obs, policy.preprocessor), policy.features)
    memory = _memory_of(algorithm)
    if memory is not None:
        features = remember(ops, features, memory)
    return policy_network(ops, features, policy.networks)


def _actor(ops: OperationList, algorithm: Any, obs: Observation) -> str:
    """Outputs of the actor of an off-policy or offline algorithm: actions in [-1, 1], or logits."""
    actor: Policy = algorithm.actor
    if type(actor) not in (*SQUASHED, CategoricalPolicy):
        raise _unknown(actor)
    features = encode(ops, normalize(ops, obs, algorithm.preprocessor), actor.features)
    action = algorithm.spaces.action
    outputs = mlp(ops, features, actor.network, sum(action.choices) or action.num_components)
    return outputs if type(actor) is CategoricalPolicy else ops.add("tanh", outputs)


def _q_values(ops: OperationList, algorithm: Any, obs: Observation) -> str:
    """Q-values of the discrete actions."""
    network = algorithm.network
    if type(network) not in (QNetwork, QuantileQNetwork, CategoricalQNetwork):
        raise _unknown(network)
    features = encode(ops, normalize(ops, obs, algorithm.preprocessor), network.features)
    outputs = mlp(ops, features, network.network)
    width = 1
    if isinstance(network, QuantileQNetwork):
        width = network._num_quantiles
    elif isinstance(network, CategoricalQNetwork):
        width = len(network.support)
    if network._dueling:
        outputs = ops.add("dueling", outputs, width=width)
    if isinstance(network, QuantileQNetwork):
        return ops.add("quantile_mean", outputs, width=width)
    if isinstance(network, CategoricalQNetwork):
        return ops.add("categorical_mean", outputs, support=network.support)
    return outputs


ACTING: dict[Any, Callable[[OperationList, Any, Observation], str]] = {
    OnPolicyActorCritic.act: _actor_critic,
    ReplayAlgorithm.act: _actor,
    TD3Algorithm.act: _actor,
    DQNAlgorithm.act: _q_values,
    DiscreteCQLAlgorithm.act: _q_values,
}
"""The deterministic policy behind each `act` of the package; algorithms that inherit it have the same."""


def _finish(ops: OperationList, outputs: str, action: ActionSpec) -> None:
    """From outputs to an action of the environment, as `ActionSpec.to_env` does."""
    if action.kind is ActionKind.CONTINUOUS:
        low, high = action.low.reshape(-1), action.high.reshape(-1)
        if action.is_bounded:
            outputs = ops.add("to_bounds", outputs, low=low, high=high)
        value = ops.add("clip", outputs, low=low, high=high)
    else:
        value = ops.add("argmax", ops.add("mask", outputs, "mask"), choices=list(action.choices))
        value = ops.add("offset", value, start=_whole(action.start))
    ops.add_named("cast", (value,), ("action",), shape=list(action.shape), dtype=action.dtype)


def _leaf(leaf: ObsLeaf) -> dict[str, Any]:
    lists = {"path": leaf.path, "shape": leaf.shape, "choices": leaf.choices, "start": leaf.start}
    return {**{name: list(values) for name, values in lists.items()}, "dtype": leaf.dtype}


def _action(action: ActionSpec) -> dict[str, Any]:
    shared = {"shape": list(action.shape), "dtype": action.dtype}
    if action.choices:
        choices, start = list(action.choices), _whole(action.start)
        return {"kind": "discrete", **shared, "choices": choices, "start": start}
    low, high = (
        [value if np.isfinite(value) else None for value in bound.reshape(-1).tolist()]
        for bound in (action.low, action.high)
    )
    return {"kind": "continuous", **shared, "low": low, "high": high}


def _whole(start: Array) -> list[int]:
    return [int(value) for value in np.asarray(start).reshape(-1)]


def _unknown(network: Any) -> UndescribableError:
    return UndescribableError(
        f"{type(network).__name__} is a network that a bundle does not know: networks of rl_training.models can be"
        " exported, with an encoder of yours before them (algo_kwargs.network)"
    )

"""Initial weights of a new run: the networks of another run, or of a saved policy, that fit its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from rl_training.algorithms.base import Algorithm
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpointing import (
    CheckpointState,
    load_checkpoint,
    resolve_checkpoint,
)
from rl_training.experiment.config import TrainConfig
from rl_training.models.actor_critic import VALUE_PREFIXES, ActorCritic, split_networks
from rl_training.runtime.resuming.saved_state import translate_state_errors
from rl_training.runtime.resuming.trust import read_spaces

POLICY_NAMES = ("policy", "actor", "network")
"""Attributes of an algorithm that hold the network it acts with: actor-critics, actors, Q-networks."""
PREPROCESSOR = "preprocessor"
"""Attribute of the algorithms that normalize observations outside their networks."""
TARGET = "target_"
Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class InitialWeights:
    """Weights for the networks of a new run, and the checkpoint they come from."""

    checkpoint: Path
    algo: str
    global_step: int
    taken: Mapping[str, Weights]
    """Weights by the name of the network that receives them."""
    left: Mapping[str, str]
    """Why a network of the new run keeps its random weights, by its name."""

    @property
    def has_policy(self) -> bool:
        """Whether the network that acts is among them."""
        return policy_name(self.taken) is not None

    def load_into(self, algorithm: Algorithm[Any]) -> None:
        """Copy the weights; optimizers, counters and random generators are a new run's."""
        members = algorithm.stateful_members()
        for name, weights in self.taken.items():
            members[name].load_state_dict(dict(weights))

    def describe(self) -> list[str]:
        """Messages for the user: the networks that were copied, and those that keep their random weights."""
        source = f"'{self.checkpoint}' ({self.algo}, step {self.global_step:,})"
        lines = [f"initial weights of {', '.join(self.taken)} from {source}"]
        lines += [
            f"random initial weights of {name}: {reason}" for name, reason in self.left.items()
        ]
        if self.has_policy and "critic" in self.left:
            lines.append(
                "WARNING: updates by a critic with random weights change the policy for the worse at first"
            )
        return lines

    def metadata(self) -> dict[str, Any]:
        """The entry `init_from` of `metadata.json`."""
        return {
            "checkpoint": str(self.checkpoint.resolve()),
            "algo": self.algo,
            "global_step": self.global_step,
            "taken": list(self.taken),
            "left": dict(self.left),
        }


def policy_name(members: Iterable[str]) -> str | None:
    """Name of the member that acts; None if no member has a known name."""
    known = set(members)
    return next((name for name in POLICY_NAMES if name in known), None)


def read_initial_weights(config: TrainConfig, algorithm: Algorithm[Any]) -> InitialWeights:
    """The weights that `init_from` provides for `algorithm`; a `ConfigError` if none fits."""
    assert config.init_from is not None
    try:
        checkpoint = resolve_checkpoint(config.init_from)
    except CheckpointError as error:
        raise ConfigError(f"bad value for init_from: {error}") from None
    state = load_checkpoint(checkpoint, include_buffer=False)
    if not read_spaces(state.algorithm_state).equals(algorithm.spaces):
        raise _refusal(config, "its observation or action space differs from this run's")
    saved, networks = _saved_members(state), _networks_of(algorithm)
    acts = policy_name(networks)
    wanted = [
        name for name in networks if config.init_parts == "all" or name in (acts, f"{TARGET}{acts}")
    ]
    taken: dict[str, Weights] = {}
    left = {name: "init_parts is policy" for name in networks if name not in wanted}
    for name in wanted:
        found, own_value = _find_saved(name, acts, saved), _value_weights(networks[name])
        if found is not None and own_value:
            found = split_networks(found)
            if config.init_parts == "policy":
                found = {
                    key: one for key, one in found.items() if not key.startswith(VALUE_PREFIXES)
                }
                found |= own_value
                left[f"the value function of {name}"] = "init_parts is policy"
        reason = (
            "the checkpoint has no such network"
            if found is None
            else _misfit(networks[name], found)
        )
        if found is None or reason is not None:
            left[name] = str(reason)
        else:
            taken[name] = found
    if not taken:
        raise _refusal(
            config,
            "; ".join(f"{name}: {left[name]}" for name in wanted) or "the algorithm has no network",
        )
    taken |= _preprocessor_of(config, algorithm, saved)
    algo, step = f"{state.config.get('algo')!s:.100}", state.metadata.get("global_step", 0)
    return InitialWeights(checkpoint, algo, step if isinstance(step, int) else 0, taken, left)


def _saved_members(state: CheckpointState) -> dict[str, Weights]:
    """State of the members that hold tensors by name: networks, not optimizers."""
    with translate_state_errors():
        members = state.algorithm_state["members"].items()
        return {
            name: value
            for name, value in members
            if all(isinstance(item, Tensor) for item in value.values())
        }


def _networks_of(algorithm: Algorithm[Any]) -> dict[str, nn.Module]:
    """The members with weights of at least one dimension: not an entropy temperature, nor a reward normalizer."""
    members = algorithm.stateful_members().items()
    modules = {name: member for name, member in members if isinstance(member, nn.Module)}
    return {
        name: one
        for name, one in modules.items()
        if any(weight.dim() for weight in one.parameters())
    }


def _value_weights(module: nn.Module) -> dict[str, Tensor]:
    """Weights of the value function, where it is a network beside the policy."""
    weights = module.state_dict() if isinstance(module, ActorCritic) else {}
    return {name: weight for name, weight in weights.items() if name.startswith(VALUE_PREFIXES)}


def _find_saved(name: str, acts: str | None, saved: Mapping[str, Weights]) -> Weights | None:
    """Saved weights for a network: of that name, of the network that acts, or for a target of its online network."""
    online = name.removeprefix(TARGET)
    source = policy_name(saved) if online == acts else online
    prefix = name[: len(name) - len(online)]
    return saved.get(f"{prefix}{source}", saved.get(str(source)))


def _misfit(module: nn.Module, saved: Weights) -> str | None:
    """Why saved weights do not fit a network; None if they do."""
    own = module.state_dict()
    for name in sorted(own.keys() ^ saved.keys()):
        return f"only {'this run' if name in own else 'the checkpoint'} has '{name:.100}'"
    for name, weight in own.items():
        if weight.shape != saved[name].shape:
            return f"'{name}' is {list(weight.shape)} here and {list(saved[name].shape)} in the checkpoint"
    return None


def _preprocessor_of(
    config: TrainConfig, algorithm: Algorithm[Any], saved: Mapping[str, Weights]
) -> dict[str, Weights]:
    """Statistics of the observations, with which the copied networks were trained."""
    own = algorithm.stateful_members().get(PREPROCESSOR)
    statistics = saved.get(PREPROCESSOR, {})
    if (own.state_dict().keys() if own is not None else set()) != statistics.keys():
        raise _refusal(
            config,
            "observations are normalized in one of the two runs only: set normalize_obs as there",
        )
    return {PREPROCESSOR: statistics} if statistics else {}


def _refusal(config: TrainConfig, reason: str) -> ConfigError:
    return ConfigError(
        f"the networks of init_from '{config.init_from}' do not fit this run: {reason}"
    )

"""The networks of each algorithm of SB3: the sizes of their layers, and their places in ours."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl_training.bundle.sb3.networks import (
    Part,
    Placement,
    Weights,
    parameters_of,
    place_cnn,
    place_layer,
    place_layers,
    scale_inputs,
    stems_of,
    widths,
)
from rl_training.bundle.sb3.settings import PolicySettings
from rl_training.errors import CheckpointError
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.spec import Spaces


@dataclass(frozen=True)
class Inputs:
    """How the inputs of SB3's networks differ from ours."""

    feature_scale: Tensor | None = None
    """SB3's features over ours, [features]; None: they are the same."""
    pixel_scale: float = 1.0
    """The same for the pixels of an image."""

    def of_critic(self, num_actions: int) -> Tensor | float:
        """The scale of features that are followed by the action."""
        return 1.0 if self.feature_scale is None else torch.cat([self.feature_scale, torch.ones(num_actions)])

    @property
    def of_policy(self) -> Tensor | float:
        """The scale of the features."""
        return 1.0 if self.feature_scale is None else self.feature_scale


class Layout(ABC):
    """The networks of one model."""

    acting: str
    """Prefix of the tensors that decide how the policy acts."""
    ignored: tuple[str, ...] = ()
    """Prefixes of tensors that are copies of others, or of exploration only."""
    cnn: str
    """Prefix of the CNN that the policy reads images with."""

    def __init__(self, weights: Weights, settings: PolicySettings) -> None:
        self.weights, self.settings = weights, settings
        self.left: dict[str, str] = {}
        """Why a network of ours is not filled, by its name."""

    @property
    def has_cnn(self) -> bool:
        """Whether the policy reads an image."""
        return f"{self.cnn}cnn.0.weight" in self.weights

    @abstractmethod
    def sizes(self, spaces: Spaces) -> dict[str, Any]:
        """Settings of our algorithm that follow from the shapes of the weights."""

    @abstractmethod
    def parts(self, spaces: Spaces, inputs: Inputs) -> list[Part]:
        """Our networks, and where their weights come from; the first is the one that acts."""


class ActorCriticLayout(Layout):
    """PPO and A2C: policy and value function, perhaps with shared layers before both."""

    acting = ""
    ignored = ("pi_features_extractor.", "vf_features_extractor.", "log_std")
    cnn = "features_extractor."

    def __init__(self, weights: Weights, settings: PolicySettings) -> None:
        super().__init__(weights, settings)
        prefix = "mlp_extractor."
        self.shared = stems_of(weights, f"{prefix}shared_net.")
        self.policy = [*self.shared, *stems_of(weights, f"{prefix}policy_net."), "action_net"]
        self.value = [*self.shared, *stems_of(weights, f"{prefix}value_net."), "value_net"]
        for name, tensor in weights.items():
            alias = name.removeprefix("vf_")
            if alias != name and alias in weights and not torch.equal(tensor, weights[alias]):
                raise CheckpointError("policy and value function read images with two CNNs: no counterpart")

    def sizes(self, spaces: Spaces) -> dict[str, Any]:
        """Hidden layers of the policy and of the value function."""
        policy, value = (widths(self.weights, stems[:-1]) for stems in (self.policy, self.value))
        if policy == value:
            return {"hidden_sizes": list(policy)}
        return {"actor_hidden_sizes": list(policy), "critic_hidden_sizes": list(value)}

    def parts(self, spaces: Spaces, inputs: Inputs) -> list[Part]:
        """One network with both."""
        is_stacked = "hidden_sizes" in self.sizes(spaces)
        names = ("networks", "networks") if is_stacked else ("networks.policy", "networks.value")
        places = (0, 1) if is_stacked else (None, None)
        placed = place_cnn(self.weights, self.cnn, inputs.pixel_scale)
        for stems, name, member in zip((self.policy, self.value), names, places, strict=True):
            placed += place_layers(stems[:-1], name, member=member)
        last = {"number": len(self.policy) - 1, "member": places[0]}
        head, constants = self._place_head(spaces, names[0], last)
        value_outputs = slice(0, 1) if is_stacked else slice(None)
        placed += place_layer("value_net", names[1], len(self.value) - 1, member=places[1], outputs=value_outputs)
        trained = parameters_of(self.weights, "", aliases=self.ignored[:2])
        optimizer = None if self.shared else "optimizer"
        placed = scale_inputs([*placed, *head], inputs.of_policy)
        return [Part("policy", placed, constants, optimizer, "policy", trained)]

    def _place_head(self, spaces: Spaces, name: str, last: dict[str, Any]) -> tuple[list[Placement], list[Any]]:
        """Placements of the policy's output layer, and constants."""
        action = spaces.action
        if action.kind is ActionKind.CONTINUOUS:
            return self._place_gaussian(spaces, name, last), self._constant_log_std(spaces)
        num_outputs = len(self.weights["action_net.weight"])
        if action.kind is ActionKind.MULTI_DISCRETE and num_outputs == action.num_components:  # MultiBinary
            number, member = last["number"], last["member"]
            off = (member,) if member is not None else ()
            zeros = [(f"{name}.{kind}_{number}", off, 0.0) for kind in ("weight", "bias")]
            return place_layer("action_net", name, outputs=slice(1, None, 2), **last), zeros
        return place_layer("action_net", name, **last), []

    def _place_gaussian(self, spaces: Spaces, name: str, last: dict[str, Any]) -> list[Placement]:
        """The mean in our model space: [-1, 1] is mapped onto the bounds, which SB3's means are compared with."""
        center, half = _bounds(spaces)
        last = {**last, "weight_scale": (1.0 / half)[:, None], "bias_scale": 1.0 / half, "offset": -center / half}
        placed = place_layer("action_net", name, **last)
        log_std = self.weights["log_std"]
        if log_std.dim() == 1:
            placed.append(Placement("log_std", "head.log_std", offset=-half.log()))
        return placed

    def _constant_log_std(self, spaces: Spaces) -> list[Any]:
        """With gSDE, the initial standard deviation: it depends on the observation there."""
        initial = self.settings.get("log_std_init", 0.0)
        return [("head.log_std", (), float(initial) - _bounds(spaces)[1].log())]


class QLayout(Layout):
    """DQN and QR-DQN: a Q-network and its target."""

    def __init__(self, weights: Weights, settings: PolicySettings) -> None:
        super().__init__(weights, settings)
        self.name = "quantile_net" if any(name.startswith("quantile_net.") for name in weights) else "q_net"
        self.acting, self.cnn = f"{self.name}.", f"{self.name}.features_extractor."
        self.stems = stems_of(weights, f"{self.name}.{self.name}.")
        if not self.stems:
            raise CheckpointError("'policy.pth' of the model has no Q-network")

    def sizes(self, spaces: Spaces) -> dict[str, Any]:
        """Hidden layers, and the number of quantiles."""
        sizes: dict[str, Any] = {"hidden_sizes": list(widths(self.weights, self.stems[:-1]))}
        if self.name == "quantile_net":
            sizes["num_quantiles"] = len(self.weights[f"{self.stems[-1]}.weight"]) // spaces.action.choices[0]
        return sizes

    def parts(self, spaces: Spaces, inputs: Inputs) -> list[Part]:
        """The network and its target."""
        trained = parameters_of(self.weights, f"{self.name}.", f"{self.name}_target.")
        online = Part("network", self._place(spaces, inputs, ""), (), "optimizer", "policy", trained)
        return [online, Part("target_network", self._place(spaces, inputs, "_target"))]

    def _place(self, spaces: Spaces, inputs: Inputs, suffix: str) -> list[Placement]:
        prefix = f"{self.name}{suffix}."
        stems = [stem.replace(f"{self.name}.", prefix, 1) for stem in self.stems]
        placed = place_cnn(self.weights, f"{prefix}features_extractor.", inputs.pixel_scale)
        placed += place_layers(stems[:-1], "network")
        rows = None
        if self.name == "quantile_net":  # SB3's outputs are [quantiles, actions], ours [actions, quantiles]
            num_outputs, num_actions = len(self.weights[f"{stems[-1]}.weight"]), spaces.action.choices[0]
            if num_outputs % num_actions == 0:
                rows = torch.arange(num_outputs).view(-1, num_actions).T.reshape(-1)
        placed += place_layer(stems[-1], "network", len(stems) - 1, rows=rows)
        return scale_inputs(placed, inputs.of_policy)


def critics_of(weights: Weights, prefix: str) -> list[str]:
    """Prefixes of the critics of an ensemble."""
    pattern = re.compile(re.escape(prefix) + r"(qf\d{1,3})\..*")
    names = dict.fromkeys(match[1] for match in filter(None, map(pattern.fullmatch, weights)))
    return [f"{prefix}{name}." for name in names]


def place_critics(weights: Weights, prefix: str, inputs: Inputs, num_actions: int) -> list[Placement]:
    """Placements of an ensemble of critics with its CNN."""
    placed = place_cnn(weights, f"{prefix}features_extractor.", inputs.pixel_scale)
    for member, critic in enumerate(critics_of(weights, prefix)):
        placed += place_layers(stems_of(weights, critic), "networks", member=member)
    return scale_inputs(placed, inputs.of_critic(num_actions))


def critic_sizes(weights: Weights) -> tuple[int, ...]:
    """Hidden layers of the critics, which all have the same."""
    sizes = {widths(weights, stems_of(weights, critic)[:-1]) for critic in critics_of(weights, "critic.")}
    if len(sizes) != 1:
        raise CheckpointError("'policy.pth' of the model has no critics, or critics of several shapes")
    return sizes.pop()


def hidden_sizes(actor: Sequence[int], critic: Sequence[int]) -> dict[str, Any]:
    """The settings for these hidden layers."""
    if tuple(actor) == tuple(critic):
        return {"hidden_sizes": list(actor)}
    return {"actor_hidden_sizes": list(actor), "critic_hidden_sizes": list(critic)}


def _bounds(spaces: Spaces) -> tuple[Tensor, Tensor]:
    """Center and half width of the actions in the environment's units; 0 and 1 where they are not bounded."""
    action = spaces.action
    if not action.is_bounded:
        return torch.zeros(action.num_components), torch.ones(action.num_components)
    low, high = (torch.from_numpy(bound.reshape(-1)) for bound in (action.low, action.high))
    half = ((high - low) / 2.0).clamp(min=1e-12)
    return ((high + low) / 2.0).float(), half.float()

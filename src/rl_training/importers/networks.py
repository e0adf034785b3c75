"""The networks of SB3's algorithms: which of their tensors goes where in ours, and how it is rescaled."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_training.errors import CheckpointError
from rl_training.importers.settings import PolicySettings
from rl_training.models.critics import EPSILON
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.spec import Spaces

Weights = Mapping[str, Tensor]
Index = tuple[int | slice, ...]
Constant = tuple[str, Index, Tensor | float]
ALL = slice(None)
BUFFERS = ("ra_mean", "ra_var", "steps")
"""Endings of the names of tensors that no optimizer trains."""
CONVOLUTIONS = ("cnn.0", "cnn.2", "cnn.4", "linear.0")
"""The layers of SB3's NatureCNN."""
ALIASES = ("pi_features_extractor.", "vf_features_extractor.")
"""Copies of `features_extractor.` in an actor-critic policy."""
SDE_CLIP = 2.0
"""Default bound of the mean of a policy with gSDE."""


@dataclass(frozen=True)
class Placement:
    """One tensor of SB3 and its place: target[index] = source[rows] * scale + offset, transposed if `transpose`."""

    source: str
    target: str
    index: Index = ()
    transpose: bool = False
    scale: Tensor | float = 1.0
    offset: Tensor | float = 0.0
    rows: Tensor | None = None

    def put(self, value: Tensor, into: dict[str, Tensor]) -> None:
        """Write a value, which has the shape of the source, to its place."""
        value = value if self.rows is None else value[self.rows]
        value = value.T if self.transpose else value
        place = into[self.target][self.index] if self.index else into[self.target]
        if place.shape != value.shape:
            raise CheckpointError(
                f"'{self.source}' of the model is {list(value.shape)}, but {list(place.shape)} is needed for this"
                " environment: check --env and env_kwargs"
            )
        place.copy_(value)


@dataclass(frozen=True)
class Model:
    """The networks of a model, and what they read and return."""

    weights: Weights
    settings: PolicySettings
    spaces: Spaces
    feature_scale: Tensor | None = None
    """SB3's features over ours, [features]; None: they are the same."""
    pixel_scale: float = 1.0
    """The same for the pixels of an image."""
    is_folded: bool = False
    """Whether batch normalizations of the actor became a part of its layers, whose moments then do not fit."""

    def has(self, stem: str) -> bool:
        """Whether there is a layer of this name."""
        return f"{stem}.weight" in self.weights

    def stems(self, prefix: str) -> list[str]:
        """Names of the linear layers of an `nn.Sequential`, in order; a layer of another kind is refused."""
        stems = []
        for stem, kinds in self._numbered(prefix).items():
            is_linear = kinds == {"weight", "bias"} and self.weights[f"{stem}.weight"].dim() == 2
            if not is_linear and kinds != {"scale", "bias", *BUFFERS}:
                raise CheckpointError(
                    f"layer '{stem}' of the model is not a linear layer: no counterpart"
                )
            if is_linear:
                stems.append(stem)
        return stems

    def norms(self, prefix: str) -> list[str]:
        """Names of the batch normalizations of an `nn.Sequential`, in order."""
        return [stem for stem, kinds in self._numbered(prefix).items() if "ra_mean" in kinds]

    def critics(self, prefix: str) -> list[str]:
        """Prefixes of the critics of an ensemble."""
        pattern = re.compile(re.escape(prefix) + r"qf\d{1,3}\.")
        return list(dict.fromkeys(match[0] for match in map(pattern.match, self.weights) if match))

    def widths(self, stems: Sequence[str]) -> list[int]:
        """Number of outputs of each layer, each of which reads the outputs of the one before."""
        shapes = [self.weights[f"{stem}.weight"].shape for stem in stems]
        for before, after in pairwise(shapes):
            if before[0] != after[1]:
                raise CheckpointError(
                    f"a layer of the model reads {after[1]} of {before[0]} outputs: it is damaged"
                )
        return [shape[0] for shape in shapes]

    def trained(self, *prefixes: str) -> list[str]:
        """Names of the trained tensors with one of these prefixes, in the order of SB3's optimizer."""
        names = [name for name in self.weights if name.startswith(prefixes)]
        return [
            name for name in names if not name.startswith(ALIASES) and not name.endswith(BUFFERS)
        ]

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Center and half width of the actions in the environment's units; 0 and 1 where they are not bounded."""
        action = self.spaces.action
        if not action.is_bounded:
            return torch.zeros(action.num_components), torch.ones(action.num_components)
        low, high = (torch.from_numpy(bound.reshape(-1)) for bound in (action.low, action.high))
        half = ((high - low) / 2.0).clamp(min=1e-12)
        return ((high + low) / 2.0).float(), half.float()

    def _numbered(self, prefix: str) -> dict[str, set[str]]:
        """The tensors of each numbered layer, in the order of the numbers."""
        pattern = re.compile(re.escape(prefix) + r"(\d{1,4})\.(\w+)")
        layers: dict[int, set[str]] = {}
        for match in filter(None, map(pattern.fullmatch, self.weights)):
            layers.setdefault(int(match[1]), set()).add(match[2])
        return {f"{prefix}{number}": layers[number] for number in sorted(layers)}

    def layer(
        self,
        stem: str,
        target: str,
        number: int,
        *,
        member: int | None = None,
        outputs: slice = ALL,
        scale: Tensor | float = 1.0,
        offset: Tensor | float = 0.0,
        rows: Tensor | None = None,
        num_actions: int = 0,
    ) -> list[Placement]:
        """Placements of a layer's weight and bias; `member` is the place in an ensemble, whose weights are [in, out].

        The first layer is divided by the scale of the features; `num_actions` inputs after them are not scaled.
        """
        weight_scale = scale[:, None] if isinstance(scale, Tensor) else scale
        if number == 0 and self.feature_scale is not None:
            weight_scale = weight_scale * torch.cat([self.feature_scale, torch.ones(num_actions)])
        is_member = member is not None
        weight_index: Index = (outputs,) if member is None else (member, ALL, outputs)
        bias_index: Index = (outputs,) if member is None else (member, 0, outputs)
        names = f"{target}.weight_{number}", f"{target}.bias_{number}"
        weight = Placement(
            f"{stem}.weight", names[0], weight_index, is_member, weight_scale, rows=rows
        )
        return [weight, Placement(f"{stem}.bias", names[1], bias_index, False, scale, offset, rows)]

    def layers(
        self, stems: Sequence[str], target: str, member: int | None = None, **options: Any
    ) -> list[Placement]:
        """Placements of consecutive layers."""
        placed: list[Placement] = []
        for number, stem in enumerate(stems):
            placed += self.layer(stem, target, number, member=member, **options)
        return placed

    def cnn(self, prefix: str) -> list[Placement]:
        """Placements of a NatureCNN; without one in the model, none."""
        placed = []
        for number, stem in enumerate(CONVOLUTIONS if self.has(f"{prefix}cnn.0") else ()):
            scale = self.pixel_scale if number == 0 else 1.0
            placed.append(
                Placement(
                    f"{prefix}{stem}.weight", f"features.images.0.weights.{number}", scale=scale
                )
            )
            placed.append(Placement(f"{prefix}{stem}.bias", f"features.images.0.biases.{number}"))
        return placed


class Placed(NamedTuple):
    """The content of one of our networks."""

    placements: list[Placement]
    constants: Sequence[Constant] = ()
    is_trained_alike: bool = True
    """Whether the moments of its optimizer fit."""


def _actor_critic_stems(model: Model) -> tuple[list[str], list[str], list[str]]:
    """Layers of the policy and of the value function, each with the shared ones before, and the shared ones."""
    shared = model.stems("mlp_extractor.shared_net.")
    policy = [*shared, *model.stems("mlp_extractor.policy_net."), "action_net"]
    return policy, [*shared, *model.stems("mlp_extractor.value_net."), "value_net"], shared


def _place_actor_critic(model: Model, prefix: str) -> Placed:
    """PPO and A2C: one network with policy and value function."""
    policy, value, shared = _actor_critic_stems(model)
    is_stacked = model.widths(policy[:-1]) == model.widths(value[:-1])
    name, value_name = (
        ("networks", "networks") if is_stacked else ("networks.policy", "networks.value")
    )
    member, value_member = (0, 1) if is_stacked else (None, None)
    placed = model.cnn("features_extractor.")
    placed += model.layers(policy[:-1], name, member) + model.layers(
        value[:-1], value_name, value_member
    )
    outputs = slice(0, 1) if is_stacked else ALL
    placed += model.layer(
        "value_net", value_name, len(value) - 1, member=value_member, outputs=outputs
    )
    action, number = model.spaces.action, len(policy) - 1
    head: dict[str, Any] = {"member": member}
    constants: list[Constant] = []
    if (
        action.kind is ActionKind.CONTINUOUS
    ):  # [-1, 1] is mapped onto the bounds, in whose units SB3's means are
        center, half = model.bounds()
        head |= {"scale": 1.0 / half, "offset": -center / half}
        constants.append(("head.log_std", (), model.settings.get("log_std_init", 0.0) - half.log()))
        if model.weights["log_std"].dim() == 1:  # with gSDE it depends on the observation
            placed.append(Placement("log_std", "head.log_std", offset=-half.log()))
    elif (
        action.kind is ActionKind.MULTI_DISCRETE
        and len(model.weights["action_net.weight"]) == action.num_components
    ):
        head["outputs"] = slice(
            1, None, 2
        )  # MultiBinary: one logit for each bit, and 0 for its absence
        off = () if member is None else (member,)
        constants += [(f"{name}.{kind}_{number}", off, 0.0) for kind in ("weight", "bias")]
    return Placed(
        [*placed, *model.layer("action_net", name, number, **head)], constants, not shared
    )


def _place_q_network(model: Model, prefix: str) -> Placed:
    """DQN and QR-DQN, whose outputs [quantiles, actions] are [actions, quantiles] here."""
    name = prefix.removesuffix(".").removesuffix("_target")
    *hidden, last = model.stems(f"{prefix}{name}.")
    rows, num_outputs = None, len(model.weights[f"{last}.weight"])
    num_actions = model.spaces.action.choices[0]
    if name == "quantile_net" and num_outputs % num_actions == 0:
        rows = torch.arange(num_outputs).view(-1, num_actions).T.reshape(-1)
    placed = model.cnn(f"{prefix}features_extractor.") + model.layers(hidden, "network")
    return Placed([*placed, *model.layer(last, "network", len(hidden), rows=rows)])


def _place_deterministic(model: Model, prefix: str) -> Placed:
    """The actor of TD3 and DDPG."""
    placed = model.cnn(f"{prefix}features_extractor.")
    return Placed(placed + model.layers(model.stems(f"{prefix}mu."), "network"))


def _gaussian_head(model: Model) -> tuple[str, bool, float]:
    """Name of the layer of the mean, whether exploration is gSDE, and the bound of the mean or 0."""
    mean = next((name for name in ("actor.mu.0", "actor.mu") if model.has(name)), "")
    has_sde = "actor.log_std" in model.weights
    clip = model.settings.get("clip_mean", SDE_CLIP) if mean == "actor.mu.0" else 0.0
    return mean, has_sde, clip


def _place_gaussian(model: Model, prefix: str) -> Placed:
    """The actor of SAC, TQC and CrossQ: mean and log standard deviation are the two halves of our outputs."""
    mean, has_sde, clip = _gaussian_head(model)
    latent = model.stems("actor.latent_pi.")
    count, number = model.spaces.action.num_components, len(latent)
    first, rest = slice(0, count), slice(count, None)
    placed = model.cnn("actor.features_extractor.") + model.layers(latent, "network")
    placed += model.layer(mean, "network", number, outputs=first, offset=clip)
    if not has_sde:
        placed += model.layer("actor.log_std", "network", number, outputs=rest)
        return Placed(placed, is_trained_alike=not model.is_folded)
    log_std = model.settings.get("log_std_init", -3.0)
    if not clip:
        constants: list[Constant] = [(f"network.weight_{number}", (rest,), 0.0)]
        return Placed(placed, [*constants, (f"network.bias_{number}", (rest,), log_std)], False)
    # clip(m, -c, c) = relu(m + c) - relu(m - c) - c: one more layer
    placed += model.layer(mean, "network", number, outputs=rest, offset=-clip)
    weight = torch.zeros(2 * count, 2 * count)
    weight[:count] = torch.cat([torch.eye(count), -torch.eye(count)], 1)
    bias = torch.cat([torch.full((count,), -clip), torch.full((count,), log_std)])
    constants = [
        (f"network.weight_{number + 1}", (), weight),
        (f"network.bias_{number + 1}", (), bias),
    ]
    return Placed(placed, constants, False)


def _place_critics(model: Model, prefix: str) -> Placed:
    """An ensemble of critics with its CNN; batch normalizations (CrossQ) have a place of their own."""
    placed, num_actions = (
        model.cnn(f"{prefix}features_extractor."),
        model.spaces.action.num_components,
    )
    eps = model.settings.get("batch_norm_eps", EPSILON)
    for member, critic in enumerate(model.critics(prefix)):
        norms = model.norms(critic)
        reader = (
            replace(model, feature_scale=None) if norms else model
        )  # the first normalization reads the features
        placed += reader.layers(model.stems(critic), "networks", member, num_actions=num_actions)
        for number, norm in enumerate(norms):
            scale: Tensor | float = 1.0
            if number == 0 and model.feature_scale is not None:
                scale = torch.cat([model.feature_scale, torch.ones(num_actions)])
            target, index, power = f"networks.norms.{number}", (member, 0), scale**-2
            placed.append(Placement(f"{norm}.scale", f"{target}.scale", index))
            placed.append(Placement(f"{norm}.bias", f"{target}.offset", index))
            placed.append(Placement(f"{norm}.ra_mean", f"{target}.mean", index, scale=1.0 / scale))
            offset = eps * power - EPSILON
            placed.append(
                Placement(f"{norm}.ra_var", f"{target}.variance", index, False, power, offset)
            )
    return Placed(placed)


class Part(NamedTuple):
    """One network of ours: where it is in both, and the optimizers of both."""

    member: str
    prefix: str
    place: Callable[[Model, str], Placed]
    optimizer: str | None = None
    """Our attribute; None: a target, which has none."""
    source_optimizer: str = ""
    trained: tuple[str, ...] = ()
    """Prefixes of the tensors that SB3's optimizer trains, in its order."""


def _hidden_sizes(actor: list[int], critic: list[int]) -> dict[str, Any]:
    if actor == critic:
        return {"hidden_sizes": actor}
    return {"actor_hidden_sizes": actor, "critic_hidden_sizes": critic}


def _actor_critic_sizes(model: Model, prefix: str) -> dict[str, Any]:
    policy, value, _ = _actor_critic_stems(model)
    return _hidden_sizes(model.widths(policy[:-1]), model.widths(value[:-1]))


def _q_sizes(model: Model, prefix: str) -> dict[str, Any]:
    stems = model.stems(f"{prefix}{prefix}")
    if not stems:
        raise CheckpointError("'policy.pth' of the model has no Q-network")
    *hidden, outputs = model.widths(stems)
    return {"hidden_sizes": hidden, "num_quantiles": outputs // model.spaces.action.choices[0]}


def _deterministic_sizes(model: Model, prefix: str) -> dict[str, Any]:
    stems = model.stems("actor.mu.")
    if not stems:
        raise CheckpointError("'policy.pth' of the model has no actor")
    return _sizes_with_critics(model, model.widths(stems[:-1]))


def _gaussian_sizes(model: Model, prefix: str) -> dict[str, Any]:
    """The clipped mean of gSDE is one more layer."""
    mean, has_sde, clip = _gaussian_head(model)
    if not mean or not (has_sde or model.has("actor.log_std")):
        raise CheckpointError("'policy.pth' of the model has no squashed Gaussian policy")
    if clip and model.settings.activation != "relu":
        raise CheckpointError(
            f"the mean of this gSDE policy is clipped to ±{clip:g}, which is imported for the activation relu only, not"
            f" for {model.settings.activation}"
        )
    latent = model.widths(model.stems("actor.latent_pi."))
    return _sizes_with_critics(
        model, [*latent, 2 * len(model.weights[f"{mean}.weight"])] if clip else latent
    )


def _sizes_with_critics(model: Model, actor: list[int]) -> dict[str, Any]:
    critics = [model.widths(model.stems(critic)) for critic in model.critics("critic.")]
    if not critics or any(critic[:-1] != critics[0][:-1] for critic in critics):
        raise CheckpointError(
            "'policy.pth' of the model has no critics, or critics of several shapes"
        )
    *critic, outputs = critics[0]
    return {**_hidden_sizes(actor, critic), "num_critics": len(critics), "num_quantiles": outputs}


POLICY = Part("policy", "", _place_actor_critic, "optimizer", "policy", ("",))
CRITIC = Part("critic", "critic.", _place_critics, "critic_optimizer", "critic", ("critic.",))
TARGET_CRITIC = Part("target_critic", "critic_target.", _place_critics)
GAUSSIAN = Part("actor", "actor.", _place_gaussian, "actor_optimizer", "actor", ("actor.",))
DETERMINISTIC = Part(
    "actor", "actor.", _place_deterministic, "actor_optimizer", "actor", ("actor.",)
)
TARGET_ACTOR = Part("target_actor", "actor_target.", _place_deterministic)


def _q_networks(name: str) -> tuple[Part, Part]:
    trained = (f"{name}.", f"{name}_target.")
    online = Part("network", f"{name}.", _place_q_network, "optimizer", "policy", trained)
    return online, Part("target_network", f"{name}_target.", _place_q_network)


@dataclass(frozen=True)
class Networks:
    """The networks of an algorithm."""

    sizes: Callable[[Model, str], dict[str, Any]]
    """Reads the hidden layers, and the numbers that `counts` names."""
    parts: tuple[Part, ...]
    """The first is the network that acts."""
    counts: tuple[str, ...] = ()
    """Settings of ours that follow from the shapes, beside the hidden layers."""
    has_norms: bool = False
    """Whether our critics have batch normalization."""

    def read_sizes(self, model: Model) -> dict[str, Any]:
        """Settings of our algorithm that follow from the shapes of the weights."""
        found = self.sizes(model, self.parts[0].prefix)
        return {
            name: value
            for name, value in found.items()
            if name.endswith("hidden_sizes") or name in self.counts
        }

    def has_cnn(self, model: Model) -> bool:
        """Whether the policy reads an image."""
        return model.has(f"{self.parts[0].prefix}features_extractor.cnn.0")

    def unfit_critics(self, model: Model) -> str | None:
        """Why the model's critics have no place here; None if they have."""
        critics = model.critics("critic.")
        if critics and "num_critics" not in self.counts and len(critics) != 2:
            return f"{len(critics)} critics, but 2 here: they begin with random weights"
        if self.has_norms and not all(model.norms(critic) for critic in critics):
            return "critics without batch normalization: ours begin with random weights"
        return None

    def refuse_unused(self, model: Model, used: set[str]) -> None:
        """Refuse a model whose acting network has a tensor that was not taken."""
        for name in model.weights.keys() - used:
            is_known = name.startswith((*ALIASES, "log_std", "actor.log_std")) or name.endswith(
                BUFFERS
            )
            if name.startswith(self.parts[0].prefix) and not is_known:
                raise CheckpointError(
                    f"the policy has '{name:.100}', which has no counterpart here: it would act differently"
                )


TWINS = (GAUSSIAN, CRITIC, TARGET_CRITIC)
WITH_TARGETS = (DETERMINISTIC, CRITIC, TARGET_ACTOR, TARGET_CRITIC)
NETWORKS = {
    "ppo": Networks(_actor_critic_sizes, (POLICY,)),
    "a2c": Networks(_actor_critic_sizes, (POLICY,)),
    "dqn": Networks(_q_sizes, _q_networks("q_net")),
    "qrdqn": Networks(_q_sizes, _q_networks("quantile_net"), ("num_quantiles",)),
    "sac": Networks(_gaussian_sizes, TWINS),
    "tqc": Networks(_gaussian_sizes, TWINS, ("num_critics", "num_quantiles")),
    "crossq": Networks(_gaussian_sizes, (GAUSSIAN, CRITIC), has_norms=True),
    "td3": Networks(_deterministic_sizes, WITH_TARGETS, ("num_critics",)),
    "ddpg": Networks(_deterministic_sizes, WITH_TARGETS, ("num_critics",)),
}


def refuse_two_cnns(weights: Weights) -> None:
    """Refuse an actor-critic whose policy and value function read images with two CNNs."""
    for name, tensor in weights.items():
        alias = name.removeprefix("vf_")
        if alias != name and alias in weights and not torch.equal(tensor, weights[alias]):
            raise CheckpointError(
                "policy and value function read images with two CNNs: no counterpart"
            )


def fold_norms(model: Model) -> Model:
    """The actor of CrossQ without batch normalizations: running statistics make them a part of the next layer."""
    norms, stems = model.norms("actor.latent_pi."), model.stems("actor.latent_pi.")
    if not norms:
        return model
    eps = model.settings.get("batch_norm_eps", EPSILON)
    folded = {
        name: tensor
        for name, tensor in model.weights.items()
        if not name.startswith(tuple(f"{norm}." for norm in norms))
    }
    heads = [name for name in ("actor.mu.0", "actor.mu", "actor.log_std") if model.has(name)]
    for norm, followers in zip(norms, [*([stem] for stem in stems), heads], strict=True):
        scale, bias, mean, variance = (
            model.weights[f"{norm}.{name}"] for name in ("scale", "bias", "ra_mean", "ra_var")
        )
        factor = scale * (variance + eps).rsqrt()
        shift = bias - mean * factor
        for stem in followers:
            weight = model.weights[f"{stem}.weight"]
            folded[f"{stem}.weight"] = weight * factor
            folded[f"{stem}.bias"] = model.weights[f"{stem}.bias"] + torch.mv(weight, shift)
    return replace(model, weights=folded, is_folded=True)

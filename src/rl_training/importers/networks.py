"""The networks of SB3's algorithms: which of their tensors goes where in ours, and how it is rescaled.

A network of SB3 is one or more chains of linear layers, maybe after a CNN: `NETWORKS` has a row for each algorithm.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor

from rl_training.errors import CheckpointError
from rl_training.importers.files import Weights
from rl_training.importers.settings import PolicySettings
from rl_training.models.critics import EPSILON
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.spec import Spaces

BUFFERS = ("ra_mean", "ra_var", "steps")
"""Endings of the names of tensors that no optimizer trains."""
CONVOLUTIONS = ("cnn.0", "cnn.2", "cnn.4", "linear.0")
"""The layers of SB3's NatureCNN."""
ALIASES = ("pi_features_extractor.", "vf_features_extractor.")
"""Copies of `features_extractor.` in an actor-critic policy."""
CONSTANT_LOG_STD, ABSENT = "action_net.log_std", "action_net.absent"
"""Tensor and layer that `rewriting` adds: a constant standard deviation, and the logits of absent bits."""
NEUTRAL = -0.0
"""Added to a number, it changes none; 0.0 would change -0.0."""

Factor = Tensor | float
Outputs = slice | Tensor | EllipsisType


@dataclass(frozen=True)
class Placement:
    """One tensor of SB3 and its place: target[outputs] = source * scale + offset.

    `member` is the place in an ensemble, whose weights are [in, out] and whose biases are [1, out].
    """

    source: str
    target: str
    member: int | None = None
    outputs: Outputs = ...
    scale: Factor = 1.0
    offset: Factor = NEUTRAL

    def put(self, value: Tensor, into: Weights) -> None:
        """Write a value, which has the shape of the source, to its place."""
        place = into[self.target]
        if self.member is not None:
            place = place[self.member].T if value.dim() == 2 else place[self.member, 0]
        needed = place[self.outputs].shape
        if needed != value.shape:
            raise CheckpointError(
                f"'{self.source}' of the model is {list(value.shape)}, but {list(needed)} is needed for this"
                " environment: check --env and env_kwargs"
            )
        place[self.outputs] = value


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
    is_rewritten: bool = False
    """Whether the layers of the acting network are not SB3's one by one, so that moments do not fit."""

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

    def required_stems(self, prefix: str) -> list[str]:
        """The same, at least one."""
        stems = self.stems(prefix)
        if not stems:
            raise CheckpointError(f"'policy.pth' of the model has no layers '{prefix}'")
        return stems

    def trained(self, prefixes: tuple[str, ...]) -> list[str]:
        """Names of the trained tensors with one of these prefixes, in the order of SB3's optimizer."""
        return [
            name
            for name in self.weights
            if name.startswith(prefixes)
            and not name.startswith(ALIASES)
            and not name.endswith(BUFFERS)
        ]

    def input_scale(self, num_actions: int = 0) -> Factor:
        """The scale of the features, before `num_actions` inputs that are not scaled."""
        if self.feature_scale is None:
            return 1.0
        return torch.cat([self.feature_scale, torch.ones(num_actions)])

    def place_cnn(self, prefix: str) -> list[Placement]:
        """Placements of a NatureCNN; without one in the model, none."""
        prefix, placed = f"{prefix}features_extractor.", []
        for number, stem in enumerate(CONVOLUTIONS if self.has(f"{prefix}cnn.0") else ()):
            scale, images = self.pixel_scale if number == 0 else 1.0, "features.images.0"
            weight = Placement(f"{prefix}{stem}.weight", f"{images}.weights.{number}", scale=scale)
            placed += [weight, Placement(f"{prefix}{stem}.bias", f"{images}.biases.{number}")]
        return placed

    def _numbered(self, prefix: str) -> dict[str, set[str]]:
        """The tensors of each numbered layer, in the order of the numbers."""
        pattern = re.compile(re.escape(prefix) + r"(\d{1,4})\.(\w+)")
        layers: dict[int, set[str]] = {}
        for match in filter(None, map(pattern.fullmatch, self.weights)):
            layers.setdefault(int(match[1]), set()).add(match[2])
        return {f"{prefix}{number}": layers[number] for number in sorted(layers)}


@dataclass(frozen=True)
class Layer:
    """A linear layer, and the outputs that its own become after rescaling."""

    stem: str
    outputs: Outputs = ...
    scale: Factor = 1.0
    offset: Factor = NEUTRAL


@dataclass(frozen=True)
class Chain:
    """Hidden layers and the output layers that read the last of them, which are one layer here."""

    hidden: list[str]
    heads: list[Layer]
    inputs: Factor
    """Scale of what the first layer reads."""
    target: str = "network"
    member: int | None = None
    """Place in an ensemble."""
    others: list[Placement] = field(default_factory=list)
    """Placements of what is not a linear layer."""

    def widths(self, model: Model) -> list[int]:
        """Number of outputs of each layer, each of which reads the outputs of the one before."""
        stems = [*self.hidden, self.heads[0].stem]
        shapes = [model.weights[f"{stem}.weight"].shape for stem in stems]
        for before, after in pairwise(shapes):
            if before[0] != after[1]:
                raise CheckpointError(
                    f"a layer of the model reads {after[1]} of {before[0]} outputs: it is damaged"
                )
        return [shape[0] for shape in shapes]

    def place(self) -> list[Placement]:
        """Placements of the weights and biases, and the others."""
        placed = [*self.others]
        layers = [*enumerate(map(Layer, self.hidden))]
        for number, layer in [*layers, *((len(layers), head) for head in self.heads)]:
            scale = layer.scale[:, None] if isinstance(layer.scale, Tensor) else layer.scale
            if number == 0:
                scale = scale * self.inputs
            weight, bias = f"{self.target}.weight_{number}", f"{self.target}.bias_{number}"
            placed += [
                Placement(f"{layer.stem}.weight", weight, self.member, layer.outputs, scale),
                Placement(
                    f"{layer.stem}.bias",
                    bias,
                    self.member,
                    layer.outputs,
                    layer.scale,
                    layer.offset,
                ),
            ]
        return placed


def _actor_critic(model: Model, prefix: str) -> list[Chain]:
    """PPO and A2C: policy and value function, an ensemble if their hidden layers are alike."""
    shared, inputs = model.stems("mlp_extractor.shared_net."), model.input_scale()
    policy = [*shared, *model.stems("mlp_extractor.policy_net.")]
    value = [*shared, *model.stems("mlp_extractor.value_net.")]
    head, others = Layer("action_net"), []
    if model.spaces.action.kind is ActionKind.CONTINUOUS:
        # [-1, 1] is mapped onto the bounds, in whose units SB3's means are
        center, half = _bounds(model.spaces)
        head = Layer("action_net", scale=1.0 / half, offset=-center / half)
        log_std = CONSTANT_LOG_STD if CONSTANT_LOG_STD in model.weights else "log_std"
        others = [Placement(log_std, "head.log_std", offset=-half.log())]
    heads = [head]
    if model.has(ABSENT):
        heads = [Layer("action_net", slice(1, None, 2)), Layer(ABSENT, slice(0, None, 2))]
    chains = [
        Chain(policy, heads, inputs, "networks.policy", others=others),
        Chain(value, [Layer("value_net", slice(0, 1))], inputs, "networks.value"),
    ]
    if chains[0].widths(model)[:-1] != chains[1].widths(model)[:-1]:
        return chains
    return [replace(one, target="networks", member=n) for n, one in enumerate(chains)]


def _bounds(spaces: Spaces) -> tuple[Tensor, Tensor]:
    """Center and half width of the actions in the environment's units; 0 and 1 where they are not bounded."""
    action = spaces.action
    if not action.is_bounded:
        return torch.zeros(action.num_components), torch.ones(action.num_components)
    low, high = (torch.from_numpy(bound.reshape(-1)) for bound in (action.low, action.high))
    half = ((high - low) / 2.0).clamp(min=1e-12)
    return ((high + low) / 2.0).float(), half.float()


def _q_network(model: Model, prefix: str) -> list[Chain]:
    """DQN and QR-DQN, whose outputs [quantiles, actions] are [actions, quantiles] here."""
    *hidden, last = model.required_stems(f"{prefix}{prefix.replace('_target', '')}")
    num_actions = model.spaces.action.num_options
    num_quantiles = max(1, len(model.weights[f"{last}.weight"]) // num_actions)
    outputs = torch.arange(num_actions * num_quantiles).view(num_actions, -1).T.reshape(-1)
    return [Chain(hidden, [Layer(last, outputs)], model.input_scale())]


def _deterministic(model: Model, prefix: str) -> list[Chain]:
    """The actor of TD3 and DDPG."""
    *hidden, last = model.required_stems(f"{prefix}mu.")
    return [Chain(hidden, [Layer(last)], model.input_scale())]


def _gaussian(model: Model, prefix: str) -> list[Chain]:
    """The actor of SAC, TQC and CrossQ: mean and log standard deviation are the two halves of our outputs."""
    hidden = [*model.stems("actor.latent_pi."), *model.stems("actor.mu.")]
    count = model.spaces.action.num_components
    mean = Layer("actor.mu", slice(0, count))
    return [Chain(hidden, [mean, Layer("actor.log_std", slice(count, None))], model.input_scale())]


def _critics(model: Model, prefix: str) -> list[Chain]:
    """An ensemble of critics; batch normalizations (CrossQ) have a place of their own."""
    chains = []
    for member, critic in enumerate(model.critics(prefix)):
        inputs, norms = model.input_scale(model.spaces.action.num_components), []
        for number, norm in enumerate(model.norms(critic)):
            norms += _place_norm(model, norm, f"networks.norms.{number}", member, inputs)
            inputs = 1.0  # the first normalization reads the features
        *hidden, last = model.required_stems(critic)
        chains.append(Chain(hidden, [Layer(last)], inputs, "networks", member, norms))
    if not chains:
        raise CheckpointError(f"'policy.pth' of the model has no critics '{prefix}qf0.'")
    return chains


def _place_norm(
    model: Model, norm: str, target: str, member: int, inputs: Factor
) -> list[Placement]:
    power = inputs**-2
    offset = model.settings.get("batch_norm_eps", EPSILON) * power - EPSILON
    return [
        Placement(f"{norm}.scale", f"{target}.scale", member),
        Placement(f"{norm}.bias", f"{target}.offset", member),
        Placement(f"{norm}.ra_mean", f"{target}.mean", member, scale=1.0 / inputs),
        Placement(f"{norm}.ra_var", f"{target}.variance", member, scale=power, offset=offset),
    ]


@dataclass(frozen=True)
class Part:
    """One network of ours: where it is in both, and the optimizers of both."""

    member: str
    prefix: str
    chains: Callable[[Model, str], list[Chain]]
    optimizer: str | None = None
    """Our attribute; None: a target, which has none."""
    source_optimizer: str = ""
    trained: tuple[str, ...] = ()
    """Prefixes of the tensors that SB3's optimizer trains, in its order."""

    def place(self, model: Model) -> list[Placement]:
        """Placements of all of its tensors."""
        placed = model.place_cnn(self.prefix)
        for chain in self.chains(model, self.prefix):
            placed += chain.place()
        return placed


@dataclass(frozen=True)
class Networks:
    """The networks of an algorithm."""

    parts: tuple[Part, ...]
    """The first is the network that acts."""
    counts: tuple[str, ...] = ()
    """Settings of ours that follow from the shapes, beside the hidden layers."""
    has_norms: bool = False
    """Whether our critics have batch normalization."""

    def read_sizes(self, model: Model) -> dict[str, Any]:
        """Settings of our algorithm that follow from the shapes of the weights."""
        trained = [part for part in self.parts if part.optimizer is not None]
        chains = [chain for part in trained for chain in part.chains(model, part.prefix)]
        widths = [chain.widths(model) for chain in chains]
        actor, *critics = [layers[:-1] for layers in widths]
        if any(critic != critics[0] for critic in critics):
            raise CheckpointError("'policy.pth' of the model has critics of several shapes")
        sizes: dict[str, Any] = {"hidden_sizes": actor}
        if critics and critics[0] != actor:
            sizes = {"actor_hidden_sizes": actor, "critic_hidden_sizes": critics[0]}
        num_quantiles = widths[-1][-1] // max(1, model.spaces.action.num_options)
        counts = {"num_critics": len(critics), "num_quantiles": num_quantiles}
        return sizes | {name: counts[name] for name in self.counts}

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
        known = (*ALIASES, "log_std", "actor.log_std")
        for name in model.weights.keys() - used:
            is_known = name.startswith(known) or name.endswith(BUFFERS)
            if name.startswith(self.parts[0].prefix) and not is_known:
                raise CheckpointError(
                    f"the policy has '{name:.100}', which has no counterpart here: it would act differently"
                )


POLICY = Part("policy", "", _actor_critic, "optimizer", "policy", ("",))
GAUSSIAN = Part("actor", "actor.", _gaussian, "actor_optimizer", "actor", ("actor.",))
DETERMINISTIC = Part("actor", "actor.", _deterministic, "actor_optimizer", "actor", ("actor.",))
CRITIC = Part("critic", "critic.", _critics, "critic_optimizer", "critic", ("critic.",))
TARGET_CRITIC = Part("target_critic", "critic_target.", _critics)
TARGET_ACTOR = Part("target_actor", "actor_target.", _deterministic)
SOFT = (GAUSSIAN, CRITIC, TARGET_CRITIC)
DELAYED = Networks((DETERMINISTIC, CRITIC, TARGET_ACTOR, TARGET_CRITIC), ("num_critics",))


def _q_networks(name: str) -> tuple[Part, Part]:
    prefixes = (f"{name}.", f"{name}_target.")
    return (
        Part("network", prefixes[0], _q_network, "optimizer", "policy", prefixes),
        Part("target_network", prefixes[1], _q_network),
    )


NETWORKS = {
    "ppo": Networks((POLICY,)),
    "a2c": Networks((POLICY,)),
    "dqn": Networks(_q_networks("q_net")),
    "qrdqn": Networks(_q_networks("quantile_net"), ("num_quantiles",)),
    "sac": Networks(SOFT),
    "tqc": Networks(SOFT, ("num_critics", "num_quantiles")),
    "crossq": Networks(SOFT[:2], has_norms=True),
    "td3": DELAYED,
    "ddpg": DELAYED,
}

"""From the tensors of an SB3 policy to the parameters of our networks: which goes where, and how it is rescaled."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from rl_training.errors import CheckpointError

Weights = Mapping[str, Tensor]
Index = tuple[int | slice, ...]
BUFFERS = ("ra_mean", "ra_var", "steps")
"""Endings of the names of tensors that no optimizer trains."""
CONVOLUTIONS = ("cnn.0", "cnn.2", "cnn.4", "linear.0")
"""The layers of SB3's NatureCNN."""
ALL = slice(None)


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

    def scaled(self, power: int) -> Tensor | float:
        """The factor of a gradient with respect to the source, to this power."""
        return (1.0 / self.scale) ** power


@dataclass(frozen=True)
class Part:
    """One network of ours: the placements that fill it, and the optimizers of both sides."""

    member: str
    placements: Sequence[Placement]
    constants: Sequence[tuple[str, Index, Tensor | float]] = ()
    optimizer: str | None = None
    """Our attribute; None: the network is not trained, or the moments do not fit."""
    source_optimizer: str = ""
    parameters: Sequence[str] = ()
    """Names of the parameters of SB3's optimizer, in its order."""

    def sources(self) -> set[str]:
        """Names of the tensors that it takes."""
        return {placement.source for placement in self.placements}

    def fill(self, state: dict[str, Tensor], weights: Weights) -> dict[str, Tensor]:
        """The state of our network with the model's weights."""
        filled = {name: tensor.clone() for name, tensor in state.items()}
        for target, index, value in self.constants:
            filled[target][index] = value
        for placement in self.placements:
            placement.put(weights[placement.source] * placement.scale + placement.offset, filled)
        return filled

    def moments(self, zeros: dict[str, Tensor], found: Weights, power: int) -> dict[str, Tensor]:
        """Adam's means of gradients (power 1) or of squared gradients (power 2), for our parameters."""
        for placement in self.placements:
            if placement.source in found:
                placement.put(found[placement.source] * placement.scaled(power), zeros)
        return zeros


def stems_of(weights: Weights, prefix: str) -> list[str]:
    """Names of the linear layers of an `nn.Sequential`, in order; a layer of another kind is refused."""
    layers = _numbered(weights, prefix)
    stems = [f"{prefix}{number}" for number, kinds in layers.items() if "weight" in kinds]
    for number, kinds in layers.items():
        is_linear = kinds == {"weight", "bias"} and weights[f"{prefix}{number}.weight"].dim() == 2
        if not is_linear and kinds != {"scale", "bias", *BUFFERS}:
            raise CheckpointError(f"layer '{prefix}{number}' of the model is not a linear layer: no counterpart")
    return stems


def norms_of(weights: Weights, prefix: str) -> list[str]:
    """Names of the batch normalizations of an `nn.Sequential`, in order."""
    return [f"{prefix}{number}" for number, kinds in _numbered(weights, prefix).items() if "ra_mean" in kinds]


def _numbered(weights: Weights, prefix: str) -> dict[int, set[str]]:
    pattern = re.compile(re.escape(prefix) + r"(\d{1,4})\.(\w+)")
    layers: dict[int, set[str]] = {}
    for match in filter(None, map(pattern.fullmatch, weights)):
        layers.setdefault(int(match[1]), set()).add(match[2])
    return dict(sorted(layers.items()))


def widths(weights: Weights, stems: Iterable[str]) -> tuple[int, ...]:
    """Number of outputs of each layer, each of which reads the outputs of the one before."""
    shapes = [weights[f"{stem}.weight"].shape for stem in stems]
    for before, after in pairwise(shapes):
        if before[0] != after[1]:
            raise CheckpointError(f"a layer of the model reads {after[1]} of {before[0]} outputs: it is damaged")
    return tuple(shape[0] for shape in shapes)


def place_layer(
    stem: str,
    target: str,
    number: int,
    *,
    member: int | None = None,
    outputs: slice = ALL,
    weight_scale: Tensor | float = 1.0,
    bias_scale: Tensor | float = 1.0,
    offset: Tensor | float = 0.0,
    rows: Tensor | None = None,
) -> list[Placement]:
    """Placements of weight and bias of a layer; `member` is the place in an ensemble, whose weights are [in, out]."""
    is_ensemble = member is not None
    weight_index: Index = (outputs,) if member is None else (member, ALL, outputs)
    bias_index: Index = (outputs,) if member is None else (member, 0, outputs)
    weight = Placement(
        f"{stem}.weight", f"{target}.weight_{number}", weight_index, is_ensemble, weight_scale, rows=rows
    )
    return [weight, Placement(f"{stem}.bias", f"{target}.bias_{number}", bias_index, False, bias_scale, offset, rows)]


def place_layers(stems: Sequence[str], target: str, *, member: int | None = None) -> list[Placement]:
    """Placements of consecutive layers."""
    return [one for number, stem in enumerate(stems) for one in place_layer(stem, target, number, member=member)]


def scale_inputs(placements: Iterable[Placement], scale: Tensor | float) -> list[Placement]:
    """The placements, with the weights of first layers multiplied by the scale of their inputs."""
    return [replace(one, scale=one.scale * scale) if one.target.endswith(".weight_0") else one for one in placements]


def place_cnn(weights: Weights, extractor: str, pixel_scale: float) -> list[Placement]:
    """Placements of a NatureCNN; without one in the model, none."""
    if f"{extractor}cnn.0.weight" not in weights:
        return []
    placed = []
    for number, stem in enumerate(CONVOLUTIONS):
        scale = pixel_scale if number == 0 else 1.0
        for kind, factor in (("weight", scale), ("bias", 1.0)):
            target = f"features.images.0.{'weights' if kind == 'weight' else 'biases'}.{number}"
            placed.append(Placement(f"{extractor}{stem}.{kind}", target, scale=factor))
    return placed


def parameters_of(weights: Weights, *prefixes: str, aliases: Sequence[str] = ()) -> list[str]:
    """Names of the trained tensors with one of these prefixes, in the order of SB3's optimizer."""
    return [
        name
        for name in weights
        if name.startswith(prefixes) and not name.startswith(tuple(aliases)) and not name.endswith(BUFFERS)
    ]


def folded_norms(weights: Weights, norms: Sequence[str], followers: Sequence[Sequence[str]], eps: float) -> Weights:
    """Weights in which each batch normalization is a part of the linear layers that follow it."""
    folded: dict[str, Any] = dict(weights)
    for norm, stems in zip(norms, followers, strict=True):
        factor = weights[f"{norm}.scale"] * (weights[f"{norm}.ra_var"] + eps).rsqrt()
        shift = weights[f"{norm}.bias"] - weights[f"{norm}.ra_mean"] * factor
        for stem in stems:
            weight = weights[f"{stem}.weight"]
            folded[f"{stem}.weight"] = weight * factor
            folded[f"{stem}.bias"] = weights[f"{stem}.bias"] + torch.mv(weight, shift)
    return folded

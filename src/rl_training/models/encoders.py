"""From a stored observation to what a network reads: flat vectors as they are, images through convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.errors import ConfigError
from rl_training.models.mlp import HIDDEN_GAIN, Layers, init_layer
from rl_training.models.normalizer import RunningNormalizer
from rl_training.spaces.observations import FLOAT_BYTES, ObsSpec, plane_shape

IMAGE_FEATURES = 512
CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Channels, side and stride of each (Mnih et al. 2015)."""


def flatten(obs: Tensor, spec: ObsSpec) -> Tensor:
    """Flatten a Box, one-hot code a Discrete, scale bytes to [0, 1]: [B, *shape] becomes [B, features].

    Where there are images, which networks read themselves, nothing is done.
    """
    if spec.image_shapes:
        return obs
    if spec.num_categories is not None:
        return F.one_hot(obs, spec.num_categories).float()
    features = obs.reshape(obs.shape[0], -1)
    return features.float() / 255.0 if spec.dtype == "uint8" else features


class ObsPreprocessor(nn.Module):
    """Flatten observations, and normalize them when asked to."""

    def __init__(self, spec: ObsSpec, *, normalize: bool) -> None:
        super().__init__()
        if normalize and spec.image_shapes:
            raise ConfigError("normalize_obs is for vectors; images are scaled to [0, 1] as they are: set it to false")
        self._spec = spec
        self.normalizer = RunningNormalizer(spec.num_features) if normalize else None

    def forward(self, obs: Tensor) -> Tensor:
        """Turn [B, *shape] into [B, features]."""
        features = flatten(obs, self._spec)
        return features if self.normalizer is None else self.normalizer(features)

    def update_statistics(self, obs: Tensor) -> None:
        """Let the normalizer, if there is one, see a batch of observations."""
        if self.normalizer is not None:
            self.normalizer.update(flatten(obs, self._spec))


class ObsNetwork(nn.Module):
    """A network that reads observations: what it makes of images is a part of it, and is learned with the rest."""

    def __init__(self, spec: ObsSpec, layers: Layers, *, orthogonal: bool = False) -> None:
        super().__init__()
        self.trunk = CNNEncoder(spec, layers.generator, orthogonal=orthogonal) if spec.image_shapes else None
        self.num_features = spec.num_features + IMAGE_FEATURES * len(spec.image_shapes)

    def features(self, obs: Tensor) -> Tensor:
        """Turn encoded observations into the vectors that perceptrons read, [B, features]."""
        if self.trunk is None:
            return obs
        features: Tensor = self.trunk(obs)
        return features


class CNNEncoder(nn.Module):
    """Each image through convolutions of its own; the numbers beside them as they are."""

    def __init__(self, spec: ObsSpec, generator: torch.Generator, *, orthogonal: bool) -> None:
        super().__init__()
        self._spec = spec
        self.images = nn.ModuleList(NatureCNN(shape, generator, orthogonal) for shape in spec.image_shapes)

    def forward(self, obs: Tensor) -> Tensor:
        """Turn stored observations [B, *shape] into [B, features]."""
        if not self._spec.parts:
            features: Tensor = self.images[0](obs)
            return features
        num_bytes = FLOAT_BYTES * self._spec.num_features
        read = [obs[:, :num_bytes].contiguous().view(torch.float32)] if num_bytes else []
        images = torch.split(obs[:, num_bytes:], [part.width for part in self._spec.parts if part.is_image], 1)
        read += [module(image) for module, image in zip(self.images, images, strict=True)]
        return torch.cat(read, 1)


class NatureCNN(nn.Module):
    """Three convolutions and a layer: the network of Mnih et al. 2015."""

    def __init__(self, shape: tuple[int, ...], generator: torch.Generator, orthogonal: bool) -> None:
        super().__init__()
        self._shape = shape
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for size in layer_sizes(shape):
            weight, bias = torch.empty(size), torch.empty(size[0])
            init_layer(weight, bias, weight[0].numel(), generator, HIDDEN_GAIN if orthogonal else None)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(bias))

    def forward(self, image: Tensor) -> Tensor:
        """Turn bytes [B, ...] into [B, IMAGE_FEATURES]."""
        x = self._planes(image.reshape(len(image), *self._shape))
        # With channels last, gradients take three quarters of the time, but values alone a little more.
        x = x.to(torch.float32, memory_format=torch.channels_last if torch.is_grad_enabled() else torch.preserve_format)
        # Read from the tables themselves: a list of parameters takes longer to index than a small product.
        weights, biases = (
            cast("list[Tensor]", list(part._parameters.values())) for part in (self.weights, self.biases)
        )
        weights[0] = weights[0] * (1.0 / 255.0)  # fewer numbers than the pixels
        for weight, bias, (_, _, stride) in zip(weights, biases, CONVOLUTIONS, strict=False):
            x = torch.relu_(F.conv2d(x, weight, bias, stride))
        return torch.relu_(F.linear(x.flatten(1), weights[-1], biases[-1]))

    def _planes(self, image: Tensor) -> Tensor:
        """Channels first, [B, channels, H, W]; those of a stack one after the other."""
        height, width = plane_shape(self._shape)
        if self._shape[-2:] != (height, width):
            image = image.movedim(-1, -3)
        return image.reshape(len(image), -1, height, width)


def layer_sizes(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The shape of each weight of the convolutions that read an image."""
    height, width = plane_shape(shape)
    num_channels = prod(shape) // (height * width)
    for channels, side, stride in CONVOLUTIONS:
        yield channels, num_channels, side, side
        height, width = (height - side) // stride + 1, (width - side) // stride + 1
        num_channels = channels
    yield IMAGE_FEATURES, num_channels * height * width

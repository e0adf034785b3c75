"""From stored observations to features: preprocessing of vectors, CNNs for images, and encoders that users define."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from math import prod
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.errors import ConfigError, EnvError
from rl_training.models.mlp import HIDDEN_GAIN, MLPSpec, init_layer
from rl_training.models.normalizer import RunningNormalizer
from rl_training.models.products import linear
from rl_training.plugins.user_code import find_class, frames_of_user
from rl_training.spaces.observations import FLOAT_BYTES, ObsSpec, plane_shape

IMAGE_FEATURES = 512
CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Channels, kernel size and stride of each (Mnih et al. 2015)."""
KEY = "algo_kwargs.network"
BATCH = 2
"""Observations of the forward pass that checks a new encoder."""


def flatten(obs: Tensor, spec: ObsSpec) -> Tensor:
    """Flatten a Box, one-hot encode a Discrete, scale bytes to [0, 1]: [B, *shape] becomes [B, features]."""
    if spec.num_categories is not None:
        return F.one_hot(obs, spec.num_categories).float()
    features = obs.reshape(obs.shape[0], -1)
    return features.float() / 255.0 if spec.dtype == "uint8" else features


def split_leaves(obs: Tensor, spec: ObsSpec) -> dict[str, Tensor]:
    """Leaves of preprocessed Dict or Tuple observations, by path such as `arm/camera`, for a network of your own.

    Images are uint8 [B, *shape], numbers float32 [B, *shape], categories one-hot float32 [B, categories].
    """
    numbers, pixels = obs, obs[:, :0]
    if spec.image_shapes:
        num_bytes = FLOAT_BYTES * spec.num_features
        numbers, pixels = obs[:, :num_bytes].contiguous().view(torch.float32), obs[:, num_bytes:]
    columns: list[Tensor] = []
    for source, is_image in ((numbers, False), (pixels, True)):
        widths = [leaf.width for leaf in spec.leaves if leaf.is_image is is_image]
        columns += torch.split(source, widths, 1) if widths else ()
    leaves = {}
    for leaf, part in zip(spec.leaves, columns, strict=True):
        name = "/".join(map(str, leaf.path))
        leaves[name] = part if leaf.choices else part.reshape(len(obs), *leaf.shape)
    return leaves


def make_preprocessor(spec: ObsSpec, *, normalize: bool) -> ObsPreprocessor | None:
    """The preprocessing between stored observations and networks; None if networks read them as stored."""
    if normalize and spec.image_shapes:
        raise ConfigError(
            "normalize_obs is for vectors; images are scaled to [0, 1] already: set it to false"
        )
    is_flat = bool(spec.image_shapes) or (spec.dtype == "float32" and len(spec.shape) == 1)
    return None if is_flat and not normalize else ObsPreprocessor(spec, normalize=normalize)


class ObsPreprocessor(nn.Module):
    """Flatten observations and, with `normalize`, scale them by their running mean and standard deviation."""

    def __init__(self, spec: ObsSpec, *, normalize: bool) -> None:
        super().__init__()
        self._spec = spec
        self.normalizer = RunningNormalizer(spec.num_features) if normalize else None

    def forward(self, obs: Tensor) -> Tensor:
        """Turn [B, *shape] into [B, features]."""
        features = flatten(obs, self._spec)
        return features if self.normalizer is None else self.normalizer(features)

    def update_statistics(self, obs: Tensor) -> None:
        """Update the running mean and standard deviation with a batch of observations."""
        if self.normalizer is not None:
            self.normalizer.update(flatten(obs, self._spec))


class ObsNetwork(nn.Module):
    """A network of observations: images go through a CNN that is trained with it, vectors are read as they are.

    A user-defined encoder replaces both.
    """

    features: nn.Module
    """Turns preprocessed observations into feature vectors, [B, num_features]."""

    def __init__(self, spec: ObsSpec, mlp_spec: MLPSpec, *, orthogonal: bool = False) -> None:
        super().__init__()
        self.features = nn.Identity()
        self.num_features = spec.num_features + IMAGE_FEATURES * len(spec.image_shapes)
        if mlp_spec.encoder_class is not None:
            self.features = make_encoder(mlp_spec.encoder_class, spec, mlp_spec.generator)
            self.num_features = cast("int", self.features.num_features)
        elif spec.image_shapes:
            self.features = CNNEncoder(spec, mlp_spec.generator, orthogonal=orthogonal)


class CNNEncoder(nn.Module):
    """One CNN per image of the observation; the other numbers are appended unchanged."""

    def __init__(self, spec: ObsSpec, generator: torch.Generator, *, orthogonal: bool) -> None:
        super().__init__()
        self._spec = spec
        self.images = nn.ModuleList(
            NatureCNN(shape, generator, orthogonal) for shape in spec.image_shapes
        )

    def forward(self, obs: Tensor) -> Tensor:
        """Turn stored observations [B, *shape] into [B, features]."""
        if not self._spec.leaves:
            features: Tensor = self.images[0](obs)
            return features
        num_bytes = FLOAT_BYTES * self._spec.num_features
        read = [obs[:, :num_bytes].contiguous().view(torch.float32)] if num_bytes else []
        images = torch.split(
            obs[:, num_bytes:], [part.width for part in self._spec.leaves if part.is_image], 1
        )
        read += [module(image) for module, image in zip(self.images, images, strict=True)]
        return torch.cat(read, 1)


class NatureCNN(nn.Module):
    """Three convolutions and a linear layer (Mnih et al. 2015)."""

    def __init__(
        self, shape: tuple[int, ...], generator: torch.Generator, orthogonal: bool
    ) -> None:
        super().__init__()
        self._shape = shape
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for size in layer_sizes(shape):
            weight, bias = torch.empty(size), torch.empty(size[0])
            init_layer(
                weight, bias, weight[0].numel(), generator, HIDDEN_GAIN if orthogonal else None
            )
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(bias))

    def forward(self, image: Tensor) -> Tensor:
        """Turn bytes [B, ...] into [B, IMAGE_FEATURES]."""
        x = self._planes(image.reshape(len(image), *self._shape))
        # With channels last, backward takes three quarters of the time, but forward alone a little more.
        x = x.to(
            torch.float32,
            memory_format=torch.channels_last if torch.is_grad_enabled() else torch.preserve_format,
        )
        # Read from the parameter tables: indexing a ParameterList takes longer than a small matrix product.
        weights, biases = (
            cast("list[Tensor]", list(part._parameters.values()))
            for part in (self.weights, self.biases)
        )
        weights[0] = weights[0] * (1.0 / 255.0)  # cheaper than scaling the pixels
        for weight, bias, (_, _, stride) in zip(weights, biases, CONVOLUTIONS, strict=False):
            x = torch.relu_(F.conv2d(x, weight, bias, stride))
        return torch.relu_(linear(x.flatten(1), weights[-1], biases[-1]))

    def _planes(self, image: Tensor) -> Tensor:
        """Channels first, [B, channels, H, W]; the channels of stacked frames are concatenated."""
        height, width = plane_shape(self._shape)
        if self._shape[-2:] != (height, width):
            image = image.movedim(-1, -3)
        return image.reshape(len(image), -1, height, width)


def layer_sizes(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Shapes of the weights of the CNN for an image of this shape."""
    height, width = plane_shape(shape)
    num_channels = prod(shape) // (height * width)
    for channels, side, stride in CONVOLUTIONS:
        yield channels, num_channels, side, side
        height, width = (height - side) // stride + 1, (width - side) // stride + 1
        num_channels = channels
    yield IMAGE_FEATURES, num_channels * height * width


def find_network(name: str) -> type[nn.Module]:
    """The class of the setting `network: name`; imports its module or file."""
    try:
        found = find_class(name, _is_network)
    except EnvError as error:
        raise ConfigError(f"bad value '{name}' for {KEY}: {error}") from None
    if not _is_network(found):
        raise ConfigError(
            f"bad value '{name}' for {KEY}: it is not a class that inherits torch.nn.Module"
        )
    network: type[nn.Module] = found
    return network


def make_encoder(
    encoder_class: type[nn.Module], spec: ObsSpec, generator: torch.Generator
) -> nn.Module:
    """An encoder of a user-defined class in evaluation mode, with initial weights that depend on `generator` only.

    The global generator, from which torch's layers are initialized, is seeded from `generator` meanwhile and restored.
    """
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    name = encoder_class.__name__
    with torch.random.fork_rng(devices=()), torch.enable_grad():
        torch.default_generator.manual_seed(seed)
        encoder: nn.Module = _call(f"{name}(obs) with obs = {spec}", encoder_class, spec).eval()
        num_features = getattr(encoder, "num_features", None)
        if type(num_features) is not int or num_features < 1:
            fault = (
                "has no attribute num_features"
                if num_features is None
                else f"has num_features {num_features!r}"
            )
            raise ConfigError(
                f"{KEY}: {name} {fault}: set self.num_features to the number of outputs, an int"
            )
        _settle_parameters(encoder)
        output = _call(f"forward of {name}", encoder, _example(spec))
        _check_output(name, output, num_features)
        _check_is_pure(name, encoder, spec, output)
        _check_gradients(name, encoder, output)
    return encoder


def _is_network(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, nn.Module) and value is not nn.Module


def _call(what: str, function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        detail = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"{KEY}: {what:.300} raised {detail:.1000}{frames_of_user(error)}"
        ) from error


def _example(spec: ObsSpec) -> Tensor:
    """Preprocessed observations: images, and numbers beside them, as bytes; all else as flat vectors."""
    if spec.image_shapes:
        return torch.zeros(BATCH, *spec.shape, dtype=torch.uint8)
    return torch.full((BATCH, spec.num_features), 0.5)


def _check_is_pure(name: str, encoder: nn.Module, spec: ObsSpec, output: Tensor) -> None:
    """Raise unless `forward` leaves its input and the module as they are, and gives the same output again."""
    example, before = (
        _example(spec),
        {key: value.clone() for key, value in encoder.state_dict().items()},
    )
    again = _call(f"forward of {name}", encoder, example)
    fault = None
    if not torch.equal(example, _example(spec)):
        fault = "changes its input in place, which belongs to the buffer: work on a copy"
    elif any(not torch.equal(value, before[key]) for key, value in encoder.state_dict().items()):
        fault = "changes the module: an evaluation would change the policy"
    elif not torch.equal(output, again):
        fault = "gives another output for the same input: draw no random numbers and keep no state"
    if fault is not None:
        raise ConfigError(f"{KEY}: forward of {name} {fault}")


def _settle_parameters(encoder: nn.Module) -> None:
    """Turn frozen parameters into buffers, which no optimizer reads, and make the others contiguous for Adam."""
    for module in encoder.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if not parameter.requires_grad:
                delattr(module, name)
                module.register_buffer(name, parameter.data)
            else:
                parameter.data = parameter.data.contiguous()


def _check_output(name: str, output: Any, num_features: int) -> None:
    expected = f"float32 [{BATCH}, {num_features}] for {BATCH} observations"
    is_tensor = isinstance(output, Tensor)
    if is_tensor and output.shape == (BATCH, num_features) and output.dtype == torch.float32:
        return
    kind = type(output).__name__
    got = (
        f"{str(output.dtype).removeprefix('torch.')} {list(output.shape)}"
        if is_tensor
        else f"a {kind}"
    )
    raise ConfigError(
        f"{KEY}: forward of {name} returned {got}: return {expected}, as num_features says"
    )


def _check_gradients(name: str, encoder: nn.Module, output: Tensor) -> None:
    """Raise unless every parameter is float32 and reaches the output: each is trained with all others."""
    named = dict(encoder.named_parameters())
    if not named:
        return
    for path, parameter in named.items():
        if parameter.dtype != torch.float32:
            raise ConfigError(
                f"{KEY}: parameter '{path}' of {name} is {parameter.dtype}: make it float32"
            )
    grads: Any = [None] * len(named)
    if output.requires_grad:
        grads = torch.autograd.grad(output.sum(), list(named.values()), allow_unused=True)
    for path, gradient in zip(named, grads, strict=True):
        if gradient is None:
            fault = f"the output of {name} does not depend on its parameter '{path}'"
            raise ConfigError(
                f"{KEY}: {fault}: remove it, use it in forward, or set requires_grad=False on it"
            )

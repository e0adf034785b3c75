"""Networks as operations, by the class of each module: MLPs, convolutions, memory, and torch's own layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.fx
from torch import Tensor, nn

from rl_training.bundle.reading import Array
from rl_training.errors import ConfigError
from rl_training.models.actor_critic import PolicyAndValue, StackedPolicyAndValue
from rl_training.models.encoders import CONVOLUTIONS, CNNEncoder, NatureCNN, ObsPreprocessor
from rl_training.models.memory import EnsembleMemory
from rl_training.models.mlp import _ACTIVATIONS, MLP, EnsembleMLP
from rl_training.models.normalizer import CLIP, EPSILON
from rl_training.spaces.observations import ObsSpec, plane_shape

LAYER_NORM_EPSILON = 1e-5
"""Default of torch's layer_norm, which our LayerNorm uses."""
ACTIVATION_NAMES = {function: name for name, function in _ACTIVATIONS.items()}


class UndescribableError(ConfigError):
    """A policy cannot be written as operations of a bundle."""


class OperationList:
    """Operations in order, each with names of the values that it reads and makes."""

    def __init__(self) -> None:
        self.operations: list[dict[str, Any]] = []
        self.tensors: dict[str, Array] = {}

    def add(self, name: str, *inputs: str, **settings: Any) -> str:
        """Append an operation and return the name of its output; tensors among its settings are stored."""
        return self.add_named(name, inputs, (f"v{len(self.operations)}",), **settings)

    def add_named(
        self, name: str, inputs: tuple[str, ...], outputs: tuple[str, ...], **settings: Any
    ) -> str:
        """The same with chosen names of the outputs; returns the first."""
        number = len(self.operations)
        for key, value in settings.items():
            if isinstance(value, (Tensor, np.ndarray)):
                settings[key] = self._store(f"{number}.{key}", value)
        self.operations.append({"op": name, "in": list(inputs), "out": list(outputs), **settings})
        return outputs[0]

    def _store(self, name: str, value: Tensor | Array) -> str:
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        if np.isnan(array).any():
            raise UndescribableError(
                f"the policy's weights hold NaN (operation {name}): export another checkpoint"
            )
        # A copy: the tensor may be a part of the network's memory.
        self.tensors[name] = np.array(array, order="C")
        return name


@dataclass(frozen=True)
class Observation:
    """Names of the values that hold an observation: its numbers as one row, and its images."""

    spec: ObsSpec
    numbers: str | None
    images: tuple[str, ...]


def read_observation(ops: OperationList, spec: ObsSpec) -> Observation:
    """Turn the parts of an observation into one row of numbers and images."""
    rows, images = [], []
    for index, leaf in enumerate(spec.parts):
        name = f"obs.{index}"
        if leaf.is_image:
            images.append(name)
        elif leaf.choices:
            rows.append(
                ops.add("one_hot", name, choices=list(leaf.choices), start=list(leaf.start))
            )
        else:
            row = ops.add("flatten", name)
            rows.append(row if leaf.scale == 1.0 else ops.add("scale", row, factor=leaf.scale))
    numbers = ops.add("concat", *rows) if len(rows) > 1 else next(iter(rows), None)
    return Observation(spec, numbers, tuple(images))


def normalize(
    ops: OperationList, obs: Observation, preprocessor: ObsPreprocessor | None
) -> Observation:
    """Apply the running normalization of a preprocessor, if it has one."""
    if preprocessor is None or preprocessor.normalizer is None or obs.numbers is None:
        return obs
    normalizer = preprocessor.normalizer
    scale = (normalizer.variance + EPSILON).rsqrt().float()
    row = ops.add("normalize", obs.numbers, mean=normalizer.mean.float(), scale=scale, limit=CLIP)
    return Observation(obs.spec, row, ())


def encode(ops: OperationList, obs: Observation, encoder: nn.Module) -> str:
    """The features of an observation."""
    if type(encoder) is CNNEncoder:
        modules = cast("list[NatureCNN]", list(encoder.images))
        features = [
            _nature_cnn(ops, image, cnn) for image, cnn in zip(obs.images, modules, strict=True)
        ]
        parts = [*([] if obs.numbers is None else [obs.numbers]), *features]
        return ops.add("concat", *parts) if len(parts) > 1 else parts[0]
    if obs.images or obs.numbers is None:
        raise UndescribableError(
            f"{type(encoder).__name__}, a network of your own, reads images: a bundle can hold your own networks of"
            " vectors, and the built-in network of images"
        )
    return obs.numbers if type(encoder) is nn.Identity else own_network(ops, obs.numbers, encoder)


def mlp(
    ops: OperationList, x: str, network: MLP | EnsembleMLP, num_outputs: int | None = None
) -> str:
    """An MLP, or the first of an ensemble; with `num_outputs`, only its first outputs."""
    layers = network._layers()
    norms = [(norm.scale, norm.offset) for norm in cast("Any", network.layer_norms or ())]
    if isinstance(network, EnsembleMLP):
        layers = [(weight[0].T, bias[0, 0]) for weight, bias in layers]
        norms = [(scale[0, 0], offset[0, 0]) for scale, offset in norms]
    *hidden, (last_weight, last_bias) = layers
    for number, (weight, bias) in enumerate(hidden):
        x = ops.add("linear", x, weight=weight, bias=bias)
        if norms:
            scale, offset = norms[number]
            x = ops.add("layer_norm", x, scale=scale, offset=offset, epsilon=LAYER_NORM_EPSILON)
        x = ops.add(ACTIVATION_NAMES[network._activation], x)
    return ops.add("linear", x, weight=last_weight[:num_outputs], bias=last_bias[:num_outputs])


def policy_network(ops: OperationList, x: str, networks: nn.Module) -> str:
    """The policy of a policy and value network."""
    if type(networks) is PolicyAndValue:
        return mlp(ops, x, networks.policy)
    if type(networks) is StackedPolicyAndValue:
        return mlp(ops, x, networks)
    raise UndescribableError(
        f"{type(networks).__name__} is not a policy and value network of this package"
    )


def remember(ops: OperationList, x: str, memory: EnsembleMemory) -> str:
    """One step of the first memory; makes the value `next_state` too."""
    kind = memory._spec.kind
    tensors = {
        "input_weight": memory.input_weight[0],
        "recurrent_weight": memory.recurrent_weight[0],
        "bias": memory.bias[0, 0],
    }
    if kind == "gru":
        tensors["recurrent_bias"] = memory.recurrent_bias[0, 0]
    return ops.add_named(kind, (x, "state"), (f"v{len(ops.operations)}", "next_state"), **tensors)


def _nature_cnn(ops: OperationList, image: str, cnn: NatureCNN) -> str:
    plane = plane_shape(cnn._shape)
    x = ops.add("image", image, plane=list(plane), channels_last=cnn._shape[-2:] != plane)
    weights, biases = list(cnn.weights), list(cnn.biases)
    weights[0] = weights[0] * (1.0 / 255.0)
    for weight, bias, (_, _, stride) in zip(weights, biases, CONVOLUTIONS, strict=False):
        x = ops.add("relu", ops.add("conv2d", x, weight=weight, bias=bias, stride=stride))
    x = ops.add("linear", ops.add("flatten", x), weight=weights[-1], bias=biases[-1])
    return ops.add("relu", x)


def own_network(ops: OperationList, x: str, network: nn.Module) -> str:
    """A user-defined network that applies torch's layers one after the other."""
    name = type(network).__name__
    try:
        graph = torch.fx.symbolic_trace(network).graph
    except Exception as error:
        raise UndescribableError(
            f"{name}, a network of your own, cannot be traced: {error!s:.200}"
        ) from error
    values: dict[Any, str] = {}
    for node in graph.nodes:
        if node.op == "placeholder" and not values:
            values[node] = x
        elif node.op == "output" and node.args[0] in values:
            return values[node.args[0]]
        else:
            values[node] = _traced(ops, network, node, values, name)
    raise UndescribableError(f"{name}, a network of your own, does not return one tensor")


def _traced(
    ops: OperationList, network: nn.Module, node: Any, values: dict[Any, str], name: str
) -> str:
    """The output of a layer or an activation that reads one value and nothing else."""
    module = network.get_submodule(node.target) if node.op == "call_module" else None
    if len(node.args) == 1 and not node.kwargs and node.args[0] in values:
        x = values[node.args[0]]
        if type(module) in TORCH_LAYERS:
            return TORCH_LAYERS[type(module)](ops, x, module)
        if module is None and node.target in ACTIVATION_CALLS:
            return ops.add(ACTIVATION_CALLS[node.target], x)
    what = getattr(node.target, "__name__", node.target)
    if module is not None:
        what = type(module).__name__
    known = ", ".join(sorted(layer.__name__ for layer in TORCH_LAYERS))
    raise UndescribableError(
        f"{name}, a network of your own, uses {what}, which a bundle does not have: use these layers, one after the"
        f" other: {known}"
    )


def _linear_layer(ops: OperationList, x: str, layer: nn.Linear) -> str:
    bias = torch.zeros(layer.out_features) if layer.bias is None else layer.bias
    return ops.add("linear", x, weight=layer.weight, bias=bias)


def _norm_layer(ops: OperationList, x: str, layer: nn.LayerNorm) -> str:
    if len(layer.normalized_shape) != 1:
        raise UndescribableError(f"{layer} cannot be exported: normalize the last dimension only")
    size = layer.normalized_shape[0]
    scale = torch.ones(size) if layer.weight is None else layer.weight
    offset = torch.zeros(size) if layer.bias is None else layer.bias
    return ops.add("layer_norm", x, scale=scale, offset=offset, epsilon=layer.eps)


def _batch_norm_layer(ops: OperationList, x: str, layer: nn.BatchNorm1d) -> str:
    if layer.running_mean is None or layer.running_var is None:
        raise UndescribableError(f"{layer} cannot be exported: it has no running statistics")
    scale = (layer.running_var + layer.eps).rsqrt() * (
        1.0 if layer.weight is None else layer.weight
    )
    offset = (0.0 if layer.bias is None else layer.bias) - layer.running_mean * scale
    return ops.add("batch_norm", x, scale=scale, offset=offset)


def _plain_layer(operation: str, **options: Any) -> Callable[[OperationList, str, Any], str]:
    """A layer without tensors, that has these options."""

    def add(ops: OperationList, x: str, layer: Any) -> str:
        if any(getattr(layer, key) != value for key, value in options.items()):
            raise UndescribableError(f"{layer} cannot be exported: use nn.{type(layer).__name__}()")
        return ops.add(operation, x)

    return add


def _skipped(ops: OperationList, x: str, layer: nn.Module) -> str:
    return x


TORCH_LAYERS: dict[type[Any], Callable[[OperationList, str, Any], str]] = {
    nn.Linear: _linear_layer,
    nn.LayerNorm: _norm_layer,
    nn.BatchNorm1d: _batch_norm_layer,
    nn.Flatten: _plain_layer("flatten", start_dim=1, end_dim=-1),
    nn.ReLU: _plain_layer("relu"),
    nn.Tanh: _plain_layer("tanh"),
    nn.SiLU: _plain_layer("silu"),
    nn.GELU: _plain_layer("gelu", approximate="none"),
    nn.ELU: _plain_layer("elu", alpha=1.0),
    nn.Identity: _skipped,
    nn.Dropout: _skipped,
}
"""Torch's layers that a user-defined network may have, in evaluation mode."""
ACTIVATION_CALLS: dict[Any, str] = {
    torch.relu: "relu",
    torch.tanh: "tanh",
    nn.functional.relu: "relu",
    nn.functional.tanh: "tanh",
    nn.functional.silu: "silu",
    nn.functional.elu: "elu",
    "relu": "relu",
    "tanh": "tanh",
}
"""Functions and methods of tensors that it may call, with the tensor alone."""

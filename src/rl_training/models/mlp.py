"""Multi-layer perceptrons: one network, or several of equal shape as one batched network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.models.products import is_for_onednn, linear

Activation = Literal["relu", "tanh", "silu", "gelu", "elu"]
HIDDEN_GAIN = 2**0.5

# In place where the gradient follows from the output: the pre-activations are not needed again, and allocating memory
# can take longer than filling it. The gradients of silu and gelu need the pre-activations.
_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,
    "tanh": torch.tanh_,
    "silu": F.silu,
    "gelu": F.gelu,
    "elu": F.elu_,
}

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def frozen_copy(module: ModuleT) -> ModuleT:
    """A copy without gradients, for a target network."""
    return deepcopy(module).requires_grad_(False)


def init_layer(
    weight: Tensor, bias: Tensor, fan_in: int, generator: torch.Generator, gain: float | None = None
) -> None:
    """Initialize a layer from U(-1/sqrt(in), 1/sqrt(in)); with a gain, orthogonal weights and zero biases."""
    if gain is not None:
        nn.init.orthogonal_(weight, gain, generator=generator)
        nn.init.zeros_(bias)
        return
    for tensor in (weight, bias):
        nn.init.uniform_(tensor, -(fan_in**-0.5), fan_in**-0.5, generator=generator)


@dataclass(frozen=True)
class MLPSpec:
    """Hidden layers that the networks of an algorithm share, and the generator of their initial weights."""

    hidden_sizes: Sequence[int]
    activation: Activation
    generator: torch.Generator
    layer_norm: bool = False
    encoder_class: type[nn.Module] | None = None
    """The user's own encoder of observations, which takes an `ObsSpec`; None: ours."""

    def make(self, num_inputs: int, num_outputs: int) -> MLP:
        """One MLP with these hidden layers."""
        return MLP(num_inputs, num_outputs, self)

    def resized(self, hidden_sizes: Sequence[int] | None) -> MLPSpec:
        """The same with other hidden layers; None keeps these."""
        return self if hidden_sizes is None else replace(self, hidden_sizes=hidden_sizes)


class LayerNorm(nn.Module):
    """Layer normalization (Ba et al. 2016) of [..., features]; scale and offset have the shape that is given."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(shape))
        self.offset = nn.Parameter(torch.zeros(shape))

    def forward(self, x: Tensor, member: int | None = None) -> Tensor:
        """Normalize each row to mean 0 and standard deviation 1, then scale and shift it (`member`: of one only)."""
        scale, offset = (
            (self.scale, self.offset)
            if member is None
            else (self.scale[member], self.offset[member])
        )
        return torch.addcmul(offset, F.layer_norm(x, x.shape[-1:]), scale)


class _Layers(nn.Module):
    """Weights and biases of consecutive layers.

    They are read from the module's parameter table: looking up each by name, or calling one module per layer, takes
    longer than a small matrix product.
    """

    def __init__(self, spec: MLPSpec, *norm_shape: int) -> None:
        super().__init__()
        self._activation = _ACTIVATIONS[spec.activation]
        self.layer_norms: nn.ModuleList | None = None
        if spec.layer_norm:
            self.layer_norms = nn.ModuleList(
                LayerNorm(*norm_shape, size) for size in spec.hidden_sizes
            )

    @property
    def weights(self) -> list[Tensor]:
        """One for each layer."""
        return [weight for weight, _ in self._layers()]

    @property
    def biases(self) -> list[Tensor]:
        """One for each layer."""
        return [bias for _, bias in self._layers()]

    def _layers(self) -> list[tuple[Tensor, Tensor]]:
        tensors: list[Any] = list(self._parameters.values())
        return list(zip(tensors[::2], tensors[1::2], strict=True))

    def _append(self, weight: Tensor, bias: Tensor) -> None:
        number = len(self._parameters) // 2
        self.register_parameter(f"weight_{number}", nn.Parameter(weight))
        self.register_parameter(f"bias_{number}", nn.Parameter(bias))


class EnsembleMLP(_Layers):
    """E MLPs evaluated as batched matrix products: [B, in] or [E, B, in] becomes [E, B, out].

    Weights and biases are sampled from U(-1/sqrt(in), 1/sqrt(in)). With `output_gains`, biases are zero and weights
    orthogonal: with gain sqrt(2), and in the last layer of member e with gain `output_gains[e]`.
    """

    def __init__(
        self,
        num_members: int,
        num_inputs: int,
        num_outputs: int,
        spec: MLPSpec,
        output_gains: Sequence[float] = (),
    ) -> None:
        super().__init__(spec, num_members, 1)
        self.num_members = num_members
        sizes = [num_inputs, *spec.hidden_sizes, num_outputs]
        for layer, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            weight = torch.empty(num_members, fan_in, fan_out)
            bias = torch.zeros(num_members, 1, fan_out)
            gains = output_gains if layer == len(sizes) - 2 else [HIDDEN_GAIN] * len(output_gains)
            for member in range(num_members):
                gain = gains[member] if gains else None
                init_layer(weight[member], bias[member], fan_in, spec.generator, gain)
            self._append(weight, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Evaluate every member on the same input [B, in], or each on its own [E, B, in]."""
        x = x.expand(self.num_members, -1, -1) if x.dim() == 2 else x
        *hidden, (last_weight, last_bias) = layers = self._layers()
        if any(is_for_onednn(x, weight) for weight, _ in hidden):  # which has no batched product
            tensors = [(weight.unbind(0), bias.unbind(0)) for weight, bias in layers]
            return torch.stack([self._evaluate(tensors, *one) for one in enumerate(x.unbind(0))])
        for layer, (weight, bias) in enumerate(hidden):
            x = torch.baddbmm(bias, x, weight)
            x = self._activation(x if self.layer_norms is None else self.layer_norms[layer](x))
        output: Tensor = torch.bmm(x, last_weight) + last_bias
        return output

    def member(self, index: int, x: Tensor) -> Tensor:
        """Evaluate one member alone: [B, in] becomes [B, out]."""
        return self._evaluate(self._layers(), index, x)

    def _evaluate(self, layers: Sequence[tuple[Any, Any]], index: int, x: Tensor) -> Tensor:
        """One member's output; `layers` are weights and biases by layer, then by member."""
        *hidden, (last_weight, last_bias) = layers
        for layer, (weight, bias) in enumerate(hidden):
            x = linear(x, weight[index].t(), bias[index].squeeze(0))
            x = self._activation(
                x if self.layer_norms is None else self.layer_norms[layer](x, index)
            )
        return torch.addmm(last_bias[index], x, last_weight[index])


class MLP(_Layers):
    """One MLP: [B, in] becomes [B, out]; initialized like a member of an ensemble, with or without `output_gain`."""

    def __init__(
        self, num_inputs: int, num_outputs: int, spec: MLPSpec, output_gain: float | None = None
    ) -> None:
        super().__init__(spec)
        sizes = [num_inputs, *spec.hidden_sizes, num_outputs]
        for layer, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            weight, bias = torch.empty(fan_out, fan_in), torch.empty(fan_out)
            gain = output_gain if output_gain is None or layer == len(sizes) - 2 else HIDDEN_GAIN
            init_layer(weight, bias, fan_in, spec.generator, gain)
            self._append(weight, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers, with the activation between them."""
        *hidden, (last_weight, last_bias) = self._layers()
        for layer, (weight, bias) in enumerate(hidden):
            x = linear(x, weight, bias)
            x = self._activation(x if self.layer_norms is None else self.layer_norms[layer](x))
        return F.linear(x, last_weight, last_bias)

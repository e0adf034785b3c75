"""Multi-layer perceptrons: one network, or several of equal shape as one batched network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Activation = Literal["relu", "tanh"]
Initialization = Literal["uniform", "orthogonal"]

_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "tanh": torch.tanh}


class EnsembleMLP(nn.Module):
    """E perceptrons evaluated together: [B, in] or [E, B, in] becomes [E, B, out].

    `uniform` draws weights and biases from U(-1/sqrt(in), 1/sqrt(in)); `orthogonal` draws orthogonal weights of
    gain sqrt(2) with zero biases, and the last layer of member e with gain `output_gains[e]`.
    """

    def __init__(
        self,
        num_members: int,
        num_inputs: int,
        hidden_sizes: Sequence[int],
        num_outputs: int,
        *,
        activation: Activation,
        generator: torch.Generator,
        init: Initialization = "uniform",
        output_gains: Sequence[float] = (),
    ) -> None:
        super().__init__()
        self.num_members = num_members
        self._activation = _ACTIVATIONS[activation]
        sizes = [num_inputs, *hidden_sizes, num_outputs]
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for layer, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            weight = torch.empty(num_members, fan_in, fan_out)
            bias = torch.zeros(num_members, 1, fan_out)
            is_last = layer == len(sizes) - 2
            for member in range(num_members):
                if init == "orthogonal":
                    gain = output_gains[member] if is_last else 2**0.5
                    nn.init.orthogonal_(weight[member], gain, generator=generator)
                else:
                    bound = fan_in**-0.5
                    nn.init.uniform_(weight[member], -bound, bound, generator=generator)
                    nn.init.uniform_(bias[member], -bound, bound, generator=generator)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(bias))
        # A parameter list looks each parameter up by name, which costs more than a small product.
        self._layers = list(zip(self.weights, self.biases, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        """Evaluate every member on the same input, or each on its own."""
        x = x.expand(self.num_members, -1, -1) if x.dim() == 2 else x
        for weight, bias in self._layers[:-1]:
            x = self._activation(torch.baddbmm(bias, x, weight))
        weight, bias = self._layers[-1]
        output: Tensor = torch.bmm(x, weight) + bias
        return output


class MLP(nn.Module):
    """One perceptron: [B, in] becomes [B, out]; initialized like the ensemble's `uniform`."""

    def __init__(
        self,
        num_inputs: int,
        hidden_sizes: Sequence[int],
        num_outputs: int,
        *,
        activation: Activation,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self._activation = _ACTIVATIONS[activation]
        sizes = [num_inputs, *hidden_sizes, num_outputs]
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for fan_in, fan_out in pairwise(sizes):
            bound = fan_in**-0.5
            weight, bias = torch.empty(fan_out, fan_in), torch.empty(fan_out)
            nn.init.uniform_(weight, -bound, bound, generator=generator)
            nn.init.uniform_(bias, -bound, bound, generator=generator)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(bias))
        self._layers = list(zip(self.weights, self.biases, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers, with the activation between them."""
        for weight, bias in self._layers[:-1]:
            x = self._activation(F.linear(x, weight, bias))
        return F.linear(x, *self._layers[-1])

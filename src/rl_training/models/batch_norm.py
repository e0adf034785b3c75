"""Perceptrons whose layers see normalized inputs, by the statistics of the batch or, when acting, by their average."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_training.models.critics import EnsembleCritic
from rl_training.models.mlp import EnsembleMLP, Layers

MOMENTUM = 0.99
EPSILON = 1e-3


class BatchNorm(nn.Module):
    """Batch normalization (Ioffe & Szegedy 2015) of [E, B, features], each member by itself."""

    mean: Tensor
    variance: Tensor

    def __init__(self, num_members: int, num_features: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(num_members, 1, num_features))
        self.offset = nn.Parameter(torch.zeros(num_members, 1, num_features))
        self.register_buffer("mean", torch.zeros(num_members, 1, num_features))
        self.register_buffer("variance", torch.ones(num_members, 1, num_features))

    def forward(self, x: Tensor, use_batch_stats: bool) -> Tensor:
        """Normalize by this batch, which moves the average, or by the average as it stands."""
        if use_batch_stats:
            variance, mean = torch.var_mean(x, 1, correction=0, keepdim=True)
            with torch.no_grad():
                self.mean.lerp_(mean, 1.0 - MOMENTUM)
                self.variance.lerp_(variance, 1.0 - MOMENTUM)
        else:
            mean, variance = self.mean, self.variance
        return (x - mean) * ((variance + EPSILON).rsqrt() * self.scale) + self.offset


class BatchNormEnsembleMLP(EnsembleMLP):
    """An ensemble of perceptrons with a normalization before each layer."""

    def __init__(self, num_members: int, num_inputs: int, num_outputs: int, layers: Layers) -> None:
        super().__init__(num_members, num_inputs, num_outputs, layers)
        sizes: Sequence[int] = (num_inputs, *layers.hidden_sizes)
        self.norms = nn.ModuleList(BatchNorm(num_members, size) for size in sizes)

    def forward(self, x: Tensor, use_batch_stats: bool = False) -> Tensor:
        """Evaluate every member on the same input, or each on its own."""
        x = x.expand(self.num_members, -1, -1) if x.dim() == 2 else x
        *hidden, (last_weight, last_bias) = self._layers()
        *norms, last_norm = self.norms
        for norm, (weight, bias) in zip(norms, hidden, strict=True):
            x = self._activation(torch.baddbmm(bias, norm(x, use_batch_stats), weight))
        output: Tensor = torch.bmm(last_norm(x, use_batch_stats), last_weight) + last_bias
        return output


class BatchNormCritic(EnsembleCritic):
    """Several values of a continuous action by normalized networks."""

    networks_class = BatchNormEnsembleMLP

"""Critics with batch normalization: batch statistics in training, running statistics when acting."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_training.models.critics import EnsembleCritic
from rl_training.models.mlp import EnsembleMLP, MLPSpec

MOMENTUM = 0.99
EPSILON = 1e-3


class BatchNorm(nn.Module):
    """Batch normalization (Ioffe & Szegedy 2015) of [E, B, features], separately for each member."""

    mean: Tensor
    variance: Tensor

    def __init__(self, num_members: int, num_features: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(num_members, 1, num_features))
        self.offset = nn.Parameter(torch.zeros(num_members, 1, num_features))
        self.register_buffer("mean", torch.zeros(num_members, 1, num_features))
        self.register_buffer("variance", torch.ones(num_members, 1, num_features))

    def forward(self, x: Tensor, use_batch_stats: bool) -> Tensor:
        """Normalize with the batch statistics, which updates the running ones, or with the running statistics."""
        if use_batch_stats:
            variance, mean = torch.var_mean(x, 1, correction=0, keepdim=True)
            with torch.no_grad():
                self.mean.lerp_(mean, 1.0 - MOMENTUM)
                self.variance.lerp_(variance, 1.0 - MOMENTUM)
        else:
            mean, variance = self.mean, self.variance
        return (x - mean) * ((variance + EPSILON).rsqrt() * self.scale) + self.offset


class BatchNormEnsembleMLP(EnsembleMLP):
    """An ensemble of MLPs with batch normalization before each layer."""

    def __init__(self, num_members: int, num_inputs: int, num_outputs: int, mlp_spec: MLPSpec) -> None:
        super().__init__(num_members, num_inputs, num_outputs, mlp_spec)
        sizes: Sequence[int] = (num_inputs, *mlp_spec.hidden_sizes)
        self.norms = nn.ModuleList(BatchNorm(num_members, size) for size in sizes)

    def forward(self, x: Tensor, use_batch_stats: bool = False) -> Tensor:
        """Evaluate every member on the same input [B, in], or each on its own [E, B, in]."""
        x = x.expand(self.num_members, -1, -1) if x.dim() == 2 else x
        *hidden, (last_weight, last_bias) = self._layers()
        *norms, last_norm = self.norms
        for norm, (weight, bias) in zip(norms, hidden, strict=True):
            x = self._activation(torch.baddbmm(bias, norm(x, use_batch_stats), weight))
        output: Tensor = torch.bmm(last_norm(x, use_batch_stats), last_weight) + last_bias
        return output


class BatchNormCritic(EnsembleCritic):
    """Q-values of continuous actions by several critics with batch normalization."""

    def forward(self, obs: Tensor, actions: Tensor, use_batch_stats: bool = False) -> Tensor:
        """Each critic's Q-values, [members, B]."""
        values: Tensor = self.networks(torch.cat([self.features(obs), actions], -1), use_batch_stats)
        return values.squeeze(-1)

    def _make_networks(self, num_members: int, num_inputs: int, num_outputs: int, mlp_spec: MLPSpec) -> EnsembleMLP:
        return BatchNormEnsembleMLP(num_members, num_inputs, num_outputs, mlp_spec)

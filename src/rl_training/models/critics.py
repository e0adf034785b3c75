"""Q-networks: of given actions, as an ensemble of critics (also with batch norm), or of every discrete action."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_training.models.encoders import ObsNetwork
from rl_training.models.mlp import EnsembleMLP, MLPSpec
from rl_training.spaces.spec import Spaces

MOMENTUM = 0.99
EPSILON = 1e-3


class EnsembleCritic(ObsNetwork):
    """Q-values of continuous actions by several critics, evaluated as one batched network."""

    def __init__(
        self, spaces: Spaces, mlp_spec: MLPSpec, *, num_members: int = 2, num_outputs: int = 1
    ) -> None:
        super().__init__(spaces.obs, mlp_spec)
        num_inputs = self.num_features + spaces.action.num_components
        self.networks = self._make_networks(num_members, num_inputs, num_outputs, mlp_spec)

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Each critic's Q-values, [members, B]."""
        values: Tensor = self.networks(torch.cat([self.features(obs), actions], -1))
        return values.squeeze(-1)

    def first(self, obs: Tensor, actions: Tensor) -> Tensor:
        """The first critic's Q-values, [B], without evaluating the others."""
        return self.networks.member(0, torch.cat([self.features(obs), actions], -1)).squeeze(-1)

    def _make_networks(
        self, num_members: int, num_inputs: int, num_outputs: int, mlp_spec: MLPSpec
    ) -> EnsembleMLP:
        return EnsembleMLP(num_members, num_inputs, num_outputs, mlp_spec)


class QuantileCritic(EnsembleCritic):
    """Quantiles of the return of continuous actions by several critics."""

    def __init__(
        self, spaces: Spaces, mlp_spec: MLPSpec, num_quantiles: int, *, num_members: int = 2
    ) -> None:
        super().__init__(spaces, mlp_spec, num_members=num_members, num_outputs=num_quantiles)

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Each critic's quantiles, [members, B, num_quantiles]."""
        quantiles: Tensor = self.networks(torch.cat([self.features(obs), actions], -1))
        return quantiles


class EnsembleQNetwork(ObsNetwork):
    """Q-values of every discrete action by several critics, evaluated as one batched network."""

    def __init__(self, spaces: Spaces, mlp_spec: MLPSpec, *, num_members: int = 2) -> None:
        super().__init__(spaces.obs, mlp_spec)
        self.networks = EnsembleMLP(
            num_members, self.num_features, spaces.action.choices[0], mlp_spec
        )

    def forward(self, obs: Tensor, actions: Tensor | None = None) -> Tensor:
        """Each critic's Q-values of `actions`, [members, B], or without them of all, [members, B, num_actions]."""
        values: Tensor = self.networks(self.features(obs))
        return (
            values
            if actions is None
            else values.take_along_dim(actions.view(1, -1, 1), -1).squeeze(-1)
        )


class ValueNetwork(ObsNetwork):
    """State values, [B, 1]."""

    def __init__(self, spaces: Spaces, mlp_spec: MLPSpec) -> None:
        super().__init__(spaces.obs, mlp_spec)
        self.network = mlp_spec.make(self.num_features, 1)

    def forward(self, obs: Tensor) -> Tensor:
        """The value of each state."""
        values: Tensor = self.network(self.features(obs))
        return values


class QNetwork(ObsNetwork):
    """Q-values of every discrete action, [B, num_actions]; with `dueling`, as state value plus advantages."""

    def __init__(
        self, spaces: Spaces, mlp_spec: MLPSpec, *, dueling: bool = False, action_outputs: int = 1
    ) -> None:
        super().__init__(spaces.obs, mlp_spec)
        self._dueling = dueling
        # A dueling network has one more output: the state value.
        self.network = mlp_spec.make(
            self.num_features, (spaces.action.choices[0] + int(dueling)) * action_outputs
        )

    def forward(self, obs: Tensor) -> Tensor:
        """The Q-value of each action."""
        return self._combined(self.network(self.features(obs)))

    def _combined(self, outputs: Tensor) -> Tensor:
        if not self._dueling:
            return outputs
        value, advantages = outputs[:, :1], outputs[:, 1:]
        return value + advantages - advantages.mean(1, keepdim=True)  # Dueling networks, eq. 9


class QuantileQNetwork(QNetwork):
    """Quantiles of the return of every discrete action; with `dueling`, each as state value plus advantage."""

    def __init__(
        self, spaces: Spaces, mlp_spec: MLPSpec, num_quantiles: int, *, dueling: bool = False
    ) -> None:
        super().__init__(spaces, mlp_spec, dueling=dueling, action_outputs=num_quantiles)
        self._num_quantiles = num_quantiles

    def forward(self, obs: Tensor) -> Tensor:
        """The Q-value of each action, [B, num_actions]: the mean of its quantiles."""
        return self.distribution(obs).mean(-1)

    def distribution(self, obs: Tensor) -> Tensor:
        """Quantiles of each action's return, [B, num_actions, num_quantiles]."""
        return self._combined(
            self.network(self.features(obs)).unflatten(-1, (-1, self._num_quantiles))
        )


def of_actions(distributions: Tensor, actions: Tensor) -> Tensor:
    """Select the distribution of one action per row: [B, num_actions, N] becomes [B, N]."""
    return distributions.take_along_dim(actions.view(-1, 1, 1), 1).squeeze(1)


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

    def __init__(
        self, num_members: int, num_inputs: int, num_outputs: int, mlp_spec: MLPSpec
    ) -> None:
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
        values: Tensor = self.networks(
            torch.cat([self.features(obs), actions], -1), use_batch_stats
        )
        return values.squeeze(-1)

    def _make_networks(
        self, num_members: int, num_inputs: int, num_outputs: int, mlp_spec: MLPSpec
    ) -> EnsembleMLP:
        return BatchNormEnsembleMLP(num_members, num_inputs, num_outputs, mlp_spec)

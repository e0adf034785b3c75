"""Q-networks: of given actions, as an ensemble of critics, or of every discrete action. Inputs are preprocessed."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.models.encoders import ObsNetwork
from rl_training.models.mlp import EnsembleMLP, MLPSpec
from rl_training.spaces.spec import Spaces


class EnsembleCritic(ObsNetwork):
    """Q-values of continuous actions by several critics, evaluated as one batched network."""

    def __init__(self, spaces: Spaces, mlp_spec: MLPSpec, *, num_members: int = 2, num_outputs: int = 1) -> None:
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

    def _make_networks(self, num_members: int, num_inputs: int, num_outputs: int, mlp_spec: MLPSpec) -> EnsembleMLP:
        return EnsembleMLP(num_members, num_inputs, num_outputs, mlp_spec)


class QuantileCritic(EnsembleCritic):
    """Quantiles of the return of continuous actions by several critics."""

    def __init__(self, spaces: Spaces, mlp_spec: MLPSpec, num_quantiles: int, *, num_members: int = 2) -> None:
        super().__init__(spaces, mlp_spec, num_members=num_members, num_outputs=num_quantiles)

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Each critic's quantiles, [members, B, num_quantiles]."""
        quantiles: Tensor = self.networks(torch.cat([self.features(obs), actions], -1))
        return quantiles


class EnsembleQNetwork(ObsNetwork):
    """Q-values of every discrete action by several critics, evaluated as one batched network."""

    def __init__(self, spaces: Spaces, mlp_spec: MLPSpec, *, num_members: int = 2) -> None:
        super().__init__(spaces.obs, mlp_spec)
        self.networks = EnsembleMLP(num_members, self.num_features, spaces.action.choices[0], mlp_spec)

    def forward(self, obs: Tensor, actions: Tensor | None = None) -> Tensor:
        """Each critic's Q-values of `actions`, [members, B], or without them of all, [members, B, num_actions]."""
        values: Tensor = self.networks(self.features(obs))
        return values if actions is None else values.take_along_dim(actions.view(1, -1, 1), -1).squeeze(-1)


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

    def __init__(self, spaces: Spaces, mlp_spec: MLPSpec, *, dueling: bool = False, action_outputs: int = 1) -> None:
        super().__init__(spaces.obs, mlp_spec)
        self._dueling = dueling
        # A dueling network has one more output: the state value.
        self.network = mlp_spec.make(self.num_features, (spaces.action.choices[0] + int(dueling)) * action_outputs)

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

    def __init__(self, spaces: Spaces, mlp_spec: MLPSpec, num_quantiles: int, *, dueling: bool = False) -> None:
        super().__init__(spaces, mlp_spec, dueling=dueling, action_outputs=num_quantiles)
        self._num_quantiles = num_quantiles

    def forward(self, obs: Tensor) -> Tensor:
        """The Q-value of each action, [B, num_actions]: the mean of its quantiles."""
        return self.distribution(obs).mean(-1)

    def distribution(self, obs: Tensor) -> Tensor:
        """Quantiles of each action's return, [B, num_actions, num_quantiles]."""
        return self._combined(self.network(self.features(obs)).unflatten(-1, (-1, self._num_quantiles)))


def of_actions(distributions: Tensor, actions: Tensor) -> Tensor:
    """Select the distribution of one action per row: [B, num_actions, N] becomes [B, N]."""
    return distributions.take_along_dim(actions.view(-1, 1, 1), 1).squeeze(1)

"""Action-value networks: of given actions, by an ensemble, or of every discrete action. Observations come encoded."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rl_training.models.encoders import ObsNetwork
from rl_training.models.mlp import EnsembleMLP, Layers
from rl_training.spaces.spec import Spaces


class QuantileCritic(ObsNetwork):
    """Quantiles of a continuous action's return by several members, evaluated as one batched network."""

    networks_class: ClassVar[type[EnsembleMLP]] = EnsembleMLP

    def __init__(self, spaces: Spaces, layers: Layers, num_quantiles: int, *, num_members: int = 2) -> None:
        super().__init__(spaces.obs, layers)
        num_inputs = self.num_features + spaces.action.num_components
        self.networks = self.networks_class(num_members, num_inputs, num_quantiles, layers)

    def forward(self, obs: Tensor, actions: Tensor, **options: bool) -> Tensor:
        """Each member's quantiles of each pair, [members, B, num_quantiles]."""
        quantiles: Tensor = self.networks(torch.cat([self.features(obs), actions], -1), **options)
        return quantiles


class EnsembleCritic(QuantileCritic):
    """Several values of a continuous action, evaluated as one batched network."""

    def __init__(self, spaces: Spaces, layers: Layers, *, num_members: int = 2) -> None:
        super().__init__(spaces, layers, 1, num_members=num_members)

    def forward(self, obs: Tensor, actions: Tensor, **options: bool) -> Tensor:
        """Each member's value of each pair, [members, B]."""
        return super().forward(obs, actions, **options).squeeze(-1)

    def first(self, obs: Tensor, actions: Tensor) -> Tensor:
        """The first member's value of each pair, [B], at a fraction of the work."""
        return self.networks.member(0, torch.cat([self.features(obs), actions], -1)).squeeze(-1)


class QNetwork(ObsNetwork):
    """Values of every discrete action, [B, num_actions]; dueling splits them into value and advantage."""

    def __init__(self, spaces: Spaces, layers: Layers, *, dueling: bool = False, num_quantiles: int = 1) -> None:
        super().__init__(spaces.obs, layers)
        self._dueling = dueling
        # Dueling reads one more output: the state's value.
        self.network = layers.mlp(self.num_features, (spaces.action.choices[0] + int(dueling)) * num_quantiles)

    def forward(self, obs: Tensor) -> Tensor:
        """The value of each action."""
        return self._joined(self.network(self.features(obs)))

    def _joined(self, outputs: Tensor) -> Tensor:
        if not self._dueling:
            return outputs
        value, advantages = outputs[:, :1], outputs[:, 1:]
        return value + advantages - advantages.mean(1, keepdim=True)  # Dueling networks, eq. 9


class EnsembleQNetwork(ObsNetwork):
    """Several values of every discrete action, evaluated as one batched network."""

    def __init__(self, spaces: Spaces, layers: Layers, *, num_members: int = 2) -> None:
        super().__init__(spaces.obs, layers)
        self.networks = EnsembleMLP(num_members, self.num_features, spaces.action.choices[0], layers)

    def forward(self, obs: Tensor, actions: Tensor | None = None) -> Tensor:
        """Each member's value of each pair, [members, B], or without `actions` of all, [members, B, num_actions]."""
        values: Tensor = self.networks(self.features(obs))
        return values if actions is None else values.take_along_dim(actions.view(1, -1, 1), -1).squeeze(-1)


class QuantileQNetwork(QNetwork):
    """Quantiles of every discrete action's return; dueling splits each into value and advantage."""

    def __init__(self, spaces: Spaces, layers: Layers, num_quantiles: int, *, dueling: bool = False) -> None:
        super().__init__(spaces, layers, dueling=dueling, num_quantiles=num_quantiles)
        self._num_quantiles = num_quantiles

    def forward(self, obs: Tensor) -> Tensor:
        """The value of each action, [B, num_actions]: the mean of its quantiles."""
        return self.quantiles(obs).mean(-1)

    def quantiles(self, obs: Tensor) -> Tensor:
        """Each action's quantiles, [B, num_actions, num_quantiles]."""
        return self._joined(self.network(self.features(obs)).unflatten(-1, (-1, self._num_quantiles)))

"""Action-value networks: of given actions, by an ensemble, or of every discrete action. Observations come encoded."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.data.spaces import Spaces
from rl_training.models.encoders import ObsNetwork
from rl_training.models.mlp import EnsembleMLP, Layers


class EnsembleCritic(ObsNetwork):
    """Several values of a continuous action, evaluated as one batched network."""

    def __init__(self, spaces: Spaces, layers: Layers, *, num_members: int = 2) -> None:
        super().__init__(spaces.obs, layers)
        num_inputs = self.num_features + spaces.action.num_components
        self.networks = EnsembleMLP(num_members, num_inputs, 1, layers)

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Each member's value of each pair, [members, B]."""
        values: Tensor = self.networks(torch.cat([self.features(obs), actions], -1))
        return values.squeeze(-1)

    def first(self, obs: Tensor, actions: Tensor) -> Tensor:
        """The first member's value of each pair, [B], at a fraction of the work."""
        return self.networks.member(0, torch.cat([self.features(obs), actions], -1)).squeeze(-1)


class QNetwork(ObsNetwork):
    """Values of every discrete action, [B, num_actions]; dueling splits them into value and advantage."""

    def __init__(self, spaces: Spaces, layers: Layers, *, dueling: bool = False) -> None:
        super().__init__(spaces.obs, layers)
        self._dueling = dueling
        # Dueling reads one more output: the state's value.
        self.network = layers.mlp(self.num_features, spaces.action.choices[0] + int(dueling))

    def forward(self, obs: Tensor) -> Tensor:
        """The value of each action."""
        outputs: Tensor = self.network(self.features(obs))
        if not self._dueling:
            return outputs
        value, advantages = outputs[:, :1], outputs[:, 1:]
        return value + advantages - advantages.mean(-1, keepdim=True)  # Dueling networks, eq. 9

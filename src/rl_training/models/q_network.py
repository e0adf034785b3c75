"""The action-value network of DQN."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_training.data.spaces import Spaces
from rl_training.models.encoders import ObsEncoder
from rl_training.models.mlp import MLP, Activation


class QNetwork(nn.Module):
    """Values of every discrete action, [B, num_actions]; dueling splits them into value and advantage."""

    def __init__(
        self,
        spaces: Spaces,
        hidden_sizes: Sequence[int],
        *,
        activation: Activation,
        dueling: bool,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        num_actions = spaces.action.choices[0]
        self.encoder = ObsEncoder(spaces.obs)
        self._dueling = dueling
        # Dueling reads one more output: the state's value.
        self.network = MLP(
            self.encoder.num_features,
            hidden_sizes,
            num_actions + int(dueling),
            activation=activation,
            generator=generator,
        )

    def forward(self, obs: Tensor) -> Tensor:
        """The value of each action."""
        outputs: Tensor = self.network(self.encoder(obs))
        if not self._dueling:
            return outputs
        value, advantages = outputs[:, :1], outputs[:, 1:]
        return value + advantages - advantages.mean(-1, keepdim=True)  # Dueling networks, eq. 9

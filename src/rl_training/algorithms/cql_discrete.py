"""CQL for discrete actions: double DQN whose network values other actions less than the data's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_training.algorithms.optim import Adam, descend
from rl_training.algorithms.replay import Batch, Metrics
from rl_training.algorithms.returns import polyak
from rl_training.data.spaces import Spaces
from rl_training.models.critics import QNetwork
from rl_training.models.mlp import Layers, frozen_copy

if TYPE_CHECKING:
    from rl_training.algorithms.cql import CQLConfig


class DiscreteRule:
    """A network that values every action, and its slow copy."""

    def __init__(self, config: CQLConfig, spaces: Spaces, layers: Layers, device: torch.device) -> None:
        self._config = config
        self.network = QNetwork(spaces, layers).to(device)
        self.target_network = frozen_copy(self.network)
        self.optimizer = Adam(self.network.parameters(), config.learning_rate)

    def act(self, obs: Tensor, generator: torch.Generator | None) -> Tensor:
        """The best action."""
        best: Tensor = self.network(obs).argmax(-1)
        return best

    def step_arguments(self, actions: Tensor) -> tuple[Tensor, ...]:
        """Nothing here is random."""
        return ()

    def gradient_step(self, batch: Batch) -> Metrics:
        """One step towards targets that are as conservative as `cql_alpha` says."""
        values = self.network(batch.obs)  # [B, num_actions]
        data_values = values.gather(1, batch.actions.unsqueeze(1)).squeeze(1)
        td_loss = F.smooth_l1_loss(data_values, self._targets(batch))
        gap = (values.logsumexp(1) - data_values).mean()  # CQL eq. 4
        critic_loss = td_loss + self._config.cql_alpha * gap
        grad_norm = descend(critic_loss, self.optimizer)
        polyak(self.network.parameters(), self.target_network.parameters(), self._config.tau)
        return {
            "td_loss": td_loss,
            "conservative_gap": gap,
            "critic_loss": critic_loss,
            "critic_grad_norm": grad_norm,
            "q_mean": data_values.mean(),
        }

    @torch.no_grad()
    def _targets(self, batch: Batch) -> Tensor:
        best = self.network(batch.next_obs).argmax(1, keepdim=True)  # Double DQN, eq. 4
        return batch.targets(self.target_network(batch.next_obs).gather(1, best).squeeze(1))

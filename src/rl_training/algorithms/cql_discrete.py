"""CQL for discrete actions: double DQN whose network values other actions less than the data's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_training.algorithms.base import Resources, Stateful
from rl_training.algorithms.config import value_at
from rl_training.algorithms.optim import Adam, descend
from rl_training.algorithms.returns import polyak
from rl_training.data.spaces import Spaces
from rl_training.models.mlp import frozen_copy
from rl_training.models.q_network import QNetwork

if TYPE_CHECKING:
    from rl_training.algorithms.cql import CQLConfig


class DiscreteRule:
    """A network that values every action, and its slow copy."""

    step_metrics: tuple[str, ...] = ("td_loss", "conservative_gap", "critic_loss", "critic_grad_norm", "q_mean")

    def __init__(self, config: CQLConfig, spaces: Spaces, resources: Resources) -> None:
        self._config = config
        self.network = QNetwork(
            spaces,
            config.hidden_sizes,
            activation=config.activation,
            dueling=False,
            generator=resources.generator,
        ).to(resources.device)
        self.target_network = frozen_copy(self.network)
        self.optimizer = Adam(self.network.parameters())

    def act(self, obs: Tensor, *, explore: bool) -> Tensor:
        """The best action."""
        best: Tensor = self.network(obs).argmax(-1)
        return best

    def set_learning_rates(self, progress: float) -> None:
        """Follow the schedule."""
        self.optimizer.set_learning_rate(value_at(self._config.learning_rate, progress))

    def draw_noise(self, count: int) -> tuple[Tensor, ...]:
        """Nothing here is random."""
        return ()

    def parts(self) -> dict[str, Stateful]:
        """Both networks and the optimizer."""
        return {"network": self.network, "target_network": self.target_network, "optimizer": self.optimizer}

    def gradient_step(
        self, obs: Tensor, actions: Tensor, rewards: Tensor, next_obs: Tensor, discounts: Tensor, *noise: Tensor
    ) -> Tensor:
        """One step towards targets that are as conservative as `cql_alpha` says."""
        values = self.network(obs)  # [B, num_actions]
        data_values = values.gather(1, actions.unsqueeze(1)).squeeze(1)
        td_loss = F.smooth_l1_loss(data_values, self._targets(rewards, next_obs, discounts))
        gap = (values.logsumexp(1) - data_values).mean()  # CQL eq. 4
        critic_loss = td_loss + self._config.cql_alpha * gap
        grad_norm = descend(critic_loss, self.optimizer)
        polyak(self.network.parameters(), self.target_network.parameters(), self._config.tau)
        return torch.stack([td_loss, gap, critic_loss, grad_norm, data_values.mean()]).detach()

    @torch.no_grad()
    def _targets(self, rewards: Tensor, next_obs: Tensor, discounts: Tensor) -> Tensor:
        best = self.network(next_obs).argmax(1, keepdim=True)  # Double Q-learning, eq. 4
        next_values: Tensor = self.target_network(next_obs).gather(1, best).squeeze(1)
        return rewards + discounts * next_values

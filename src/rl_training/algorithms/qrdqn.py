"""Quantile-regression DQN (Dabney et al. 2017): DQN that learns the distribution of each action's return."""

from __future__ import annotations

import torch
from pydantic import PositiveInt
from torch import Tensor

from rl_training.algorithms.dqn import DQNAlgorithm, DQNConfig
from rl_training.algorithms.replay import Batch
from rl_training.algorithms.returns import quantile_huber_losses
from rl_training.models.critics import QuantileQNetwork


class QRDQNConfig(DQNConfig):
    """Settings of QR-DQN."""

    num_quantiles: PositiveInt = 200
    """Quantiles of the return that are learned for each action."""


class QRDQNAlgorithm(DQNAlgorithm):
    """Learns the quantiles of every discrete action's return, and acts by their means."""

    config: QRDQNConfig
    network: QuantileQNetwork
    target_network: QuantileQNetwork
    name = "qrdqn"

    def _make_network(self) -> QuantileQNetwork:
        config = self.config
        network = QuantileQNetwork(self.spaces, self.layers, config.num_quantiles, dueling=config.dueling)
        return network.to(self.device)

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        quantiles = _of_actions(self.network.quantiles(batch.obs), batch.actions)  # [B, N]
        targets = self._targets(batch)
        return quantile_huber_losses(quantiles, targets), quantiles.mean(-1), targets.mean(-1)

    @torch.no_grad()
    def _targets(self, batch: Batch) -> Tensor:
        """Quantiles of the return [B, N] after the action that is best on average (QR-DQN algorithm 1)."""
        next_quantiles = self.target_network.quantiles(batch.next_obs)
        next_values = self.network(batch.next_obs) if self.config.double else next_quantiles.mean(-1)
        return batch.targets(_of_actions(next_quantiles, next_values.argmax(1)).T).T


def _of_actions(quantiles: Tensor, actions: Tensor) -> Tensor:
    """Those of one action in each row: [B, num_actions, N] becomes [B, N]."""
    return quantiles.take_along_dim(actions.view(-1, 1, 1), 1).squeeze(1)

"""Quantile-regression DQN (Dabney et al. 2017): DQN that learns quantiles of each action's return."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor

from rl_training.algorithms.dqn import DQNAlgorithm, DQNConfig
from rl_training.algorithms.replay import Batch
from rl_training.models.critics import QuantileQNetwork, of_actions


class QRDQNConfig(DQNConfig):
    """Settings of QR-DQN."""

    num_quantiles: PositiveInt = 200
    """Quantiles of the return per action."""


class QRDQNAlgorithm(DQNAlgorithm):
    """Learns quantiles of each discrete action's return and acts by their means."""

    config: QRDQNConfig
    network: QuantileQNetwork
    target_network: QuantileQNetwork

    def _make_network(self) -> QuantileQNetwork:
        config = self.config
        network = QuantileQNetwork(
            self.spaces, self.mlp_spec, config.num_quantiles, dueling=config.dueling
        )
        return network.to(self.device)

    def _losses(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        quantiles = of_actions(self.network.distribution(batch.obs), batch.actions)  # [B, N]
        targets = self._targets(batch)
        values = quantiles.mean(-1)
        return (
            quantile_huber_losses(quantiles, targets),
            values,
            batch.td_errors(values, targets.mean(-1)),
        )

    @torch.no_grad()
    def _targets(self, batch: Batch) -> Tensor:
        """Quantiles of the return [B, N] after the action of the largest mean (QR-DQN algorithm 1)."""
        next_quantiles = self.target_network.distribution(batch.next_obs)
        next_values = (
            self.network(batch.next_obs) if self.config.double else next_quantiles.mean(-1)
        )
        return batch.targets(of_actions(next_quantiles, self.best_next(batch, next_values)).T).T


def quantile_huber_losses(quantiles: Tensor, targets: Tensor) -> Tensor:
    """Quantile Huber losses [..., B] of quantiles [..., B, N] against target samples [B, M] (QR-DQN eq. 10)."""
    count = quantiles.shape[-1]
    levels = ((torch.arange(count, device=quantiles.device) + 0.5) / count).unsqueeze(
        -1
    )  # QR-DQN lemma 2
    errors = targets.unsqueeze(-2) - quantiles.unsqueeze(-1)  # [..., B, N, M]
    weights = torch.where(errors.detach() < 0.0, 1.0 - levels, levels)
    huber = F.smooth_l1_loss(errors, errors.new_zeros(()).expand_as(errors), reduction="none")
    return (weights * huber).mean(-1).sum(-1)

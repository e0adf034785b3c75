"""Truncated quantile critics (Kuznetsov et al. 2020): SAC whose targets leave out the highest returns foreseen."""

from __future__ import annotations

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from rl_training.algorithms.replay import Batch
from rl_training.algorithms.returns import quantile_huber_losses
from rl_training.algorithms.sac import SACAlgorithm, SACConfig
from rl_training.models.critics import QuantileCritic
from rl_training.models.policies import SquashedGaussianPolicy
from rl_training.spaces.spec import Spaces, require_bounded_box


class TQCConfig(SACConfig):
    """Settings of TQC."""

    num_critics: PositiveInt = 2
    """Critics whose quantiles are pooled."""
    num_quantiles: PositiveInt = 25
    """Quantiles of the return that each critic learns."""
    quantiles_to_drop: int = Field(2, ge=0)
    """Highest quantiles left out of the targets, for each critic."""

    @model_validator(mode="after")
    def _some_are_left(self) -> TQCConfig:
        if self.quantiles_to_drop >= self.num_quantiles:
            raise ValueError(
                f"quantiles_to_drop {self.quantiles_to_drop} leaves none of {self.num_quantiles} quantiles: drop fewer"
            )
        return self


class TQCAlgorithm(SACAlgorithm):
    """SAC with quantiles for values."""

    config: TQCConfig
    actor: SquashedGaussianPolicy

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        """TQC squashes its actions into the bounds, so it needs some."""
        require_bounded_box(spaces, "tqc", "qrdqn or sac")

    def _make_critic(self) -> QuantileCritic:
        config = self.config
        critic = QuantileCritic(self.spaces, self.layers, config.num_quantiles, num_members=config.num_critics)
        return critic.to(self.device)

    def _critic_losses(self, batch: Batch, next_noise: Tensor | None, alpha: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        quantiles = self.critic(batch.obs, batch.actions)  # [C, B, M]
        targets = self._targets(batch, next_noise, alpha)
        losses = quantile_huber_losses(quantiles, targets) / self.config.num_quantiles  # [C, B], TQC eq. 12 and 13
        return losses, quantiles.mean(-1), targets.mean(-1)

    @torch.no_grad()
    def _targets(self, batch: Batch, next_noise: Tensor | None, alpha: Tensor) -> Tensor:
        """The lowest of all target critics' quantiles of the soft return, [B, kept] (TQC eq. 9 to 11)."""
        next_actions, next_log_probs = self.actor(batch.next_obs, next_noise)
        pooled = torch.cat(list(self.target_critic(batch.next_obs, next_actions)), -1)  # [B, C M]
        kept = pooled.shape[-1] - self.config.num_critics * self.config.quantiles_to_drop
        lowest = pooled.sort(-1).values[:, :kept]
        return batch.targets(lowest.T - alpha * next_log_probs).T

    def _expected(self, obs: Tensor, noise: Tensor | None, critic: nn.Module) -> tuple[Tensor, Tensor]:
        """Mean of all quantiles of a drawn action, whose gradient the actor follows (TQC eq. 14)."""
        actions, log_probs = self.actor(obs, noise)
        return critic(obs, actions).mean((0, 2)), log_probs

"""Truncated quantile critics, TQC (Kuznetsov et al. 2020): SAC with quantile critics, truncated from above."""

from __future__ import annotations

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from rl_training.algorithms.base import Resources, UpdateResult
from rl_training.algorithms.optim import descend, polyak
from rl_training.algorithms.qrdqn import quantile_huber_losses
from rl_training.algorithms.replay import Batch
from rl_training.algorithms.sac import SACConfig, SoftActorCritic
from rl_training.models.critics import QuantileCritic
from rl_training.models.policies import SquashedGaussianPolicy
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.spec import Spaces


class TQCConfig(SACConfig):
    """Settings of TQC."""

    num_critics: PositiveInt = 2
    """Critics whose quantiles are pooled."""
    num_quantiles: PositiveInt = 25
    """Quantiles of the return per critic."""
    quantiles_to_drop: int = Field(2, ge=0)
    """Largest quantiles dropped from the targets, per critic."""

    @model_validator(mode="after")
    def _keeps_some_quantiles(self) -> TQCConfig:
        if self.quantiles_to_drop >= self.num_quantiles:
            raise ValueError(
                f"quantiles_to_drop {self.quantiles_to_drop} leaves none of {self.num_quantiles} quantiles: drop fewer"
            )
        return self


class TQCAlgorithm(SoftActorCritic[TQCConfig]):
    """SAC with a distribution of the return per critic."""

    actor: SquashedGaussianPolicy
    action_kinds = (ActionKind.CONTINUOUS,)
    needs_bounds = True

    def __init__(self, config: TQCConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.target_critic = self.make_target_critic()

    def make_critic(self) -> QuantileCritic:
        """Quantile critics."""
        config = self.config
        return QuantileCritic(
            self.spaces, self.critic_spec, config.num_quantiles, num_members=config.num_critics
        )

    def gradient_step(self, batch: Batch, noise: Tensor, next_noise: Tensor) -> UpdateResult:
        """One step of the critics, the policy and the temperature, in that order."""
        alpha = self.temperature.alpha
        quantiles = self.critic(batch.obs, batch.actions)  # [C, B, M]
        targets = self._targets(batch, next_noise, alpha)
        losses = (
            quantile_huber_losses(quantiles, targets) / self.config.num_quantiles
        )  # [C, B], TQC eq. 12 and 13
        critic_loss = batch.mean(losses).sum()
        critic_grad_norm = descend(critic_loss, self.critic_optimizer)
        actions, log_probs = self.actor(batch.obs, noise)
        policy_values = self.critic(batch.obs, actions).mean(
            (0, 2)
        )  # mean of all quantiles, TQC eq. 14
        policy_metrics = self.step_policy(policy_values, log_probs, alpha)
        polyak(self.critic, self.target_critic, self.config.tau)
        values = quantiles.mean(-1)
        metrics = {
            "critic_loss": critic_loss,
            "critic_grad_norm": critic_grad_norm,
            **policy_metrics,
        }
        return UpdateResult(
            {**metrics, "q_mean": values.mean()},
            td_errors=batch.td_errors(values, targets.mean(-1)),
        )

    @torch.no_grad()
    def _targets(self, batch: Batch, next_noise: Tensor, alpha: Tensor) -> Tensor:
        """The smallest of all target critics' quantiles of the soft return, [B, kept] (TQC eq. 9 to 11)."""
        next_actions, next_log_probs = self.actor(batch.next_obs, next_noise)
        pooled = torch.cat(list(self.target_critic(batch.next_obs, next_actions)), -1)  # [B, C M]
        kept = pooled.shape[-1] - self.config.num_critics * self.config.quantiles_to_drop
        smallest = pooled.sort(-1).values[:, :kept]
        return batch.targets(smallest.T - alpha * next_log_probs).T

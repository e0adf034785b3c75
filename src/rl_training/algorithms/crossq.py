"""CrossQ (Bhatt et al. 2024): SAC with batch normalization in the critics and no target networks.

Unlike the paper: no policy delay, Adam's default betas (the paper's are `adam_beta1: 0.5`), no normalization in the
actor, critics as wide as `hidden_sizes`.
"""

from __future__ import annotations

import torch
from pydantic import model_validator
from torch import Tensor

from rl_training.algorithms.base import UpdateResult
from rl_training.algorithms.config import Scheduled
from rl_training.algorithms.optim import descend
from rl_training.algorithms.replay import Batch
from rl_training.algorithms.sac import SACBaseConfig, SoftActorCritic
from rl_training.models.critics import BatchNormCritic
from rl_training.models.policies import SquashedGaussianPolicy
from rl_training.spaces.actions import ActionKind


class CrossQConfig(SACBaseConfig):
    """Settings of CrossQ."""

    learning_rate: Scheduled = 1e-3
    """Learning rate of the optimizers: a number or a schedule."""
    layer_norm: bool = False
    """Not available: the critics have batch normalization."""

    @model_validator(mode="after")
    def _has_one_normalization(self) -> CrossQConfig:
        if self.layer_norm:
            raise ValueError(
                "layer_norm is not available: the critics have batch normalization already; remove it"
            )
        return self


class CrossQAlgorithm(SoftActorCritic[CrossQConfig]):
    """Evaluates current and next state-actions in one batch, so that both share batch statistics."""

    actor: SquashedGaussianPolicy
    action_kinds = (ActionKind.CONTINUOUS,)
    needs_bounds = True

    def make_critic(self) -> BatchNormCritic:
        """Twin critics with batch normalization."""
        return BatchNormCritic(self.spaces, self.critic_spec)

    def gradient_step(self, batch: Batch, noise: Tensor, next_noise: Tensor) -> UpdateResult:
        """One step of the critics, the policy and the temperature, in that order."""
        alpha = self.temperature.alpha
        values, targets = self._values_and_targets(batch, next_noise, alpha)
        critic_loss = batch.mean(0.5 * (values - targets).square()).sum()
        critic_grad_norm = descend(critic_loss, self.critic_optimizer)
        actions, log_probs = self.actor(batch.obs, noise)
        policy_metrics = self.step_policy(self.critic(batch.obs, actions).amin(0), log_probs, alpha)
        metrics = {
            "critic_loss": critic_loss,
            "critic_grad_norm": critic_grad_norm,
            **policy_metrics,
        }
        return UpdateResult(
            {**metrics, "q_mean": values.mean()}, td_errors=batch.td_errors(values, targets)
        )

    def _values_and_targets(
        self, batch: Batch, next_noise: Tensor, alpha: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Each critic's values [2, B] and the TD targets [B] (CrossQ, figure 2)."""
        with torch.no_grad():
            next_actions, next_log_probs = self.actor(batch.next_obs, next_noise)
        obs, actions = (
            torch.cat([batch.obs, batch.next_obs]),
            torch.cat([batch.actions, next_actions]),
        )
        values, next_values = self.critic(obs, actions, use_batch_stats=True).chunk(2, 1)
        return values, batch.targets(next_values.detach().amin(0) - alpha * next_log_probs)

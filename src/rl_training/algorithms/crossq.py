"""CrossQ (Bhatt et al. 2024): SAC without target networks, whose critics are kept steady by batch normalization."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms.base import Resources
from rl_training.algorithms.config import Scheduled
from rl_training.algorithms.replay import Batch
from rl_training.algorithms.sac import SACAlgorithm, SACBaseConfig
from rl_training.models.batch_norm import BatchNormCritic
from rl_training.models.policies import SquashedGaussianPolicy
from rl_training.spaces.spec import Spaces, require_bounded_box


class CrossQConfig(SACBaseConfig):
    """Settings of CrossQ."""

    learning_rate: Scheduled = 1e-3
    """Step size of the optimizers: a number or a schedule."""


class CrossQAlgorithm(SACAlgorithm):
    """Values what was done and what comes next in one batch, so that both are normalized alike."""

    actor: SquashedGaussianPolicy

    def __init__(self, config: CrossQConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        del self.target_critic

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        """CrossQ squashes its actions into the bounds, so it needs some."""
        require_bounded_box(spaces, "crossq", "qrdqn or sac")

    def _make_critic(self) -> BatchNormCritic:
        return BatchNormCritic(self.spaces, self.layers).to(self.device)

    def _critic_losses(self, batch: Batch, next_noise: Tensor | None, alpha: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Each critic's losses and values [2, B], and the targets [B] (CrossQ, figure 2)."""
        with torch.no_grad():
            next_actions, next_log_probs = self.actor(batch.next_obs, next_noise)
        obs, actions = torch.cat([batch.obs, batch.next_obs]), torch.cat([batch.actions, next_actions])
        values, next_values = self.critic(obs, actions, use_batch_stats=True).chunk(2, 1)
        targets = batch.targets(next_values.detach().amin(0) - alpha * next_log_probs)
        return 0.5 * (values - targets).square(), values, targets

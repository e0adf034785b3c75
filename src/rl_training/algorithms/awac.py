"""Advantage-weighted actor-critic (Nair et al. 2020): imitate the data, its better actions more."""

from __future__ import annotations

import torch
from pydantic import PositiveFloat
from torch import Tensor

from rl_training.algorithms.base import Resources
from rl_training.algorithms.config import Fraction, OfflineToOnlineConfig
from rl_training.algorithms.optim import Adam, descend
from rl_training.algorithms.replay import Batch, Metrics, ReplayAlgorithm
from rl_training.algorithms.returns import ensemble_mse, exponential_weights, polyak
from rl_training.models.critics import EnsembleCritic
from rl_training.models.mlp import frozen_copy
from rl_training.models.policies import TanhMeanGaussianPolicy
from rl_training.spaces.spec import Spaces, require_bounded_box


class AWACConfig(OfflineToOnlineConfig):
    """Settings of AWAC."""

    awac_lambda: PositiveFloat = 1.0 / 3.0
    """How little better actions are preferred: the less, the further the policy leaves the data's average."""
    max_advantage_weight: PositiveFloat = 100.0
    """Most that one action can weigh in the imitation."""
    tau: Fraction = 0.005
    """Share by which the target critics follow the critics at each update."""


class AWACAlgorithm(ReplayAlgorithm[AWACConfig]):
    """Learns a stochastic policy for bounded continuous actions from a fixed set of transitions."""

    actor: TanhMeanGaussianPolicy
    draws_per_step = 2

    def __init__(self, config: AWACConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.actor = TanhMeanGaussianPolicy(spaces, self.layers).to(self.device)
        self.critic = EnsembleCritic(spaces, self.layers).to(self.device)
        self.target_critic = frozen_copy(self.critic)
        self.actor_optimizer = Adam(self.actor.parameters(), config.learning_rate)
        self.critic_optimizer = Adam(self.critic.parameters(), config.learning_rate)

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        """AWAC squashes its actions into the bounds, so it needs some."""
        require_bounded_box(spaces, "awac", "bc or cql")

    def gradient_step(self, batch: Batch, noise: Tensor, next_noise: Tensor) -> Metrics:
        """One step of the critics and the actor, in that order."""
        values, mean = self.critic(batch.obs, batch.actions), self.actor.mode(batch.obs)  # [2, B], [B, A]
        # Before the critics move, so that the values they learn from serve here too.
        advantages = values.detach().amin(0) - self._own_values(batch.obs, mean, noise)
        critic_loss = ensemble_mse(values, self._targets(batch, next_noise))
        critic_grad_norm = descend(critic_loss, self.critic_optimizer)
        weights = exponential_weights(advantages / self.config.awac_lambda, self.config.max_advantage_weight)
        actor_loss = (
            weights * self.actor.negative_log_prob(mean, batch.actions)
        ).mean()  # AWAC algorithm 1, the actor's step
        actor_grad_norm = descend(actor_loss, self.actor_optimizer)
        polyak(self.critic.parameters(), self.target_critic.parameters(), self.config.tau)
        return {
            "critic_loss": critic_loss,
            "critic_grad_norm": critic_grad_norm,
            "q_mean": values.mean(),
            "advantage_mean": advantages.mean(),
            "actor_loss": actor_loss,
            "actor_grad_norm": actor_grad_norm,
        }

    @torch.no_grad()
    def _targets(self, batch: Batch, next_noise: Tensor) -> Tensor:
        """Value of the state reached and of an action drawn there, by the lesser of the target critics."""
        next_actions = self.actor.sample_from_noise(self.actor.mode(batch.next_obs), next_noise)
        return batch.targets(self.target_critic(batch.next_obs, next_actions).amin(0))

    @torch.no_grad()
    def _own_values(self, obs: Tensor, mean: Tensor, noise: Tensor) -> Tensor:
        """Value of an action that the policy would draw, by the lesser of the critics."""
        own_values: Tensor = self.critic(obs, self.actor.sample_from_noise(mean, noise)).amin(0)
        return own_values

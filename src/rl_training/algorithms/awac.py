"""Advantage-weighted actor-critic, AWAC (Nair et al. 2020): behaviour cloning weighted by advantages."""

from __future__ import annotations

import math

import torch
from pydantic import PositiveFloat
from torch import Tensor

from rl_training.algorithms.base import Resources, UpdateResult
from rl_training.algorithms.config import ActorCriticConfig, Fraction, OfflineToOnlineConfig
from rl_training.algorithms.optim import descend, polyak
from rl_training.algorithms.replay import Batch, ReplayAlgorithm
from rl_training.models.critics import EnsembleCritic
from rl_training.models.mlp import frozen_copy
from rl_training.models.policies import TanhMeanGaussianPolicy
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.spec import Spaces


class AWACConfig(ActorCriticConfig, OfflineToOnlineConfig):
    """Settings of AWAC."""

    awac_lambda: PositiveFloat = 1.0 / 3.0
    """Temperature of the advantage weights; smaller is greedier."""
    max_advantage_weight: PositiveFloat = 100.0
    """Upper bound of the exponential advantage weight."""
    tau: Fraction = 0.005
    """Polyak coefficient of the target networks."""


class AWACAlgorithm(ReplayAlgorithm[AWACConfig]):
    """TD learning of Q under the policy, advantage-weighted regression of the policy."""

    actor: TanhMeanGaussianPolicy
    noise_per_step = 2
    action_kinds = (ActionKind.CONTINUOUS,)
    needs_bounds = True

    def __init__(self, config: AWACConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.actor = TanhMeanGaussianPolicy(spaces, self.actor_spec).to(self.device)
        self.critic = EnsembleCritic(spaces, self.critic_spec).to(self.device)
        self.target_critic = frozen_copy(self.critic)
        self.actor_optimizer = self.make_optimizer(
            self.actor.parameters(), config.actor_learning_rate
        )
        self.critic_optimizer = self.make_optimizer(
            self.critic.parameters(), config.critic_learning_rate
        )

    def gradient_step(self, batch: Batch, noise: Tensor, next_noise: Tensor) -> UpdateResult:
        """One step of the critics and the actor, in that order."""
        values, mean = (
            self.critic(batch.obs, batch.actions),
            self.actor.mode(batch.obs),
        )  # [2, B], [B, A]
        # Before the critics' step, so that these Q-values serve both.
        advantages = values.detach().amin(0) - self._policy_values(batch.obs, mean, noise)
        critic_loss = batch.mean((values - self._targets(batch, next_noise)).square()).sum()
        critic_grad_norm = descend(critic_loss, self.critic_optimizer)
        weights = exponential_weights(
            advantages / self.config.awac_lambda, self.config.max_advantage_weight
        )
        actor_loss = (
            weights * self.actor.negative_log_prob(mean, batch.actions)
        ).mean()  # AWAC algorithm 1, the actor's step
        actor_grad_norm = descend(actor_loss, self.actor_optimizer)
        polyak(self.critic, self.target_critic, self.config.tau)
        metrics = {
            "critic_loss": critic_loss,
            "critic_grad_norm": critic_grad_norm,
            "q_mean": values.mean(),
            "advantage_mean": advantages.mean(),
            "actor_loss": actor_loss,
            "actor_grad_norm": actor_grad_norm,
        }
        return UpdateResult(metrics)

    @torch.no_grad()
    def _targets(self, batch: Batch, next_noise: Tensor) -> Tensor:
        """TD targets with a sampled next action, by the minimum over the target critics."""
        next_actions = self.actor.sample_from_noise(self.actor.mode(batch.next_obs), next_noise)
        return batch.targets(self.target_critic(batch.next_obs, next_actions).amin(0))

    @torch.no_grad()
    def _policy_values(self, obs: Tensor, mean: Tensor, noise: Tensor) -> Tensor:
        """Q-value of a sampled policy action, by the minimum over the critics."""
        values: Tensor = self.critic(obs, self.actor.sample_from_noise(mean, noise)).amin(0)
        return values


def exponential_weights(scores: Tensor, max_weight: float) -> Tensor:
    """`exp(scores)`, at most `max_weight`; clamped before the exponential, which could overflow."""
    return scores.clamp(max=math.log(max_weight)).exp()

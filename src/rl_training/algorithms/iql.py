"""Implicit Q-learning, IQL (Kostrikov et al. 2021): never evaluates actions outside the dataset."""

from __future__ import annotations

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from rl_training.algorithms.awac import exponential_weights
from rl_training.algorithms.base import Resources, UpdateResult
from rl_training.algorithms.config import (
    ActorCriticConfig,
    Fraction,
    OfflineToOnlineConfig,
    Schedule,
    Scheduled,
)
from rl_training.algorithms.optim import descend, polyak
from rl_training.algorithms.replay import Batch, ReplayAlgorithm
from rl_training.models.critics import EnsembleCritic, ValueNetwork
from rl_training.models.mlp import frozen_copy
from rl_training.models.policies import ImitationPolicy, PolicyKind, make_imitation_policy
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.spec import Spaces


class IQLConfig(ActorCriticConfig, OfflineToOnlineConfig):
    """Settings of IQL."""

    learning_rate: Scheduled = 3e-4
    """Learning rate of the critics and of the value function: a number or a schedule."""
    actor_learning_rate: Scheduled = Schedule(kind="cosine", start=3e-4)
    """Learning rate of the actor: a number or a schedule."""
    expectile: Fraction = 0.7
    """Expectile of Q over dataset actions fitted by V(s): 0.5 mean, near 1 maximum."""
    beta: NonNegativeFloat = 3.0
    """Inverse temperature of the advantage weights; 0 is behaviour cloning."""
    max_advantage_weight: PositiveFloat = 100.0
    """Upper bound of the exponential advantage weight."""
    policy: PolicyKind = "gaussian"
    """Policy of Box actions: `gaussian`, trained by log-likelihood, or `deterministic`, by squared error."""
    tau: Fraction = 0.005
    """Polyak coefficient of the target networks."""


class IQLAlgorithm(ReplayAlgorithm[IQLConfig]):
    """Expectile regression of V(s), TD learning of Q, advantage-weighted regression of the policy."""

    actor: ImitationPolicy
    action_kinds = (ActionKind.CONTINUOUS,)
    needs_bounds = True
    reads_images = False

    def __init__(self, config: IQLConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.actor = make_imitation_policy(config.policy, spaces, self.actor_spec).to(self.device)
        self.critic = EnsembleCritic(spaces, self.critic_spec).to(self.device)
        self.target_critic = frozen_copy(self.critic)
        # Without a user-defined encoder a plain MLP, whose weights have other names in checkpoints.
        has_encoder, sizes = config.network is not None, (spaces.obs.num_features, 1)
        value = (
            ValueNetwork(spaces, self.critic_spec) if has_encoder else self.critic_spec.make(*sizes)
        )
        self.value = value.to(self.device)
        self.actor_optimizer = self.make_optimizer(
            self.actor.parameters(), config.actor_learning_rate
        )
        self.critic_optimizer = self.make_optimizer(
            self.critic.parameters(), config.critic_learning_rate
        )
        self.value_optimizer = self.make_optimizer(
            self.value.parameters(), config.critic_learning_rate
        )

    def gradient_step(self, batch: Batch) -> UpdateResult:
        """One step of the value function, the critics and the actor, in that order."""
        # Reused by the actor; the authors' code evaluates V again after its step.
        advantages = self.target_critic(batch.obs, batch.actions).amin(0) - self.value(
            batch.obs
        ).squeeze(-1)
        value_loss = expectile_loss(advantages, self.config.expectile)  # IQL eq. 5
        value_grad_norm = descend(value_loss, self.value_optimizer)
        values = self.critic(batch.obs, batch.actions)  # [2, B]
        critic_loss = batch.mean((values - self._targets(batch)).square()).sum()  # IQL eq. 6
        critic_grad_norm = descend(critic_loss, self.critic_optimizer)
        actor_loss = self._actor_loss(batch.obs, batch.actions, advantages.detach())
        actor_grad_norm = descend(actor_loss, self.actor_optimizer)
        polyak(self.critic, self.target_critic, self.config.tau)
        metrics = {
            "value_loss": value_loss,
            "value_grad_norm": value_grad_norm,
            "critic_loss": critic_loss,
            "critic_grad_norm": critic_grad_norm,
            "q_mean": values.mean(),
            "advantage_mean": advantages.mean(),
            "actor_loss": actor_loss,
            "actor_grad_norm": actor_grad_norm,
        }
        return UpdateResult(metrics)

    @torch.no_grad()
    def _targets(self, batch: Batch) -> Tensor:
        return batch.targets(self.value(batch.next_obs).squeeze(-1))

    def _actor_loss(self, obs: Tensor, actions: Tensor, advantages: Tensor) -> Tensor:
        weights = exponential_weights(
            self.config.beta * advantages, self.config.max_advantage_weight
        )
        return (weights * self.actor.imitation_loss(obs, actions)).mean()  # IQL eq. 7


def expectile_loss(errors: Tensor, expectile: float) -> Tensor:
    """Mean of the squared errors, weighted `expectile` above 0 and `1 - expectile` below (IQL eq. 5)."""
    return (torch.where(errors > 0.0, expectile, 1.0 - expectile) * errors.square()).mean()

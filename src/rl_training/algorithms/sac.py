"""Soft actor-critic (Haarnoja et al. 2018, "Algorithms and Applications") with a learned temperature."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Resources
from rl_training.algorithms.config import Fraction, OffPolicyConfig, PositiveFloat
from rl_training.algorithms.optim import Adam, descend
from rl_training.algorithms.replay import Batch, Metrics, ReplayAlgorithm
from rl_training.algorithms.returns import ensemble_mse, polyak
from rl_training.data.spaces import ActionKind, Spaces
from rl_training.errors import EnvError
from rl_training.models.critics import EnsembleCritic
from rl_training.models.policies import SquashedGaussianPolicy

Auto = Literal["auto"]


class SACConfig(OffPolicyConfig):
    """Settings of SAC."""

    alpha: PositiveFloat | Auto = "auto"
    """Weight of the entropy: `auto` learns it, starting from 1."""
    target_entropy: float | Auto = "auto"
    """Entropy that a learned alpha aims at: `auto` is minus the number of action components."""
    tau: Fraction = 0.005
    """Share by which the target critics follow the critics at each update."""


class Temperature(nn.Module):
    """The weight of the entropy, kept as its logarithm: `auto` begins at 1 and learns."""

    def __init__(self, alpha: float | Auto, target_entropy: float | Auto = "auto", num_components: int = 0) -> None:
        super().__init__()
        self._is_learned = alpha == "auto"
        self._target_entropy = -num_components if target_entropy == "auto" else target_entropy
        self.log_alpha = nn.Parameter(torch.tensor(math.log(1.0 if alpha == "auto" else alpha)))

    def step(self, log_prob: Tensor, optimizer: Adam) -> Tensor:
        """Move towards the target entropy, where it is learned; returns the loss."""
        if not self._is_learned:
            return torch.zeros_like(log_prob)
        loss = -self.log_alpha * (log_prob + self._target_entropy)  # SAC eq. 18, by its logarithm
        descend(loss, optimizer)
        return loss


class SACAlgorithm(ReplayAlgorithm[SACConfig]):
    """Learns a stochastic policy for bounded continuous actions from replayed transitions."""

    draws_per_step = 2

    def __init__(self, config: SACConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.actor = SquashedGaussianPolicy(spaces, self.layers).to(self.device)
        self.critic, self.target_critic = self._make_critic(), self._make_critic()
        self.target_critic.requires_grad_(False).load_state_dict(self.critic.state_dict())
        self.temperature = Temperature(config.alpha, config.target_entropy, spaces.action.num_components)
        self.temperature.to(self.device)
        self.actor_optimizer = Adam(self.actor.parameters(), config.learning_rate)
        self.critic_optimizer = Adam(self.critic.parameters(), config.learning_rate)
        self.alpha_optimizer = Adam(self.temperature.parameters(), config.learning_rate)

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        """SAC squashes its actions into the bounds, so it needs some."""
        if spaces.action.kind is not ActionKind.CONTINUOUS:
            raise EnvError("sac needs a Box action space; for Discrete actions use dqn or ppo")
        if not spaces.action.is_bounded:
            raise EnvError("sac needs a Box action space with finite bounds; for unbounded actions use ppo")

    def gradient_step(self, batch: Batch, noise: Tensor, next_noise: Tensor) -> Metrics:
        """One step of the critics, the actor and the temperature, in that order."""
        alpha = self.temperature.log_alpha.detach().exp()
        values, targets = self.critic(batch.obs, batch.actions), self._targets(batch, next_noise, alpha)  # [2, B], [B]
        critic_loss = 0.5 * ensemble_mse(values, targets, batch.weights)  # SAC eq. 5
        critic_norm = descend(critic_loss, self.critic_optimizer)
        actor_loss, log_prob = self._actor_loss(batch.obs, noise, alpha)
        actor_norm = descend(actor_loss, self.actor_optimizer)
        alpha_loss = self.temperature.step(log_prob, self.alpha_optimizer)
        polyak(self.critic.parameters(), self.target_critic.parameters(), self.config.tau)
        metrics = {
            "critic_loss": critic_loss,
            "critic_grad_norm": critic_norm,
            "actor_loss": actor_loss,
            "actor_grad_norm": actor_norm,
            "alpha_loss": alpha_loss,
            "alpha": alpha,
            "entropy": -log_prob,
            "q_mean": values.mean(),
        }
        return batch.with_errors(metrics, values, targets)

    def _make_critic(self) -> EnsembleCritic:
        return EnsembleCritic(self.spaces, self.layers).to(self.device)

    @torch.no_grad()
    def _targets(self, batch: Batch, next_noise: Tensor, alpha: Tensor) -> Tensor:
        """Soft value of the state reached, by the lesser of the target critics (SAC eq. 3 and 5)."""
        next_actions, next_log_probs = self.actor(batch.next_obs, next_noise)
        return batch.targets(self.target_critic(batch.next_obs, next_actions).amin(0) - alpha * next_log_probs)

    def _actor_loss(self, obs: Tensor, noise: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        actions, log_probs = self.actor(obs, noise)
        values = self.critic(obs, actions).amin(0)
        return (alpha * log_probs - values).mean(), log_probs.mean().detach()  # SAC eq. 9

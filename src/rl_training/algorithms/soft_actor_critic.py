"""Base of SAC, TQC, CrossQ and CQL: stochastic policy, critics, entropy temperature."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from rl_training.algorithms.actor_critic import ActorCriticConfig
from rl_training.algorithms.base import ConfigT, Resources
from rl_training.algorithms.config import OffPolicyConfig
from rl_training.algorithms.optim import Adam, descend
from rl_training.algorithms.replay import ReplayAlgorithm
from rl_training.algorithms.tune import Tune
from rl_training.models.policies import Policy, SquashedGaussianPolicy
from rl_training.spaces.spec import Spaces

Auto = Literal["auto"]


class SACBaseConfig(ActorCriticConfig, OffPolicyConfig):
    """Settings of the entropy bonus."""

    alpha: Annotated[PositiveFloat | Auto, Tune(choices=("auto", 0.05, 0.1, 0.2), by_name=True)] = "auto"
    """Entropy temperature: a constant, or `auto` to learn it, starting from 1."""
    target_entropy: float | Auto = "auto"
    """Entropy that a learned temperature aims at: `auto` is minus the number of action components, or 0.3 log n
    for n Discrete actions."""


class Temperature(nn.Module):
    """A positive factor, stored as its logarithm: a constant, or learned from 1 with `auto`."""

    def __init__(self, alpha: float | Auto, target_entropy: float = 0.0) -> None:
        super().__init__()
        self._is_learned = alpha == "auto"
        self._target_entropy = target_entropy
        self.log_alpha = nn.Parameter(torch.tensor(math.log(1.0 if alpha == "auto" else alpha)))

    @property
    def alpha(self) -> Tensor:
        """The factor, without gradient."""
        return self.log_alpha.detach().exp()

    def step(self, log_prob: Tensor, optimizer: Adam) -> Tensor:
        """One gradient step towards the target entropy, if learned; returns the loss."""
        if not self._is_learned:
            return torch.zeros_like(log_prob)
        loss = -self.log_alpha * (log_prob + self._target_entropy)  # SAC eq. 18, with log alpha for alpha
        descend(loss, optimizer)
        return loss


class SoftActorCritic(ReplayAlgorithm[ConfigT]):
    """A policy trained to maximize Q-value plus entropy; subclasses train the critics."""

    config: Any
    noise_per_step = 2

    def __init__(self, config: ConfigT, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.actor = self.make_actor().to(self.device)
        self.critic = self.make_critic().to(self.device)
        self.temperature = Temperature(self.config.alpha, self.target_entropy()).to(self.device)
        actor_rate, critic_rate = self.config.actor_learning_rate, self.config.critic_learning_rate
        self.actor_optimizer = self.make_optimizer(self.actor.parameters(), actor_rate)
        self.critic_optimizer = self.make_optimizer(self.critic.parameters(), critic_rate)
        self.alpha_optimizer = self.make_optimizer(self.temperature.parameters(), actor_rate, weight_decay=0.0)

    def make_actor(self) -> Policy:
        """A new policy network."""
        return SquashedGaussianPolicy(self.spaces, self.actor_spec)

    def make_critic(self) -> nn.Module:
        """New critics, evaluated as one network."""
        raise NotImplementedError

    def make_target_critic(self) -> nn.Module:
        """Target critics with the weights of the critics."""
        target = self.make_critic().to(self.device).requires_grad_(False)
        target.load_state_dict(self.critic.state_dict())
        return target

    def target_entropy(self) -> float:
        """The configured target entropy; `auto` is minus the number of action components."""
        target: float | Auto = self.config.target_entropy
        return -self.spaces.action.num_components if target == "auto" else target

    def step_policy(self, values: Tensor, log_probs: Tensor, alpha: Tensor) -> dict[str, Tensor]:
        """One gradient step of the policy and, if learned, the temperature.

        `values` and `log_probs` [B] are the Q-values and log-probabilities of the policy's actions.
        """
        actor_loss = (alpha * log_probs - values).mean()  # SAC eq. 9
        log_prob = log_probs.mean().detach()
        actor_grad_norm = descend(actor_loss, self.actor_optimizer)
        alpha_loss = self.temperature.step(log_prob, self.alpha_optimizer)
        return {
            "actor_loss": actor_loss,
            "actor_grad_norm": actor_grad_norm,
            "alpha_loss": alpha_loss,
            "alpha": alpha,
            "entropy": -log_prob,
        }

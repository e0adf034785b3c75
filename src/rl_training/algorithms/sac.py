"""Soft actor-critic (Haarnoja et al. 2018, "Algorithms and Applications") with a learned temperature.

For Discrete actions (Christodoulou 2019) what is else estimated from one drawn action is summed over all of them.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from rl_training.algorithms.base import Resources
from rl_training.algorithms.config import Fraction, OffPolicyConfig
from rl_training.algorithms.optim import Adam, descend
from rl_training.algorithms.replay import Batch, Metrics, ReplayAlgorithm
from rl_training.algorithms.returns import polyak
from rl_training.errors import EnvError
from rl_training.models.critics import EnsembleCritic, EnsembleQNetwork
from rl_training.models.policies import CategoricalPolicy, SquashedGaussianPolicy
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.spec import Spaces

Auto = Literal["auto"]
DISCRETE_ENTROPY_SHARE = 0.3
"""Of a uniform policy's entropy, what a policy of Discrete actions aims at."""


class SACBaseConfig(OffPolicyConfig):
    """What all of SAC's kind read."""

    alpha: PositiveFloat | Auto = "auto"
    """Weight of the entropy: `auto` learns it, starting from 1."""
    target_entropy: float | Auto = "auto"
    """Entropy that a learned alpha aims at: `auto` is minus the number of action components, or for n Discrete
    actions 0.3 log n (with the paper's 0.98 log n alpha grew past 100 within 6,000 steps of CartPole)."""


class SACConfig(SACBaseConfig):
    """Settings of SAC."""

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


class SACAlgorithm(ReplayAlgorithm[SACBaseConfig]):
    """Learns a stochastic policy for bounded continuous or for discrete actions from replayed transitions."""

    actor: SquashedGaussianPolicy | CategoricalPolicy
    critic: nn.Module
    target_critic: nn.Module

    def __init__(self, config: SACBaseConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        is_discrete = spaces.action.kind is ActionKind.DISCRETE
        self.draws_per_step = 0 if is_discrete else 2
        policy_class = CategoricalPolicy if is_discrete else SquashedGaussianPolicy
        self.actor = policy_class(spaces, self.layers).to(self.device)
        self.critic, self.target_critic = self._make_critic(), self._make_critic()
        self.target_critic.requires_grad_(False).load_state_dict(self.critic.state_dict())
        target_entropy = config.target_entropy
        if is_discrete and target_entropy == "auto":
            target_entropy = DISCRETE_ENTROPY_SHARE * math.log(spaces.action.choices[0])
        self.temperature = Temperature(config.alpha, target_entropy, spaces.action.num_components)
        self.temperature.to(self.device)
        self.actor_optimizer = Adam(self.actor.parameters(), config.learning_rate)
        self.critic_optimizer = Adam(self.critic.parameters(), config.learning_rate)
        self.alpha_optimizer = Adam(self.temperature.parameters(), config.learning_rate)

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        """SAC needs a list of actions to weigh, or bounds to squash its actions into."""
        if spaces.action.kind not in (ActionKind.CONTINUOUS, ActionKind.DISCRETE):
            raise EnvError("sac needs a Box or a Discrete action space; for others use ppo")
        if not spaces.action.is_bounded:
            raise EnvError("sac needs a Box action space with finite bounds; for unbounded actions use ppo")

    def gradient_step(self, batch: Batch, noise: Tensor | None = None, next_noise: Tensor | None = None) -> Metrics:
        """One step of the critics, the actor and the temperature, in that order."""
        alpha = self.temperature.log_alpha.detach().exp()
        losses, values, targets = self._critic_losses(batch, next_noise, alpha)
        critic_loss = batch.mean(losses).sum()
        critic_norm = descend(critic_loss, self.critic_optimizer)
        actor_loss, log_prob = self._actor_loss(batch.obs, noise, alpha)
        actor_norm = descend(actor_loss, self.actor_optimizer)
        alpha_loss = self.temperature.step(log_prob, self.alpha_optimizer)
        self._update_targets()
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
        return batch.with_td_errors(metrics, values, targets)

    def _update_targets(self) -> None:
        """Let the target critics, where there are any, follow the critics."""
        if isinstance(self.config, SACConfig):
            polyak(self.critic.parameters(), self.target_critic.parameters(), self.config.tau)

    def _make_critic(self) -> nn.Module:
        is_discrete = self.spaces.action.kind is ActionKind.DISCRETE
        critic_class = EnsembleQNetwork if is_discrete else EnsembleCritic
        return critic_class(self.spaces, self.layers).to(self.device)

    def _critic_losses(self, batch: Batch, next_noise: Tensor | None, alpha: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Each critic's losses and values [2, B], and the targets [B]."""
        values = self.critic(batch.obs, batch.actions)
        targets = self._targets(batch, next_noise, alpha)
        return 0.5 * (values - targets).square(), values, targets  # SAC eq. 5

    @torch.no_grad()
    def _targets(self, batch: Batch, next_noise: Tensor | None, alpha: Tensor) -> Tensor:
        """Soft value of the state reached, by the lesser of the target critics (SAC eq. 3 and 5)."""
        next_values, next_log_probs = self._expected(batch.next_obs, next_noise, self.target_critic)
        return batch.targets(next_values - alpha * next_log_probs)

    def _actor_loss(self, obs: Tensor, noise: Tensor | None, alpha: Tensor) -> tuple[Tensor, Tensor]:
        values, log_probs = self._expected(obs, noise, self.critic)
        return (alpha * log_probs - values).mean(), log_probs.mean().detach()  # SAC eq. 9

    def _expected(self, obs: Tensor, noise: Tensor | None, critic: nn.Module) -> tuple[Tensor, Tensor]:
        """Value, by the lesser of the critics, and log-probability [B] to be expected of the policy's action."""
        if not isinstance(self.actor, CategoricalPolicy):
            actions, log_probs = self.actor(obs, noise)
            return critic(obs, actions).amin(0), log_probs
        log_probs = self.actor.outputs(obs).log_softmax(-1)  # [B, num_actions]
        probs = log_probs.exp()
        with torch.no_grad():
            values = critic(obs).amin(0)
        return (probs * values).sum(-1), (probs * log_probs).sum(-1)  # Discrete SAC eq. 10 to 12

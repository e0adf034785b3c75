"""Soft actor-critic (Haarnoja et al. 2018, "Algorithms and Applications") with a learned temperature."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Algorithm, Resources, Stateful, UpdateResult
from rl_training.algorithms.config import Fraction, OffPolicyConfig, PositiveFloat, value_at
from rl_training.algorithms.optim import Adam, compiled, descend
from rl_training.algorithms.returns import polyak
from rl_training.data.spaces import ActionKind, Spaces
from rl_training.data.transitions import Transitions
from rl_training.errors import EnvError
from rl_training.models.continuous import EnsembleCritic, SquashedGaussianPolicy

STEP_METRICS = (
    "critic_loss",
    "critic_grad_norm",
    "actor_loss",
    "actor_grad_norm",
    "alpha_loss",
    "alpha",
    "entropy",
    "q_mean",
)


class SACConfig(OffPolicyConfig):
    """Settings of SAC."""

    alpha: PositiveFloat | Literal["auto"] = "auto"
    """Weight of the entropy: `auto` learns it, starting from 1."""
    target_entropy: float | Literal["auto"] = "auto"
    """Entropy that a learned alpha aims at: `auto` is minus the number of action components."""
    tau: Fraction = 0.005
    """Share by which the target critics follow the critics at each update."""


class Temperature(nn.Module):
    """The weight of the entropy, kept as its logarithm."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(alpha)))


class SACAlgorithm(Algorithm[SACConfig]):
    """Learns a stochastic policy for bounded continuous actions from replayed transitions."""

    def __init__(self, config: SACConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.actor = SquashedGaussianPolicy(
            spaces, config.hidden_sizes, activation=config.activation, generator=self.generator
        ).to(self.device)
        self.critic = self._make_critic()
        self.target_critic = self._make_critic().requires_grad_(False)
        self.target_critic.load_state_dict(self.critic.state_dict())
        self.temperature = Temperature(1.0 if config.alpha == "auto" else config.alpha).to(self.device)
        self.actor_optimizer = Adam(self.actor.parameters())
        self.critic_optimizer = Adam(self.critic.parameters())
        self.alpha_optimizer = Adam(self.temperature.parameters())
        num_components = spaces.action.num_components
        self._target_entropy = -num_components if config.target_entropy == "auto" else config.target_entropy
        self._step = compiled(self._gradient_step, resources.compile)

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        """SAC squashes its actions into the bounds, so it needs some."""
        if spaces.action.kind is not ActionKind.CONTINUOUS:
            raise EnvError("sac needs a Box action space; for Discrete actions use dqn or ppo")
        if not spaces.action.is_bounded:
            raise EnvError("sac needs a Box action space with finite bounds; for unbounded actions use ppo")

    @torch.no_grad()
    def act(self, obs: Tensor, *, explore: bool) -> Tensor:
        """Draw from the policy, or take its squashed mean."""
        if not explore:
            return self.actor.mode(obs)
        actions: Tensor = self.actor(obs, self._noise(len(obs)))[0]
        return actions

    def update(self, batch: Transitions) -> UpdateResult:
        """One step of the critics, the actor and the temperature, in that order."""
        learning_rate = value_at(self.config.learning_rate, self.progress)
        for optimizer in (self.actor_optimizer, self.critic_optimizer, self.alpha_optimizer):
            optimizer.set_learning_rate(learning_rate)
        discounts = batch.bootstrap(self.config.gamma)
        noise, next_noise = self._noise(len(discounts)), self._noise(len(discounts))
        step = self._step(batch.obs, batch.actions, batch.rewards, batch.next_obs, discounts, noise, next_noise)
        return UpdateResult(dict(zip(STEP_METRICS, step.unbind(), strict=True)))

    def parts(self) -> dict[str, Stateful]:
        """Networks, temperature and optimizers."""
        return {
            "actor": self.actor,
            "critic": self.critic,
            "target_critic": self.target_critic,
            "temperature": self.temperature,
            "actor_optimizer": self.actor_optimizer,
            "critic_optimizer": self.critic_optimizer,
            "alpha_optimizer": self.alpha_optimizer,
        }

    def _make_critic(self) -> EnsembleCritic:
        return EnsembleCritic(
            self.spaces,
            self.config.hidden_sizes,
            num_members=2,
            activation=self.config.activation,
            generator=self.generator,
        ).to(self.device)

    def _noise(self, count: int) -> Tensor:
        shape = (count, self.spaces.action.num_components)
        return torch.empty(shape, device=self.device).normal_(generator=self.generator)

    def _gradient_step(
        self,
        obs: Tensor,
        actions: Tensor,
        rewards: Tensor,
        next_obs: Tensor,
        discounts: Tensor,
        noise: Tensor,
        next_noise: Tensor,
    ) -> Tensor:
        """Functions of tensors alone; returns the metrics of `STEP_METRICS` as one tensor."""
        alpha = self.temperature.log_alpha.detach().exp()
        targets = self._targets(rewards, next_obs, discounts, next_noise, alpha)
        critic_loss, q_mean = self._critic_loss(obs, actions, targets)
        critic_norm = descend(critic_loss, self.critic_optimizer)
        actor_loss, log_prob = self._actor_loss(obs, noise, alpha)
        actor_norm = descend(actor_loss, self.actor_optimizer)
        alpha_loss = torch.zeros_like(alpha)
        if self.config.alpha == "auto":
            alpha_loss = self._alpha_loss(log_prob)
            descend(alpha_loss, self.alpha_optimizer)
        polyak(self.critic.parameters(), self.target_critic.parameters(), self.config.tau)
        metrics = (critic_loss, critic_norm, actor_loss, actor_norm, alpha_loss, alpha, -log_prob, q_mean)
        return torch.stack(metrics).detach()

    @torch.no_grad()
    def _targets(
        self, rewards: Tensor, next_obs: Tensor, discounts: Tensor, next_noise: Tensor, alpha: Tensor
    ) -> Tensor:
        """Soft value of the state reached, by the lesser of the target critics (SAC eq. 3 and 5)."""
        next_actions, next_log_probs = self.actor(next_obs, next_noise)
        next_values: Tensor = self.target_critic(next_obs, next_actions).amin(0) - alpha * next_log_probs
        return rewards + discounts * next_values

    def _critic_loss(self, obs: Tensor, actions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        values = self.critic(obs, actions)  # [2, B]
        loss = 0.5 * (values - targets).square().mean(1).sum()  # SAC eq. 5
        return loss, values.mean()

    def _actor_loss(self, obs: Tensor, noise: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        actions, log_probs = self.actor(obs, noise)
        values = self.critic(obs, actions).amin(0)
        return (alpha * log_probs - values).mean(), log_probs.mean().detach()  # SAC eq. 9

    def _alpha_loss(self, log_prob: Tensor) -> Tensor:
        return -self.temperature.log_alpha * (log_prob + self._target_entropy)  # SAC eq. 18, by its logarithm

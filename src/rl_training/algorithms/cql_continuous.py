"""CQL for bounded continuous actions: SAC whose critics value what the policy prefers less than the data (CQL(H))."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rl_training.algorithms.base import Resources, Stateful
from rl_training.algorithms.config import value_at
from rl_training.algorithms.optim import Adam, descend
from rl_training.algorithms.returns import ensemble_mse, polyak
from rl_training.algorithms.sac import Temperature
from rl_training.data.spaces import Spaces
from rl_training.models.continuous import EnsembleCritic, SquashedGaussianPolicy
from rl_training.models.mlp import frozen_copy

if TYPE_CHECKING:
    from rl_training.algorithms.cql import CQLConfig

MAX_MULTIPLIER = 1e6


class ContinuousRule:
    """Twin critics, a squashed Gaussian actor, its temperature, and the multiplier of the conservative term."""

    step_metrics: tuple[str, ...] = (
        "td_loss",
        "conservative_gap",
        "multiplier",
        "critic_loss",
        "critic_grad_norm",
        "q_mean",
        "actor_loss",
        "actor_grad_norm",
        "entropy",
        "alpha_loss",
        "alpha",
    )

    def __init__(self, config: CQLConfig, spaces: Spaces, resources: Resources) -> None:
        self._config = config
        self._generator, self._device = resources.generator, resources.device
        self._num_components = spaces.action.num_components
        self.actor = SquashedGaussianPolicy(
            spaces, config.hidden_sizes, activation=config.activation, generator=resources.generator
        ).to(resources.device)
        self.critic = EnsembleCritic(
            spaces,
            config.hidden_sizes,
            num_members=2,
            activation=config.activation,
            generator=resources.generator,
        ).to(resources.device)
        self.target_critic = frozen_copy(self.critic)
        self.temperature = Temperature(1.0 if config.alpha == "auto" else config.alpha).to(resources.device)
        self.multiplier = Temperature(1.0).to(resources.device)
        self.actor_optimizer = Adam(self.actor.parameters())
        self.critic_optimizer = Adam(self.critic.parameters())
        self.alpha_optimizer = Adam(self.temperature.parameters())
        self.multiplier_optimizer = Adam(self.multiplier.parameters())
        self._target_entropy = -self._num_components if config.target_entropy == "auto" else config.target_entropy

    def act(self, obs: Tensor, *, explore: bool) -> Tensor:
        """Draw from the policy, or take its squashed mean."""
        if not explore:
            return self.actor.mode(obs)
        actions: Tensor = self.actor(obs, self._normal(len(obs), self._num_components))[0]
        return actions

    def set_learning_rates(self, progress: float) -> None:
        """The critics and their multiplier have one schedule, the actor and its temperature another."""
        for optimizer in (self.critic_optimizer, self.multiplier_optimizer):
            optimizer.set_learning_rate(value_at(self._config.learning_rate, progress))
        for optimizer in (self.actor_optimizer, self.alpha_optimizer):
            optimizer.set_learning_rate(value_at(self._config.actor_learning_rate, progress))

    def draw_noise(self, count: int) -> tuple[Tensor, ...]:
        """Uniform actions [N, B, A], and normal noise [1 + N, B, A] for the current and for the next observation."""
        num_samples, num_components = self._config.num_cql_samples, self._num_components
        uniform = torch.empty(num_samples, count, num_components, device=self._device)
        uniform.uniform_(-1.0, 1.0, generator=self._generator)
        return uniform, *(self._normal(1 + num_samples, count, num_components) for _ in range(2))

    def parts(self) -> dict[str, Stateful]:
        """Networks, temperature, multiplier and optimizers."""
        return {
            "actor": self.actor,
            "critic": self.critic,
            "target_critic": self.target_critic,
            "temperature": self.temperature,
            "multiplier": self.multiplier,
            "actor_optimizer": self.actor_optimizer,
            "critic_optimizer": self.critic_optimizer,
            "alpha_optimizer": self.alpha_optimizer,
            "multiplier_optimizer": self.multiplier_optimizer,
        }

    def _normal(self, *shape: int) -> Tensor:
        return torch.empty(shape, device=self._device).normal_(generator=self._generator)

    def gradient_step(
        self, obs: Tensor, actions: Tensor, rewards: Tensor, next_obs: Tensor, discounts: Tensor, *noise: Tensor
    ) -> Tensor:
        """The critics, the actor and the temperature, in that order."""
        uniform, own_noise, next_noise = noise
        alpha = self.temperature.log_alpha.detach().exp()
        with torch.no_grad():
            next_actions, next_log_probs = self.actor(next_obs, next_noise)
            own_actions, own_log_probs = self.actor(obs, own_noise[1:])
        targets = self._targets(rewards, next_obs, discounts, next_actions[0], alpha * next_log_probs[0])
        all_actions = torch.cat([actions.unsqueeze(0), uniform, own_actions, next_actions[1:]])  # [1 + 3N, B, A]
        uniform_log_probs = torch.full_like(own_log_probs, -self._num_components * math.log(2.0))
        log_probs = torch.cat([uniform_log_probs, own_log_probs, next_log_probs[1:]])  # [3N, B]
        metrics = self._step_critics(obs, all_actions, log_probs, targets)
        metrics += self._step_actor(obs, own_noise[0], alpha)
        polyak(self.critic.parameters(), self.target_critic.parameters(), self._config.tau)
        return torch.stack(metrics).detach()

    @torch.no_grad()
    def _targets(
        self, rewards: Tensor, next_obs: Tensor, discounts: Tensor, next_actions: Tensor, next_costs: Tensor
    ) -> Tensor:
        """Value of the state reached, by the lesser of the target critics."""
        next_values: Tensor = self.target_critic(next_obs, next_actions).amin(0)
        if self._config.backup_entropy:
            next_values = next_values - next_costs
        return rewards + discounts * next_values

    def _step_critics(self, obs: Tensor, actions: Tensor, log_probs: Tensor, targets: Tensor) -> list[Tensor]:
        """Towards the targets, and down where the soft maximum lies above the values of the data's actions."""
        values, gaps = self._values_and_gaps(obs, actions, log_probs)
        td_loss = ensemble_mse(values, targets)
        multiplier = self.multiplier.log_alpha.exp().clamp(max=MAX_MULTIPLIER)
        # CQL eq. 4, weighed as in the authors' code, which takes the whole squared error where the paper halves it.
        critic_loss = td_loss + multiplier.detach() * self._config.cql_alpha * gaps.sum()
        grad_norm = descend(critic_loss, self.critic_optimizer)
        gap = gaps.detach().mean()
        if self._config.lagrange_threshold is not None:
            excess = gap - self._config.lagrange_threshold
            descend(-multiplier * self._config.cql_alpha * excess, self.multiplier_optimizer)  # CQL appendix F
        return [td_loss, gap, multiplier, critic_loss, grad_norm, values.mean()]

    def _values_and_gaps(self, obs: Tensor, actions: Tensor, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """Each critic's values of the data's actions (the first) [2, B], and its mean conservative gap [2].

        The other actions are weighed by their densities (CQL appendix F). As in the authors' code their sum is not
        divided by their number: that would only move the gap, and with it what `lagrange_threshold` means.
        """
        count, size = actions.shape[:2]
        every_obs = obs.expand(count, -1, -1).flatten(0, 1)
        all_values = self.critic(every_obs, actions.flatten(0, 1)).view(2, count, size)
        values = all_values[:, 0]
        soft_maxima = (all_values[:, 1:] - log_probs).logsumexp(1)  # [2, B]
        return values, (soft_maxima - values).mean(1)

    def _step_actor(self, obs: Tensor, noise: Tensor, alpha: Tensor) -> list[Tensor]:
        """SAC's step of the actor and the temperature."""
        actions, log_probs = self.actor(obs, noise)
        actor_loss = (alpha * log_probs - self.critic(obs, actions).amin(0)).mean()  # SAC eq. 9
        actor_grad_norm = descend(actor_loss, self.actor_optimizer)
        log_prob = log_probs.mean().detach()
        alpha_loss = torch.zeros_like(alpha)
        if self._config.alpha == "auto":
            alpha_loss = -self.temperature.log_alpha * (log_prob + self._target_entropy)  # SAC eq. 18
            descend(alpha_loss, self.alpha_optimizer)
        return [actor_loss, actor_grad_norm, -log_prob, alpha_loss, alpha]

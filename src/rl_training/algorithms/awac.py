"""Advantage-weighted actor-critic (Nair et al. 2020): imitate the data, its better actions more."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Resources, Stateful, UpdateResult
from rl_training.algorithms.config import FineTunedConfig, Fraction, PositiveFloat, value_at
from rl_training.algorithms.optim import Adam, compiled, descend
from rl_training.algorithms.returns import ensemble_mse, exponential_weights, polyak
from rl_training.data.spaces import Spaces, require_bounded_box
from rl_training.data.transitions import Transitions
from rl_training.models.continuous import EnsembleCritic
from rl_training.models.encoders import ObsEncoder
from rl_training.models.mlp import frozen_copy
from rl_training.models.policies import TanhMeanGaussianPolicy

STEP_METRICS = ("critic_loss", "critic_grad_norm", "q_mean", "advantage_mean", "actor_loss", "actor_grad_norm")


class AWACConfig(FineTunedConfig):
    """Settings of AWAC."""

    awac_lambda: PositiveFloat = 1.0 / 3.0
    """How little better actions are preferred: the less, the further the policy leaves the data's average."""
    max_advantage_weight: PositiveFloat = 100.0
    """Most that one action can weigh in the imitation."""
    tau: Fraction = 0.005
    """Share by which the target critics follow the critics at each update."""


class AWACAlgorithm(Algorithm[AWACConfig]):
    """Learns a stochastic policy for bounded continuous actions from a fixed set of transitions."""

    def __init__(self, config: AWACConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.encoder = ObsEncoder(spaces.obs, normalize=config.normalize_obs).to(self.device)
        inputs = spaces.encoded()
        self.actor = TanhMeanGaussianPolicy(
            inputs, config.hidden_sizes, activation=config.activation, generator=self.generator
        ).to(self.device)
        self.critic = EnsembleCritic(
            inputs, config.hidden_sizes, num_members=2, activation=config.activation, generator=self.generator
        ).to(self.device)
        self.target_critic = frozen_copy(self.critic)
        self.actor_optimizer = Adam(self.actor.parameters())
        self.critic_optimizer = Adam(self.critic.parameters())
        self._step = compiled(self._gradient_step, resources.compile)

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        """AWAC squashes its actions into the bounds, so it needs some."""
        require_bounded_box(spaces, "awac", "bc or cql")

    @torch.no_grad()
    def act(self, obs: Tensor, *, explore: bool) -> Tensor:
        """Draw from the policy, or take its mean."""
        return self.actor.act(self.encoder(obs), self.generator if explore else None)

    def fit_observations(self, obs: Tensor) -> None:
        """Learn the scale of the data's observations."""
        self.encoder.update_statistics(obs)

    def update(self, batch: Transitions) -> UpdateResult:
        """One step of the critics and the actor, in that order."""
        learning_rate = value_at(self.config.learning_rate, self.progress)
        for optimizer in (self.critic_optimizer, self.actor_optimizer):
            optimizer.set_learning_rate(learning_rate)
        discounts = batch.bootstrap(self.config.gamma)
        noise, next_noise = (torch.empty_like(batch.actions).normal_(generator=self.generator) for _ in range(2))
        step = self._step(batch.obs, batch.actions, batch.rewards, batch.next_obs, discounts, noise, next_noise)
        return UpdateResult(dict(zip(STEP_METRICS, step.unbind(), strict=True)))

    def parts(self) -> dict[str, Stateful]:
        """The normalizer, networks and optimizers."""
        return {
            "encoder": self.encoder,
            "actor": self.actor,
            "critic": self.critic,
            "target_critic": self.target_critic,
            "actor_optimizer": self.actor_optimizer,
            "critic_optimizer": self.critic_optimizer,
        }

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
        obs, next_obs = self.encoder(obs), self.encoder(next_obs)
        values, mean = self.critic(obs, actions), self.actor.mode(obs)  # [2, B], [B, A]
        # Before the critics move, so that the values they learn from serve here too.
        advantages = values.detach().amin(0) - self._own_values(obs, mean, noise)
        critic_loss = ensemble_mse(values, self._targets(rewards, next_obs, discounts, next_noise))
        critic_grad_norm = descend(critic_loss, self.critic_optimizer)
        weights = exponential_weights(advantages / self.config.awac_lambda, self.config.max_advantage_weight)
        actor_loss = (weights * self.actor.surprise(mean, actions)).mean()  # AWAC algorithm 1, the actor's step
        actor_grad_norm = descend(actor_loss, self.actor_optimizer)
        polyak(self.critic.parameters(), self.target_critic.parameters(), self.config.tau)
        metrics = [critic_loss, critic_grad_norm, values.mean(), advantages.mean(), actor_loss, actor_grad_norm]
        return torch.stack(metrics).detach()

    @torch.no_grad()
    def _targets(self, rewards: Tensor, next_obs: Tensor, discounts: Tensor, next_noise: Tensor) -> Tensor:
        """Value of the state reached and of an action drawn there, by the lesser of the target critics."""
        next_actions = self.actor.moved(self.actor.mode(next_obs), next_noise)
        next_values: Tensor = self.target_critic(next_obs, next_actions).amin(0)
        return rewards + discounts * next_values

    @torch.no_grad()
    def _own_values(self, obs: Tensor, mean: Tensor, noise: Tensor) -> Tensor:
        """Value of an action that the policy would draw, by the lesser of the critics."""
        own_values: Tensor = self.critic(obs, self.actor.moved(mean, noise)).amin(0)
        return own_values

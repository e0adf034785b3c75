"""Implicit Q-learning (Kostrikov et al. 2021): values of the best actions in the data, without any other action."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Resources, Stateful, UpdateResult
from rl_training.algorithms.config import (
    FineTunedConfig,
    Fraction,
    NonNegativeFloat,
    PositiveFloat,
    Schedule,
    Scheduled,
    value_at,
)
from rl_training.algorithms.optim import Adam, compiled, descend
from rl_training.algorithms.returns import ensemble_mse, expectile_loss, exponential_weights, polyak
from rl_training.data.spaces import Spaces, require_bounded_box
from rl_training.data.transitions import Transitions
from rl_training.models.continuous import EnsembleCritic
from rl_training.models.encoders import ObsEncoder
from rl_training.models.mlp import MLP, frozen_copy
from rl_training.models.policies import PolicyKind, make_imitation_policy

STEP_METRICS = (
    "value_loss",
    "value_grad_norm",
    "critic_loss",
    "critic_grad_norm",
    "q_mean",
    "advantage_mean",
    "actor_loss",
    "actor_grad_norm",
)


class IQLConfig(FineTunedConfig):
    """Settings of IQL."""

    learning_rate: Scheduled = 3e-4
    """Step size of the critics and of the value function: a number or a schedule."""
    actor_learning_rate: Scheduled = Schedule(kind="cosine", start=3e-4)
    """Step size of the actor: a number or a schedule."""
    expectile: Fraction = 0.7
    """Where between the mean action (0.5) and the best action of the data (1) the value of a state lies."""
    beta: NonNegativeFloat = 3.0
    """How much better actions are preferred when the policy imitates: 0 is behaviour cloning."""
    max_advantage_weight: PositiveFloat = 100.0
    """Most that one action can weigh in the imitation."""
    policy: PolicyKind = "gaussian"
    """What imitates: a Gaussian, by likelihood, or one action, by squared error."""
    tau: Fraction = 0.005
    """Share by which the target critics follow the critics at each update."""


class IQLAlgorithm(Algorithm[IQLConfig]):
    """Learns a policy for bounded continuous actions from a fixed set of transitions."""

    def __init__(self, config: IQLConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.encoder = ObsEncoder(spaces.obs, normalize=config.normalize_obs).to(self.device)
        sizes, activation, generator = config.hidden_sizes, config.activation, self.generator
        inputs = spaces.encoded()
        self.actor = make_imitation_policy(config.policy, inputs, sizes, activation=activation, generator=generator)
        self.critic = EnsembleCritic(inputs, sizes, num_members=2, activation=activation, generator=generator)
        self.value = MLP(self.encoder.num_features, sizes, 1, activation=activation, generator=generator)
        for network in (self.actor, self.critic, self.value):
            network.to(self.device)
        self.target_critic = frozen_copy(self.critic)
        self.value_optimizer = Adam(self.value.parameters())
        self.critic_optimizer = Adam(self.critic.parameters())
        self.actor_optimizer = Adam(self.actor.parameters())
        self._step = compiled(self._gradient_step, resources.compile)

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        """IQL squashes its actions into the bounds, so it needs some."""
        require_bounded_box(spaces, "iql", "bc or cql")

    @torch.no_grad()
    def act(self, obs: Tensor, *, explore: bool) -> Tensor:
        """Draw from the policy, or take its mean."""
        return self.actor.act(self.encoder(obs), self.generator if explore else None)

    def fit_observations(self, obs: Tensor) -> None:
        """Learn the scale of the data's observations."""
        self.encoder.update_statistics(obs)

    def update(self, batch: Transitions) -> UpdateResult:
        """One step of the value function, the critics and the actor, in that order."""
        config = self.config
        self.value_optimizer.set_learning_rate(value_at(config.learning_rate, self.progress))
        self.critic_optimizer.set_learning_rate(value_at(config.learning_rate, self.progress))
        self.actor_optimizer.set_learning_rate(value_at(config.actor_learning_rate, self.progress))
        step = self._step(batch.obs, batch.actions, batch.rewards, batch.next_obs, batch.bootstrap(config.gamma))
        return UpdateResult(dict(zip(STEP_METRICS, step.unbind(), strict=True)))

    def parts(self) -> dict[str, Stateful]:
        """The normalizer, networks and optimizers."""
        return {
            "encoder": self.encoder,
            "actor": self.actor,
            "critic": self.critic,
            "target_critic": self.target_critic,
            "value": self.value,
            "actor_optimizer": self.actor_optimizer,
            "critic_optimizer": self.critic_optimizer,
            "value_optimizer": self.value_optimizer,
        }

    def _gradient_step(
        self, obs: Tensor, actions: Tensor, rewards: Tensor, next_obs: Tensor, discounts: Tensor
    ) -> Tensor:
        """Functions of tensors alone; returns the metrics of `STEP_METRICS` as one tensor."""
        obs, next_obs = self.encoder(obs), self.encoder(next_obs)
        # The actor weighs actions by these advantages too: another pass of the value function, after a step this
        # small, would change them little.
        advantages = self._advantages(obs, actions)
        value_loss = expectile_loss(advantages, self.config.expectile)  # IQL eq. 5
        value_grad_norm = descend(value_loss, self.value_optimizer)
        values = self.critic(obs, actions)  # [2, B]
        critic_loss = ensemble_mse(values, self._targets(rewards, next_obs, discounts))  # IQL eq. 6
        critic_grad_norm = descend(critic_loss, self.critic_optimizer)
        actor_loss = self._actor_loss(obs, actions, advantages.detach())
        actor_grad_norm = descend(actor_loss, self.actor_optimizer)
        polyak(self.critic.parameters(), self.target_critic.parameters(), self.config.tau)
        losses = [value_loss, value_grad_norm, critic_loss, critic_grad_norm]
        metrics = [*losses, values.mean(), advantages.mean(), actor_loss, actor_grad_norm]
        return torch.stack(metrics).detach()

    def _advantages(self, obs: Tensor, actions: Tensor) -> Tensor:
        """How much better than the state's value each action is, by the lesser of the target critics."""
        advantages: Tensor = self.target_critic(obs, actions).amin(0) - self.value(obs).squeeze(-1)
        return advantages

    @torch.no_grad()
    def _targets(self, rewards: Tensor, next_obs: Tensor, discounts: Tensor) -> Tensor:
        next_values: Tensor = self.value(next_obs).squeeze(-1)
        return rewards + discounts * next_values

    def _actor_loss(self, obs: Tensor, actions: Tensor, advantages: Tensor) -> Tensor:
        weights = exponential_weights(self.config.beta * advantages, self.config.max_advantage_weight)
        return (weights * self.actor.imitation_loss(obs, actions)).mean()  # IQL eq. 7

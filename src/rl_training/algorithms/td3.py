"""Twin delayed deep deterministic policy gradients (Fujimoto et al. 2018); TD3+BC and DDPG are made of it too."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from rl_training.algorithms.base import Resources, UpdateResult
from rl_training.algorithms.config import AlgorithmConfig, Fraction, OffPolicyConfig, Scheduled
from rl_training.algorithms.optim import Adam, descend
from rl_training.algorithms.replay import Batch, Metrics, ReplayAlgorithm
from rl_training.algorithms.returns import ensemble_mse, polyak, smoothed_actions
from rl_training.models.critics import EnsembleCritic
from rl_training.models.mlp import frozen_copy
from rl_training.models.policies import DeterministicPolicy
from rl_training.replay.transitions import Transitions
from rl_training.spaces.spec import Spaces, require_bounded_box


class TD3BaseConfig(AlgorithmConfig):
    """What the delayed gradient step reads."""

    policy_noise: NonNegativeFloat = 0.2
    """Deviation of the noise on the target policy's actions."""
    noise_clip: NonNegativeFloat = 0.5
    """Limit of that noise."""
    policy_delay: PositiveInt = 2
    """Updates of the critics for each update of the actor and of the targets."""
    tau: Fraction = 0.005
    """Share by which the target networks follow the networks."""


class TD3Config(TD3BaseConfig, OffPolicyConfig):
    """Settings of TD3."""

    learning_rate: Scheduled = 1e-3
    """Step size of both optimizers: a number or a schedule."""
    exploration_noise: NonNegativeFloat = 0.1
    """Deviation of the noise added to actions in [-1, 1] when exploring."""
    num_critics: PositiveInt = 2
    """Critics, of which the least value is the target."""


TD3BaseConfigT = TypeVar("TD3BaseConfigT", bound=TD3BaseConfig)


class LastActorStep(nn.Module):
    """The metrics of the actor's last step, which stand until its next one."""

    metrics: Tensor

    def __init__(self, count: int) -> None:
        super().__init__()
        self.register_buffer("metrics", torch.zeros(count))


class TD3BaseAlgorithm(ReplayAlgorithm[TD3BaseConfigT]):
    """Learns a deterministic policy for bounded continuous actions, the actor less often than the critics."""

    actor: DeterministicPolicy
    draws_per_step = 1
    actor_metrics: tuple[str, ...] = ("actor_loss", "actor_grad_norm")
    """Then whatever `_actor_loss` returns after the loss."""

    def __init__(self, config: TD3BaseConfigT, spaces: Spaces, resources: Resources, *, num_critics: int = 2) -> None:
        super().__init__(config, spaces, resources)
        self.actor = DeterministicPolicy(spaces, self.layers).to(self.device)
        self.critic = EnsembleCritic(spaces, self.layers, num_members=num_critics).to(self.device)
        self.target_actor, self.target_critic = frozen_copy(self.actor), frozen_copy(self.critic)
        self.actor_optimizer = Adam(self.actor.parameters(), config.learning_rate)
        self.critic_optimizer = Adam(self.critic.parameters(), config.learning_rate)
        self.last_actor_step = LastActorStep(len(self.actor_metrics)).to(self.device)
        self.counters["updates"] = 0

    def update(self, batch: Transitions) -> UpdateResult:
        """One step of the critics, and at every `policy_delay`-th update one of the actor and the targets."""
        self.counters["updates"] += 1
        return super().update(batch)

    def step_arguments(self, actions: Tensor) -> tuple[Any, ...]:
        """The noise, and whether the actor moves: each of the two kinds of step is a graph of its own."""
        return *super().step_arguments(actions), self.counters["updates"] % self.config.policy_delay == 0

    def gradient_step(self, batch: Batch, noise: Tensor, with_actor: bool) -> Metrics:
        """One step of the critics, and with `with_actor` one of the actor and the targets."""
        values, targets = self.critic(batch.obs, batch.actions), self._targets(batch, noise)  # [num_critics, B], [B]
        critic_loss = ensemble_mse(values, targets, batch.weights)
        critic_grad_norm = descend(critic_loss, self.critic_optimizer)
        standing = self.last_actor_step.metrics
        if with_actor:
            actor_loss, *others = self._actor_loss(batch.obs, batch.actions)
            actor_grad_norm = descend(actor_loss, self.actor_optimizer)
            standing.copy_(torch.stack([actor_loss, actor_grad_norm, *others]).detach())
            polyak(self.actor.parameters(), self.target_actor.parameters(), self.config.tau)
            polyak(self.critic.parameters(), self.target_critic.parameters(), self.config.tau)
        metrics = {"critic_loss": critic_loss, "critic_grad_norm": critic_grad_norm, "q_mean": values.mean()}
        metrics |= dict(zip(self.actor_metrics, standing, strict=True))
        return batch.with_td_errors(metrics, values, targets)

    @torch.no_grad()
    def _targets(self, batch: Batch, noise: Tensor) -> Tensor:
        """Value of the state reached, by the least of the target critics (TD3 eq. 10 and 14)."""
        means, config = self.target_actor.mode(batch.next_obs), self.config
        next_actions = smoothed_actions(means, noise, config.policy_noise, config.noise_clip)
        return batch.targets(self.target_critic(batch.next_obs, next_actions).amin(0))

    def _actor_loss(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, ...]:
        """The negated value of the policy's own actions: its gradient is the one of TD3 algorithm 1."""
        return (-self.critic.first(obs, self.actor.mode(obs)).mean(),)


class TD3Algorithm(TD3BaseAlgorithm[TD3Config]):
    """Learns from replayed transitions, and explores by noise around its policy."""

    def __init__(self, config: TD3Config, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources, num_critics=config.num_critics)

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        """TD3 squashes its actions into the bounds, so it needs some."""
        require_bounded_box(spaces, "td3", "dqn or ppo")

    def act(self, obs: Tensor, *, explore: bool) -> Tensor:
        """The policy's action, when exploring with noise (TD3 algorithm 1)."""
        actions = super().act(obs, explore=explore)
        return self.add_exploration_noise(actions, self.config.exploration_noise) if explore else actions

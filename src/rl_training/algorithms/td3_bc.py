"""TD3+BC (Fujimoto & Gu 2021): a deterministic actor-critic that is held to the actions of the data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Resources, UpdateResult
from rl_training.algorithms.config import FineTunedConfig, Fraction, NonNegativeFloat, PositiveInt
from rl_training.algorithms.optim import Adam, descend
from rl_training.algorithms.replay import Batch, Metrics, ReplayAlgorithm
from rl_training.algorithms.returns import ensemble_mse, polyak, smoothed_actions
from rl_training.data.spaces import Spaces, require_bounded_box
from rl_training.data.transitions import Transitions
from rl_training.models.critics import EnsembleCritic
from rl_training.models.mlp import frozen_copy
from rl_training.models.policies import DeterministicPolicy

ACTOR_METRICS = ("actor_loss", "actor_grad_norm", "imitation_loss")


class TD3BCConfig(FineTunedConfig):
    """Settings of TD3+BC."""

    bc_alpha: NonNegativeFloat = 2.5
    """How much the critic's opinion counts beside imitation: 0 is behaviour cloning."""
    policy_noise: NonNegativeFloat = 0.2
    """Deviation of the noise on the target policy's actions."""
    noise_clip: NonNegativeFloat = 0.5
    """Limit of that noise."""
    policy_delay: PositiveInt = 2
    """Updates of the critics for each update of the actor and of the targets."""
    tau: Fraction = 0.005
    """Share by which the target networks follow the networks."""
    normalize_obs: bool = True
    """Scale observations by the mean and the deviation of those in the data."""


class LastActorStep(nn.Module):
    """The metrics of the actor's last step, which stand until its next one."""

    metrics: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("metrics", torch.zeros(len(ACTOR_METRICS)))


class TD3BCAlgorithm(ReplayAlgorithm[TD3BCConfig]):
    """Learns a deterministic policy for bounded continuous actions from a fixed set of transitions."""

    draws_per_step = 1

    def __init__(self, config: TD3BCConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.actor = DeterministicPolicy(spaces, self.layers).to(self.device)
        self.critic = EnsembleCritic(spaces, self.layers).to(self.device)
        self.target_actor, self.target_critic = frozen_copy(self.actor), frozen_copy(self.critic)
        self.actor_optimizer = Adam(self.actor.parameters(), config.learning_rate)
        self.critic_optimizer = Adam(self.critic.parameters(), config.learning_rate)
        self.last_actor_step = LastActorStep().to(self.device)
        self.counters["updates"] = 0

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        """TD3+BC squashes its actions into the bounds, so it needs some."""
        require_bounded_box(spaces, "td3_bc", "bc or cql")

    def update(self, batch: Transitions) -> UpdateResult:
        """One step of the critics, and at every `policy_delay`-th update one of the actor and the targets."""
        self.counters["updates"] += 1
        return super().update(batch)

    def step_arguments(self, actions: Tensor) -> tuple[Any, ...]:
        """The noise, and whether the actor moves: each of the two kinds of step is a graph of its own."""
        return *super().step_arguments(actions), self.counters["updates"] % self.config.policy_delay == 0

    def gradient_step(self, batch: Batch, noise: Tensor, with_actor: bool) -> Metrics:
        """One step of the critics, and with `with_actor` one of the actor and the targets."""
        values = self.critic(batch.obs, batch.actions)  # [2, B]
        critic_loss = ensemble_mse(values, self._targets(batch, noise))
        critic_grad_norm = descend(critic_loss, self.critic_optimizer)
        standing = self.last_actor_step.metrics
        if with_actor:
            actor_loss, imitation_loss = self._actor_loss(batch.obs, batch.actions)
            actor_grad_norm = descend(actor_loss, self.actor_optimizer)
            standing.copy_(torch.stack([actor_loss, actor_grad_norm, imitation_loss]).detach())
            polyak(self.actor.parameters(), self.target_actor.parameters(), self.config.tau)
            polyak(self.critic.parameters(), self.target_critic.parameters(), self.config.tau)
        metrics = {"critic_loss": critic_loss, "critic_grad_norm": critic_grad_norm, "q_mean": values.mean()}
        return metrics | dict(zip(ACTOR_METRICS, standing, strict=True))

    @torch.no_grad()
    def _targets(self, batch: Batch, noise: Tensor) -> Tensor:
        """Value of the state reached, by the lesser of the target critics (TD3 eq. 10 and 14)."""
        means, config = self.target_actor.mode(batch.next_obs), self.config
        next_actions = smoothed_actions(means, noise, config.policy_noise, config.noise_clip)
        return batch.targets(self.target_critic(batch.next_obs, next_actions).amin(0))

    def _actor_loss(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        own_actions = self.actor.mode(obs)
        values = self.critic.first(obs, own_actions)
        imitation_loss = (own_actions - actions).square().mean()
        scale = self.config.bc_alpha / values.abs().mean().detach()  # TD3+BC eq. 5
        return imitation_loss - scale * values.mean(), imitation_loss  # TD3+BC eq. 3

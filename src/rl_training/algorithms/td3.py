"""Twin delayed deep deterministic policy gradient, TD3 (Fujimoto et al. 2018); the base of TD3+BC and DDPG too."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from rl_training.algorithms.base import ActResult, Resources, UpdateResult
from rl_training.algorithms.config import ActorCriticConfig, Fraction, OffPolicyConfig, Scheduled
from rl_training.algorithms.optim import descend, polyak
from rl_training.algorithms.replay import Batch, ReplayAlgorithm
from rl_training.models.critics import EnsembleCritic
from rl_training.models.mlp import frozen_copy
from rl_training.models.policies import DeterministicPolicy
from rl_training.replay.transitions import Transitions
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.spec import Spaces


class TD3BaseConfig(ActorCriticConfig):
    """Settings that TD3, DDPG and TD3+BC share."""

    policy_noise: NonNegativeFloat = 0.2
    """Standard deviation of the noise on the target policy's actions."""
    noise_clip: NonNegativeFloat = 0.5
    """Bound of the noise on the target policy's actions: it is clipped to ± noise_clip."""
    policy_delay: PositiveInt = 2
    """Gradient steps of the critics per step of the actor and the target networks."""
    tau: Fraction = 0.005
    """Polyak coefficient of the target networks."""


class TD3Config(TD3BaseConfig, OffPolicyConfig):
    """Settings of TD3."""

    learning_rate: Scheduled = 1e-3
    """Learning rate of both optimizers: a number or a schedule."""
    exploration_noise: NonNegativeFloat = 0.1
    """Standard deviation of the exploration noise, added to actions in [-1, 1]."""
    num_critics: PositiveInt = 2
    """Critics; the TD target uses their minimum."""


TD3BaseConfigT = TypeVar("TD3BaseConfigT", bound=TD3BaseConfig)


class TD3BaseAlgorithm(ReplayAlgorithm[TD3BaseConfigT]):
    """A deterministic policy for bounded Box actions, updated less often than its critics."""

    actor: DeterministicPolicy
    noise_per_step = 1
    action_kinds = (ActionKind.CONTINUOUS,)
    needs_bounds = True

    def __init__(
        self, config: TD3BaseConfigT, spaces: Spaces, resources: Resources, *, num_critics: int = 2
    ) -> None:
        super().__init__(config, spaces, resources)
        self.actor = DeterministicPolicy(spaces, self.actor_spec).to(self.device)
        self.critic = EnsembleCritic(spaces, self.critic_spec, num_members=num_critics).to(
            self.device
        )
        self.target_actor, self.target_critic = frozen_copy(self.actor), frozen_copy(self.critic)
        self.actor_optimizer = self.make_optimizer(
            self.actor.parameters(), config.actor_learning_rate
        )
        self.critic_optimizer = self.make_optimizer(
            self.critic.parameters(), config.critic_learning_rate
        )
        self.counters["updates"] = 0

    def update(self, batch: Transitions) -> UpdateResult:
        """One gradient step of the critics; every `policy_delay`-th time also of the actor and the target networks."""
        self.counters["updates"] += 1
        return super().update(batch)

    def step_inputs(self, actions: Tensor) -> tuple[Any, ...]:
        """The noise, and whether to update the actor: each kind of step is compiled into its own graph."""
        return *super().step_inputs(actions), self.counters[
            "updates"
        ] % self.config.policy_delay == 0

    def gradient_step(self, batch: Batch, noise: Tensor, with_actor: bool) -> UpdateResult:
        """One step of the critics, and with `with_actor` one of the actor and the target networks."""
        values, targets = (
            self.critic(batch.obs, batch.actions),
            self._targets(batch, noise),
        )  # [num_critics, B], [B]
        critic_loss = batch.mean((values - targets).square()).sum()
        critic_grad_norm = descend(critic_loss, self.critic_optimizer)
        metrics = {
            "critic_loss": critic_loss,
            "critic_grad_norm": critic_grad_norm,
            "q_mean": values.mean(),
        }
        if with_actor:
            actor_loss, others = self._actor_loss(batch.obs, batch.actions)
            metrics |= {
                "actor_loss": actor_loss,
                "actor_grad_norm": descend(actor_loss, self.actor_optimizer),
                **others,
            }
            polyak(self.actor, self.target_actor, self.config.tau)
            polyak(self.critic, self.target_critic, self.config.tau)
        return UpdateResult(metrics, td_errors=batch.td_errors(values, targets))

    @torch.no_grad()
    def _targets(self, batch: Batch, noise: Tensor) -> Tensor:
        """TD targets by the minimum over the target critics (TD3 eq. 10 and 14)."""
        means, config = self.target_actor.mode(batch.next_obs), self.config
        next_actions = smoothed_actions(means, noise, config.policy_noise, config.noise_clip)
        return batch.targets(self.target_critic(batch.next_obs, next_actions).amin(0))

    def _actor_loss(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The negative Q-value of the policy's actions (TD3 algorithm 1), and further metrics."""
        return -self.critic.first(obs, self.actor.mode(obs)).mean(), {}


class TD3Algorithm(TD3BaseAlgorithm[TD3Config]):
    """Learns from replayed transitions, and explores by noise around its policy."""

    def __init__(self, config: TD3Config, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources, num_critics=config.num_critics)

    def act(
        self, obs: Tensor, state: Tensor | None = None, *, explore: bool, mask: Tensor | None = None
    ) -> ActResult:
        """The policy's action, with Gaussian noise when exploring (TD3 algorithm 1)."""
        acted = super().act(obs, state, explore=explore)
        if not explore:
            return acted
        return ActResult(self.add_exploration_noise(acted.actions, self.config.exploration_noise))


def smoothed_actions(actions: Tensor, noise: Tensor, scale: float, clip: float) -> Tensor:
    """Target policy smoothing: actions plus clipped noise, within their bounds (TD3 eq. 14)."""
    return (actions + (scale * noise).clamp(-clip, clip)).clamp(-1.0, 1.0)

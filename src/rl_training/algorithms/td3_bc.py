"""TD3+BC (Fujimoto & Gu 2021): a deterministic actor-critic that is held to the actions of the data."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_training.algorithms.base import Algorithm, Resources, Stateful, UpdateResult
from rl_training.algorithms.config import FineTunedConfig, Fraction, NonNegativeFloat, PositiveInt, value_at
from rl_training.algorithms.optim import Adam, compiled, descend
from rl_training.algorithms.returns import ensemble_mse, polyak, smoothed_actions
from rl_training.data.spaces import Spaces, require_bounded_box
from rl_training.data.transitions import Transitions
from rl_training.models.continuous import EnsembleCritic
from rl_training.models.encoders import ObsEncoder
from rl_training.models.mlp import frozen_copy
from rl_training.models.policies import DeterministicPolicy

CRITIC_METRICS = ("critic_loss", "critic_grad_norm", "q_mean")
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


class TD3BCAlgorithm(Algorithm[TD3BCConfig]):
    """Learns a deterministic policy for bounded continuous actions from a fixed set of transitions."""

    def __init__(self, config: TD3BCConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.encoder = ObsEncoder(spaces.obs, normalize=config.normalize_obs).to(self.device)
        self.actor = DeterministicPolicy(
            spaces.encoded(), config.hidden_sizes, activation=config.activation, generator=self.generator
        ).to(self.device)
        self.critic = EnsembleCritic(
            spaces.encoded(),
            config.hidden_sizes,
            num_members=2,
            activation=config.activation,
            generator=self.generator,
        ).to(self.device)
        self.target_actor, self.target_critic = frozen_copy(self.actor), frozen_copy(self.critic)
        self.actor_optimizer = Adam(self.actor.parameters())
        self.critic_optimizer = Adam(self.critic.parameters())
        self.last_actor_step = LastActorStep().to(self.device)
        self.counters["updates"] = 0
        self._step = compiled(self._gradient_step, resources.compile)

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        """TD3+BC squashes its actions into the bounds, so it needs some."""
        require_bounded_box(spaces, "td3_bc", "bc or cql")

    @torch.no_grad()
    def act(self, obs: Tensor, *, explore: bool) -> Tensor:
        """The policy's action, which has nothing random."""
        return self.actor.mode(self.encoder(obs))

    def fit_observations(self, obs: Tensor) -> None:
        """Learn the scale of the data's observations (TD3+BC eq. 4)."""
        self.encoder.update_statistics(obs)

    def update(self, batch: Transitions) -> UpdateResult:
        """One step of the critics, and at every `policy_delay`-th update one of the actor and the targets."""
        learning_rate = value_at(self.config.learning_rate, self.progress)
        self.actor_optimizer.set_learning_rate(learning_rate)
        self.critic_optimizer.set_learning_rate(learning_rate)
        self.counters["updates"] += 1
        with_actor = self.counters["updates"] % self.config.policy_delay == 0
        discounts = batch.bootstrap(self.config.gamma)
        noise = torch.empty_like(batch.actions).normal_(generator=self.generator)
        # The choice is made here, outside of the graph, so that each of the two kinds of update is a graph of its own.
        step = self._step(batch.obs, batch.actions, batch.rewards, batch.next_obs, discounts, noise, with_actor)
        critic_metrics, actor_metrics = step[: len(CRITIC_METRICS)], step[len(CRITIC_METRICS) :]
        if with_actor:
            self.last_actor_step.metrics.copy_(actor_metrics)
        metrics = dict(zip(CRITIC_METRICS, critic_metrics.unbind(), strict=True))
        return UpdateResult(metrics | dict(zip(ACTOR_METRICS, self.last_actor_step.metrics.clone(), strict=True)))

    def parts(self) -> dict[str, Stateful]:
        """The normalizer, networks, optimizers and the metrics that stand."""
        return {
            "encoder": self.encoder,
            "actor": self.actor,
            "critic": self.critic,
            "target_actor": self.target_actor,
            "target_critic": self.target_critic,
            "actor_optimizer": self.actor_optimizer,
            "critic_optimizer": self.critic_optimizer,
            "last_actor_step": self.last_actor_step,
        }

    def _gradient_step(
        self,
        obs: Tensor,
        actions: Tensor,
        rewards: Tensor,
        next_obs: Tensor,
        discounts: Tensor,
        noise: Tensor,
        with_actor: bool,
    ) -> Tensor:
        """Functions of tensors alone; returns `CRITIC_METRICS`, and behind them `ACTOR_METRICS` if the actor moved."""
        obs, next_obs = self.encoder(obs), self.encoder(next_obs)
        targets = self._targets(rewards, next_obs, discounts, noise)
        values = self.critic(obs, actions)  # [2, B]
        critic_loss = ensemble_mse(values, targets)
        critic_grad_norm = descend(critic_loss, self.critic_optimizer)
        metrics = [critic_loss, critic_grad_norm, values.mean()]
        if with_actor:
            actor_loss, imitation_loss = self._actor_loss(obs, actions)
            actor_grad_norm = descend(actor_loss, self.actor_optimizer)
            metrics += [actor_loss, actor_grad_norm, imitation_loss]
            polyak(self.actor.parameters(), self.target_actor.parameters(), self.config.tau)
            polyak(self.critic.parameters(), self.target_critic.parameters(), self.config.tau)
        return torch.stack(metrics).detach()

    @torch.no_grad()
    def _targets(self, rewards: Tensor, next_obs: Tensor, discounts: Tensor, noise: Tensor) -> Tensor:
        """Value of the state reached, by the lesser of the target critics (TD3 eq. 10 and 14)."""
        config = self.config
        next_actions = smoothed_actions(self.target_actor.mode(next_obs), noise, config.policy_noise, config.noise_clip)
        next_values: Tensor = self.target_critic(next_obs, next_actions).amin(0)
        return rewards + discounts * next_values

    def _actor_loss(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        own_actions = self.actor.mode(obs)
        values = self.critic.first(obs, own_actions)
        imitation_loss = (own_actions - actions).square().mean()
        scale = self.config.bc_alpha / values.abs().mean().detach()  # TD3+BC eq. 5
        return imitation_loss - scale * values.mean(), imitation_loss  # TD3+BC eq. 3

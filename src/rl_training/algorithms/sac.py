"""Soft actor-critic (Haarnoja et al. 2018, "Algorithms and Applications") with a learned temperature.

For Discrete actions (Christodoulou 2019) the expectation over actions is exact.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from rl_training.algorithms.base import Algorithm, ConfigT, Resources, UpdateResult
from rl_training.algorithms.config import ActorCriticConfig, Fraction, OffPolicyConfig
from rl_training.algorithms.optim import Adam, descend, polyak
from rl_training.algorithms.replay import Batch, ReplayAlgorithm
from rl_training.models.actions import masked
from rl_training.models.critics import EnsembleCritic, EnsembleQNetwork
from rl_training.models.policies import CategoricalPolicy, Policy, SquashedGaussianPolicy
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.spec import Spaces

Auto = Literal["auto"]
DISCRETE_ENTROPY_FRACTION = 0.3
"""Target entropy for Discrete actions, as a fraction of the uniform policy's entropy: with the paper's 0.98, alpha grew
past 100 within 6,000 steps of CartPole."""


class SACBaseConfig(ActorCriticConfig, OffPolicyConfig):
    """Settings of the entropy bonus."""

    alpha: PositiveFloat | Auto = "auto"
    """Entropy temperature: a constant, or `auto` to learn it, starting from 1."""
    target_entropy: float | Auto = "auto"
    """Entropy that a learned temperature aims at: `auto` is minus the number of action components, or 0.3 log n
    for n Discrete actions."""


class SACConfig(SACBaseConfig):
    """Settings of SAC."""

    tau: Fraction = 0.005
    """Polyak coefficient of the target networks."""


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
        loss = -self.log_alpha * (
            log_prob + self._target_entropy
        )  # SAC eq. 18, with log alpha for alpha
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
        self.alpha_optimizer = self.make_optimizer(
            self.temperature.parameters(), actor_rate, weight_decay=0.0
        )

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


class SACAlgorithm(SoftActorCritic[SACConfig]):
    """SAC for bounded Box actions."""

    actor: SquashedGaussianPolicy
    action_kinds = (ActionKind.CONTINUOUS, ActionKind.DISCRETE)
    needs_bounds = True

    def __init__(self, config: SACConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.target_critic = self.make_target_critic()

    @classmethod
    def for_spaces(cls, spaces: Spaces) -> type[Algorithm[Any]]:
        """Discrete actions have an update rule of their own."""
        return DiscreteSACAlgorithm if spaces.action.kind is ActionKind.DISCRETE else cls

    def make_critic(self) -> EnsembleCritic:
        """Twin critics."""
        return EnsembleCritic(self.spaces, self.critic_spec)

    def gradient_step(self, batch: Batch, noise: Tensor, next_noise: Tensor) -> UpdateResult:
        """One step of the critics, the policy and the temperature, in that order."""
        alpha = self.temperature.alpha
        values = self.critic(batch.obs, batch.actions)  # [2, B]
        targets = self._targets(batch, next_noise, alpha)
        critic_loss = batch.mean(0.5 * (values - targets).square()).sum()  # SAC eq. 5
        critic_grad_norm = descend(critic_loss, self.critic_optimizer)
        actions, log_probs = self.actor(batch.obs, noise)
        policy_metrics = self.step_policy(self.critic(batch.obs, actions).amin(0), log_probs, alpha)
        polyak(self.critic, self.target_critic, self.config.tau)
        metrics = {
            "critic_loss": critic_loss,
            "critic_grad_norm": critic_grad_norm,
            **policy_metrics,
        }
        return UpdateResult(
            {**metrics, "q_mean": values.mean()}, td_errors=batch.td_errors(values, targets)
        )

    @torch.no_grad()
    def _targets(self, batch: Batch, next_noise: Tensor, alpha: Tensor) -> Tensor:
        """Soft value of the next state, by the minimum over the target critics (SAC eq. 3 and 5)."""
        next_actions, next_log_probs = self.actor(batch.next_obs, next_noise)
        next_values = self.target_critic(batch.next_obs, next_actions).amin(0)
        return batch.targets(next_values - alpha * next_log_probs)


class DiscreteSACAlgorithm(SoftActorCritic[SACConfig]):
    """SAC for Discrete actions: the expectation over the policy's actions is a sum (Discrete SAC eq. 10 to 12)."""

    actor: CategoricalPolicy
    noise_per_step = 0
    obeys_masks = True
    action_kinds = (ActionKind.DISCRETE,)

    def __init__(self, config: SACConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.target_critic = self.make_target_critic()

    def make_actor(self) -> CategoricalPolicy:
        """A categorical policy."""
        return CategoricalPolicy(self.spaces, self.actor_spec)

    def make_critic(self) -> EnsembleQNetwork:
        """Twin Q-networks."""
        return EnsembleQNetwork(self.spaces, self.critic_spec)

    def target_entropy(self) -> float:
        """The configured target entropy; `auto` is a fraction of the uniform policy's."""
        if self.config.target_entropy == "auto":
            return DISCRETE_ENTROPY_FRACTION * math.log(self.spaces.action.choices[0])
        return super().target_entropy()

    def gradient_step(self, batch: Batch) -> UpdateResult:
        """One step of the critics, the policy and the temperature, in that order."""
        alpha = self.temperature.alpha
        values = self.critic(batch.obs, batch.actions)  # [2, B]
        with torch.no_grad():
            next_values, next_log_probs = self._expected(
                batch.next_obs, batch.next_masks, self.target_critic
            )
            targets = batch.targets(next_values - alpha * next_log_probs)
        critic_loss = batch.mean(0.5 * (values - targets).square()).sum()
        critic_grad_norm = descend(critic_loss, self.critic_optimizer)
        policy_metrics = self.step_policy(
            *self._expected(batch.obs, batch.masks, self.critic), alpha
        )
        polyak(self.critic, self.target_critic, self.config.tau)
        metrics = {
            "critic_loss": critic_loss,
            "critic_grad_norm": critic_grad_norm,
            **policy_metrics,
        }
        return UpdateResult(
            {**metrics, "q_mean": values.mean()}, td_errors=batch.td_errors(values, targets)
        )

    def _expected(
        self, obs: Tensor, masks: Tensor | None, critic: torch.nn.Module
    ) -> tuple[Tensor, Tensor]:
        """Expected minimum Q-value and log-probability [B] of the policy's action."""
        log_probs = masked(self.actor.outputs(obs), masks).log_softmax(-1)  # [B, num_actions]
        probs = log_probs.exp()
        with torch.no_grad():
            values = critic(obs).amin(0)
        return (probs * values).sum(-1), (probs * log_probs).sum(-1)

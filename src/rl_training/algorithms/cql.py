"""Conservative Q-learning, CQL (Kumar et al. 2020), on SAC for Box actions and on double DQN for Discrete ones."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, model_validator
from torch import Tensor

from rl_training.algorithms.base import ActResult, Algorithm, Resources, UpdateResult
from rl_training.algorithms.config import (
    ActorCriticConfig,
    Fraction,
    OfflineToOnlineConfig,
    Scheduled,
)
from rl_training.algorithms.optim import descend, polyak
from rl_training.algorithms.replay import Batch, ReplayAlgorithm
from rl_training.algorithms.sac import SoftActorCritic, Temperature
from rl_training.errors import ConfigError
from rl_training.models.actions import masked
from rl_training.models.critics import EnsembleCritic, QNetwork
from rl_training.models.mlp import frozen_copy
from rl_training.models.policies import SquashedGaussianPolicy
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.spec import Spaces

BOX_ONLY = (
    *("actor_hidden_sizes", "critic_hidden_sizes", "actor_learning_rate", "critic_learning_rate"),
    *(
        "num_cql_samples",
        "lagrange_threshold",
        "alpha",
        "target_entropy",
        "backup_entropy",
        "backup_mean",
    ),
)
MAX_MULTIPLIER = 1e6


class CQLConfig(ActorCriticConfig, OfflineToOnlineConfig):
    """Settings of CQL."""

    learning_rate: Scheduled = 3e-4
    """Learning rate of the critics: a number or a schedule."""
    actor_learning_rate: Scheduled = 3e-5
    """Learning rate of the actor and of the entropy temperature: a number or a schedule. Box only."""
    cql_alpha: NonNegativeFloat = 10.0
    """Weight of the conservative penalty beside the squared TD error (1 is usual for Discrete actions)."""
    num_cql_samples: PositiveInt = 10
    """Uniform, current-policy and next-state-policy actions sampled for the penalty, this many of each. Box only."""
    lagrange_threshold: float | None = None
    """Lagrange threshold: adapt the penalty weight to keep the gap near it; null: fixed `cql_alpha`. Box only."""
    alpha: PositiveFloat | Literal["auto"] = "auto"
    """Entropy temperature: a constant, or `auto` to learn it, starting from 1. Box only."""
    target_entropy: float | Literal["auto"] = "auto"
    """Entropy that a learned temperature aims at: `auto` is minus the number of action components. Box only."""
    backup_entropy: bool = False
    """Include the entropy bonus of the next action in the TD target. Box only."""
    backup_mean: bool = False
    """Use tanh of the policy mean, not a sample, in the TD target. Box only."""
    tau: Fraction = 0.005
    """Polyak coefficient of the target networks."""

    @model_validator(mode="after")
    def _entropy_is_of_a_sampled_action(self) -> CQLConfig:
        if self.backup_entropy and self.backup_mean:
            raise ValueError(
                "backup_entropy needs a sampled next action and backup_mean takes none: choose one"
            )
        return self


class CQLAlgorithm(SoftActorCritic[CQLConfig]):
    """CQL(H) for bounded Box actions: SAC whose critics are penalized for actions outside the dataset."""

    actor: SquashedGaussianPolicy
    action_kinds = (ActionKind.CONTINUOUS, ActionKind.DISCRETE)
    needs_bounds = True
    reads_images = False

    def __init__(self, config: CQLConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.target_critic = frozen_copy(self.critic)
        self.lagrange_multiplier = Temperature("auto").to(self.device)
        rate = config.critic_learning_rate
        self.lagrange_optimizer = self.make_optimizer(
            self.lagrange_multiplier.parameters(), rate, weight_decay=0.0
        )

    @classmethod
    def for_spaces(cls, spaces: Spaces) -> type[Algorithm[Any]]:
        """Discrete actions have an update rule of their own."""
        return DiscreteCQLAlgorithm if spaces.action.kind is ActionKind.DISCRETE else cls

    def make_critic(self) -> EnsembleCritic:
        """Twin critics."""
        return EnsembleCritic(self.spaces, self.critic_spec)

    def step_inputs(self, actions: Tensor) -> tuple[Tensor, ...]:
        """Uniform actions [N, B, A], and normal noise [1 + N, B, A] for the current and for the next observation."""
        count = self.config.num_cql_samples
        uniform = actions.new_empty(count, *actions.shape).uniform_(
            -1.0, 1.0, generator=self.generator
        )
        normal = (
            actions.new_empty(1 + count, *actions.shape).normal_(generator=self.generator)
            for _ in range(2)
        )
        return uniform, *normal

    def gradient_step(
        self, batch: Batch, uniform: Tensor, noise: Tensor, next_noise: Tensor
    ) -> UpdateResult:
        """One step of the critics, the policy and the temperature, in that order."""
        alpha = self.temperature.alpha
        with torch.no_grad():
            next_actions, next_log_probs = self.actor(batch.next_obs, next_noise)
            policy_actions, policy_log_probs = self.actor(batch.obs, noise[1:])
            target_actions = (
                self.actor.mode(batch.next_obs) if self.config.backup_mean else next_actions[0]
            )
        targets = self._targets(batch, target_actions, alpha * next_log_probs[0])
        all_actions = torch.cat(
            [
                batch.actions.unsqueeze(0),
                uniform,
                policy_actions,
                next_actions[1:],
            ]  # [1 + 3N, B, A]
        )
        uniform_log_probs = torch.full_like(
            policy_log_probs, -self.spaces.action.num_components * math.log(2.0)
        )
        log_probs = torch.cat([uniform_log_probs, policy_log_probs, next_log_probs[1:]])  # [3N, B]
        metrics = self._step_critics(batch.obs, all_actions, log_probs, targets)
        actions, action_log_probs = self.actor(batch.obs, noise[0])
        metrics |= self.step_policy(
            self.critic(batch.obs, actions).amin(0), action_log_probs, alpha
        )
        polyak(self.critic, self.target_critic, self.config.tau)
        return UpdateResult(metrics)

    @torch.no_grad()
    def _targets(self, batch: Batch, next_actions: Tensor, entropy_costs: Tensor) -> Tensor:
        """TD targets by the minimum over the target critics."""
        next_values: Tensor = self.target_critic(batch.next_obs, next_actions).amin(0)
        return batch.targets(
            next_values - entropy_costs if self.config.backup_entropy else next_values
        )

    def _step_critics(
        self, obs: Tensor, actions: Tensor, log_probs: Tensor, targets: Tensor
    ) -> dict[str, Tensor]:
        """TD loss plus the conservative penalty: the soft maximum of Q over all actions minus Q of the dataset's."""
        count, size = actions.shape[:2]
        every_obs = obs.expand(count, -1, -1).flatten(0, 1)
        all_values = self.critic(every_obs, actions.flatten(0, 1)).view(2, count, size)
        values, gaps = all_values[:, 0], conservative_gaps(all_values, log_probs)
        td_loss = (values - targets).square().mean(-1).sum()
        multiplier = self.lagrange_multiplier.log_alpha.exp().clamp(max=MAX_MULTIPLIER)
        # CQL eq. 4, weighted as in the authors' code, which takes the whole squared error where the paper halves it.
        critic_loss = td_loss + multiplier.detach() * self.config.cql_alpha * gaps.sum()
        grad_norm = descend(critic_loss, self.critic_optimizer)
        gap = gaps.detach().mean()
        if self.config.lagrange_threshold is not None:
            excess = gap - self.config.lagrange_threshold
            descend(
                -multiplier * self.config.cql_alpha * excess, self.lagrange_optimizer
            )  # CQL appendix F
        return {
            "td_loss": td_loss,
            "conservative_gap": gap,
            "lagrange_multiplier": multiplier,
            "critic_loss": critic_loss,
            "critic_grad_norm": grad_norm,
            "q_mean": values.mean(),
        }


class DiscreteCQLAlgorithm(ReplayAlgorithm[CQLConfig]):
    """CQL for Discrete actions: double DQN with the conservative penalty."""

    obeys_masks = True
    action_kinds = (ActionKind.DISCRETE,)

    def __init__(self, config: CQLConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        _refuse_box_settings(config)
        self.network = QNetwork(spaces, self.mlp_spec).to(self.device)
        self.target_network = frozen_copy(self.network)
        self.optimizer = self.make_optimizer(self.network.parameters())

    @torch.no_grad()
    def act(
        self, obs: Tensor, state: Tensor | None = None, *, explore: bool, mask: Tensor | None = None
    ) -> ActResult:
        """The valid action of the largest Q-value."""
        return ActResult(masked(self.network(self.preprocess(obs)), mask).argmax(-1))

    def gradient_step(self, batch: Batch) -> UpdateResult:
        """One step on the TD loss and the conservative penalty."""
        values = self.network(batch.obs)  # [B, num_actions]
        data_values = values.gather(1, batch.actions.unsqueeze(1)).squeeze(1)
        td_loss = F.smooth_l1_loss(data_values, self._targets(batch))
        gap = (masked(values, batch.masks).logsumexp(1) - data_values).mean()  # CQL eq. 4
        critic_loss = td_loss + self.config.cql_alpha * gap
        grad_norm = descend(critic_loss, self.optimizer)
        polyak(self.network, self.target_network, self.config.tau)
        return UpdateResult(
            {
                "td_loss": td_loss,
                "conservative_gap": gap,
                "critic_loss": critic_loss,
                "critic_grad_norm": grad_norm,
                "q_mean": data_values.mean(),
            }
        )

    @torch.no_grad()
    def _targets(self, batch: Batch) -> Tensor:
        next_values = masked(self.network(batch.next_obs), batch.next_masks)
        best = next_values.argmax(1, keepdim=True)  # Double DQN, eq. 4
        return batch.targets(self.target_network(batch.next_obs).gather(1, best).squeeze(1))


def _refuse_box_settings(config: CQLConfig) -> None:
    defaults = CQLConfig()
    for name in BOX_ONLY:
        value = getattr(config, name)
        if value != getattr(defaults, name):
            raise ConfigError(
                f"algo_kwargs.{name} of cql is {value}, but Discrete actions do not use it: remove it"
            )


def conservative_gaps(values: Tensor, log_probs: Tensor) -> Tensor:
    """Mean conservative gap of each critic, [C].

    `values` [C, 1 + N, B] are the Q-values of the dataset's action and of N sampled ones, which are importance-weighted
    by their log-densities [N, B] (CQL appendix F). As in the authors' code their sum is not divided by their number:
    that would only shift the gap, and with it `lagrange_threshold`. The gap is compared with it before `cql_alpha` is
    applied, as in the paper; the authors' code compares after that.
    """
    soft_maxima = (values[:, 1:] - log_probs).logsumexp(1)  # [C, B]
    return (soft_maxima - values[:, 0]).mean(1)

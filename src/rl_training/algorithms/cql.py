"""Conservative Q-learning (Kumar et al. 2020), by one rule for Box actions and another for Discrete ones.

A rule acts and learns on observations that come as flat vectors.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, model_validator
from torch import Tensor

from rl_training.algorithms.base import Resources, Stateful, parts_of
from rl_training.algorithms.config import Fraction, OfflineToOnlineConfig, Scheduled
from rl_training.algorithms.optim import Adam, descend
from rl_training.algorithms.replay import Batch, Metrics, ReplayAlgorithm
from rl_training.algorithms.returns import ensemble_mse, polyak
from rl_training.algorithms.sac import Temperature
from rl_training.errors import ConfigError
from rl_training.models.critics import EnsembleCritic, QNetwork
from rl_training.models.mlp import Layers, frozen_copy
from rl_training.models.policies import SquashedGaussianPolicy
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.spec import Spaces, require_bounded_box, require_vectors

MAX_MULTIPLIER = 1e6
BOX_ONLY = (
    *("actor_learning_rate", "num_cql_samples", "lagrange_threshold"),
    *("alpha", "target_entropy", "backup_entropy", "backup_mean"),
)


class CQLConfig(OfflineToOnlineConfig):
    """Settings of CQL."""

    learning_rate: Scheduled = 3e-4
    """Step size of the critics: a number or a schedule."""
    actor_learning_rate: Scheduled = 3e-5
    """Step size of the actor and of the temperature, for Box actions: a number or a schedule."""
    cql_alpha: NonNegativeFloat = 10.0
    """Weight of the conservative term beside the squared error (1 is usual for Discrete actions)."""
    num_cql_samples: PositiveInt = 10
    """Random, current and next actions drawn for the conservative term, each this many, for Box actions."""
    lagrange_threshold: float | None = None
    """Let the weight of the conservative term grow while the term lies above this, and fall below; for Box actions."""
    alpha: PositiveFloat | Literal["auto"] = "auto"
    """Weight of the entropy, for Box actions: `auto` learns it, starting from 1."""
    target_entropy: float | Literal["auto"] = "auto"
    """Entropy that a learned alpha aims at: `auto` is minus the number of action components."""
    backup_entropy: bool = False
    """Count the entropy of the next action as a part of its value, for Box actions."""
    backup_mean: bool = False
    """Value the policy's best action in the next state instead of a drawn one, for Box actions."""
    tau: Fraction = 0.005
    """Share by which the target networks follow the networks at each update."""

    @model_validator(mode="after")
    def _entropy_is_of_a_drawn_action(self) -> CQLConfig:
        if self.backup_entropy and self.backup_mean:
            raise ValueError("backup_entropy is of a drawn action, which backup_mean does without: choose one")
        return self


class CQLAlgorithm(ReplayAlgorithm[CQLConfig]):
    """Learns values that are low for actions the data does not show."""

    def __init__(self, config: CQLConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.rule: ContinuousCQL | DiscreteCQL
        if spaces.action.kind is ActionKind.CONTINUOUS:
            self.rule = ContinuousCQL(config, spaces, self.layers, self.device)
        else:
            _refuse_settings_for_box_actions(config)
            self.rule = DiscreteCQL(config, spaces, self.layers, self.device)

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        """CQL needs a list of actions to value, or bounds to squash its actions into."""
        if spaces.action.kind is not ActionKind.DISCRETE:
            require_bounded_box(spaces, "cql", "one Discrete, not MultiDiscrete, or bc")
            require_vectors(spaces, "cql with Box actions", "awac or bc")

    @torch.no_grad()
    def act(self, obs: Tensor, *, explore: bool) -> Tensor:
        """What the rule holds for best, or with `explore` a draw where its policy is random."""
        return self.rule.act(self.encode(obs), self.generator if explore else None)

    def step_arguments(self, actions: Tensor) -> tuple[Tensor, ...]:
        """The random numbers of one step."""
        return self.rule.step_arguments(actions)

    def gradient_step(self, batch: Batch, *args: Tensor) -> Metrics:
        """One step of all networks."""
        return self.rule.gradient_step(batch, *args)

    def parts(self) -> dict[str, Stateful]:
        """The normalizer and what the rule holds."""
        return parts_of(self) | parts_of(self.rule)


class ContinuousCQL:
    """For bounded continuous actions: SAC whose critics value what the policy prefers less than the data (CQL(H)).

    Twin critics, a squashed Gaussian actor, its temperature, and the Lagrange multiplier of the conservative term.
    """

    def __init__(self, config: CQLConfig, spaces: Spaces, layers: Layers, device: torch.device) -> None:
        self._config = config
        self._generator = layers.generator
        self._num_components = spaces.action.num_components
        self.actor = SquashedGaussianPolicy(spaces, layers).to(device)
        self.critic = EnsembleCritic(spaces, layers).to(device)
        self.target_critic = frozen_copy(self.critic)
        self.temperature = Temperature(config.alpha, config.target_entropy, self._num_components).to(device)
        self.lagrange_multiplier = Temperature("auto").to(device)
        self.actor_optimizer = Adam(self.actor.parameters(), config.actor_learning_rate)
        self.critic_optimizer = Adam(self.critic.parameters(), config.learning_rate)
        self.alpha_optimizer = Adam(self.temperature.parameters(), config.actor_learning_rate)
        self.lagrange_optimizer = Adam(self.lagrange_multiplier.parameters(), config.learning_rate)

    def act(self, obs: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw from the policy, or take its squashed mean."""
        return self.actor.act(obs, generator)

    def step_arguments(self, actions: Tensor) -> tuple[Tensor, ...]:
        """Uniform actions [N, B, A], and normal noise [1 + N, B, A] for the current and for the next observation."""
        count = self._config.num_cql_samples
        uniform = actions.new_empty(count, *actions.shape).uniform_(-1.0, 1.0, generator=self._generator)
        normal = (actions.new_empty(1 + count, *actions.shape).normal_(generator=self._generator) for _ in range(2))
        return uniform, *normal

    def gradient_step(self, batch: Batch, uniform: Tensor, own_noise: Tensor, next_noise: Tensor) -> Metrics:
        """The critics, the actor and the temperature, in that order."""
        alpha = self.temperature.log_alpha.detach().exp()
        with torch.no_grad():
            next_actions, next_log_probs = self.actor(batch.next_obs, next_noise)
            own_actions, own_log_probs = self.actor(batch.obs, own_noise[1:])
            valued_actions = self.actor.mode(batch.next_obs) if self._config.backup_mean else next_actions[0]
        targets = self._targets(batch, valued_actions, alpha * next_log_probs[0])
        all_actions = torch.cat([batch.actions.unsqueeze(0), uniform, own_actions, next_actions[1:]])  # [1 + 3N, B, A]
        uniform_log_probs = torch.full_like(own_log_probs, -self._num_components * math.log(2.0))
        log_probs = torch.cat([uniform_log_probs, own_log_probs, next_log_probs[1:]])  # [3N, B]
        metrics = self._step_critics(batch.obs, all_actions, log_probs, targets)
        metrics |= self._step_actor(batch.obs, own_noise[0], alpha)
        polyak(self.critic.parameters(), self.target_critic.parameters(), self._config.tau)
        return metrics

    @torch.no_grad()
    def _targets(self, batch: Batch, next_actions: Tensor, next_costs: Tensor) -> Tensor:
        """Value of the state reached, by the lesser of the target critics."""
        next_values: Tensor = self.target_critic(batch.next_obs, next_actions).amin(0)
        return batch.targets(next_values - next_costs if self._config.backup_entropy else next_values)

    def _step_critics(self, obs: Tensor, actions: Tensor, log_probs: Tensor, targets: Tensor) -> Metrics:
        """Towards the targets, and down where the soft maximum lies above the values of the data's actions."""
        values, gaps = self._values_and_gaps(obs, actions, log_probs)
        td_loss = ensemble_mse(values, targets)
        lagrange_multiplier = self.lagrange_multiplier.log_alpha.exp().clamp(max=MAX_MULTIPLIER)
        # CQL eq. 4, weighed as in the authors' code, which takes the whole squared error where the paper halves it.
        critic_loss = td_loss + lagrange_multiplier.detach() * self._config.cql_alpha * gaps.sum()
        grad_norm = descend(critic_loss, self.critic_optimizer)
        gap = gaps.detach().mean()
        if self._config.lagrange_threshold is not None:
            excess = gap - self._config.lagrange_threshold
            descend(-lagrange_multiplier * self._config.cql_alpha * excess, self.lagrange_optimizer)  # CQL appendix F
        return {
            "td_loss": td_loss,
            "conservative_gap": gap,
            "lagrange_multiplier": lagrange_multiplier,
            "critic_loss": critic_loss,
            "critic_grad_norm": grad_norm,
            "q_mean": values.mean(),
        }

    def _values_and_gaps(self, obs: Tensor, actions: Tensor, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """Each critic's values of the data's actions (the first) [2, B], and its mean conservative gap [2].

        The other actions are weighed by their densities (CQL appendix F). As in the authors' code their sum is not
        divided by their number: that would only move the gap, and with it what `lagrange_threshold` means. The gap is
        compared with it before `cql_alpha` weighs it, as in the paper; the authors' code compares after that.
        """
        count, size = actions.shape[:2]
        every_obs = obs.expand(count, -1, -1).flatten(0, 1)
        all_values = self.critic(every_obs, actions.flatten(0, 1)).view(2, count, size)
        values = all_values[:, 0]
        soft_maxima = (all_values[:, 1:] - log_probs).logsumexp(1)  # [2, B]
        return values, (soft_maxima - values).mean(1)

    def _step_actor(self, obs: Tensor, noise: Tensor, alpha: Tensor) -> Metrics:
        """SAC's step of the actor and the temperature."""
        actions, log_probs = self.actor(obs, noise)
        actor_loss = (alpha * log_probs - self.critic(obs, actions).amin(0)).mean()  # SAC eq. 9
        actor_grad_norm = descend(actor_loss, self.actor_optimizer)
        log_prob = log_probs.mean().detach()
        alpha_loss = self.temperature.step(log_prob, self.alpha_optimizer)
        return {
            "actor_loss": actor_loss,
            "actor_grad_norm": actor_grad_norm,
            "entropy": -log_prob,
            "alpha_loss": alpha_loss,
            "alpha": alpha,
        }


class DiscreteCQL:
    """For discrete actions: double DQN whose network values other actions less than the data's."""

    def __init__(self, config: CQLConfig, spaces: Spaces, layers: Layers, device: torch.device) -> None:
        self._config = config
        self.network = QNetwork(spaces, layers).to(device)
        self.target_network = frozen_copy(self.network)
        self.optimizer = Adam(self.network.parameters(), config.learning_rate)

    def act(self, obs: Tensor, generator: torch.Generator | None) -> Tensor:
        """The best action."""
        best: Tensor = self.network(obs).argmax(-1)
        return best

    def step_arguments(self, actions: Tensor) -> tuple[Tensor, ...]:
        """Nothing here is random."""
        return ()

    def gradient_step(self, batch: Batch) -> Metrics:
        """One step towards targets that are as conservative as `cql_alpha` says."""
        values = self.network(batch.obs)  # [B, num_actions]
        data_values = values.gather(1, batch.actions.unsqueeze(1)).squeeze(1)
        td_loss = F.smooth_l1_loss(data_values, self._targets(batch))
        gap = (values.logsumexp(1) - data_values).mean()  # CQL eq. 4
        critic_loss = td_loss + self._config.cql_alpha * gap
        grad_norm = descend(critic_loss, self.optimizer)
        polyak(self.network.parameters(), self.target_network.parameters(), self._config.tau)
        return {
            "td_loss": td_loss,
            "conservative_gap": gap,
            "critic_loss": critic_loss,
            "critic_grad_norm": grad_norm,
            "q_mean": data_values.mean(),
        }

    @torch.no_grad()
    def _targets(self, batch: Batch) -> Tensor:
        best = self.network(batch.next_obs).argmax(1, keepdim=True)  # Double DQN, eq. 4
        return batch.targets(self.target_network(batch.next_obs).gather(1, best).squeeze(1))


def _refuse_settings_for_box_actions(config: CQLConfig) -> None:
    defaults = CQLConfig()
    for name in BOX_ONLY:
        value = getattr(config, name)
        if value != getattr(defaults, name):
            raise ConfigError(f"'{name}' of cql is {value}, but means nothing for Discrete actions: leave it out")

"""Conservative Q-learning (Kumar et al. 2020), by one rule for Box actions and another for Discrete ones."""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Resources, Stateful, UpdateResult
from rl_training.algorithms.config import (
    FineTunedConfig,
    Fraction,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    Scheduled,
)
from rl_training.algorithms.cql_continuous import ContinuousRule
from rl_training.algorithms.cql_discrete import DiscreteRule
from rl_training.algorithms.optim import compiled
from rl_training.data.spaces import ActionKind, Spaces, require_bounded_box
from rl_training.data.transitions import Transitions
from rl_training.errors import ConfigError
from rl_training.models.encoders import ObsEncoder

BOX_ONLY = ("actor_learning_rate", "num_cql_samples", "alpha", "target_entropy", "backup_entropy", "lagrange_threshold")


class CQLConfig(FineTunedConfig):
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
    tau: Fraction = 0.005
    """Share by which the target networks follow the networks at each update."""


class Rule(Protocol):
    """What differs between kinds of action. Observations come as flat vectors."""

    step_metrics: tuple[str, ...]

    def act(self, obs: Tensor, *, explore: bool) -> Tensor:
        """Model actions for observations."""

    def set_learning_rates(self, progress: float) -> None:
        """Follow the schedules."""

    def draw_noise(self, count: int) -> tuple[Tensor, ...]:
        """The random numbers of one step."""

    def gradient_step(
        self, obs: Tensor, actions: Tensor, rewards: Tensor, next_obs: Tensor, discounts: Tensor, *noise: Tensor
    ) -> Tensor:
        """Functions of tensors alone; returns the metrics of `step_metrics` as one tensor."""

    def parts(self) -> dict[str, Stateful]:
        """Networks and optimizers."""


class CQLAlgorithm(Algorithm[CQLConfig]):
    """Learns values that are low for actions the data does not show."""

    def __init__(self, config: CQLConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.encoder = ObsEncoder(spaces.obs, normalize=config.normalize_obs).to(self.device)
        self.rule: Rule
        if spaces.action.kind is ActionKind.CONTINUOUS:
            self.rule = ContinuousRule(config, spaces.encoded(), resources)
        else:
            _refuse_settings_for_box_actions(config)
            self.rule = DiscreteRule(config, spaces.encoded(), resources)
        self._step = compiled(self._gradient_step, resources.compile)

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        """CQL needs a list of actions to value, or bounds to squash its actions into."""
        if spaces.action.kind is not ActionKind.DISCRETE:
            require_bounded_box(spaces, "cql", "one Discrete, not MultiDiscrete, or bc")

    @torch.no_grad()
    def act(self, obs: Tensor, *, explore: bool) -> Tensor:
        """What the rule holds for best, or with `explore` a draw where its policy is random."""
        return self.rule.act(self.encoder(obs), explore=explore)

    def fit_observations(self, obs: Tensor) -> None:
        """Learn the scale of the data's observations."""
        self.encoder.update_statistics(obs)

    def update(self, batch: Transitions) -> UpdateResult:
        """One step of all networks."""
        self.rule.set_learning_rates(self.progress)
        discounts = batch.bootstrap(self.config.gamma)
        noise = self.rule.draw_noise(len(discounts))
        step = self._step(batch.obs, batch.actions, batch.rewards, batch.next_obs, discounts, *noise)
        return UpdateResult(dict(zip(self.rule.step_metrics, step.unbind(), strict=True)))

    def parts(self) -> dict[str, Stateful]:
        """The normalizer and what the rule holds."""
        return {"encoder": self.encoder, **self.rule.parts()}

    def _gradient_step(
        self, obs: Tensor, actions: Tensor, rewards: Tensor, next_obs: Tensor, discounts: Tensor, *noise: Tensor
    ) -> Tensor:
        return self.rule.gradient_step(self.encoder(obs), actions, rewards, self.encoder(next_obs), discounts, *noise)


def _refuse_settings_for_box_actions(config: CQLConfig) -> None:
    defaults = CQLConfig()
    for name in BOX_ONLY:
        value = getattr(config, name)
        if value != getattr(defaults, name):
            raise ConfigError(f"'{name}' of cql is {value}, but means nothing for Discrete actions: leave it out")

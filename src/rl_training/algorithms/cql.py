"""Conservative Q-learning (Kumar et al. 2020), by one rule for Box actions and another for Discrete ones."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt, model_validator
from torch import Tensor

from rl_training.algorithms.base import Resources, Stateful, parts_of
from rl_training.algorithms.config import FineTunedConfig, Fraction, Scheduled
from rl_training.algorithms.cql_continuous import ContinuousRule
from rl_training.algorithms.cql_discrete import DiscreteRule
from rl_training.algorithms.replay import Batch, Metrics, ReplayAlgorithm
from rl_training.data.spaces import ActionKind, Spaces, require_bounded_box, require_vectors
from rl_training.errors import ConfigError

BOX_ONLY = (
    *("actor_learning_rate", "num_cql_samples", "lagrange_threshold"),
    *("alpha", "target_entropy", "backup_entropy", "backup_mean"),
)


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
    backup_mean: bool = False
    """Value the policy's best action in the next state instead of a drawn one, for Box actions."""
    tau: Fraction = 0.005
    """Share by which the target networks follow the networks at each update."""

    @model_validator(mode="after")
    def _entropy_is_of_a_drawn_action(self) -> CQLConfig:
        if self.backup_entropy and self.backup_mean:
            raise ValueError("backup_entropy is of a drawn action, which backup_mean does without: choose one")
        return self


class Rule(Protocol):
    """What differs between kinds of action. Observations come as flat vectors."""

    def act(self, obs: Tensor, generator: torch.Generator | None) -> Tensor:
        """A draw where the rule's policy is random, or without a generator its best action."""

    def step_arguments(self, actions: Tensor) -> tuple[Tensor, ...]:
        """The random numbers of one step."""

    def gradient_step(self, batch: Batch, *args: Any, **kwargs: Any) -> Metrics:
        """One step of all networks."""


class CQLAlgorithm(ReplayAlgorithm[CQLConfig]):
    """Learns values that are low for actions the data does not show."""

    def __init__(self, config: CQLConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.rule: Rule
        if spaces.action.kind is ActionKind.CONTINUOUS:
            self.rule = ContinuousRule(config, spaces, self.layers, self.device)
        else:
            _refuse_settings_for_box_actions(config)
            self.rule = DiscreteRule(config, spaces, self.layers, self.device)

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


def _refuse_settings_for_box_actions(config: CQLConfig) -> None:
    defaults = CQLConfig()
    for name in BOX_ONLY:
        value = getattr(config, name)
        if value != getattr(defaults, name):
            raise ConfigError(f"'{name}' of cql is {value}, but means nothing for Discrete actions: leave it out")

"""What update rules that learn from single transitions share: one gradient step, as a whole, for each batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, ConfigT, Resources, UpdateResult
from rl_training.algorithms.compiling import compiled
from rl_training.algorithms.config import OfflineConfig, OffPolicyConfig, value_at
from rl_training.models.encoders import ObsPreprocessor, flatten
from rl_training.models.policies import Policy
from rl_training.replay.transitions import Transitions
from rl_training.spaces.spec import Spaces

Metrics = dict[str, Tensor]
ERRORS = "errors"
StepResult = tuple[tuple[str, ...], Tensor, Tensor | None]
"""Names and values of the metrics, and the error of each transition."""


class Batch(NamedTuple):
    """What a gradient step reads. Observations are encoded, [B, features] unless images, all else is [B, ...]."""

    obs: Tensor
    actions: Tensor
    rewards: Tensor
    next_obs: Tensor
    discounts: Tensor
    """How much the value of `next_obs` counts: 0 where the episode terminated."""
    weights: Tensor | None = None
    """How much each transition counts, where they were drawn unevenly."""

    def targets(self, next_values: Tensor) -> Tensor:
        """What the actions turned out to be worth, given the values of the states they led to."""
        return self.rewards + self.discounts * next_values

    def mean(self, losses: Tensor) -> Tensor:
        """The mean of losses [..., B] over the batch."""
        return losses.mean(-1) if self.weights is None else (losses * self.weights).mean(-1)

    def with_td_errors(self, metrics: Metrics, values: Tensor, targets: Tensor) -> Metrics:
        """The metrics, and with them how far off each transition was, where the buffer draws by it.

        `values` are [B], or [E, B] of which the mean error counts.
        """
        if self.weights is None:
            return metrics
        errors = (values - targets).detach().abs()
        return {**metrics, ERRORS: errors if errors.dim() == 1 else errors.mean(0)}


class ReplayAlgorithm(Algorithm[ConfigT]):
    """Takes one gradient step for each batch, be it replayed or of a data set."""

    actor: Policy
    """What acts, unless `act` is written anew."""
    uses_next_obs = True
    """Whether a step reads what came of the actions: without it `next_obs` and `discounts` are not made ready."""
    draws_per_step = 0
    """How many standard normal draws of the actions' shape a step reads."""

    def __init__(self, config: ConfigT, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.encoder: ObsPreprocessor | None = None
        if isinstance(config, OfflineConfig):  # there is a data set to learn a scale from
            self.encoder = ObsPreprocessor(spaces.obs, normalize=config.normalize_obs).to(self.device)
        self._step: Callable[..., StepResult] = compiled(self._whole_step, resources.compile)

    @torch.no_grad()
    def act(self, obs: Tensor, *, explore: bool) -> Tensor:
        """Draw from the policy where it is random, or take its best action."""
        return self.actor.act(self.encode(obs), self.generator if explore else None)

    def encode(self, obs: Tensor) -> Tensor:
        """Observations as networks read them: flat vectors, and images as they are."""
        features: Tensor = flatten(obs, self.spaces.obs) if self.encoder is None else self.encoder(obs)
        return features

    def fit_observations(self, obs: Tensor) -> None:
        """Learn the scale of the data's observations."""
        if self.encoder is not None:
            self.encoder.update_statistics(obs)

    def update(self, batch: Transitions) -> UpdateResult:
        """Take one gradient step, at the learning rates of this point of the run."""
        for optimizer in self.optimizers:
            optimizer.follow_schedule(self.progress)
        discounts = batch.bootstrap(self.config.gamma) if self.uses_next_obs else batch.rewards
        fields = Batch(batch.obs, batch.actions, batch.rewards, batch.next_obs, discounts, self._weights(batch))
        names, values, errors = self._step(fields, *self.step_arguments(batch.actions))
        return UpdateResult(dict(zip(names, values.unbind(), strict=True)), errors=errors)

    def step_arguments(self, actions: Tensor) -> tuple[Any, ...]:
        """What a step reads besides its batch: random numbers and choices, made outside of the compiled graph."""
        return tuple(torch.empty_like(actions).normal_(generator=self.generator) for _ in range(self.draws_per_step))

    def _weights(self, batch: Transitions) -> Tensor | None:
        """What makes up for uneven draws, scaled so that the largest is 1 (prioritized replay, section 3.4)."""
        if batch.weights is None:
            return None
        assert isinstance(self.config, OffPolicyConfig)
        weights = batch.weights ** value_at(self.config.replay.beta, self.progress)
        return weights / weights.max()

    @abstractmethod
    def gradient_step(self, batch: Batch, *args: Any, **kwargs: Any) -> Metrics:
        """Move every network, by functions of tensors alone; `step_arguments` follow the batch.

        The metrics stand in the order in which a mistake would spread.
        """

    def _whole_step(self, batch: Batch, *drawn: Any) -> StepResult:
        """From observations as they are stored to the metrics."""
        next_obs = self.encode(batch.next_obs) if self.uses_next_obs else batch.next_obs
        metrics = self.gradient_step(batch._replace(obs=self.encode(batch.obs), next_obs=next_obs), *drawn)
        errors = metrics.pop(ERRORS, None)
        return tuple(metrics), torch.stack(list(metrics.values())).detach(), errors

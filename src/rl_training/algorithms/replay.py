"""Base class of algorithms that learn from sampled transitions: one gradient step per batch (off-policy, offline)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_training.algorithms.base import ActResult, Algorithm, ConfigT, Resources, UpdateResult
from rl_training.algorithms.compiling import compiled
from rl_training.algorithms.config import OfflineConfig, OffPolicyConfig, value_at
from rl_training.errors import ConfigError
from rl_training.models.encoders import make_preprocessor
from rl_training.models.normalizer import RewardNormalizer
from rl_training.models.policies import Policy
from rl_training.replay.transitions import Transitions
from rl_training.spaces.spec import Spaces

StepResult = tuple[tuple[str, ...], Tensor, int, Tensor | None]
"""Metric names, metric values [M], number of gradient steps and TD errors [B] of one compiled step."""


def bootstrap_discounts(batch: Transitions, gamma: float) -> Tensor:
    """Factor of V(next_obs) in the TD target, [B]: gamma, or gamma**n with n-step returns; 0 if terminated."""
    return (~batch.terminated).float() * (gamma if batch.discounts is None else batch.discounts)


class Batch(NamedTuple):
    """Input of a gradient step: preprocessed observations [B, features] (or images), all else [B, ...].

    Where the config's `sampling` asks for sequences, [L, B] takes the place of [B].
    """

    obs: Tensor
    actions: Tensor
    rewards: Tensor
    next_obs: Tensor
    bootstrap_discounts: Tensor
    """Factor of V(next_obs) in the TD target: the discount, or 0 where the episode terminated."""
    importance_weights: Tensor | None = None
    """Weight of each transition's loss, at most 1, with prioritized replay."""
    masks: Tensor | None = None
    """Valid actions of `obs`, [B, num_options], if there are masks."""
    next_masks: Tensor | None = None
    """Valid actions of `next_obs`."""
    valid: Tensor | None = None
    """In sequences [L, B]: False after the end of the episode; else None."""
    extras: Mapping[str, Tensor] = {}
    """What `step_fields` and `info_fields` declare, by name."""

    def targets(self, next_values: Tensor) -> Tensor:
        """TD targets: rewards + bootstrap_discounts * next_values."""
        return self.rewards + self.bootstrap_discounts * next_values

    def mean(self, losses: Tensor) -> Tensor:
        """Mean of losses [..., B] over the batch, weighted with prioritized replay; of [..., L, B] over valid steps."""
        if self.valid is not None:
            return (losses * self.valid).sum((-2, -1)) / self.valid.sum()
        return (
            losses.mean(-1)
            if self.importance_weights is None
            else (losses * self.importance_weights).mean(-1)
        )

    def td_errors(self, values: Tensor, targets: Tensor) -> Tensor | None:
        """Absolute TD errors [B] of values [B] or [critics, B] (their mean); None unless replay is prioritized."""
        if self.importance_weights is None:
            return None
        errors = (values - targets).detach().abs()
        return errors if errors.dim() == 1 else errors.mean(0)


class ReplayAlgorithm(Algorithm[ConfigT]):
    """Takes one gradient step per batch of transitions, sampled from a replay buffer or a dataset."""

    actor: Policy
    """The policy that `act` uses, unless it is overridden."""
    uses_next_obs = True
    """Whether the loss uses `next_obs` and `bootstrap_discounts`; if False, neither is computed."""
    uses_rewards = True
    """Whether the loss uses `rewards`; if False, a dataset without rewards is accepted."""
    noise_per_step = 0
    """Standard normal tensors of the actions' shape that `gradient_step` takes after the batch."""

    def __init__(self, config: ConfigT, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        normalize = isinstance(config, (OffPolicyConfig, OfflineConfig)) and config.normalize_obs
        self.preprocessor = make_preprocessor(spaces.obs, normalize=normalize)
        if self.preprocessor is not None:
            self.preprocessor.to(self.device)
        self.reward_normalizer: RewardNormalizer | None = None
        if isinstance(config, OffPolicyConfig) and config.normalize_reward:
            self.reward_normalizer = RewardNormalizer(resources.num_envs, config.gamma).to(
                self.device
            )
        self._step: Callable[..., StepResult] = compiled(self._graph_step, resources.compile)

    @torch.no_grad()
    def act(
        self, obs: Tensor, state: Tensor | None = None, *, explore: bool, mask: Tensor | None = None
    ) -> ActResult:
        """Sample from the policy, or without `explore` take its deterministic action."""
        obs = self.preprocess(obs)
        return ActResult(
            self.actor.sample(obs, self.generator, mask) if explore else self.actor.mode(obs, mask)
        )

    def preprocess(self, obs: Tensor) -> Tensor:
        """Turn stored observations [B, ...] or [L, B, ...] into network inputs: flat vectors; images unchanged."""
        if self.preprocessor is None:
            return obs
        leading = obs.shape[: obs.dim() - len(self.spaces.obs.shape)]
        features: Tensor = self.preprocessor(obs if len(leading) == 1 else obs.flatten(0, 1))
        return features if len(leading) == 1 else features.unflatten(0, leading)  # type: ignore[no-untyped-call]

    def fit_observations(self, obs: Tensor) -> None:
        """Update the mean and standard deviation of `normalize_obs`."""
        if self.preprocessor is not None:
            self.preprocessor.update_statistics(obs)

    @property
    def needs_steps(self) -> bool:
        """With `normalize_obs` or `normalize_reward` off-policy, and if `observe` is overridden."""
        config = self.config
        is_normalized = isinstance(config, OffPolicyConfig) and (
            config.normalize_obs or config.normalize_reward
        )
        return is_normalized or type(self).observe is not ReplayAlgorithm.observe

    def observe(self, steps: Transitions) -> None:
        """Off-policy, update the statistics of `normalize_obs` and `normalize_reward`; offline, the dataset's stay."""
        if isinstance(self.config, OffPolicyConfig):
            self.fit_observations(steps.obs.flatten(0, 1))
            if self.reward_normalizer is not None:
                self.reward_normalizer.update(steps.rewards, steps.dones)

    def update(self, batch: Transitions) -> UpdateResult:
        """Take one gradient step, at the learning rates of this point of training."""
        for optimizer in self.scheduled_optimizers:
            optimizer.follow_schedule(self.progress)
        rewards = (
            batch.rewards
            if self.reward_normalizer is None
            else self.reward_normalizer.scaled(batch.rewards)
        )
        # Without next observations any [B] tensor serves: the inputs of a compiled graph stay tensors.
        discounts = (
            bootstrap_discounts(batch, self.config.gamma) if self.uses_next_obs else batch.rewards
        )
        weights = (
            None
            if batch.unscaled_weights is None
            else self._importance_weights(batch.unscaled_weights)
        )
        inputs = Batch(
            batch.obs,
            batch.actions,
            rewards,
            batch.next_obs,
            discounts,
            weights,
            batch.masks,
            batch.next_masks,
            batch.valid,
            batch.extras,
        )
        names, values, gradient_steps, td_errors = self._step(
            inputs, *self.step_inputs(batch.actions)
        )
        return UpdateResult(
            dict(zip(names, values.unbind(), strict=True)), gradient_steps, td_errors
        )

    def step_inputs(self, actions: Tensor) -> tuple[Any, ...]:
        """Arguments of `gradient_step` after the batch: noise and choices, made outside of the compiled graph."""
        return tuple(
            torch.empty_like(actions).normal_(generator=self.generator)
            for _ in range(self.noise_per_step)
        )

    @abstractmethod
    def gradient_step(self, batch: Batch, *args: Any, **kwargs: Any) -> UpdateResult:
        """One training step of every network, traceable by torch.compile.

        Order the metrics by data flow: the first non-finite one is reported.
        """

    def _importance_weights(self, unscaled_weights: Tensor) -> Tensor:
        """(1 / (N P(i)))^beta, divided by their maximum (Schaul et al. 2016, section 3.4)."""
        assert isinstance(self.config, OffPolicyConfig)
        weights = unscaled_weights ** value_at(self.config.replay.beta, self.progress)
        return weights / weights.max()

    def _graph_step(self, batch: Batch, *args: Any) -> StepResult:
        """The whole step as one graph: stored observations in, metrics as one tensor out."""
        next_obs = self.preprocess(batch.next_obs) if self.uses_next_obs else batch.next_obs
        result = self.gradient_step(
            batch._replace(obs=self.preprocess(batch.obs), next_obs=next_obs), *args
        )
        if not isinstance(result, UpdateResult):
            kind = type(result).__name__
            raise ConfigError(
                f"gradient_step of {type(self).__name__} returns a {kind}: return UpdateResult(metrics)"
            )
        values = torch.stack(list(result.metrics.values())).detach()
        return tuple(result.metrics), values, result.gradient_steps, result.td_errors

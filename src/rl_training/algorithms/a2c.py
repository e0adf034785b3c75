"""A2C, the synchronous A3C (Mnih et al. 2016): one gradient step per rollout."""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor

from rl_training.algorithms.base import Resources, UpdateResult
from rl_training.algorithms.compiling import compiled
from rl_training.algorithms.config import Fraction, Scheduled
from rl_training.algorithms.on_policy import OnPolicyActorCritic, OnPolicyActorCriticConfig, Samples
from rl_training.algorithms.optim import descend
from rl_training.algorithms.returns import explained_variance, gae
from rl_training.algorithms.tune import Tune
from rl_training.replay.transitions import Transitions
from rl_training.spaces.spec import Spaces

STEP_METRICS = ("policy_loss", "value_loss", "entropy", "grad_norm", "explained_variance")


class A2CConfig(OnPolicyActorCriticConfig):
    """Settings of A2C."""

    learning_rate: Scheduled = 7e-4
    """Learning rate of the optimizer: a number or a schedule."""
    num_steps: Annotated[PositiveInt, Tune(choices=(5, 8, 16, 32, 64, 128))] = 5
    """Steps of each environment per rollout."""
    gae_lambda: Fraction = 1.0
    """GAE lambda: 0 is the one-step TD error, 1 the rollout's bootstrapped return minus V(s)."""
    normalize_advantage: bool = False
    """Normalize the advantages of each rollout to mean 0 and standard deviation 1."""

    def samples_per_update(self) -> int:
        """A rollout of eight environments, as an estimate."""
        return 8 * self.num_steps

    def gradient_steps_in(self, total_timesteps: int, num_envs: int) -> int:
        """One per rollout."""
        return -(-total_timesteps // (self.num_steps * num_envs))


class A2CAlgorithm(OnPolicyActorCritic[A2CConfig]):
    """One policy-gradient step per rollout."""

    def __init__(self, config: A2CConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self._step = compiled(self._rollout_step, resources.compile)

    def update(self, batch: Transitions) -> UpdateResult:
        """Take one gradient step on the whole rollout [T, N]."""
        for optimizer in self.scheduled_optimizers:
            optimizer.follow_schedule(self.progress)
        if self.memory is None:
            rewards, ends = self.normalized_rewards(batch), (batch.terminated, batch.truncated)
            metrics = self._step(batch.obs, batch.masks, batch.actions, rewards, batch.next_obs, *ends)
        else:
            samples, explained = self.prepare(batch)
            metrics = self._sequence_step(samples, explained)
        if self.policy.preprocessor is not None:  # after the update: the rollout belongs to the old statistics
            self.policy.preprocessor.update_statistics(batch.obs.flatten(0, 1))
        return UpdateResult(dict(zip(STEP_METRICS, metrics.unbind(), strict=True)))

    def _rollout_step(
        self,
        obs: Tensor,
        masks: Tensor | None,
        actions: Tensor,
        rewards: Tensor,
        next_obs: Tensor,
        terminated: Tensor,
        truncated: Tensor,
    ) -> Tensor:
        """One gradient step on a rollout [T, N]; returns the metrics of `STEP_METRICS` as one tensor."""
        config = self.config
        outputs, values = self.policy(obs.flatten(0, 1), None if masks is None else masks.flatten(0, 1))
        with torch.no_grad():
            baseline = values.view_as(rewards)
            # For every row, although most equal the next row's value: selecting the others would cost more.
            next_values = self.policy(next_obs.flatten(0, 1))[1].view_as(rewards)
            factors = {"gamma": config.gamma, "gae_lambda": config.gae_lambda}
            advantages = gae(rewards, baseline, next_values, terminated, truncated, **factors).flatten()
            returns = advantages + values
            explained = explained_variance(values, returns)
        return self._descend(outputs, values, actions.flatten(0, 1), advantages, returns, explained)

    def _sequence_step(self, samples: Samples, explained: Tensor) -> Tensor:
        """The same on a rollout cut into sequences [S, L, ...], for a policy with memory."""
        outputs, values = self.evaluate(samples)
        return self._descend(outputs, values, samples.actions, samples.advantages, samples.returns, explained)

    def _descend(
        self, outputs: Tensor, values: Tensor, actions: Tensor, advantages: Tensor, returns: Tensor, explained: Tensor
    ) -> Tensor:
        config = self.config
        log_probs, entropies = self.policy.head.log_prob_and_entropy(outputs, actions)
        if config.normalize_advantage and advantages.numel() > 1:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        policy_loss = -(advantages * log_probs).mean()  # A3C, algorithm S3
        value_loss = F.mse_loss(values, returns)
        entropy = entropies.mean()
        loss = policy_loss + config.vf_coef * value_loss
        if config.ent_coef:
            loss = loss - config.ent_coef * entropy
        grad_norm = descend(loss, self.optimizer, config.max_grad_norm)
        return torch.stack([policy_loss, value_loss, entropy, grad_norm, explained]).detach()

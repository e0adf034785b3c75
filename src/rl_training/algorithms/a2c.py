"""A2C, the synchronous A3C (Mnih et al. 2016): one gradient step per rollout."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor

from rl_training.algorithms.base import Resources, UpdateResult
from rl_training.algorithms.compiling import compiled
from rl_training.algorithms.config import Fraction, Scheduled
from rl_training.algorithms.on_policy import OnPolicyActorCritic, OnPolicyActorCriticConfig, Samples
from rl_training.algorithms.optim import descend
from rl_training.replay.transitions import Transitions
from rl_training.spaces.spec import Spaces

STEP_METRICS = ("policy_loss", "value_loss", "entropy", "grad_norm", "explained_variance")


class A2CConfig(OnPolicyActorCriticConfig):
    """Settings of A2C."""

    learning_rate: Scheduled = 7e-4
    """Learning rate of the optimizer: a number or a schedule."""
    num_steps: PositiveInt = 5
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
        samples, explained = self.prepare(batch)
        metrics = self._step(samples, explained)
        if (
            self.policy.preprocessor is not None
        ):  # after the update: the rollout belongs to the old statistics
            self.policy.preprocessor.update_statistics(batch.obs.flatten(0, 1))
        return UpdateResult(dict(zip(STEP_METRICS, metrics.unbind(), strict=True)))

    def _rollout_step(self, samples: Samples, explained: Tensor) -> Tensor:
        """One gradient step on a whole rollout; returns the metrics of `STEP_METRICS` as one tensor."""
        config, advantages = self.config, samples.advantages
        outputs, values = self.policy(samples.obs, samples.masks, samples.states, samples.starts)
        log_probs, entropies = self.policy.head.log_prob_and_entropy(outputs, samples.actions)
        if config.normalize_advantage and advantages.numel() > 1:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        policy_loss = -(advantages * log_probs).mean()  # A3C, algorithm S3
        value_loss = F.mse_loss(values, samples.returns)
        entropy = entropies.mean()
        loss = policy_loss + config.vf_coef * value_loss
        if config.ent_coef:
            loss = loss - config.ent_coef * entropy
        grad_norm = descend(loss, self.optimizer, config.max_grad_norm)
        return torch.stack([policy_loss, value_loss, entropy, grad_norm, explained]).detach()

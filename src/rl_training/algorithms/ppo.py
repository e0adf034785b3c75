"""Proximal policy optimization (Schulman et al. 2017) with generalized advantage estimation."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from rl_training.algorithms.base import Resources, UpdateResult
from rl_training.algorithms.compiling import compiled
from rl_training.algorithms.config import Scheduled, value_at
from rl_training.algorithms.on_policy import OnPolicyActorCritic, OnPolicyActorCriticConfig, Samples
from rl_training.algorithms.optim import descend
from rl_training.replay.transitions import Transitions
from rl_training.spaces.spec import Spaces

STEP_METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")
APPROX_KL = STEP_METRICS.index("approx_kl")


class PPOConfig(OnPolicyActorCriticConfig):
    """Settings of PPO."""

    update_epochs: PositiveInt = 10
    """Passes over each rollout."""
    minibatch_size: PositiveInt = 64
    """Transitions per gradient step; a smaller rollout is one minibatch. With memory, whole sequences of them."""
    clip_coef: Scheduled = 0.2
    """Clip range: the probability ratio is clipped to 1 ± clip_coef."""
    target_kl: PositiveFloat | None = None
    """Stop the update when a minibatch's approximate KL exceeds 1.5 * target_kl."""

    def samples_per_update(self) -> int:
        """The minibatch."""
        return self.minibatch_size

    def gradient_steps_in(self, total_timesteps: int, num_envs: int) -> int:
        """Rollouts, times epochs, times minibatches."""
        rollout = self.num_steps * num_envs
        return (
            -(-total_timesteps // rollout) * self.update_epochs * -(-rollout // self.minibatch_size)
        )


class PPOAlgorithm(OnPolicyActorCritic[PPOConfig]):
    """Several epochs of minibatch gradient steps on the clipped surrogate objective per rollout."""

    def __init__(self, config: PPOConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self._step = compiled(self._minibatch_step, resources.compile)

    def update(self, batch: Transitions) -> UpdateResult:
        """Learn from a rollout [T, N] in shuffled minibatches."""
        config = self.config
        for optimizer in self.scheduled_optimizers:
            optimizer.follow_schedule(self.progress)
        clip = torch.tensor(value_at(config.clip_coef, self.progress), device=self.device)
        samples, explained = self.prepare(batch)
        steps: list[Tensor] = []
        for minibatch in self._minibatches(samples):
            steps.append(self._step(minibatch, clip))
            if config.target_kl is not None and steps[-1][APPROX_KL] > 1.5 * config.target_kl:
                break
        if (
            self.policy.preprocessor is not None
        ):  # after the update: the log-probabilities belong to the old statistics
            self.policy.preprocessor.update_statistics(batch.obs.flatten(0, 1))
        means = torch.stack(steps).mean(0)
        metrics = dict(zip(STEP_METRICS, means, strict=True)) | {"explained_variance": explained}
        return UpdateResult(metrics, gradient_steps=len(steps))

    def _minibatches(self, samples: Samples) -> Iterator[Samples]:
        """Shuffled samples in each epoch, about `minibatch_size` transitions at a time."""
        memory, size, num_samples = self.config.memory, self.config.minibatch_size, len(samples.obs)
        size = size if memory is None else max(1, size // memory.length_in(self.config.num_steps))
        for _ in range(self.config.update_epochs):
            order = torch.randperm(num_samples, generator=self.generator, device=self.device)
            shuffled = samples.rows(order)
            for start in range(0, num_samples, size):
                yield shuffled.rows(slice(start, start + size))

    def _minibatch_step(self, samples: Samples, clip: Tensor) -> Tensor:
        """One gradient step on transitions [B, ...] or sequences; returns the metrics of `STEP_METRICS`."""
        config, advantages = self.config, samples.advantages
        outputs, values = self.policy(samples.obs, samples.masks, samples.states, samples.starts)
        log_probs, entropies = self.policy.head.log_prob_and_entropy(outputs, samples.actions)
        if config.normalize_advantage and advantages.numel() > 1:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        log_ratio = log_probs - samples.log_probs
        ratio = log_ratio.exp()
        policy_loss = clipped_surrogate_loss(ratio, advantages, clip)
        value_loss = F.mse_loss(values, samples.returns)
        entropy = entropies.mean()
        loss = policy_loss + config.vf_coef * value_loss  # PPO eq. 9
        if config.ent_coef:
            loss = loss - config.ent_coef * entropy
        grad_norm = descend(loss, self.optimizer, config.max_grad_norm)
        with torch.no_grad():
            approx_kl = (ratio - 1.0 - log_ratio).mean()
            clip_fraction = ((ratio - 1.0).abs() > clip).float().mean()
            return torch.stack(
                [policy_loss, value_loss, entropy, approx_kl, clip_fraction, grad_norm]
            )


def clipped_surrogate_loss(ratio: Tensor, advantages: Tensor, clip: Tensor) -> Tensor:
    """The negative clipped surrogate objective (PPO eq. 7)."""
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
    return -torch.min(ratio * advantages, clipped * advantages).mean()

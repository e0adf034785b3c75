"""Proximal policy optimization (Schulman et al. 2017) with generalized advantage estimation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from rl_training.algorithms.base import Resources, UpdateResult
from rl_training.algorithms.compiling import compiled
from rl_training.algorithms.config import Scheduled, value_at
from rl_training.algorithms.optim import descend
from rl_training.algorithms.rollout import OnPolicyActorCritic, OnPolicyActorCriticConfig
from rl_training.replay.transitions import Transitions
from rl_training.spaces.spec import Spaces

STEP_METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")


class PPOConfig(OnPolicyActorCriticConfig):
    """Settings of PPO."""

    update_epochs: PositiveInt = 10
    """Times each rollout is gone through."""
    minibatch_size: PositiveInt = 64
    """Transitions in one gradient step; a smaller rollout is one minibatch."""
    clip_coef: Scheduled = 0.2
    """How far the new policy may move from the old one, as a ratio."""
    target_kl: PositiveFloat | None = None
    """Stop the update when a minibatch's approximate KL exceeds 1.5 * target_kl."""

    def samples_per_update(self) -> int:
        """The minibatch."""
        return self.minibatch_size

    def gradient_steps_in(self, total_timesteps: int, num_envs: int) -> int:
        """Rollouts, times epochs, times minibatches."""
        rollout = self.num_steps * num_envs
        return -(-total_timesteps // rollout) * self.update_epochs * -(-rollout // self.minibatch_size)


class PPOAlgorithm(OnPolicyActorCritic[PPOConfig]):
    """Keeps each update of the policy near the policy that acted."""

    def __init__(self, config: PPOConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self._clip = torch.zeros((), device=self.device)
        self._step = compiled(self._minibatch_step, resources.compile)

    def update(self, batch: Transitions) -> UpdateResult:
        """Go over the rollout [T, N] several times in shuffled minibatches."""
        config = self.config
        self.optimizer.follow_schedule(self.progress)
        self._clip.fill_(value_at(config.clip_coef, self.progress))
        samples, fit = self.prepare(batch)
        size = len(samples[0])
        steps: list[Tensor] = []
        for _ in range(config.update_epochs):
            order = torch.randperm(size, generator=self.generator, device=self.device)
            shuffled = [field[order] for field in samples]
            for start in range(0, size, config.minibatch_size):
                stop = start + config.minibatch_size
                steps.append(self._step(*(field[start:stop] for field in shuffled)))
                if config.target_kl is not None and steps[-1][3] > 1.5 * config.target_kl:
                    break
            else:
                continue
            break
        # After the update, so that the policy that is improved is the one that acted.
        self.policy.encoder.update_statistics(samples[0])
        means = torch.stack(steps).mean(0)
        metrics = dict(zip(STEP_METRICS, means, strict=True)) | {"explained_variance": fit}
        return UpdateResult(metrics, gradient_steps=len(steps))

    def _minibatch_step(
        self, obs: Tensor, actions: Tensor, old_log_probs: Tensor, advantages: Tensor, returns: Tensor
    ) -> Tensor:
        """One gradient step; returns the metrics of `STEP_METRICS` as one tensor."""
        config = self.config
        outputs, values = self.policy(obs)
        log_probs, entropies = self.policy.head.log_prob_and_entropy(outputs, actions)
        if config.normalize_advantage and len(advantages) > 1:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        log_ratio = log_probs - old_log_probs
        ratio = log_ratio.exp()
        policy_loss = clipped_surrogate_loss(ratio, advantages, self._clip)
        value_loss = F.mse_loss(values, returns)
        entropy = entropies.mean()
        loss = policy_loss + config.vf_coef * value_loss  # PPO eq. 9
        if config.ent_coef:
            loss = loss - config.ent_coef * entropy
        grad_norm = descend(loss, self.optimizer, config.max_grad_norm)
        with torch.no_grad():
            approx_kl = (ratio - 1.0 - log_ratio).mean()
            clip_fraction = ((ratio - 1.0).abs() > self._clip).float().mean()
            return torch.stack([policy_loss, value_loss, entropy, approx_kl, clip_fraction, grad_norm])


def clipped_surrogate_loss(ratio: Tensor, advantages: Tensor, clip: Tensor) -> Tensor:
    """The negated clipped objective (PPO eq. 7)."""
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
    return -torch.min(ratio * advantages, clipped * advantages).mean()

"""Advantage actor-critic (Mnih et al. 2016, in step): one gradient step on each short rollout."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import PositiveInt
from torch import Tensor

from rl_training.algorithms.base import Resources, UpdateResult
from rl_training.algorithms.compiling import compiled
from rl_training.algorithms.config import Fraction, Scheduled
from rl_training.algorithms.optim import descend
from rl_training.algorithms.returns import explained_variance, gae
from rl_training.algorithms.rollout import OnPolicyActorCritic, OnPolicyActorCriticConfig
from rl_training.replay.transitions import Transitions
from rl_training.spaces.spec import Spaces

STEP_METRICS = ("policy_loss", "value_loss", "entropy", "grad_norm", "explained_variance")


class A2CConfig(OnPolicyActorCriticConfig):
    """Settings of A2C."""

    learning_rate: Scheduled = 7e-4
    """Step size of the optimizer: a number or a schedule."""
    num_steps: PositiveInt = 5
    """Steps each environment takes between two updates."""
    gae_lambda: Fraction = 1.0
    """Weight of longer returns in the advantage: 0 is one step, 1 is the whole rollout."""
    normalize_advantage: bool = False
    """Scale the advantages of each rollout to mean 0 and deviation 1."""

    def samples_per_update(self) -> int:
        """About what eight environments bring."""
        return 8 * self.num_steps

    def gradient_steps_in(self, total_timesteps: int, num_envs: int) -> int:
        """One for each rollout."""
        return -(-total_timesteps // (self.num_steps * num_envs))


class A2CAlgorithm(OnPolicyActorCritic[A2CConfig]):
    """Follows the policy gradient of what has just happened."""

    def __init__(self, config: A2CConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self._step = compiled(self._rollout_step, resources.compile)

    def update(self, batch: Transitions) -> UpdateResult:
        """Take one gradient step on the whole rollout [T, N]."""
        self.optimizer.follow_schedule(self.progress)
        rewards = self.scaled_rewards(batch)
        metrics = self._step(batch.obs, batch.actions, rewards, batch.next_obs, batch.terminated, batch.truncated)
        # After the update, so that the policy that is improved is the one that acted.
        self.policy.encoder.update_statistics(batch.obs.flatten(0, 1))
        return UpdateResult(dict(zip(STEP_METRICS, metrics.unbind(), strict=True)))

    def _rollout_step(
        self, obs: Tensor, actions: Tensor, rewards: Tensor, next_obs: Tensor, terminated: Tensor, truncated: Tensor
    ) -> Tensor:
        """One gradient step; returns the metrics of `STEP_METRICS` as one tensor."""
        config = self.config
        outputs, values = self.policy(obs.flatten(0, 1))
        log_probs, entropies = self.policy.head.log_prob_and_entropy(outputs, actions.flatten(0, 1))
        with torch.no_grad():
            baseline = values.view_as(rewards)
            # Of every row, though most are the next row's values: so few cost less than finding out which are not.
            next_values = self.policy(next_obs.flatten(0, 1))[1].view_as(rewards)
            ends = {"gamma": config.gamma, "gae_lambda": config.gae_lambda}
            advantages = gae(rewards, baseline, next_values, terminated, truncated, **ends).flatten()
            returns = advantages + values
            fit = explained_variance(values, returns)
            if config.normalize_advantage and len(advantages) > 1:
                advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        policy_loss = -(advantages * log_probs).mean()  # A3C, algorithm S3
        value_loss = F.mse_loss(values, returns)
        entropy = entropies.mean()
        loss = policy_loss + config.vf_coef * value_loss
        if config.ent_coef:
            loss = loss - config.ent_coef * entropy
        grad_norm = descend(loss, self.optimizer, config.max_grad_norm)
        return torch.stack([policy_loss, value_loss, entropy, grad_norm, fit]).detach()

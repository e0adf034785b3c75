"""Proximal policy optimization (Schulman et al. 2017) with generalized advantage estimation."""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Resources, UpdateResult
from rl_training.algorithms.config import (
    Fraction,
    HiddenSizes,
    NonNegativeFloat,
    OnPolicyConfig,
    PositiveFloat,
    PositiveInt,
    Scheduled,
    value_at,
)
from rl_training.algorithms.optim import Adam, compiled, descend
from rl_training.algorithms.returns import explained_variance, gae
from rl_training.data.spaces import Spaces
from rl_training.data.transitions import Transitions
from rl_training.models.actor_critic import ActorCritic
from rl_training.models.mlp import Activation
from rl_training.models.normalizer import RewardNormalizer

STEP_METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")


class PPOConfig(OnPolicyConfig):
    """Settings of PPO."""

    hidden_sizes: HiddenSizes = (64, 64)
    """Width of each hidden layer, of the policy and of the value function."""
    activation: Activation = "tanh"
    """What stands between the layers."""
    update_epochs: PositiveInt = 10
    """Times each rollout is gone through."""
    minibatch_size: PositiveInt = 64
    """Transitions in one gradient step; a smaller rollout is one minibatch."""
    gae_lambda: Fraction = 0.95
    """Weight of longer returns in the advantage: 0 is one step, 1 is the whole episode."""
    clip_coef: Scheduled = 0.2
    """How far the new policy may move from the old one, as a ratio."""
    ent_coef: NonNegativeFloat = 0.0
    """Weight of the entropy bonus."""
    vf_coef: NonNegativeFloat = 0.5
    """Weight of the value loss."""
    max_grad_norm: PositiveFloat | None = 0.5
    """Longest gradient allowed."""
    target_kl: PositiveFloat | None = None
    """End the update with the minibatch that finds the policy 1.5 times this far from the old one."""
    normalize_advantage: bool = True
    """Scale the advantages of each minibatch to mean 0 and deviation 1."""
    normalize_obs: bool = False
    """Scale observations by their running mean and deviation, kept inside the policy."""
    normalize_reward: bool = False
    """Scale rewards by the running deviation of the discounted return."""
    log_std_init: float = 0.0
    """Logarithm of the initial standard deviation of continuous actions."""
    adam_eps: Annotated[float, Field(ge=0)] = 1e-5
    """Adam's epsilon."""

    def samples_per_update(self) -> int:
        """The minibatch."""
        return self.minibatch_size

    def gradient_steps_in(self, total_timesteps: int, num_envs: int) -> int:
        """Rollouts, times epochs, times minibatches."""
        rollout = self.num_steps * num_envs
        return -(-total_timesteps // rollout) * self.update_epochs * -(-rollout // self.minibatch_size)


class PPOAlgorithm(Algorithm[PPOConfig]):
    """Learns from one rollout at a time, then forgets it."""

    def __init__(self, config: PPOConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.policy = ActorCritic(
            spaces, self.layers, normalize_obs=config.normalize_obs, log_std_init=config.log_std_init
        ).to(self.device)
        self.optimizer = Adam(self.policy.parameters(), config.learning_rate, eps=config.adam_eps)
        self.reward_normalizer = RewardNormalizer(resources.num_envs, config.gamma).to(self.device)
        self._clip = torch.zeros((), device=self.device)
        self._step = compiled(self._minibatch_step, resources.compile)

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        """PPO acts in every supported space."""

    @torch.no_grad()
    def act(self, obs: Tensor, *, explore: bool) -> Tensor:
        """Draw from the policy, or take its mode."""
        outputs, _ = self.policy(obs)
        return self.policy.head.sample(outputs, self.generator) if explore else self.policy.head.mode(outputs)

    def update(self, batch: Transitions) -> UpdateResult:
        """Go over the rollout [T, N] several times in shuffled minibatches."""
        config = self.config
        self.optimizer.follow_schedule(self.progress)
        self._clip.fill_(value_at(config.clip_coef, self.progress))
        samples, fit = self._prepare(batch)
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

    @torch.no_grad()
    def _prepare(self, batch: Transitions) -> tuple[list[Tensor], Tensor]:
        """Flat samples (obs, actions, log-probs, advantages, returns) and the value function's fit."""
        config = self.config
        rewards = batch.rewards
        if config.normalize_reward:
            rewards = self.reward_normalizer(rewards, batch.dones)
        flat_obs, flat_actions = batch.obs.flatten(0, 1), batch.actions.flatten(0, 1)
        outputs, flat_values = self.policy(flat_obs)
        log_probs, _ = self.policy.head.log_prob_and_entropy(outputs, flat_actions)
        values = flat_values.view_as(rewards)
        advantages = gae(
            rewards,
            values,
            self._next_values(batch, values),
            batch.terminated,
            batch.truncated,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
        )
        returns = (advantages + values).flatten()
        samples = [flat_obs, flat_actions, log_probs, advantages.flatten(), returns]
        return samples, explained_variance(flat_values, returns)

    def _next_values(self, batch: Transitions, values: Tensor) -> Tensor:
        """Values of the states reached: the next row's, but of `next_obs` at endings and in the last row."""
        needs_own = batch.truncated.clone()
        needs_own[-1] = True
        next_values = torch.cat([values[1:], values[-1:]])
        next_values[needs_own] = self.policy(batch.next_obs[needs_own])[1]
        return next_values

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

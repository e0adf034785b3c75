"""Running normalization of observations and of rewards, saved with the policy."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLIP = 10.0
EPSILON = 1e-8


class RunningNormalizer(nn.Module):
    """Normalize by the mean and variance of all inputs of `update`; `forward` does not update them."""

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(num_features, dtype=torch.float64))
        self.register_buffer("variance", torch.ones(num_features, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize with the current statistics, clipped to 10 standard deviations."""
        scale = (self.variance + EPSILON).rsqrt().float()
        return ((x - self.mean.float()) * scale).clamp(-CLIP, CLIP)

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Merge the statistics of a batch [B, features] (the parallel form of Welford's method)."""
        x = x.double()
        batch_count = len(x)
        delta = x.mean(0) - self.mean
        total = self.count + batch_count
        sum_squares = self.variance * self.count + x.var(0, correction=0) * batch_count
        sum_squares += delta.square() * self.count * batch_count / total
        self.mean += delta * batch_count / total
        self.variance.copy_(sum_squares / total)
        self.count.copy_(total)


class RewardNormalizer(nn.Module):
    """Divide rewards by the standard deviation of the running discounted returns."""

    running_return: Tensor

    def __init__(self, num_envs: int, gamma: float) -> None:
        super().__init__()
        self._gamma = gamma
        self.statistics = RunningNormalizer(1)
        self.register_buffer("running_return", torch.zeros(num_envs, dtype=torch.float64))

    def forward(self, rewards: Tensor, dones: Tensor) -> Tensor:
        """Update the statistics with a rollout's rewards [T, N] and return these normalized, clipped to ±10."""
        self.update(rewards, dones)
        return self.scaled(rewards)

    @torch.no_grad()
    def update(self, rewards: Tensor, dones: Tensor) -> None:
        """Continue the running returns with the next steps [T, N] of the environments, and update their statistics."""
        returns = []
        for reward, done in zip(rewards.double(), dones, strict=True):
            self.running_return.mul_(self._gamma).add_(reward)
            returns.append(self.running_return.clone())
            self.running_return.mul_(~done)
        self.statistics.update(torch.cat(returns).unsqueeze(1))

    @torch.no_grad()
    def scaled(self, rewards: Tensor) -> Tensor:
        """Rewards of any shape, divided by the standard deviation and clipped to ±10; changes no statistics."""
        scale = (self.statistics.variance + EPSILON).rsqrt().float()
        return (rewards * scale).clamp(-CLIP, CLIP)

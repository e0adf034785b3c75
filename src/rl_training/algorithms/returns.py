"""Targets and averages that more than one algorithm needs, each written once."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """Generalized advantage estimates [T, N] (GAE eq. 16).

    `next_values[t]` is the value of the state that step t led to, which at a truncation is the final one.
    Only `terminated` cuts the bootstrap; either ending cuts the sum over later steps.
    """
    deltas = rewards + gamma * next_values * (~terminated) - values
    decay = gamma * gae_lambda * (~(terminated | truncated))
    advantages = torch.empty_like(deltas)
    running = torch.zeros_like(deltas[0])
    for t in range(len(deltas) - 1, -1, -1):
        running = torch.addcmul(deltas[t], decay[t], running, out=advantages[t])
    return advantages


@torch.no_grad()
def polyak(source: Iterable[Tensor], target: Iterable[Tensor], tau: float) -> None:
    """Move `target` towards `source` by the share `tau`."""
    torch._foreach_lerp_(list(target), list(source), tau)


def explained_variance(predictions: Tensor, targets: Tensor) -> Tensor:
    """1 where the predictions are perfect, 0 where they are no better than a constant."""
    return 1.0 - (targets - predictions).var(correction=0) / (targets.var(correction=0) + 1e-8)


def ensemble_mse(values: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """The mean squared error of each member's values [E, B] from the targets [B], summed over the members."""
    squares = (values - targets).square()
    return (squares if weights is None else squares * weights).mean(1).sum()


def quantile_huber_losses(quantiles: Tensor, targets: Tensor) -> Tensor:
    """Losses [..., B] of N evenly spaced quantiles [..., B, N] from M likely returns [B, M] (QR-DQN eq. 10)."""
    count = quantiles.shape[-1]
    levels = ((torch.arange(count, device=quantiles.device) + 0.5) / count).unsqueeze(-1)  # QR-DQN lemma 2
    errors = targets.unsqueeze(-2) - quantiles.unsqueeze(-1)  # [..., B, N, M]
    weights = torch.where(errors.detach() < 0.0, 1.0 - levels, levels)
    huber = F.smooth_l1_loss(errors, errors.new_zeros(()).expand_as(errors), reduction="none")
    return (weights * huber).mean(-1).sum(-1)


def expectile_loss(errors: Tensor, expectile: float) -> Tensor:
    """Squared errors, of which those above 0 weigh `expectile` and the others the rest of 1 (IQL eq. 5)."""
    return (torch.where(errors > 0.0, expectile, 1.0 - expectile) * errors.square()).mean()


def exponential_weights(scores: Tensor, max_weight: float) -> Tensor:
    """`exp(scores)`, at most `max_weight`; the limit comes first, so that nothing overflows."""
    return scores.clamp(max=math.log(max_weight)).exp()


def smoothed_actions(actions: Tensor, noise: Tensor, scale: float, clip: float) -> Tensor:
    """Target policy smoothing: actions plus clipped noise, within their bounds (TD3 eq. 14)."""
    return (actions + (scale * noise).clamp(-clip, clip)).clamp(-1.0, 1.0)

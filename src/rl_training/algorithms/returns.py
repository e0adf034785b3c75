"""Returns, advantages and losses, as functions of tensors."""

from __future__ import annotations

import math

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

    `next_values[t]` is V of the next state of step t; at a truncation, of the final observation. Only `terminated`
    sets the bootstrap to zero; either end of an episode ends the sum over later steps.
    """
    deltas = rewards + gamma * next_values * (~terminated) - values
    decay = gamma * gae_lambda * (~(terminated | truncated))
    advantages = torch.empty_like(deltas)
    running = torch.zeros_like(deltas[0])
    for t in range(len(deltas) - 1, -1, -1):
        running = torch.addcmul(deltas[t], decay[t], running, out=advantages[t])
    return advantages


def explained_variance(predictions: Tensor, targets: Tensor) -> Tensor:
    """1 - Var(targets - predictions) / Var(targets): 1 is a perfect fit, 0 no better than a constant."""
    return 1.0 - (targets - predictions).var(correction=0) / (targets.var(correction=0) + 1e-8)


def quantile_huber_losses(quantiles: Tensor, targets: Tensor) -> Tensor:
    """Quantile Huber losses [..., B] of quantiles [..., B, N] against target samples [B, M] (QR-DQN eq. 10)."""
    count = quantiles.shape[-1]
    levels = ((torch.arange(count, device=quantiles.device) + 0.5) / count).unsqueeze(-1)  # QR-DQN lemma 2
    errors = targets.unsqueeze(-2) - quantiles.unsqueeze(-1)  # [..., B, N, M]
    weights = torch.where(errors.detach() < 0.0, 1.0 - levels, levels)
    huber = F.smooth_l1_loss(errors, errors.new_zeros(()).expand_as(errors), reduction="none")
    return (weights * huber).mean(-1).sum(-1)


def expectile_loss(errors: Tensor, expectile: float) -> Tensor:
    """Mean of the squared errors, weighted `expectile` above 0 and `1 - expectile` below (IQL eq. 5)."""
    return (torch.where(errors > 0.0, expectile, 1.0 - expectile) * errors.square()).mean()


def exponential_weights(scores: Tensor, max_weight: float) -> Tensor:
    """`exp(scores)`, at most `max_weight`; clamped before the exponential, which could overflow."""
    return scores.clamp(max=math.log(max_weight)).exp()


def smoothed_actions(actions: Tensor, noise: Tensor, scale: float, clip: float) -> Tensor:
    """Target policy smoothing: actions plus clipped noise, within their bounds (TD3 eq. 14)."""
    return (actions + (scale * noise).clamp(-clip, clip)).clamp(-1.0, 1.0)


def conservative_gaps(values: Tensor, log_probs: Tensor) -> Tensor:
    """Mean conservative gap of each critic, [C].

    `values` [C, 1 + N, B] are the Q-values of the dataset's action and of N sampled ones, which are importance-weighted
    by their log-densities [N, B] (CQL appendix F). As in the authors' code their sum is not divided by their number:
    that would only shift the gap, and with it `lagrange_threshold`. The gap is compared with it before `cql_alpha` is
    applied, as in the paper; the authors' code compares after that.
    """
    soft_maxima = (values[:, 1:] - log_probs).logsumexp(1)  # [C, B]
    return (soft_maxima - values[:, 0]).mean(1)

"""Targets and averages that more than one algorithm needs, each written once."""

from __future__ import annotations

from collections.abc import Iterable

import torch
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

"""Actions as tensors: invalid options masked out, actions moved onto their bounds, random actions."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rl_training.spaces.actions import ActionKind, ActionSpec

Generator = torch.Generator | np.random.Generator
INVALID = torch.finfo(torch.float32).min
"""Logit or value of an invalid option: its probability is exactly 0, and a product with 0 stays finite."""


def masked(values: Tensor, masks: Tensor | None) -> Tensor:
    """Values or logits [..., num_options] in which an invalid option can neither be sampled nor be the largest."""
    return values if masks is None else values.masked_fill(~masks, INVALID)


def executed(spec: ActionSpec, actions: Tensor) -> Tensor:
    """The model actions [B, ...] that the environment executes: continuous ones moved onto their bounds.

    `spec.to_env` gives the same action for the result as for `actions`.
    """
    if spec.kind is not ActionKind.CONTINUOUS:
        return actions
    if spec.is_bounded:
        return actions.clamp(-1.0, 1.0)
    low = torch.from_numpy(spec.low.reshape(-1)).to(actions)
    high = torch.from_numpy(spec.high.reshape(-1)).to(actions)
    return actions.clamp(low, high)


def random_actions(
    spec: ActionSpec, count: int, generator: Generator, masks: Tensor | None = None
) -> Tensor:
    """Model actions [count, ...] sampled uniformly: Box actions from `random_range`, others from all options.

    With `masks` [count, num_options], from the valid options only.
    """
    if spec.kind is ActionKind.CONTINUOUS:
        actions = _sample_uniform(generator, (count, *spec.model_shape))
        if spec.is_bounded:
            return actions
        center, half_width = spec.random_range
        return (
            torch.from_numpy(center).to(actions)
            + torch.from_numpy(half_width).to(actions) * actions
        )
    if masks is None:
        columns = [_sample_integers(generator, n, count) for n in spec.choices]
    else:  # the largest of uniform numbers, one for each option
        keys = (
            _sample_uniform(generator, (count, spec.num_options))
            .to(masks.device)
            .masked_fill(~masks, -2.0)
        )
        columns = [part.argmax(-1) for part in torch.split(keys, list(spec.choices), -1)]
    return columns[0] if spec.kind is ActionKind.DISCRETE else torch.stack(columns, -1)


def _sample_uniform(generator: Generator, shape: tuple[int, ...]) -> Tensor:
    """Float32 numbers in [-1, 1], on the generator's device."""
    if isinstance(generator, np.random.Generator):
        return torch.from_numpy(generator.uniform(-1.0, 1.0, shape).astype(np.float32))
    return torch.empty(shape, device=generator.device).uniform_(-1.0, 1.0, generator=generator)


def _sample_integers(generator: Generator, n: int, count: int) -> Tensor:
    """Integers [count] from 0 to n - 1, on the generator's device."""
    if isinstance(generator, np.random.Generator):
        return torch.from_numpy(generator.integers(0, n, count))
    return torch.randint(n, (count,), generator=generator, device=generator.device)

"""Action masks: which options of a discrete action are valid, as one row of booleans per observation.

The options of several components (MultiDiscrete, MultiBinary) stand one after the other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_training.spaces.observations import ObsSpec

MASK_KEY = "action_mask"
"""Key of the mask in an environment's info, and in a Dict observation."""
INVALID = torch.finfo(torch.float32).min
"""Logit or value of an invalid option: its probability is exactly 0, and a product with 0 stays finite."""


def masked(values: Tensor, masks: Tensor | None) -> Tensor:
    """Values or logits [..., num_options] in which an invalid option can neither be sampled nor be the largest."""
    return values if masks is None else values.masked_fill(~masks, INVALID)


def mask_in_observation(obs: Any, spec: ObsSpec) -> Any | None:
    """The mask that a Dict observation holds under `action_mask`; None if it holds none."""
    return obs[MASK_KEY] if any(leaf.path == (MASK_KEY,) for leaf in spec.leaves) else None

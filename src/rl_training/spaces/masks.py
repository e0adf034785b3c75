"""Action masks: which options of a discrete action are valid, as one row of booleans per observation.

The options of several components (MultiDiscrete, MultiBinary) stand one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.errors import EnvError
from rl_training.spaces.actions import ActionSpec
from rl_training.spaces.observations import Array, ObsSpec

MASK_KEY = "action_mask"
"""Key of the mask in an environment's info, and in a Dict observation."""
INVALID = torch.finfo(torch.float32).min
"""Logit or value of an invalid option: its probability is exactly 0, and a product with 0 stays finite."""


def masked(values: Tensor, masks: Tensor | None) -> Tensor:
    """Values or logits [..., num_options] in which an invalid option can neither be sampled nor be the largest."""
    return values if masks is None else values.masked_fill(~masks, INVALID)


def as_masks(value: Any, action: ActionSpec) -> Array:
    """Mask rows [..., num_options] from booleans or numbers (0 is invalid), or from one array per component."""
    if isinstance(value, (tuple, list)) and _is_one_per_component(value, action):
        value = np.concatenate(value, -1)
    try:
        masks = np.asarray(value)
    except ValueError:  # rows of different lengths
        masks = np.asarray(value, object)
    if masks.dtype.kind not in "biuf" or masks.ndim == 0 or masks.shape[-1] != action.num_options:
        raise EnvError(
            f"an action mask is {masks.dtype} of shape {masks.shape}: give one boolean for each option,"
            f" {action.num_options} in all"
        )
    if masks.dtype.kind == "f" and not np.isfinite(masks).all():
        raise EnvError("an action mask holds NaN or infinity: give 1 for valid and 0 for invalid options")
    return masks.astype(np.bool_)


def _is_one_per_component(parts: Sequence[Any], action: ActionSpec) -> bool:
    """Whether these are one array [..., n] for each component, not one row for each observation."""
    try:
        return len(parts) > 1 and tuple(np.shape(part)[-1] for part in parts) == action.choices
    except (ValueError, IndexError):
        return False


def find_fault(mask: Array, action: ActionSpec) -> str | None:
    """What is wrong with a mask [num_options] that permits no action; None if it permits one."""
    if len(action.choices) == 1:
        return None if mask.any() else "permits no action"
    parts = np.split(mask, np.cumsum(action.choices)[:-1])
    empty = next((index for index, part in enumerate(parts) if not part.any()), None)
    return None if empty is None else f"permits no option of component {empty}"


def mask_in_observation(obs: Any, spec: ObsSpec) -> Any | None:
    """The mask that a Dict observation holds under `action_mask`; None if it holds none."""
    return obs[MASK_KEY] if any(leaf.path == (MASK_KEY,) for leaf in spec.leaves) else None

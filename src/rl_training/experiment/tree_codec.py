"""Between nested Python state and what a file may hold: plain JSON, and named tensors beside it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from rl_training.errors import CheckpointError

TENSOR, ARRAY, FLOAT = "$tensor", "$array", "$float"


def pack(tree: Any, tensors: dict[str, torch.Tensor], prefix: str = "") -> Any:
    """Return `tree` as plain JSON values; each tensor and array goes to `tensors` under its path."""
    if isinstance(tree, dict):
        for key in tree:
            if not isinstance(key, str) or key.startswith("$"):
                raise TypeError(f"state keys must be strings that do not begin with $: {key!r} in '{prefix}'")
        return {key: pack(value, tensors, f"{prefix}/{key}") for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [pack(value, tensors, f"{prefix}/{index}") for index, value in enumerate(tree)]
    if isinstance(tree, torch.Tensor):
        tensors[prefix] = tree.detach().cpu().contiguous()
        return {TENSOR: prefix}
    if isinstance(tree, np.ndarray):
        tensors[prefix] = torch.from_numpy(np.ascontiguousarray(tree).reshape(tree.shape))
        return {ARRAY: prefix}
    if isinstance(tree, np.generic):
        return pack(tree.item(), tensors, prefix)
    if isinstance(tree, float) and not math.isfinite(tree):
        return {FLOAT: repr(tree)}
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    raise TypeError(f"state at '{prefix}' has type {type(tree).__name__}, which cannot be saved")


def unpack(plain: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """The inverse of `pack` (tuples come back as lists)."""
    if isinstance(plain, list):
        return [unpack(value, tensors) for value in plain]
    if not isinstance(plain, dict):
        return plain
    if len(plain) == 1:
        ((key, value),) = plain.items()
        if key in (TENSOR, ARRAY):
            if value not in tensors:
                raise CheckpointError(f"the manifest names tensor '{value}', which its file does not hold")
            return tensors[value] if key == TENSOR else tensors[value].numpy()
        if key == FLOAT:
            return float(value)
    return {key: unpack(value, tensors) for key, value in plain.items()}

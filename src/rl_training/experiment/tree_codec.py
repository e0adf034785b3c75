"""Between nested Python state and what a file may hold: plain JSON, and named tensors beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from rl_training.errors import CheckpointError

TENSOR, ARRAY, FLOAT = "$tensor", "$array", "$float"
NOT_FINITE = ("nan", "inf", "-inf")
MAX_DEPTH = 64
"""Levels of nesting that a file may have; far deeper ones would exhaust the interpreter's stack."""


def pack(tree: Any, tensors: dict[str, torch.Tensor], prefix: str = "") -> Any:
    """Return `tree` as plain JSON values; each tensor and array goes to `tensors` under its path."""
    if prefix.count("/") > MAX_DEPTH:
        raise TypeError(f"state is nested deeper than {MAX_DEPTH} levels: '{prefix}'")
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


def unpack(plain: Any, tensors: dict[str, torch.Tensor], depth: int = 0) -> Any:
    """The inverse of `pack` (tuples come back as lists)."""
    if depth > MAX_DEPTH:
        raise CheckpointError(f"the manifest is nested deeper than {MAX_DEPTH} levels")
    if isinstance(plain, list):
        return [unpack(value, tensors, depth + 1) for value in plain]
    if not isinstance(plain, dict):
        return plain
    if len(plain) == 1:
        ((key, value),) = plain.items()
        if key in (TENSOR, ARRAY, FLOAT):
            return _unpack_leaf(key, value, tensors)
    return {key: unpack(value, tensors, depth + 1) for key, value in plain.items()}


def unpack_dict(plain: Any, tensors: dict[str, torch.Tensor], what: str) -> dict[str, Any]:
    """Like `unpack`, for what must come out as names and values."""
    tree = unpack(plain, tensors)
    if not isinstance(tree, dict):
        raise CheckpointError(f"the manifest's {what} must be names and values, not {type(tree).__name__}")
    return tree


def as_array(tensor: torch.Tensor, name: str) -> np.ndarray[Any, Any]:
    """A tensor of a file as an array, if its type of number is one that arrays have."""
    try:
        return tensor.numpy()
    except (TypeError, ValueError):
        raise CheckpointError(f"the array '{name}' has an unsupported type or shape: {tensor.dtype}") from None


def tensors_in(tree: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in nested state, with its path."""
    if isinstance(tree, torch.Tensor):
        yield path, tree
    elif isinstance(tree, (dict, list)):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from tensors_in(value, f"{path}/{key}")


def _unpack_leaf(key: str, value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if key == FLOAT and value in NOT_FINITE:
        return float(value)
    if key == FLOAT or not isinstance(value, str) or value not in tensors:
        raise CheckpointError(f"the manifest names {key} {value!r:.100}, which its file does not hold")
    return tensors[value] if key == TENSOR else as_array(tensors[value], value)

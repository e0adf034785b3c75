"""From JSON-compatible values and named tensors back to nested Python state: the inverse of `tree_packing`.

Untrusted values are safe to read: the result is data without code, and no larger than the file.
"""

from __future__ import annotations

import base64
import datetime
import math
import re
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from rl_training.errors import CheckpointError
from rl_training.experiment.codec.tree_packing import MAX_DEPTH, SAVABLE_KINDS

Tensors = dict[str, torch.Tensor]
DTYPE = re.compile(rf"[<>|][{SAVABLE_KINDS}][1-9][0-9]{{0,8}}(\[[0-9]{{0,9}}[A-Za-z]{{1,2}}\])?")
INTEGER = re.compile(r"-?0x[0-9a-f]+")


def unpack(packed: Any, tensors: Tensors, depth: int = 0) -> Any:
    """The inverse of `pack`; a `CheckpointError` for values that `pack` cannot have returned."""
    if depth > MAX_DEPTH:
        raise CheckpointError(f"the manifest is nested deeper than {MAX_DEPTH} levels")
    if isinstance(packed, list):
        return [unpack(value, tensors, depth + 1) for value in packed]
    if not isinstance(packed, dict):
        return packed
    if len(packed) == 1:
        ((tag, value),) = packed.items()
        if tag.startswith("$"):
            try:
                return _READERS[tag](value, tensors, depth)
            except CheckpointError:
                raise
            except (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError):
                raise CheckpointError(f"the manifest holds an invalid value: {tag!r:.40} {value!r:.100}") from None
    return {key: unpack(value, tensors, depth + 1) for key, value in packed.items()}


def unpack_dict(packed: Any, tensors: Tensors, what: str) -> dict[str, Any]:
    """Like `unpack`, for a value that must be a dictionary; `what` names it in the error."""
    tree = unpack(packed, tensors)
    if not isinstance(tree, dict):
        raise CheckpointError(f"the manifest's {what} must be a dictionary, not {type(tree).__name__}")
    return tree


def as_array(tensor: torch.Tensor, name: str) -> np.ndarray[Any, Any]:
    """A tensor of a file as a NumPy array; a `CheckpointError` if NumPy lacks its dtype."""
    try:
        return tensor.numpy()
    except (TypeError, ValueError):
        raise CheckpointError(f"the array '{name}' has an unsupported type or shape: {tensor.dtype}") from None


def tensors_in(tree: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in a nested state, with its path."""
    if isinstance(tree, torch.Tensor):
        yield path, tree
    elif isinstance(tree, (dict, list, tuple)):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from tensors_in(value, f"{path}/{key}")


def stored_bytes(name: Any, tensors: Tensors) -> bytes:
    """Content of a tensor that stores bytes."""
    tensor = _tensor(name, tensors)
    if tensor.dtype is not torch.uint8 or tensor.dim() != 1:
        raise CheckpointError(f"the manifest names {name!r:.100} as bytes, but it is {tensor.dtype}")
    return tensor.numpy().tobytes()


def _tensor(name: Any, tensors: Tensors) -> torch.Tensor:
    if not isinstance(name, str) or name not in tensors:
        raise CheckpointError(f"the manifest names the tensor {name!r:.100}, which its file does not hold")
    return tensors[name]


def _inner(value: Any, tensors: Tensors, *tags: str) -> Any:
    """A tagged value nested in another tag, which allows only `tags`."""
    ((tag, content),) = value.items()
    if tag not in tags:
        raise ValueError
    return _READERS[tag](content, tensors, 0)


def _items(value: Any, tensors: Tensors, depth: int) -> list[Any]:
    if isinstance(value, dict):
        return list(_inner(value, tensors, "$floats", "$ints", "$bools"))
    if not isinstance(value, list):
        raise TypeError
    return [unpack(item, tensors, depth + 1) for item in value]


def _pairs(value: Any, tensors: Tensors, depth: int) -> Iterator[tuple[Any, Any]]:
    for key, item in list(value):
        yield unpack(key, tensors, depth + 1), unpack(item, tensors, depth + 1)


def _read_float(value: Any, tensors: Any, depth: int) -> float:
    if value not in ("nan", "inf", "-inf"):
        raise ValueError
    return float(value)


def _read_int(value: Any, tensors: Any, depth: int) -> int:
    if not INTEGER.fullmatch(value):
        raise ValueError
    return int(value, 16)


def _read_complex(value: Any, tensors: Any, depth: int) -> complex:
    real, imaginary = (_inner(part, tensors, "$float") if isinstance(part, dict) else part for part in value)
    if type(real) is not float or type(imaginary) is not float:
        raise TypeError
    return complex(real, imaginary)


def _read_bytes(value: Any, tensors: Any, depth: int) -> bytes:
    return base64.b64decode(value.encode("ascii"), validate=True)


def _read_bytearray(value: Any, tensors: Any, depth: int) -> bytearray:
    return bytearray(_inner(value, tensors, "$bytes", "$raw_bytes"))


def _read_deque(value: Any, tensors: Any, depth: int) -> deque[Any]:
    limit, items = value
    if limit is not None and type(limit) is not int:
        raise TypeError
    return deque(_items(items, tensors, depth), limit)


def _read_scalar(value: Any, tensors: Any, depth: int) -> Any:
    dtype, data = value
    return _from_bytes(_read_bytes(data, tensors, depth), dtype, [])[()]


def _read_raw_array(value: Any, tensors: Any, depth: int) -> Any:
    name, dtype, shape = value
    return _from_bytes(stored_bytes(name, tensors), dtype, shape)


def _from_bytes(data: bytes, dtype: str, shape: list[int]) -> np.ndarray[Any, Any]:
    if not DTYPE.fullmatch(dtype) or any(type(size) is not int or size < 0 for size in shape):
        raise ValueError
    known = np.dtype(dtype)
    if math.prod(shape) * known.itemsize != len(data):
        raise ValueError
    return np.ndarray(tuple(shape), known, data).copy()


def _read_fortran(value: Any, tensors: Any, depth: int) -> Any:
    return _inner(value, tensors, "$array", "$raw_array").T


def _read_list(value: Any, tensors: Tensors, dtype: Any) -> list[Any]:
    tensor = _tensor(value, tensors)
    if tensor.dtype is not dtype or tensor.dim() != 1:
        raise TypeError
    return tensor.tolist()


_READERS: dict[str, Any] = {
    "$tensor": lambda value, tensors, depth: _tensor(value, tensors),
    "$array": lambda value, tensors, depth: as_array(_tensor(value, tensors), value),
    "$raw_array": _read_raw_array,
    "$fortran": _read_fortran,
    "$scalar": _read_scalar,
    "$floats": lambda value, tensors, depth: _read_list(value, tensors, torch.float64),
    "$ints": lambda value, tensors, depth: _read_list(value, tensors, torch.int64),
    "$bools": lambda value, tensors, depth: _read_list(value, tensors, torch.bool),
    "$float": _read_float,
    "$int": _read_int,
    "$complex": _read_complex,
    "$bytes": _read_bytes,
    "$raw_bytes": lambda value, tensors, depth: stored_bytes(value, tensors),
    "$bytearray": _read_bytearray,
    "$tuple": lambda value, tensors, depth: tuple(_items(value, tensors, depth)),
    "$set": lambda value, tensors, depth: set(_items(value, tensors, depth)),
    "$frozenset": lambda value, tensors, depth: frozenset(_items(value, tensors, depth)),
    "$deque": _read_deque,
    "$dict": lambda value, tensors, depth: dict(_pairs(value, tensors, depth)),
    "$ordered": lambda value, tensors, depth: OrderedDict(_pairs(value, tensors, depth)),
    "$date": lambda value, tensors, depth: datetime.date.fromisoformat(value),
    "$datetime": lambda value, tensors, depth: datetime.datetime.fromisoformat(value),
}
"""Reader of each tag. An exception of a reader means that the value is damaged or forged."""

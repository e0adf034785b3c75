"""From nested Python state to JSON-compatible values and named tensors; every value keeps its type.

A value that JSON cannot express becomes a dictionary with one key, its tag: `{"$tuple": [1, 2]}`. Arrays, tensors and
long lists of numbers are stored as tensors; their tag has the tensor's name. `tree_codec` is the inverse.
"""

from __future__ import annotations

import base64
import datetime
import math
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from rl_training.errors import CheckpointError

MAX_DEPTH = 64
"""Maximum nesting depth of a state; far deeper ones would exhaust the interpreter's stack."""
MAX_VALUES = 10_000_000
"""Maximum number of values in a state, besides arrays and long lists of numbers."""
MIN_PACKED = 64
"""A list of numbers of one type, or bytes, of at least this length is stored as a tensor."""
MAX_NAME = 200
PACKED_LISTS: dict[type, tuple[str, Any]] = {
    float: ("$floats", np.float64),
    int: ("$ints", np.int64),
    bool: ("$bools", np.bool_),
}
SEQUENCES: dict[type, str] = {tuple: "$tuple", set: "$set", frozenset: "$frozenset"}
TENSOR_DTYPES = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
}
NUMBERS = "biuf"
SAVABLE_KINDS = "biufcSUMm"
"""Kinds of NumPy dtypes that can be saved: numbers, strings, dates; neither objects nor records."""
REMEDIES: dict[type, str] = {
    np.random.Generator: "save generator.bit_generator.state",
    np.random.RandomState: "save generator.get_state()",
}
SAVABLE_TYPES = (
    "save numbers, strings, bytes, None, NumPy arrays, tensors, and lists, tuples, sets, deques and dictionaries of"
    " these (for an enum its value, for a named tuple or dataclass a dictionary of its fields)"
)


class UnsavableStateError(CheckpointError):
    """A state contains a value that a checkpoint cannot store."""

    def __init__(self, path: tuple[Any, ...], problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"the state at '{_join(path)}' {problem}")

    def within(self, *path: Any) -> UnsavableStateError:
        """The same error for a larger state, which contains this one at `path`."""
        return UnsavableStateError((*path, *self.path), self.problem)


def pack(tree: Any, tensors: dict[str, torch.Tensor] | None) -> Any:
    """Return `tree` as JSON-compatible values; arrays, tensors and long lists of numbers are added to `tensors`.

    If `tensors` is None, arrays and tensors are refused, and lists stay lists.
    """
    return _Packer(tensors).pack(tree, ())


class _Packer:
    """One pass over a state; counts its values."""

    def __init__(self, tensors: dict[str, torch.Tensor] | None) -> None:
        self._tensors = tensors
        self._num_values = 0

    def pack(self, tree: Any, path: tuple[Any, ...]) -> Any:
        """Pack the value at `path`, recursively."""
        kind = type(tree)
        if tree is None or kind is bool or kind is str:
            return tree
        if kind is int:
            return tree if -(1 << 1024) < tree < 1 << 1024 else {"$int": hex(tree)}
        if kind is float:
            return tree if math.isfinite(tree) else {"$float": repr(tree)}
        if kind in (dict, OrderedDict, list, deque) or kind in SEQUENCES:
            return self._pack_container(tree, path)
        if isinstance(tree, torch.Tensor):
            return self._pack_tensor(tree, path)
        if kind in (np.ndarray, np.memmap):
            return self._pack_array(tree, path)
        if isinstance(tree, np.generic) and tree.dtype.kind in SAVABLE_KINDS:
            return {"$scalar": [tree.dtype.str, _encode(np.array(tree).tobytes())]}
        return self._pack_leaf(tree, path)

    def _pack_container(self, tree: Any, path: tuple[Any, ...]) -> Any:
        self._num_values += len(tree)
        if len(path) >= MAX_DEPTH:
            raise UnsavableStateError(path, f"is nested deeper than {MAX_DEPTH} levels")
        if self._num_values > MAX_VALUES:
            raise UnsavableStateError(path, f"has more than {MAX_VALUES:,} values: keep numbers in NumPy arrays")
        if isinstance(tree, dict):
            if type(tree) is dict and all(type(key) is str and not key.startswith("$") for key in tree):
                return {key: self.pack(value, (*path, key)) for key, value in tree.items()}
            pairs = [[self.pack(key, (*path, key)), self.pack(value, (*path, key))] for key, value in tree.items()]
            return {"$dict" if type(tree) is dict else "$ordered": pairs}
        items = self._pack_items(tree, path)
        if isinstance(tree, deque):
            return {"$deque": [tree.maxlen, items]}
        return items if type(tree) is list else {SEQUENCES[type(tree)]: items}

    def _pack_items(self, tree: Any, path: tuple[Any, ...]) -> Any:
        if self._tensors is not None and len(tree) >= MIN_PACKED:
            kinds = set(map(type, tree))
            tag, dtype = PACKED_LISTS.get(next(iter(kinds)), ("", None)) if len(kinds) == 1 else ("", None)
            if tag:
                try:
                    return {tag: self._store(torch.from_numpy(np.array(list(tree), dtype)), path)}
                except OverflowError:
                    pass  # integers of more than 64 bits
        return [self.pack(value, (*path, index)) for index, value in enumerate(tree)]

    def _pack_tensor(self, tensor: torch.Tensor, path: tuple[Any, ...]) -> Any:
        if tensor.layout is not torch.strided or tensor.is_meta or tensor.dtype not in TENSOR_DTYPES:
            problem = (
                f"is a tensor of {tensor.dtype} and layout {tensor.layout}: save a dense tensor of a standard dtype"
            )
            raise UnsavableStateError(path, problem)
        return {"$tensor": self._store(tensor.detach().cpu().contiguous(), path)}

    def _pack_array(self, array: np.ndarray[Any, Any], path: tuple[Any, ...]) -> Any:
        if array.dtype.kind not in SAVABLE_KINDS or array.dtype.itemsize == 0:
            problem = f"is an array of dtype {array.dtype}: save arrays of numbers, strings or dates ({SAVABLE_TYPES})"
            raise UnsavableStateError(path, problem)
        if (
            array.flags.f_contiguous and not array.flags.c_contiguous
        ):  # kept, since the order of a sum changes its last bits
            return {"$fortran": self._pack_array(array.T, path)}
        shape = array.shape
        array = np.array(array, order="C", copy=None if array.flags.writeable else True).reshape(shape)
        if array.dtype.kind in NUMBERS and array.dtype.itemsize <= 8 and array.dtype.isnative:
            return {"$array": self._store(torch.from_numpy(array), path)}
        data = np.frombuffer(bytearray(array.tobytes()), np.uint8)
        return {"$raw_array": [self._store(torch.from_numpy(data), path), array.dtype.str, list(shape)]}

    def _pack_leaf(self, tree: Any, path: tuple[Any, ...]) -> Any:
        kind = type(tree)
        if kind is complex:
            return {"$complex": [self.pack(tree.real, path), self.pack(tree.imag, path)]}
        if kind is bytes:
            if self._tensors is None or len(tree) < MIN_PACKED:
                return {"$bytes": _encode(tree)}
            return {"$raw_bytes": self._store(torch.from_numpy(np.frombuffer(bytearray(tree), np.uint8)), path)}
        if kind is bytearray:
            return {"$bytearray": self.pack(bytes(tree), path)}
        if kind is datetime.date:
            return {"$date": tree.isoformat()}
        if kind is datetime.datetime and tree.fold == 0 and type(tree.tzinfo) in (type(None), datetime.timezone):
            return {"$datetime": tree.isoformat()}
        remedy = next((text for known, text in REMEDIES.items() if isinstance(tree, known)), SAVABLE_TYPES)
        raise UnsavableStateError(path, f"has type {kind.__name__}, which cannot be saved: {remedy}")

    def _store(self, tensor: torch.Tensor, path: tuple[Any, ...]) -> str:
        """Add a tensor under a unique name made from its path; returns the name."""
        if self._tensors is None:
            raise UnsavableStateError(path, "is an array or tensor: save numbers, strings or lists here")
        name = _join(path)[:MAX_NAME].encode("ascii", "backslashreplace").decode()
        if name in self._tensors or len(name) >= MAX_NAME:
            name = f"{name}~{len(self._tensors)}"
        self._tensors[name] = tensor
        return name


def _join(path: Iterable[Any]) -> str:
    return "".join(f"/{key}" for key in path)


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()

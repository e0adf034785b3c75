"""How state becomes JSON and tensors, and back: types are kept, and nothing in a file can run code.

A value that JSON cannot express becomes a dictionary with one key, its tag: `{"$tuple": [1, 2]}`. Arrays, tensors and
long lists of numbers are stored as tensors; their tag has the tensor's name. Untrusted values are safe to read: the
result is data without code, and no larger than the file.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
import re
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
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
            raise UnsavableStateError(
                path, f"has more than {MAX_VALUES:,} values: keep numbers in NumPy arrays"
            )
        if isinstance(tree, dict):
            if type(tree) is dict and all(
                type(key) is str and not key.startswith("$") for key in tree
            ):
                return {key: self.pack(value, (*path, key)) for key, value in tree.items()}
            pairs = [
                [self.pack(key, (*path, key)), self.pack(value, (*path, key))]
                for key, value in tree.items()
            ]
            return {"$dict" if type(tree) is dict else "$ordered": pairs}
        items = self._pack_items(tree, path)
        if isinstance(tree, deque):
            return {"$deque": [tree.maxlen, items]}
        return items if type(tree) is list else {SEQUENCES[type(tree)]: items}

    def _pack_items(self, tree: Any, path: tuple[Any, ...]) -> Any:
        if self._tensors is not None and len(tree) >= MIN_PACKED:
            kinds = set(map(type, tree))
            tag, dtype = (
                PACKED_LISTS.get(next(iter(kinds)), ("", None)) if len(kinds) == 1 else ("", None)
            )
            if tag:
                try:
                    return {tag: self._store(torch.from_numpy(np.array(list(tree), dtype)), path)}
                except OverflowError:
                    pass  # integers of more than 64 bits
        return [self.pack(value, (*path, index)) for index, value in enumerate(tree)]

    def _pack_tensor(self, tensor: torch.Tensor, path: tuple[Any, ...]) -> Any:
        if (
            tensor.layout is not torch.strided
            or tensor.is_meta
            or tensor.dtype not in TENSOR_DTYPES
        ):
            kind = f"is a tensor of {tensor.dtype} and layout {tensor.layout}"
            problem = f"{kind}: save a dense tensor of a standard dtype"
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
        array = np.array(array, order="C", copy=None if array.flags.writeable else True).reshape(
            shape
        )
        if array.dtype.kind in NUMBERS and array.dtype.itemsize <= 8 and array.dtype.isnative:
            return {"$array": self._store(torch.from_numpy(array), path)}
        data = np.frombuffer(bytearray(array.tobytes()), np.uint8)
        return {
            "$raw_array": [self._store(torch.from_numpy(data), path), array.dtype.str, list(shape)]
        }

    def _pack_leaf(self, tree: Any, path: tuple[Any, ...]) -> Any:
        kind = type(tree)
        if kind is complex:
            return {"$complex": [self.pack(tree.real, path), self.pack(tree.imag, path)]}
        if kind is bytes:
            if self._tensors is None or len(tree) < MIN_PACKED:
                return {"$bytes": _encode(tree)}
            return {
                "$raw_bytes": self._store(
                    torch.from_numpy(np.frombuffer(bytearray(tree), np.uint8)), path
                )
            }
        if kind is bytearray:
            return {"$bytearray": self.pack(bytes(tree), path)}
        if kind is datetime.date:
            return {"$date": tree.isoformat()}
        if (
            kind is datetime.datetime
            and tree.fold == 0
            and type(tree.tzinfo) in (type(None), datetime.timezone)
        ):
            return {"$datetime": tree.isoformat()}
        remedy = next(
            (text for known, text in REMEDIES.items() if isinstance(tree, known)), SAVABLE_TYPES
        )
        raise UnsavableStateError(
            path, f"has type {kind.__name__}, which cannot be saved: {remedy}"
        )

    def _store(self, tensor: torch.Tensor, path: tuple[Any, ...]) -> str:
        """Add a tensor under a unique name made from its path; returns the name."""
        if self._tensors is None:
            raise UnsavableStateError(
                path, "is an array or tensor: save numbers, strings or lists here"
            )
        name = _join(path)[:MAX_NAME].encode("ascii", "backslashreplace").decode()
        if name in self._tensors or len(name) >= MAX_NAME:
            name = f"{name}~{len(self._tensors)}"
        self._tensors[name] = tensor
        return name


def _join(path: Iterable[Any]) -> str:
    return "".join(f"/{key}" for key in path)


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


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
                raise CheckpointError(
                    f"the manifest holds an invalid value: {tag!r:.40} {value!r:.100}"
                ) from None
    return {key: unpack(value, tensors, depth + 1) for key, value in packed.items()}


def unpack_dict(packed: Any, tensors: Tensors, what: str) -> dict[str, Any]:
    """Like `unpack`, for a value that must be a dictionary; `what` names it in the error."""
    tree = unpack(packed, tensors)
    if not isinstance(tree, dict):
        raise CheckpointError(
            f"the manifest's {what} must be a dictionary, not {type(tree).__name__}"
        )
    return tree


def without_python_types(value: Any) -> Any:
    """The settings of an older checkpoint, which may hold tuples, sets and dates, as JSON has them."""
    if isinstance(value, dict):
        return {key: without_python_types(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [without_python_types(item) for item in value]
    return value.isoformat() if isinstance(value, datetime.date) else value


def as_array(tensor: torch.Tensor, name: str) -> np.ndarray[Any, Any]:
    """A tensor of a file as a NumPy array; a `CheckpointError` if NumPy lacks its dtype."""
    try:
        return tensor.numpy()
    except (TypeError, ValueError):
        raise CheckpointError(
            f"the array '{name}' has an unsupported type or shape: {tensor.dtype}"
        ) from None


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
        raise CheckpointError(
            f"the manifest names {name!r:.100} as bytes, but it is {tensor.dtype}"
        )
    return tensor.numpy().tobytes()


def _tensor(name: Any, tensors: Tensors) -> torch.Tensor:
    if not isinstance(name, str) or name not in tensors:
        raise CheckpointError(
            f"the manifest names the tensor {name!r:.100}, which its file does not hold"
        )
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
    real, imaginary = (
        _inner(part, tensors, "$float") if isinstance(part, dict) else part for part in value
    )
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


MAX_JSON_BYTES = 1 << 28
"""Maximum size of a section's JSON text."""
MAX_INLINE_BYTES = 1 << 18
"""A longer JSON text is stored as a tensor in the section's file, not in the manifest."""
MAX_HEADER_BYTES = 100_000_000
"""Maximum size of a header that the safetensors library reads."""
JSON_TAG = JSON_TENSOR = "$json"


def pack_section(name: str, state: dict[str, Any]) -> tuple[Any, dict[str, torch.Tensor]]:
    """The JSON-compatible state of a section, for the manifest, and the tensors of its file."""
    tensors: dict[str, torch.Tensor] = {}
    try:
        json_state = pack(state, tensors)
    except UnsavableStateError as error:
        raise error.within(name) from None
    text = json.dumps(json_state, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > MAX_JSON_BYTES:
        raise CheckpointError(
            f"the {name} state takes {len(text):,} bytes besides its arrays, more than the limit of"
            f" {MAX_JSON_BYTES:,}: keep numbers in NumPy arrays"
        )
    if len(text) > MAX_INLINE_BYTES:
        tensors[JSON_TENSOR] = torch.from_numpy(np.frombuffer(bytearray(text), np.uint8))
        json_state = {JSON_TAG: JSON_TENSOR}
    # A header entry has a name, a dtype, a shape and two offsets.
    header_bytes = sum(
        len(json.dumps(key)) + 100 + 22 * tensor.dim() for key, tensor in tensors.items()
    )
    if header_bytes > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"the {name} state has {len(tensors):,} arrays, tensors and long lists, more than a file's header can list:"
            " join them into fewer, larger arrays"
        )
    return json_state, tensors


def unpack_section(name: str, json_state: Any, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The inverse of `pack_section`."""
    if isinstance(json_state, dict) and JSON_TAG in json_state:
        try:
            text = stored_bytes(json_state[JSON_TAG], tensors)
            if len(text) > MAX_JSON_BYTES:
                raise CheckpointError(
                    f"the checkpoint's {name} state is damaged: it has {len(text):,} bytes of JSON"
                )
            json_state = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(
                f"the checkpoint's {name} state is damaged: {error!s:.200}"
            ) from None
    return unpack_dict(json_state, tensors, name)

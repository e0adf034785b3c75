"""How state becomes JSON and tensors, and back: types are kept, and nothing in a file can run code.

A value that JSON cannot express becomes a dictionary with one key, its tag: `{"$tuple": [1, 2]}`. Arrays, tensors and
long lists of numbers are stored as tensors; their tag has the tensor's name. Untrusted values are safe to read: the
result is data without code, and no larger than the file.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import math
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
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
PLAIN = (type(None), bool, str)
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


DTYPE = re.compile(rf"[<>|][{SAVABLE_KINDS}][1-9][0-9]{{0,8}}(\[[0-9]{{0,9}}[A-Za-z]{{1,2}}\])?")
INTEGER = re.compile(r"-?0x[0-9a-f]+")
NOT_FINITE = re.compile(r"nan|-?inf")
Path = tuple[Any, ...]
"""Keys and indices that lead to a value of a state."""
Tensors = dict[str, torch.Tensor]


class UnsavableStateError(CheckpointError):
    """A state contains a value that a checkpoint cannot store."""

    def __init__(self, path: Path, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__(f"the state at '{_join(path)}' {problem}")

    def within(self, *path: Any) -> UnsavableStateError:
        """The same error for a larger state, which contains this one at `path`."""
        return UnsavableStateError((*path, *self.path), self.problem)


def pack(tree: Any, tensors: Tensors | None) -> Any:
    """Return `tree` as JSON-compatible values; arrays, tensors and long lists of numbers are added to `tensors`.

    If `tensors` is None, arrays and tensors are refused, and lists stay lists.
    """
    return _Packer(tensors).pack(tree, ())


class _Packer:
    """One pass over a state; counts its values."""

    def __init__(self, tensors: Tensors | None) -> None:
        self._tensors = tensors
        self._num_values = 0

    def pack(self, tree: Any, path: Path) -> Any:
        """Pack the value at `path`, recursively."""
        kind = type(tree)
        if kind in PLAIN:
            return tree
        if kind is int:
            return tree if -(1 << 1024) < tree < 1 << 1024 else {"$int": hex(tree)}
        if kind is float:
            return tree if math.isfinite(tree) else {"$float": repr(tree)}
        if kind in _WRITERS:
            return _WRITERS[kind](self, tree, path)
        if isinstance(tree, torch.Tensor):
            return self._pack_tensor(tree, path)
        if isinstance(tree, np.generic) and tree.dtype.kind in SAVABLE_KINDS:
            return {"$scalar": [tree.dtype.str, _encode(np.array(tree).tobytes())]}
        remedies = (text for known, text in REMEDIES.items() if isinstance(tree, known))
        remedy = next(remedies, SAVABLE_TYPES)
        raise UnsavableStateError(
            path, f"has type {kind.__name__}, which cannot be saved: {remedy}"
        )

    def pack_bytes(self, data: bytes, path: Path) -> Any:
        """Bytes in base64; long ones as a tensor."""
        if self._tensors is None or len(data) < MIN_PACKED:
            return {"$bytes": _encode(data)}
        return {"$raw_bytes": self._store(_bytes_tensor(data), path)}

    def pack_dict(self, tree: dict[Any, Any], path: Path) -> Any:
        """A dictionary with text keys stays one; others become lists of pairs."""
        self._count(tree, path)
        is_ordered = type(tree) is OrderedDict
        if not is_ordered and all(type(key) is str and not key.startswith("$") for key in tree):
            return {key: self.pack(value, (*path, key)) for key, value in tree.items()}
        pairs = [[self.pack(part, (*path, pair[0])) for part in pair] for pair in tree.items()]
        return {"$ordered" if is_ordered else "$dict": pairs}

    def pack_items(self, tree: Collection[Any], path: Path) -> Any:
        """The items as a list; a long list of numbers of one type as a tensor."""
        self._count(tree, path)
        kinds = set(map(type, tree)) if len(tree) >= MIN_PACKED else set()
        if self._tensors is not None and len(kinds) == 1 and kinds <= PACKED_LISTS.keys():
            tag, dtype = PACKED_LISTS[kinds.pop()]
            with contextlib.suppress(OverflowError):  # integers of more than 64 bits
                return {tag: self._store(torch.from_numpy(np.array(list(tree), dtype)), path)}
        return [self.pack(value, (*path, index)) for index, value in enumerate(tree)]

    def pack_array(self, array: np.ndarray[Any, Any], path: Path) -> Any:
        """An array as a tensor; one of a dtype that torch lacks as its bytes."""
        if array.dtype.kind not in SAVABLE_KINDS or array.dtype.itemsize == 0:
            problem = f"is an array of dtype {array.dtype}: save arrays of numbers, strings or dates ({SAVABLE_TYPES})"
            raise UnsavableStateError(path, problem)
        # The order is kept, since the order of a sum changes its last bits.
        if array.flags.f_contiguous and not array.flags.c_contiguous:
            return {"$fortran": self.pack_array(array.T, path)}
        array = np.array(array, order="C", copy=None if array.flags.writeable else True)
        if array.dtype.kind in NUMBERS and array.dtype.itemsize <= 8 and array.dtype.isnative:
            return {"$array": self._store(torch.from_numpy(array), path)}
        name = self._store(_bytes_tensor(array.tobytes()), path)
        return {"$raw_array": [name, array.dtype.str, list(array.shape)]}

    def pack_datetime(self, time: datetime.datetime, path: Path) -> Any:
        """A time in ISO format, which has no names of time zones."""
        if time.fold or type(time.tzinfo) not in (type(None), datetime.timezone):
            problem = f"has type datetime, which cannot be saved: {SAVABLE_TYPES}"
            raise UnsavableStateError(path, problem)
        return {"$datetime": time.isoformat()}

    def _pack_tensor(self, tensor: torch.Tensor, path: Path) -> Any:
        is_dense = tensor.layout is torch.strided and not tensor.is_meta
        if not is_dense or tensor.dtype not in TENSOR_DTYPES:
            kind = f"is a tensor of {tensor.dtype} and layout {tensor.layout}"
            problem = f"{kind}: save a dense tensor of a standard dtype"
            raise UnsavableStateError(path, problem)
        return {"$tensor": self._store(tensor.detach().cpu().contiguous(), path)}

    def _count(self, tree: Collection[Any], path: Path) -> None:
        self._num_values += len(tree)
        if len(path) >= MAX_DEPTH:
            raise UnsavableStateError(path, f"is nested deeper than {MAX_DEPTH} levels")
        if self._num_values > MAX_VALUES:
            raise UnsavableStateError(
                path, f"has more than {MAX_VALUES:,} values: keep numbers in NumPy arrays"
            )

    def _store(self, tensor: torch.Tensor, path: Path) -> str:
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


_WRITERS: dict[type, Callable[[_Packer, Any, Path], Any]] = {
    complex: lambda packer, value, path: {
        "$complex": [packer.pack(part, path) for part in (value.real, value.imag)]
    },
    bytes: _Packer.pack_bytes,
    bytearray: lambda packer, value, path: {"$bytearray": packer.pack(bytes(value), path)},
    dict: _Packer.pack_dict,
    OrderedDict: _Packer.pack_dict,
    list: _Packer.pack_items,
    tuple: lambda packer, value, path: {"$tuple": packer.pack_items(value, path)},
    set: lambda packer, value, path: {"$set": packer.pack_items(value, path)},
    frozenset: lambda packer, value, path: {"$frozenset": packer.pack_items(value, path)},
    deque: lambda packer, value, path: {"$deque": [value.maxlen, packer.pack_items(value, path)]},
    np.ndarray: _Packer.pack_array,
    np.memmap: _Packer.pack_array,
    datetime.date: lambda packer, value, path: {"$date": value.isoformat()},
    datetime.datetime: _Packer.pack_datetime,
}
"""How values of each type are packed, besides numbers, tensors and NumPy's scalars; not those of a subclass."""


def _join(path: Iterable[Any]) -> str:
    return "".join(f"/{key}" for key in path)


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes_tensor(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(bytearray(data), np.uint8))


class _Unpacker:
    """One pass over packed values, each read by the reader of its tag.

    An exception of a reader means that the value is damaged or forged.
    """

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors
        self._depth = 0

    def unpack(self, packed: Any) -> Any:
        """The value that was packed."""
        if self._depth > MAX_DEPTH:
            raise CheckpointError(f"the manifest is nested deeper than {MAX_DEPTH} levels")
        if isinstance(packed, list):
            return self.unpack_all(packed)
        if not isinstance(packed, dict):
            return packed
        if len(packed) == 1:
            ((tag, value),) = packed.items()
            if tag.startswith("$"):
                try:
                    return _READERS[tag](self, value)
                except (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError):
                    raise CheckpointError(
                        f"the manifest holds an invalid value: {tag!r:.40} {value!r:.100}"
                    ) from None
        return dict(zip(packed, self.unpack_all(packed.values()), strict=True))

    def unpack_all(self, values: Iterable[Any]) -> list[Any]:
        """The values of a list or dictionary, one level deeper."""
        self._depth += 1
        found = [self.unpack(value) for value in values]
        self._depth -= 1
        return found

    def unpack_items(self, value: Any) -> list[Any]:
        """The items of a sequence: a list, or the tag of a long list of numbers."""
        if isinstance(value, list):
            return self.unpack_all(value)
        return list(self.unpack_inner(value, "$floats", "$ints", "$bools"))

    def unpack_inner(self, value: Any, *tags: str) -> Any:
        """A tagged value nested in another tag, which allows only `tags`."""
        ((tag, content),) = value.items()
        if tag not in tags:
            raise ValueError
        return _READERS[tag](self, content)

    def tensor(self, name: Any) -> torch.Tensor:
        """The tensor of that name."""
        if not isinstance(name, str) or name not in self._tensors:
            raise CheckpointError(
                f"the manifest names the tensor {name!r:.100}, which its file does not hold"
            )
        return self._tensors[name]

    def stored_bytes(self, name: Any) -> bytes:
        """Content of a tensor that stores bytes."""
        tensor = self.tensor(name)
        if tensor.dtype is not torch.uint8 or tensor.dim() != 1:
            raise CheckpointError(
                f"the manifest names {name!r:.100} as bytes, but it is {tensor.dtype}"
            )
        return tensor.numpy().tobytes()

    def stored_list(self, name: Any, dtype: torch.dtype) -> list[Any]:
        """Content of a tensor that stores a list of numbers."""
        tensor = self.tensor(name)
        if tensor.dtype is not dtype or tensor.dim() != 1:
            raise TypeError
        return tensor.tolist()

    def unpack_complex(self, parts: Any) -> complex:
        real, imaginary = (
            part if type(part) is float else self.unpack_inner(part, "$float") for part in parts
        )
        return complex(real, imaginary)

    def unpack_deque(self, value: Any) -> deque[Any]:
        limit, items = value
        if limit is not None and type(limit) is not int:
            raise TypeError
        return deque(self.unpack_items(items), limit)

    def unpack_raw_array(self, value: Any) -> np.ndarray[Any, Any]:
        name, dtype, shape = value
        return _from_bytes(self.stored_bytes(name), dtype, shape)


def _from_text(pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError
    return text


def _decode(text: str) -> bytes:
    return base64.b64decode(text.encode("ascii"), validate=True)


def _read_scalar(dtype: str, data: str) -> Any:
    return _from_bytes(_decode(data), dtype, [])[()]


def _from_bytes(data: bytes, dtype: str, shape: list[int]) -> np.ndarray[Any, Any]:
    known = np.dtype(_from_text(DTYPE, dtype))
    if any(type(size) is not int or size < 0 for size in shape):
        raise ValueError
    if math.prod(shape) * known.itemsize != len(data):
        raise ValueError
    return np.ndarray(tuple(shape), known, data).copy()


_READERS: dict[str, Callable[[_Unpacker, Any], Any]] = {
    "$tensor": _Unpacker.tensor,
    "$array": lambda unpacker, name: as_array(unpacker.tensor(name), name),
    "$raw_array": _Unpacker.unpack_raw_array,
    "$fortran": lambda unpacker, value: unpacker.unpack_inner(value, "$array", "$raw_array").T,
    "$scalar": lambda unpacker, value: _read_scalar(*value),
    "$floats": lambda unpacker, name: unpacker.stored_list(name, torch.float64),
    "$ints": lambda unpacker, name: unpacker.stored_list(name, torch.int64),
    "$bools": lambda unpacker, name: unpacker.stored_list(name, torch.bool),
    "$float": lambda unpacker, text: float(_from_text(NOT_FINITE, text)),
    "$int": lambda unpacker, text: int(_from_text(INTEGER, text), 16),
    "$complex": _Unpacker.unpack_complex,
    "$bytes": lambda unpacker, text: _decode(text),
    "$raw_bytes": _Unpacker.stored_bytes,
    "$bytearray": lambda unpacker, value: bytearray(
        unpacker.unpack_inner(value, "$bytes", "$raw_bytes")
    ),
    "$tuple": lambda unpacker, items: tuple(unpacker.unpack_items(items)),
    "$set": lambda unpacker, items: set(unpacker.unpack_items(items)),
    "$frozenset": lambda unpacker, items: frozenset(unpacker.unpack_items(items)),
    "$deque": _Unpacker.unpack_deque,
    "$dict": lambda unpacker, pairs: dict(map(unpacker.unpack_all, pairs)),
    "$ordered": lambda unpacker, pairs: OrderedDict(map(unpacker.unpack_all, pairs)),
    "$date": lambda unpacker, text: datetime.date.fromisoformat(text),
    "$datetime": lambda unpacker, text: datetime.datetime.fromisoformat(text),
}


def unpack(packed: Any, tensors: Tensors) -> Any:
    """The inverse of `pack`; a `CheckpointError` for values that `pack` cannot have returned."""
    return _Unpacker(tensors).unpack(packed)


def unpack_dict(packed: Any, tensors: Tensors, what: str) -> dict[str, Any]:
    """Like `unpack`, for a value that must be a dictionary; `what` names it in the error."""
    tree = unpack(packed, tensors)
    if not isinstance(tree, dict):
        raise CheckpointError(
            f"the manifest's {what} must be a dictionary, not {type(tree).__name__}"
        )
    return tree


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


MAX_JSON_BYTES = 1 << 28
"""Maximum size of a section's JSON text."""
MAX_INLINE_BYTES = 1 << 18
"""A longer JSON text is stored as a tensor in the section's file, not in the manifest."""
MAX_HEADER_BYTES = 100_000_000
"""Maximum size of a header that the safetensors library reads."""
JSON_NAME = "$json"
"""Tag and tensor of such a text."""


def pack_section(name: str, state: dict[str, Any]) -> tuple[Any, Tensors]:
    """The JSON-compatible state of a section, for the manifest, and the tensors of its file."""
    tensors: Tensors = {}
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
        tensors[JSON_NAME] = _bytes_tensor(text)
        json_state = {JSON_NAME: JSON_NAME}
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


def unpack_section(name: str, json_state: dict[str, Any], tensors: Tensors) -> dict[str, Any]:
    """The inverse of `pack_section`."""
    if JSON_NAME in json_state:
        try:
            text = _Unpacker(tensors).stored_bytes(json_state[JSON_NAME])
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

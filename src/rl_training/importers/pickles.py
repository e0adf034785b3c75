"""Reads a pickle as data: numbers, texts, containers and NumPy arrays; every class in it becomes an inert record.

The opcodes are interpreted here. No name in the file is looked up, imported or called.
"""

from __future__ import annotations

import io
import pickletools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rl_training.errors import CheckpointError

MAX_OPCODES = 1_000_000
KNOWN_PACKAGES = {
    "numpy",
    "gym",
    "gymnasium",
    "stable_baselines3",
    "sb3_contrib",
    "collections",
    "copyreg",
    "_codecs",
}
"""Packages whose names a file of VecNormalize holds; any other is refused."""
BUILTINS = {
    "builtins.set",
    "builtins.frozenset",
    "builtins.bytearray",
    "builtins.object",
    "builtins.dict",
}
DTYPES = {"b1", *(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)), "f2", "f4", "f8"}
MARK = object()


@dataclass(frozen=True)
class Name:
    """A global that the file names; it is never looked up."""

    path: str


@dataclass
class Record:
    """An object of the file: the name of its class, its arguments and its state."""

    name: str
    arguments: Any = ()
    state: Any = None
    items: dict[Any, Any] = field(default_factory=dict)

    def get(self, attribute: str) -> Any:
        """An attribute in its state, as an array or number; None without it."""
        for part in self.state if isinstance(self.state, tuple) else (self.state,):
            if isinstance(part, dict) and attribute in part:
                return plain(part[attribute])
        return None


class _RefusalError(Exception):
    """What a pickle does that no file of VecNormalize needs."""


def read_pickle(data: bytes, source: str) -> Any:
    """The object in a pickle, or a `CheckpointError` that names `source` and the first thing that is refused."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    argument: Any
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(io.BytesIO(data))):
            if count > MAX_OPCODES:
                raise _RefusalError("is larger than any file of VecNormalize")
            if opcode.name in PUSHED:
                stack.append(argument)
            elif opcode.name in PUT:
                memo[len(memo) if argument is None else int(argument)] = stack[-1]
            elif opcode.name in GET:
                stack.append(memo[int(argument)])
            elif opcode.name == "GLOBAL":
                stack.append(_name(*argument.split(" ", 1)))
            elif opcode.name in MAKERS:
                made = MAKERS[opcode.name](*_take(stack, opcode))
                stack += [made] * len(opcode.stack_after)
            elif opcode.name not in IGNORED:
                raise _RefusalError(
                    f"uses the opcode {opcode.name}, which no file of VecNormalize needs"
                )
        return plain(stack.pop())
    except _RefusalError as error:
        raise CheckpointError(f"{source} {error}") from None
    except (
        ValueError,
        IndexError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        MemoryError,
    ) as error:
        raise CheckpointError(
            f"{source} is not a readable pickle: {type(error).__name__}: {error!s:.200}"
        ) from None


def plain(value: Any) -> Any:
    """The array, number or bytes of a record; other values as they are."""
    if not isinstance(value, Record):
        return value
    arguments = value.arguments
    match value.name.replace("numpy._core.", "numpy.core."):
        case "numpy.core.multiarray._reconstruct":  # version, shape, dtype, order and bytes
            _, shape, dtype, is_fortran, data = value.state
            return _make_array(dtype, plain(data), shape, "F" if is_fortran else "C")
        case "numpy.core.multiarray.scalar":
            dtype, data = arguments
            return _make_array(dtype, data, (), "C")[()]
        case "numpy.core.numeric._frombuffer":
            data, dtype, shape, order = arguments
            return _make_array(dtype, bytes(data), shape, order)
        case "_codecs.encode" if arguments[1:] == ("latin1",):
            return str(arguments[0]).encode("latin1")
    return value


def _make_array(dtype: Any, data: Any, shape: Any, order: Any) -> Any:
    """An array of booleans, integers or floats."""
    code = dtype.arguments[0] if isinstance(dtype, Record) and dtype.name == "numpy.dtype" else None
    if code not in DTYPES:
        raise CheckpointError(
            f"an array of the file is of type {code!r:.50}: only numbers are read"
        )
    if not isinstance(data, (bytes, bytearray)) or order not in ("C", "F"):
        raise CheckpointError("an array of the file does not hold its numbers as bytes")
    is_big_endian = isinstance(dtype.state, tuple) and dtype.state[1] == ">"
    kind = np.dtype(code).newbyteorder(">") if is_big_endian else np.dtype(code)
    return np.frombuffer(bytes(data), kind).reshape(tuple(int(size) for size in shape), order=order)


def _take(stack: list[Any], opcode: pickletools.OpcodeInfo) -> list[Any]:
    """Take what an opcode needs from the stack; all values since the last mark are one list."""
    taken = []
    for kind in reversed(opcode.stack_before):
        if kind is pickletools.stackslice:
            mark = len(stack) - 1 - stack[::-1].index(MARK)
            taken.append(stack[mark + 1 :])
            del stack[mark:]
        elif kind is not pickletools.markobject:
            taken.append(stack.pop())
    return taken[::-1]


def _name(module: Any, name: Any) -> Name:
    path = f"{module}.{name}"
    if str(module).partition(".")[0] not in KNOWN_PACKAGES and path not in BUILTINS:
        raise _RefusalError(
            f"names '{path:.100}', which no file of VecNormalize needs: it was not run"
        )
    return Name(path)


def _record(function: Any, arguments: Any, keywords: Any = None) -> Record:
    if not isinstance(function, Name) or not isinstance(arguments, tuple):
        raise _RefusalError("calls something that is not a class")
    return Record(function.path, tuple(plain(one) for one in arguments))


def _with_state(target: Any, state: Any) -> Any:
    if not isinstance(target, Record):
        raise _RefusalError("sets the state of something that is not an object")
    target.state = state
    return target


def _extended(target: Any, items: list[Any]) -> Any:
    if not isinstance(target, Record):  # those of an object are of no interest
        target.extend(items)
    return target


def _updated(target: Any, items: list[Any]) -> Any:
    (target.items if isinstance(target, Record) else target).update(_pairs(items))
    return target


def _pairs(items: list[Any]) -> dict[Any, Any]:
    """A dictionary: keys that are not texts or numbers are of no interest, and stay unhashed."""
    keys = [
        key if isinstance(key, (str, int, float, bytes)) else repr(type(key)) for key in items[::2]
    ]
    return dict(zip(keys, items[1::2], strict=True))


PUSHED = re.findall(
    r"\w+",
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE"
    " SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8",
)
PUT, GET = ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), ("GET", "BINGET", "LONG_BINGET")
IGNORED = ("PROTO", "FRAME", "STOP")
MAKERS: dict[str, Callable[..., Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "MARK": lambda: MARK,
    **dict.fromkeys(("EMPTY_LIST", "EMPTY_SET", "LIST", "FROZENSET"), list),
    **dict.fromkeys(("EMPTY_TUPLE", "TUPLE"), tuple),
    **dict.fromkeys(("TUPLE1", "TUPLE2", "TUPLE3"), lambda *values: values),
    "EMPTY_DICT": dict,
    "DICT": _pairs,
    "APPEND": lambda target, item: _extended(target, [item]),
    **dict.fromkeys(("APPENDS", "ADDITEMS"), _extended),
    "SETITEM": lambda target, *pair: _updated(target, list(pair)),
    "SETITEMS": _updated,
    "STACK_GLOBAL": _name,
    **dict.fromkeys(("REDUCE", "NEWOBJ", "NEWOBJ_EX"), _record),
    "BUILD": _with_state,
    **dict.fromkeys(("POP", "POP_MARK", "DUP"), lambda value: value),
}
"""What each opcode makes of the values that it takes from the stack; opcodes that are not listed are refused."""

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


def read_pickle(data: bytes, source: str) -> Any:
    """The object in a pickle, or a `CheckpointError` that names `source` and the first thing that is refused."""
    machine = _Machine(source)
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(io.BytesIO(data))):
            if count > MAX_OPCODES:
                raise CheckpointError(f"{source} is larger than any file of VecNormalize")
            run = ACTIONS.get(opcode.name)
            if run is None:
                raise CheckpointError(
                    f"{source} uses the opcode {opcode.name}, which no file of VecNormalize needs"
                )
            run(machine, argument)
        return plain(machine.pop())
    except CheckpointError:
        raise
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


class _Machine:
    """The stack and the memo of a pickle, without the ability to call anything."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        return self.stack.pop()

    def pop_to_mark(self) -> list[Any]:
        index = len(self.stack) - 1 - self.stack[::-1].index(MARK)
        items = self.stack[index + 1 :]
        del self.stack[index:]
        return items

    def push_tuple(self, count: int) -> None:
        items = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        self.push(tuple(items))

    def push_name(self, module: Any, name: Any) -> None:
        path = f"{module}.{name}"
        if str(module).partition(".")[0] not in KNOWN_PACKAGES and path not in BUILTINS:
            raise CheckpointError(
                f"{self._source} names '{path:.100}', which no file of VecNormalize needs: it was not run"
            )
        self.push(Name(path))

    def push_record(self, function: Any, arguments: Any) -> None:
        if not isinstance(function, Name) or not isinstance(arguments, tuple):
            raise CheckpointError(f"{self._source} calls something that is not a class")
        self.push(Record(function.path, tuple(plain(one) for one in arguments)))

    def set_state(self, state: Any) -> None:
        if not isinstance(self.stack[-1], Record):
            raise CheckpointError(
                f"{self._source} sets the state of something that is not an object"
            )
        self.stack[-1].state = state

    def extend(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], Record):  # those of an object are of no interest
            self.stack[-1].extend(items)

    def update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        (target.items if isinstance(target, Record) else target).update(_pairs(items))


def _pairs(items: list[Any]) -> dict[Any, Any]:
    """A dictionary: keys that are not texts or numbers are of no interest, and stay unhashed."""
    keys = [
        key if isinstance(key, (str, int, float, bytes)) else repr(type(key)) for key in items[::2]
    ]
    return dict(zip(keys, items[1::2], strict=True))


def _push_popped(machine: _Machine, function: Callable[..., None], count: int) -> None:
    """Call `function` with the last `count` values of the stack."""
    values = [machine.pop() for _ in range(count)]
    function(*reversed(values))


Action = Callable[[_Machine, Any], Any]
PUSHED = re.findall(
    r"\w+",
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE"
    " SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8",
)
ACTIONS: dict[str, Action] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda machine, _: None),
    **dict.fromkeys(PUSHED, _Machine.push),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "MARK": lambda machine, _: machine.push(MARK),
    **dict.fromkeys(("EMPTY_LIST", "EMPTY_SET"), lambda machine, _: machine.push([])),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "TUPLE1": lambda machine, _: machine.push_tuple(1),
    "TUPLE2": lambda machine, _: machine.push_tuple(2),
    "TUPLE3": lambda machine, _: machine.push_tuple(3),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.pop_to_mark())),
    **dict.fromkeys(("LIST", "FROZENSET"), lambda machine, _: machine.push(machine.pop_to_mark())),
    "DICT": lambda machine, _: machine.push(_pairs(machine.pop_to_mark())),
    **dict.fromkeys(
        ("PUT", "BINPUT", "LONG_BINPUT"), lambda m, key: m.memo.update({int(key): m.stack[-1]})
    ),
    "MEMOIZE": lambda machine, _: machine.memo.update({len(machine.memo): machine.stack[-1]}),
    **dict.fromkeys(
        ("GET", "BINGET", "LONG_BINGET"), lambda machine, key: machine.push(machine.memo[int(key)])
    ),
    "POP": lambda machine, _: machine.pop(),
    "POP_MARK": lambda machine, _: machine.pop_to_mark(),
    "DUP": lambda machine, _: machine.push(machine.stack[-1]),
    "APPEND": lambda machine, _: machine.extend([machine.pop()]),
    **dict.fromkeys(
        ("APPENDS", "ADDITEMS"), lambda machine, _: machine.extend(machine.pop_to_mark())
    ),
    "SETITEM": lambda machine, _: _push_popped(
        machine, lambda *pair: machine.update(list(pair)), 2
    ),
    "SETITEMS": lambda machine, _: machine.update(machine.pop_to_mark()),
    "GLOBAL": lambda machine, names: machine.push_name(*str(names).split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: _push_popped(machine, machine.push_name, 2),
    **dict.fromkeys(
        ("REDUCE", "NEWOBJ"), lambda machine, _: _push_popped(machine, machine.push_record, 2)
    ),
    "NEWOBJ_EX": lambda machine, _: _push_popped(
        machine, lambda cls, given, _: machine.push_record(cls, given), 3
    ),
    "BUILD": lambda machine, _: machine.set_state(machine.pop()),
}
"""What each opcode does; any other is refused."""

"""Reads a pickle as data: numbers, texts, containers and NumPy arrays; every class in it becomes an inert record.

The opcodes are interpreted here. No name in the file is looked up, imported or called.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rl_training.errors import CheckpointError

MAX_OPCODES = 1_000_000
MAX_ARRAY_BYTES = 1 << 28
KNOWN_PACKAGES = {"numpy", "gym", "gymnasium", "stable_baselines3", "sb3_contrib", "collections", "copyreg", "_codecs"}
"""Packages whose names a file of VecNormalize holds; any other is refused."""
BUILTINS = {"builtins.set", "builtins.frozenset", "builtins.bytearray", "builtins.object", "builtins.dict"}
RECONSTRUCT = {"numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct"}
SCALAR = {"numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar"}
FROM_BUFFER = {"numpy.core.numeric._frombuffer", "numpy._core.numeric._frombuffer"}
DTYPE_CODES = {
    f"{kind}{size}" for kind, sizes in {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8)}.items()
    for size in sizes
}  # fmt: skip
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
    items: list[Any] = field(default_factory=list)

    def get(self, attribute: str) -> Any:
        """An attribute in its state; None without it."""
        parts = self.state if isinstance(self.state, tuple) else (self.state,)
        found = [part[attribute] for part in parts if isinstance(part, dict) and attribute in part]
        return found[0] if found else None

    @property
    def value(self) -> Any:
        """The array, number or bytes that it stands for, or itself."""
        if self.name in RECONSTRUCT:
            return _array_of_state(self.state)
        if self.name in SCALAR:
            dtype, data = self.arguments
            return _make_array(dtype, data, (), "C")[()]
        if self.name in FROM_BUFFER:
            data, dtype, shape, order = self.arguments
            return _make_array(dtype, bytes(data), shape, order)
        if self.name == "_codecs.encode" and self.arguments[1:] == ("latin1",):
            return str(self.arguments[0]).encode("latin1")
        return self


def read_pickle(data: bytes, source: str) -> Any:
    """The object in a pickle, or a `CheckpointError` that names `source` and the first thing that is refused."""
    machine = _Machine(source)
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(io.BytesIO(data))):
            if count > MAX_OPCODES:
                raise CheckpointError(f"{source} is larger than any file of VecNormalize")
            machine.run(opcode.name, argument)
        return machine.result
    except CheckpointError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        raise CheckpointError(f"{source} is not a readable pickle: {type(error).__name__}: {error!s:.200}") from None


def plain(value: Any) -> Any:
    """The array or number that a record stands for; other values as they are."""
    return value.value if isinstance(value, Record) else value


class _Machine:
    """The stack and the memo of a pickle, without the ability to call anything."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self.result: Any = None

    def run(self, name: str, argument: Any) -> None:
        """Execute one opcode."""
        if name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name]())
        elif name in _PUSHED:
            self._stack.append(argument)
        elif name in _TUPLES:
            count = _TUPLES[name]
            self._stack[len(self._stack) - count :] = [tuple(self._stack[len(self._stack) - count :])]
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self._memo[int(argument)] = self._stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self._stack.append(self._memo[int(argument)])
        elif name in _ACTIONS:
            _ACTIONS[name](self, argument)
        elif name not in ("PROTO", "FRAME"):
            raise CheckpointError(f"{self._source} uses the opcode {name}, which no file of VecNormalize needs")

    def memoize(self, _: Any) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def stop(self, _: Any) -> None:
        self.result = plain(self._stack.pop())

    def pop(self, _: Any) -> None:
        self._stack.pop()

    def pop_mark(self, _: Any) -> None:
        self._after_mark()

    def duplicate(self, _: Any) -> None:
        self._stack.append(self._stack[-1])

    def make_list(self, _: Any) -> None:
        self._stack.append(self._after_mark())

    def make_tuple(self, _: Any) -> None:
        self._stack.append(tuple(self._after_mark()))

    def make_dict(self, _: Any) -> None:
        items = self._after_mark()
        self._stack.append(dict(zip(map(_key, items[::2]), items[1::2], strict=True)))

    def append(self, _: Any) -> None:
        value = self._stack.pop()
        self._extend([value])

    def append_all(self, _: Any) -> None:
        self._extend(self._after_mark())

    def set_item(self, _: Any) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set([key, value])

    def set_items(self, _: Any) -> None:
        self._set(self._after_mark())

    def global_name(self, argument: Any) -> None:
        self._push_name(*str(argument).split(" ", 1))

    def stack_global(self, _: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._push_name(module, name)

    def reduce(self, _: Any) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        self._record(function, arguments)

    def new_with_keywords(self, _: Any) -> None:
        keywords, arguments, cls = self._stack.pop(), self._stack.pop(), self._stack.pop()
        self._record(cls, (*arguments, keywords))

    def build(self, _: Any) -> None:
        state = self._stack.pop()
        if not isinstance(self._stack[-1], Record):
            raise CheckpointError(f"{self._source} sets the state of something that is not an object")
        self._stack[-1].state = state

    def _record(self, function: Any, arguments: Any) -> None:
        if not isinstance(function, Name) or not isinstance(arguments, tuple):
            raise CheckpointError(f"{self._source} calls something that is not a class")
        self._stack.append(Record(function.path, tuple(plain(one) for one in arguments)))

    def _push_name(self, module: Any, name: Any) -> None:
        path = f"{module}.{name}"
        if str(module).partition(".")[0] not in KNOWN_PACKAGES and path not in BUILTINS:
            raise CheckpointError(
                f"{self._source} names '{path:.100}', which no file of VecNormalize needs: it was not run"
            )
        self._stack.append(Name(path))

    def _after_mark(self) -> list[Any]:
        index = len(self._stack) - 1 - self._stack[::-1].index(MARK)
        items = self._stack[index + 1 :]
        del self._stack[index:]
        return items

    def _extend(self, items: list[Any]) -> None:
        target = self._stack[-1]
        (target.items if isinstance(target, Record) else target).extend(items)

    def _set(self, items: list[Any]) -> None:
        target = self._stack[-1]
        pairs = dict(zip(map(_key, items[::2]), items[1::2], strict=True))
        if isinstance(target, Record):  # an OrderedDict, for example
            target.items.extend(pairs.items())
        else:
            target.update(pairs)


_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    "EMPTY_SET": list,
    "MARK": lambda: MARK,
}
_PUSHED = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "MEMOIZE": _Machine.memoize,
    "STOP": _Machine.stop,
    "POP": _Machine.pop,
    "POP_MARK": _Machine.pop_mark,
    "DUP": _Machine.duplicate,
    "LIST": _Machine.make_list,
    "FROZENSET": _Machine.make_list,
    "TUPLE": _Machine.make_tuple,
    "DICT": _Machine.make_dict,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.append_all,
    "ADDITEMS": _Machine.append_all,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "GLOBAL": _Machine.global_name,
    "STACK_GLOBAL": _Machine.stack_global,
    "REDUCE": _Machine.reduce,
    "NEWOBJ": _Machine.reduce,
    "NEWOBJ_EX": _Machine.new_with_keywords,
    "BUILD": _Machine.build,
}


def _key(value: Any) -> Any:
    """A key of a dictionary: keys that are not texts or numbers are of no interest, and stay unhashed."""
    return value if isinstance(value, (str, int, float, bytes)) else repr(type(value))


def _array_of_state(state: Any) -> Any:
    """The array of the state that `ndarray.__reduce__` wrote: version, shape, dtype, order and bytes."""
    _, shape, dtype, is_fortran, data = state
    return _make_array(dtype, data, shape, "F" if is_fortran else "C")


def _make_array(dtype: Any, data: Any, shape: Any, order: Any) -> Any:
    kind = _dtype_of(dtype)
    data = plain(data)
    if not isinstance(data, (bytes, bytearray)) or len(data) > MAX_ARRAY_BYTES or order not in ("C", "F"):
        raise CheckpointError("an array of the file does not hold its numbers as bytes")
    return np.frombuffer(bytes(data), kind).reshape(tuple(int(size) for size in shape), order=order)


def _dtype_of(value: Any) -> np.dtype[Any]:
    """The dtype that a record describes: booleans, integers and floats only."""
    code = value.arguments[0] if isinstance(value, Record) and value.name == "numpy.dtype" else None
    if code not in DTYPE_CODES:
        raise CheckpointError(f"an array of the file is of type {code!r:.50}: only numbers are read")
    order = value.state[1] if isinstance(value.state, tuple) else "<"
    dtype: np.dtype[Any] = np.dtype(code)
    return dtype.newbyteorder(">") if order == ">" else dtype

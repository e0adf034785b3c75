"""Captures the attributes of an environment or wrapper in a JSON-compatible form, and restores them."""

from __future__ import annotations

import enum
import inspect
import itertools
import random
from collections import deque
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.envs.state.aliases import State

MAX_ARRAY_BYTES = 1 << 16
MAX_ITEMS = 1024
MAX_DEPTH = 2
"""Larger arrays and deeper containers are not captured, since a capture is made at every reset; the replay of the
action log restores them."""
SKIPPED = {
    *("env", "spec", "_cached_spec", "metadata", "_metadata", "render_mode"),
    *("observation_space", "_observation_space", "action_space", "_action_space"),
    *("_saved_kwargs", "_ezpickle_args", "_ezpickle_kwargs", "_np_random", "_np_random_seed"),
}
"""Not captured: the generator is saved separately, and the others do not change."""
IMMUTABLE = (type(None), bool, int, float, complex, str, bytes)
CONTAINERS = (list, tuple, deque, set, frozenset, dict)
SAVED_KINDS = "biufcSUMm"
"""Kinds of array dtypes that are captured: numbers, text, dates."""
BIT_GENERATORS: dict[str, Any] = {
    bits.__name__: bits
    for bits in (
        np.random.PCG64,
        np.random.PCG64DXSM,
        np.random.MT19937,
        np.random.Philox,
        np.random.SFC64,
    )
}
UNKNOWN: Any = object()


def capture_attributes(env: Any) -> State:
    """Encode numbers, text, small arrays, containers of these, random generators, and objects of only these."""
    codes = {name: _encode(value) for name, value in vars(env).items() if name not in SKIPPED}
    return {name: code for name, code in codes.items() if code is not UNKNOWN}


def restore_attributes(env: Any, saved: Mapping[str, Any]) -> list[str]:
    """Restore the attributes that differ; equal ones keep their objects, which the simulator may share.

    Returns the names that could not be restored: missing objects cannot be recreated from their attributes.
    """
    lost = []
    for name, code in saved.items():
        is_present = name in vars(env)
        if name in SKIPPED or (not is_present and hasattr(type(env), name)):
            continue
        current = vars(env).get(name)
        current_code = _encode(current)
        if is_present and (current_code is UNKNOWN or is_same(current_code, code)):
            continue
        restored = _restore(current, code)
        if restored is not current:
            setattr(env, name, restored)
        if _holds_objects(code) and not is_same(_encode(restored), code):
            lost.append(name)
    return lost


def has_custom_state(env: Any) -> bool:
    """Whether it has `get_state()` and `set_state(state)`; MuJoCo's `set_state(qpos, qvel)` does not count."""
    try:
        inspect.signature(env.get_state).bind()
        inspect.signature(env.set_state).bind(None)
    except (AttributeError, TypeError, ValueError):
        return False
    return True


def is_same(one: Any, other: Any) -> bool:
    """Whether two trees of values are bit-exactly equal; lists equal tuples, since files have only lists."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        has_padding = (
            one.dtype.kind in "fc" and one.dtype.char in "gG"
        )  # whose padding bytes are arbitrary
        if one.dtype != other.dtype or has_padding:
            return np.array_equal(one, other, equal_nan=has_padding)
        return one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return False
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(
            is_same(*pair) for pair in zip(one, other, strict=True)
        )
    return bool(one == other) or (one != one and other != other)


def _encode(value: Any, *, depth: int = 0, inside_object: bool = False) -> Any:
    """A copy of `value` as lists, arrays and dictionaries with a `kind`; UNKNOWN if it cannot be encoded."""
    if type(value) in IMMUTABLE:
        return value
    if isinstance(value, np.ndarray):
        is_saved = (
            type(value) is np.ndarray
            and value.dtype.kind in SAVED_KINDS
            and value.nbytes <= MAX_ARRAY_BYTES
        )
        return value.copy(order="K") if is_saved and value.dtype.itemsize else UNKNOWN
    if isinstance(value, np.generic):
        return (
            {"kind": "number", "value": np.array(value)}
            if value.dtype.kind in SAVED_KINDS
            else UNKNOWN
        )
    if type(value) in CONTAINERS:
        return _encode_container(value, depth + 1, inside_object)
    if isinstance(value, np.random.Generator):
        return {"kind": "generator", "state": dict(value.bit_generator.state)}
    if type(value) is random.Random:
        return {"kind": "random", "state": value.getstate()}
    if inside_object or not _has_only_data(value):
        return UNKNOWN
    codes = {name: _encode(item, inside_object=True) for name, item in vars(value).items()}
    return (
        UNKNOWN
        if any(code is UNKNOWN for code in codes.values())
        else {"kind": "object", "attributes": codes}
    )


def _encode_container(value: Any, depth: int, inside_object: bool) -> Any:
    if len(value) > MAX_ITEMS or depth > MAX_DEPTH:
        return UNKNOWN
    items: list[Any] = []
    for item in itertools.chain.from_iterable(value.items()) if isinstance(value, dict) else value:
        code = _encode(item, depth=depth, inside_object=inside_object)
        if code is UNKNOWN:
            return UNKNOWN
        items.append(code)
    if type(value) is list:
        return items
    if isinstance(value, (set, frozenset)):
        items.sort(key=repr)  # the order of a set differs between processes
    code = {"kind": type(value).__name__, "items": items}
    return {**code, "length_limit": value.maxlen} if isinstance(value, deque) else code


def _has_only_data(value: Any) -> bool:
    return (
        hasattr(value, "__dict__")
        and not callable(value)
        and not isinstance(value, (gym.Env, gym.Space, enum.Enum))
    )


def _restore(current: Any, code: Any) -> Any:
    """The value that `code` encodes; `current` is changed in place where other objects may refer to it."""
    are_arrays = isinstance(current, np.ndarray) and isinstance(code, np.ndarray)
    if (
        are_arrays
        and current.flags.writeable
        and (current.shape, current.dtype) == (code.shape, code.dtype)
    ):
        current[...] = code
        return current
    kind = code["kind"] if isinstance(code, dict) else None
    if kind == "generator":
        return restore_generator(current, code["state"])
    if kind == "random":
        source = current if isinstance(current, random.Random) else random.Random()
        version, words, gauss = code["state"]
        source.setstate((version, tuple(words), gauss))
        return source
    if kind == "object":  # its attributes are known, but not how to create it
        if _has_only_data(current):
            restore_attributes(current, code["attributes"])
        return current
    return _restore_items(current, code) if _holds_objects(code) else _decode(code)


def _restore_items(current: Any, code: Any) -> Any:
    """Restore the items of a container one by one, so that objects keep their identity."""
    kind = (
        list
        if isinstance(code, list)
        else {"tuple": tuple, "deque": deque, "dict": dict}.get(code["kind"])
    )
    codes = code if isinstance(code, list) else code["items"]
    if kind is None or type(current) is not kind:
        return current
    items = list(
        itertools.chain.from_iterable(current.items()) if isinstance(current, dict) else current
    )
    if len(items) != len(codes):
        return current
    restored = [_restore(item, item_code) for item, item_code in zip(items, codes, strict=True)]
    if all(new is old for new, old in zip(restored, items, strict=True)):
        return current
    return _container(code, restored)


def _holds_objects(code: Any) -> bool:
    """Whether a value contains objects, which can be restored only in place."""
    if isinstance(code, list):
        return any(map(_holds_objects, code))
    return isinstance(code, dict) and (
        code["kind"] == "object" or any(map(_holds_objects, code.get("items", ())))
    )


def generator_state(core: Any) -> State | None:
    """The state of an environment's generator; None before it exists (reading `np_random` would create it)."""
    made: Any = getattr(core, "_np_random", None)
    is_made = isinstance(made, np.random.Generator)
    return dict(made.bit_generator.state) if is_made else None


def restore_generator(current: Any, state: Mapping[str, Any]) -> np.random.Generator:
    """Set the state of `current`, or of a new generator if its kind differs."""
    bits = BIT_GENERATORS[state["bit_generator"]]
    is_alike = isinstance(current, np.random.Generator) and type(current.bit_generator) is bits
    generator: np.random.Generator = current if is_alike else np.random.Generator(bits())
    generator.bit_generator.state = state
    return generator


def _decode(code: Any) -> Any:
    if isinstance(code, list):
        return [_decode(item) for item in code]
    if not isinstance(code, dict):
        return code.copy(order="K") if isinstance(code, np.ndarray) else code
    if code["kind"] == "number":
        return code["value"][()]
    if code["kind"] in ("generator", "random"):
        return _restore(None, code)
    return _container(code, [_decode(item) for item in code["items"]])


def _container(code: Any, items: list[Any]) -> Any:
    """The items in a container of the encoded kind."""
    if isinstance(code, list):
        return items
    if code["kind"] == "deque":
        return deque(items, maxlen=code["length_limit"])
    if code["kind"] == "dict":
        return dict(zip(items[::2], items[1::2], strict=True))
    return {"tuple": tuple, "set": set, "frozenset": frozenset}[code["kind"]](items)

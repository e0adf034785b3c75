"""Comparisons of states, of attributes that are not saved, and of the global random generators."""

from __future__ import annotations

import contextlib
import copy
import random
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import MAX_DEPTH, Algorithm
from rl_training.replay.segments import Segment
from rl_training.testing.case import fail

BASE_ATTRIBUTES = ("config", "spaces", "device", "generator", "mlp_spec", "global_step", "progress", "counters")
MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))
"""Attributes that torch itself keeps in each module."""
STATELESS = (type, types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType)


def first_difference(one: Any, other: Any, *, path: str) -> str | None:
    """Path of the first place where two states are not bit-exactly the same; None if there is none."""
    if type(one) is not type(other):
        return path
    if isinstance(one, Segment):
        return first_difference(vars(one), vars(other), path=path)
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return f"{path}/{min(one.keys() ^ other.keys(), key=str)}"
        found = (first_difference(one[key], other[key], path=f"{path}/{key}") for key in one)
        return next((place for place in found if place is not None), None)
    if isinstance(one, (list, tuple)):
        return first_difference(dict(enumerate(one)), dict(enumerate(other)), path=path)
    if isinstance(one, Tensor):
        return None if one.shape == other.shape and torch.equal(one, other) else path
    if isinstance(one, np.ndarray):
        return None if np.array_equal(one, other, equal_nan=one.dtype.kind in "fc") else path
    return None if one == other else path


def saved_state(algorithm: Algorithm[Any]) -> dict[str, Any]:
    """A copy of `state_dict`, which shares nothing with the algorithm."""
    return copy.deepcopy(algorithm.state_dict())


def unsaved_attributes(algorithm: Algorithm[Any]) -> dict[str, str]:
    """Content of every attribute, by path, that is neither the base class's nor in the `state_dict` of a member."""
    seen = {id(algorithm), *(id(getattr(algorithm, name)) for name in ("config", "spaces", "generator", "mlp_spec"))}
    own = {name: value for name, value in vars(algorithm).items() if name not in BASE_ATTRIBUTES}
    return {path: content for name, value in own.items() for path, content in _contents(name, value, seen)}


def _contents(path: str, value: Any, seen: set[int]) -> Iterator[tuple[str, str]]:
    """Paths and contents of the values in an attribute: objects are entered, containers are one value."""
    if isinstance(value, STATELESS) or id(value) in seen:
        return
    inside = _attributes(value) if path.count(".") < MAX_DEPTH else None
    if inside is None:
        yield path, _describe(value, seen)
        return
    seen.add(id(value))
    for name, part in inside.items():
        yield from _contents(f"{path}.{name}", part, seen)


def _attributes(value: Any) -> Mapping[str, Any] | None:
    """The attributes of an object that its `state_dict` does not hold; None for a plain value or container."""
    if isinstance(value, nn.Module):
        own = {name: part for name, part in vars(value).items() if name not in MODULE_ATTRIBUTES}
        unsaved = {name: value._buffers[name] for name in value._non_persistent_buffers_set}
        return {**own, **unsaved, **value._modules}
    if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
        return {}
    if isinstance(value, (Tensor, np.generic, np.random.Generator, np.random.RandomState, random.Random)):
        return None
    return getattr(value, "__dict__", None) if not isinstance(value, (list, tuple, dict, set, deque)) else None


def _describe(value: Any, seen: set[int]) -> str:
    """Text that changes when a value changes."""
    if isinstance(value, (Tensor, np.ndarray)):
        return f"{value.dtype}{tuple(value.shape)}{value.tolist()}"
    if isinstance(value, torch.Generator):
        return _describe(value.get_state(), seen)
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return repr(value.get_state(legacy=False))
    if isinstance(value, random.Random):
        return repr(value.getstate())
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {_describe_all(item, seen)}' for key, item in value.items())}}}"
    if isinstance(value, (list, tuple, deque)):
        return f"[{', '.join(_describe_all(item, seen) for item in value)}]"
    return repr(value)


def _describe_all(value: Any, seen: set[int]) -> str:
    return repr(list(_contents("", value, seen)))


def _global_generators() -> dict[str, str]:
    """State of each global random generator."""
    return {
        "torch": _describe(torch.get_rng_state(), set()),
        "numpy.random": _describe(np.random.get_state(legacy=False), set()),
        "random": repr(random.getstate()),
    }


@contextlib.contextmanager
def no_global_randomness(during: str) -> Iterator[None]:
    """Fail if the block draws from the global generator of torch, NumPy or Python."""
    before = _global_generators()
    yield
    used = [name for name, state in _global_generators().items() if state != before[name]]
    if used:
        fail(
            f"{during} draws from the global generator of {' and '.join(used)}, which no checkpoint holds",
            "draw from self.generator; self.mlp_spec.make makes networks whose initial weights come from it",
        )

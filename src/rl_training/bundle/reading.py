"""Reads untrusted JSON and tensors: every value is checked for its type, size and range before it is used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from rl_training.errors import BundleError

Array = npt.NDArray[Any]
MAX_JSON_BYTES = 1 << 24
MAX_RANK = 8
MAX_ELEMENTS = 1 << 25
"""Limit of the numbers per observation, in one value such as the activations of a layer, and in all together."""
MAX_CHOICES = 1 << 16


def parse_json(data: bytes, name: str) -> dict[str, Any]:
    """A JSON object."""
    if len(data) > MAX_JSON_BYTES:
        raise BundleError(
            f"{name} has {len(data):,} bytes, more than the limit of {MAX_JSON_BYTES:,}"
        )
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{name} is not JSON: {error!s:.200}") from None
    if not isinstance(value, dict):
        raise BundleError(f"{name} is not a JSON object")
    return value


def parse_tensors(data: bytes, name: str) -> dict[str, Array]:
    """The arrays of a safetensors file."""
    try:
        return safetensors.numpy.load(data)
    except Exception as error:  # the library raises many types of errors for damaged files
        raise BundleError(f"{name} is not a safetensors file: {error!s:.200}") from None


def count(shape: tuple[int, ...]) -> int:
    """Numbers in an array of this shape; a `BundleError` above `MAX_ELEMENTS`."""
    total = 1
    for size in shape:
        total *= size
    if total > MAX_ELEMENTS:
        raise BundleError(
            f"a value of shape {shape} has more than {MAX_ELEMENTS:,} numbers per observation"
        )
    return total


class Settings:
    """The keys of one JSON object, each read once with its type; `finish` refuses keys that nobody read."""

    def __init__(self, values: Any, where: str, tensors: Mapping[str, Array] | None = None) -> None:
        if not isinstance(values, dict):
            raise BundleError(f"{where} is not a JSON object")
        self.where = where
        self._values = dict(values)
        self._tensors = tensors or {}
        self._keys_read: set[str] = set()
        self.tensors_read: set[str] = set()
        """Names of the tensors that were read."""

    def fault(self, key: str, expected: str) -> BundleError:
        """The error for a wrong value."""
        return BundleError(
            f"{self.where}: bad value {self._values.get(key)!r:.100} for '{key}': should be {expected}"
        )

    def any(self, key: str) -> Any:
        """The value of a key, which must exist."""
        if key not in self._values:
            raise BundleError(f"{self.where} lacks '{key}'")
        self._keys_read.add(key)
        return self._values[key]

    def text(self, key: str, allowed: tuple[str, ...] | None = None) -> str:
        """A string, one of `allowed` if given."""
        value = self.any(key)
        if not isinstance(value, str) or (allowed is not None and value not in allowed):
            raise self.fault(key, "a string" if allowed is None else f"one of {', '.join(allowed)}")
        return value

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self.any(key)
        if value is not True and value is not False:
            raise self.fault(key, "true or false")
        return bool(value)

    def number(self, key: str) -> float:
        """A finite number."""
        value = self.any(key)
        if type(value) not in (int, float) or not np.isfinite(value):
            raise self.fault(key, "a finite number")
        return float(value)

    def whole(self, key: str, low: int, high: int = MAX_ELEMENTS) -> int:
        """An integer from `low` to `high`."""
        value = self.any(key)
        if type(value) is not int or not low <= value <= high:
            raise self.fault(key, f"an integer from {low} to {high}")
        return int(value)

    def sizes(
        self, key: str, low: int = 1, high: int = MAX_ELEMENTS, most: int = MAX_RANK
    ) -> tuple[int, ...]:
        """A list of at most `most` integers from `low` to `high`."""
        value = self.any(key)
        if not isinstance(value, list) or len(value) > most:
            raise self.fault(key, f"a list of at most {most} integers")
        if any(type(size) is not int or not low <= size <= high for size in value):
            raise self.fault(key, f"a list of integers from {low} to {high}")
        return tuple(value)

    def starts(self, key: str) -> Array:
        """First options or categories: integers of any sign."""
        return np.asarray(self.sizes(key, -(1 << 62), 1 << 62, MAX_CHOICES), np.int64)

    def names(self, key: str) -> tuple[str, ...]:
        """A list of strings."""
        value = self.any(key)
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise self.fault(key, "a list of names")
        return tuple(value)

    def tensor(
        self,
        key: str,
        shape: tuple[int | None, ...],
        dtype: str = "float32",
        *,
        may_be_infinite: bool = False,
    ) -> Array:
        """The tensor whose name is the value of `key`; None in `shape` matches any size."""
        name = self.text(key)
        array = self._tensors.get(name)
        if array is None:
            raise BundleError(f"{self.where}: there is no tensor '{name:.100}'")
        fits = array.ndim == len(shape) and all(
            size in (None, own) for size, own in zip(shape, array.shape, strict=True)
        )
        if not fits or array.dtype != np.dtype(dtype) or not array.size:
            wanted = ", ".join("any" if size is None else str(size) for size in shape)
            given = f"{array.dtype} [{', '.join(map(str, array.shape))}]"
            raise BundleError(
                f"{self.where}: tensor '{name:.100}' is {given}, where {dtype} [{wanted}] is expected"
            )
        if np.isnan(array).any() or not (may_be_infinite or np.isfinite(array).all()):
            raise BundleError(
                f"{self.where}: tensor '{name:.100}' holds numbers that are not finite"
            )
        self.tensors_read.add(name)
        return array

    def finish(self) -> None:
        """Refuse keys that nobody read."""
        unknown = sorted(self._values.keys() - self._keys_read)
        if unknown:
            raise BundleError(f"{self.where} has an unknown key '{unknown[0]:.100}'")


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number of JSON")

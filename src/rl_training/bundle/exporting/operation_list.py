"""A list of operations under construction, with the tensors that it reads."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from rl_training.bundle.reading import Array
from rl_training.errors import ConfigError


class UndescribableError(ConfigError):
    """A policy cannot be written as operations of a bundle."""


class OperationList:
    """Operations in order, each with names of the values that it reads and makes."""

    def __init__(self) -> None:
        self.operations: list[dict[str, Any]] = []
        self.tensors: dict[str, Array] = {}

    def add(self, name: str, *inputs: str, **settings: Any) -> str:
        """Append an operation and return the name of its output; tensors among its settings are stored."""
        return self.add_named(name, inputs, (f"v{len(self.operations)}",), **settings)

    def add_named(self, name: str, inputs: tuple[str, ...], outputs: tuple[str, ...], **settings: Any) -> str:
        """The same with chosen names of the outputs; returns the first."""
        number = len(self.operations)
        for key, value in settings.items():
            if isinstance(value, (Tensor, np.ndarray)):
                settings[key] = self._store(f"{number}.{key}", value)
        self.operations.append({"op": name, "in": list(inputs), "out": list(outputs), **settings})
        return outputs[0]

    def _store(self, name: str, value: Tensor | Array) -> str:
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        if np.isnan(array).any():
            raise UndescribableError(f"the policy's weights hold NaN (operation {name}): export another checkpoint")
        # A copy: the tensor may be a part of the network's memory.
        self.tensors[name] = np.array(array, order="C")
        return name

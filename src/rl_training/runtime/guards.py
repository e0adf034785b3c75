"""The guard over what an algorithm has learned: no evaluation and no checkpoint sees NaN or infinity."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from rl_training.algorithms.base import Algorithm
from rl_training.errors import NonFiniteError


class ParameterGuard:
    """Asks, cheaply, whether every parameter that an optimizer moves is finite.

    A bad parameter spoils the metrics of the next update, which are asked first. This finds the rest, such as an
    infinite weight behind a unit that saturates.
    """

    def __init__(self, algorithm: Algorithm[Any]) -> None:
        self._algorithm = algorithm
        self._flat = [tensor.detach().view(-1) for tensor in algorithm.trained_tensors()]
        # On an accelerator each answer would make the device wait, so there only `check_all` asks, before each save.
        self._is_cheap = all(flat.device.type == "cpu" for flat in self._flat)

    def check(self, step: int) -> None:
        """Raise if a parameter is bad."""
        # The sum of squares is the cheapest number that every bad one spoils.
        if self._is_cheap and not math.isfinite(sum(flat.dot(flat).item() for flat in self._flat)):
            self.check_all(step)

    def check_all(self, step: int) -> None:
        """Raise if anything in the networks and optimizers is bad, and say what is first."""
        parts = {name: part.state_dict() for name, part in self._algorithm.parts().items()}
        name = _find_non_finite(parts)
        if name is not None:
            raise NonFiniteError(f"parameter '{name}' is not finite at step {step:,}")


def _find_non_finite(tree: Any, path: str = "") -> str | None:
    """The path of the first tensor that holds NaN or infinity."""
    if isinstance(tree, Tensor):
        return path if tree.is_floating_point() and not tree.isfinite().all() else None
    if isinstance(tree, (dict, list)):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            found = _find_non_finite(value, f"{path}/{key}" if path else str(key))
            if found is not None:
                return found
    return None

"""The guard over what an algorithm has learned: no evaluation and no checkpoint sees NaN or infinity."""

from __future__ import annotations

import math
from typing import Any

from rl_training.algorithms.base import Algorithm
from rl_training.errors import NonFiniteError
from rl_training.experiment.tree_codec import tensors_in


class ParameterGuard:
    """Asks, cheaply, whether every parameter that an optimizer moves is finite.

    A bad parameter spoils the metrics of the next update, which are asked first. This finds the rest, such as an
    infinite weight behind a unit that saturates.
    """

    def __init__(self, algorithm: Algorithm[Any]) -> None:
        self._algorithm = algorithm
        self._flat = [part.detach().view(-1) for optimizer in algorithm.optimizers for part in optimizer.parameters]
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
        for path, tensor in tensors_in(parts):
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise NonFiniteError(f"parameter '{path[1:]}' is not finite at step {step:,}")

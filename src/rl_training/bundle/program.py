"""A policy as a list of operations: built from `operations.json` and tensors, run on batches of observations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rl_training.bundle.operations import OPERATIONS, Function, Value
from rl_training.bundle.reading import MAX_ELEMENTS, Array, Settings
from rl_training.bundle.spaces import BundleSpaces
from rl_training.errors import BundleError

MAX_OPERATIONS = 4096
OBS, STATE, MASK, ACTION, NEXT_STATE = "obs", "state", "mask", "action", "next_state"
"""Names of the values that a list of operations is given (observation parts are obs.0, obs.1, …) and must make."""


@dataclass(frozen=True)
class Step:
    """One operation, with the names of its inputs and outputs."""

    run: Function
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Program:
    """Operations in order, each on values that were given or made before."""

    def __init__(self, operations: Any, tensors: Mapping[str, Array], spaces: BundleSpaces) -> None:
        if not isinstance(operations, list) or not 0 < len(operations) <= MAX_OPERATIONS:
            raise BundleError(
                f"operations.json: 'operations' is not a list of at most {MAX_OPERATIONS:,} operations"
            )
        self._values = _given(spaces)
        self._given = tuple(self._values)
        self.size = sum(value.size for value in self._values.values())
        """Numbers per observation in all values."""
        self.num_weights = sum(array.size for array in tensors.values())
        unread = set(tensors)
        self.steps = []
        for number, operation in enumerate(operations):
            settings = Settings(operation, f"operation {number}", tensors)
            self.steps.append(self._build(settings))
            unread -= settings.tensors_read
        if unread:
            raise BundleError(
                f"weights.safetensors: no operation reads the tensor '{min(unread):.100}'"
            )
        self._check_outputs(spaces)

    def run(
        self, leaves: list[Array], state: Array | None, mask: Array | None
    ) -> tuple[Array, Array | None]:
        """Actions [B, ...] and the next policy state for observation parts [B, ...]."""
        values: dict[str, Any] = dict(zip(self._given, [*leaves, state, mask], strict=True))
        for step in self.steps:
            made = step.run(*[values[name] for name in step.inputs])
            if len(step.outputs) == 1:
                values[step.outputs[0]] = made
            else:
                values.update(zip(step.outputs, made, strict=True))
        return values[ACTION], values.get(NEXT_STATE)

    def _build(self, settings: Settings) -> Step:
        name = settings.text("op")
        if name not in OPERATIONS:
            raise BundleError(
                f"{settings.where}: unknown operation '{name:.100}': is the package older than the file?"
            )
        settings.where += f" ({name})"
        num_inputs, build = OPERATIONS[name]
        inputs, outputs = settings.names("in"), settings.names("out")
        if len(inputs) != num_inputs and (num_inputs >= 0 or not inputs):
            raise settings.fault(
                "in", f"{num_inputs} names" if num_inputs >= 0 else "at least one name"
            )
        for given in inputs:
            if given not in self._values:
                raise BundleError(
                    f"{settings.where}: the value '{given:.100}' does not exist at this point"
                )
        run, made = build(settings, *(self._values[given] for given in inputs))
        settings.finish()
        if (
            len(outputs) != len(made)
            or len(set(outputs)) != len(outputs)
            or set(outputs) & self._values.keys()
        ):
            raise settings.fault("out", f"{len(made)} new names")
        for output, value in zip(outputs, made, strict=True):
            self._values[output] = value
            self.size += value.size
        if self.size > MAX_ELEMENTS:
            raise BundleError(f"the values have more than {MAX_ELEMENTS:,} numbers per observation")
        return Step(run, inputs, outputs)

    def _check_outputs(self, spaces: BundleSpaces) -> None:
        expected = {ACTION: Value(spaces.action.shape, spaces.action.dtype)}
        if spaces.state_size:
            expected[NEXT_STATE] = Value((spaces.state_size,))
        for name, value in expected.items():
            if self._values.get(name) != value:
                raise BundleError(
                    f"operations.json: the operations do not make '{name}' as {value.dtype} {list(value.shape)},"
                    " which spaces.json says"
                )


def _given(spaces: BundleSpaces) -> dict[str, Value]:
    """The values that a program is given, in the order of `Program.run`."""
    given = {
        f"{OBS}.{index}": Value(leaf.shape, leaf.dtype)
        for index, leaf in enumerate(spaces.observation)
    }
    given[STATE] = Value((max(spaces.state_size, 1),))
    given[MASK] = Value((max(spaces.action.num_options, 1),), "bool")
    return given

"""One class per built-in algorithm, made from the registry; `algorithms.pyi` has their types."""

from __future__ import annotations

import types

from rl_training.api.agent import AlgorithmAPI
from rl_training.experiment.registry import BUILT_IN_CLASSES, get_algorithm_spec


def _make_class(name: str, algo: str) -> type[AlgorithmAPI]:
    summary = get_algorithm_spec(algo).summary
    attributes = {"__module__": __name__, "__doc__": f"{summary[:1].upper()}{summary[1:]}."}
    made: type[AlgorithmAPI] = types.new_class(
        name, (AlgorithmAPI,), {"algo": algo}, lambda body: body.update(attributes)
    )
    return made


globals().update({name: _make_class(name, algo) for name, algo in BUILT_IN_CLASSES.items()})
__all__ = [*BUILT_IN_CLASSES]

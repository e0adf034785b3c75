"""The simulation of comparisons, benchmarks/coverage.py, for tests with fewer repetitions."""

from __future__ import annotations

import importlib.util
import itertools
import math
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
from conftest import TESTS, TRY_ALL

REPETITIONS = 1000
ERROR = math.sqrt(0.05 * 0.95 / REPETITIONS)
"""Monte Carlo error of a rate of 5 %."""
Cell = tuple[str, int, int]
SMALL_CELL = 25
"""Runs of an algorithm in a comparison that takes a fraction of a second to simulate."""


def load_coverage() -> Any:
    """Load the benchmark as a module under another name, since `coverage` is also a well-known tool."""
    folder = TESTS.parent / "benchmarks"
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location("coverage_benchmark", folder / "coverage.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    return module


coverage = load_coverage()


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def cells(
    seeds: Iterable[int],
    names: Iterable[str] = coverage.SAMPLERS,
    *,
    num_looks: int = 1,
    large: Iterable[Cell] = (),
) -> list[Cell]:
    """Distribution, seeds and tasks of the simulations to make: the small ones and `large`, or really all."""
    every = itertools.product(names, seeds, coverage.TASKS)
    return [
        cell
        for cell in every
        if TRY_ALL or cell in large or cell[1] * cell[2] * num_looks <= SMALL_CELL
    ]

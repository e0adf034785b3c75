"""The simulation of comparisons, benchmarks/coverage.py, for tests with fewer repetitions."""

from __future__ import annotations

import importlib.util
import math
import sys
from typing import Any

import numpy as np
from conftest import TESTS

REPETITIONS = 1000
ERROR = math.sqrt(0.05 * 0.95 / REPETITIONS)
"""Monte Carlo error of a rate of 5 %."""


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

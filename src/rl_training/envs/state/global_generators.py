"""The global random generators of NumPy, Python and torch, which checkpoints do not save."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np


def global_generators() -> dict[str, Any]:
    """States of the global generators, in a form that compares quickly; torch's only if torch is imported."""
    state: Any = np.random.get_state(legacy=False)
    words = np.asarray(state["state"].pop("key", ())).tobytes()
    found: dict[str, Any] = {"numpy": (state, words), "Python": random.getstate()}
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = torch.default_generator.get_state().numpy().tobytes()
    return found


def drawn_from(before: dict[str, Any]) -> list[str]:
    """Names of the generators whose state has changed since `before`, a result of `global_generators`."""
    now = global_generators()
    return [name for name in before if now[name] != before[name]]


def seed_global_generators(seed: int) -> None:
    """Seed the global generators; torch's only if torch is imported."""
    np.random.seed(seed % 2**32)
    random.seed(seed)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(seed)


@contextlib.contextmanager
def seeded_global_generators(seed: int) -> Iterator[None]:
    """Seed the global generators within the block, then restore them."""
    numpy_state, python_state = np.random.get_state(legacy=False), random.getstate()
    torch: Any = sys.modules.get("torch")
    torch_state = None if torch is None else torch.default_generator.get_state()
    seed_global_generators(seed)
    try:
        yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)
        if torch_state is not None:
            torch.default_generator.set_state(torch_state)

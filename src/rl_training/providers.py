"""Dependency inversion: a package calls a function of a package above it by name, without importing that package.

`rl_training/__init__.py` registers where each function is defined; its module is imported when it is first requested.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

_homes: dict[str, str] = {}


def provide(name: str, home: str) -> None:
    """Register the function at `home`, written `module:function`, under a name."""
    _homes[name] = home


def provided(name: str) -> Callable[..., Any]:
    """Import and return the function registered under a name."""
    module, _, function = _homes[name].partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found

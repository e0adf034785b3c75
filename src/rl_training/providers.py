"""Functions that a lower package calls and a higher one has, so that the lower need not import the higher.

`rl_training/__init__.py`, which stands above all of them, says where each one is; it is imported when first called.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

_homes: dict[str, str] = {}


def provide(name: str, home: str) -> None:
    """Say that `home`, written `module:function`, is the function of that name."""
    _homes[name] = home


def provided(name: str) -> Callable[..., Any]:
    """The function of that name."""
    module, _, function = _homes[name].partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found

"""Lazy exports: a package exports names of its modules, and imports a module when one of its names is first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def lazy_exports(
    package: str,
    names_of: Mapping[str, str],
    *,
    submodules: Iterable[str] = (),
    also: Iterable[str] = (),
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of `package`.

    `names_of` maps each module of the package to its exported names, separated by spaces. `submodules` are exported
    as modules; `also` are names that the package itself defines.
    """
    homes = {name: module for module, names in names_of.items() for name in names.split()}
    exported = sorted({*homes, *submodules, *also})

    def load(name: str) -> Any:
        if name in homes:
            return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        if name in submodules:
            return importlib.import_module(f"{package}.{name}")
        # With `name` and `obj`, Python's traceback suggests the nearest name of `__dir__`.
        raise AttributeError(
            f"module '{package}' has no attribute '{name}'", name=name, obj=sys.modules[package]
        )

    return load, lambda: list(exported), exported

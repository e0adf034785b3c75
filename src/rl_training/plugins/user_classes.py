"""Names of classes that the user passes in Python, and the classes by those names."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl_training.errors import EnvError
from rl_training.plugins.user_code import FILE_MODULE, load_code, split_source
from rl_training.validation import suggest

MAIN = "__main__"
_local: dict[str, type] = {}
"""Classes of this process by name that no import finds, such as those defined inside a function."""


def name_of_class(given: type) -> str:
    """`module:Class` or `file.py:Class`; a class that no import finds keeps its name in this process only."""
    module, name = given.__module__, given.__qualname__
    home = sys.modules.get(module)
    file = getattr(home, "__file__", None)
    text = f"{Path(file) if file and module.startswith(FILE_MODULE) else module}:{name}"
    if getattr(home, name, None) is not given:
        _local[text] = given
    return text


def is_of_program(name: str) -> bool:
    """Whether only a running program has this class: one of `__main__`, or inside a function or another class."""
    source, attribute = split_source(name)
    return source == MAIN or "." in attribute


def find_class(name: str, is_wanted: Callable[[Any], bool]) -> Any:
    """The class `source:name`; imports the source. An `EnvError` suggests names that are wanted."""
    if name in _local:
        return _local[name]
    source, attribute = split_source(name)
    if not source or not attribute or source.endswith(":"):
        raise EnvError("write module:ClassName or path/to/file.py:ClassName")
    found = None if "." in attribute else sys.modules[MAIN] if source == MAIN else load_code(source)
    if is_of_program(name) and not hasattr(found, attribute):
        short = attribute.rpartition(".")[2]
        raise EnvError(
            f"only the program that trained with it has this class: define it here under that name, pass it as"
            f" load(path, network={short}), or move it into a file and give that, such as my_networks.py:{short}"
        )
    if not hasattr(found, attribute):
        wanted = [known for known, value in vars(found).items() if is_wanted(value)]
        raise EnvError(f"'{source}' has no '{attribute}'{suggest(attribute, wanted)}")
    return getattr(found, attribute)

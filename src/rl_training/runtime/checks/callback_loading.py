"""Loads the callbacks of --callback: `my_file.py:Watch` or `my_module:Watch`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from rl_training.errors import ConfigError, RLTrainingError
from rl_training.plugins.user_code import load_code, split_source
from rl_training.runtime.callbacks import EVENTS, check_callback
from rl_training.validation import suggest


def load_callbacks(names: Sequence[str] | None) -> list[object]:
    """The callbacks of these names, in order."""
    return [load_callback(name) for name in names or ()]


def load_callback(name: str) -> object:
    """Import FILE.py:NAME or MODULE:NAME and return its callback.

    NAME is a class or a factory function, called without arguments, or an object with callback methods.
    """
    place, attribute = split_source(name)
    if not attribute:
        raise ConfigError(f"--callback '{name}' names no object: write FILE.py:NAME or MODULE:NAME")
    module = load_code(place)
    if not hasattr(module, attribute):
        raise ConfigError(f"'{place}' has no '{attribute}'{suggest(attribute, _candidates(vars(module)))}")
    try:
        return _checked(getattr(module, attribute), name)
    except RLTrainingError:
        raise
    except Exception as error:
        raise ConfigError(f"callback '{name}' cannot be used: it raised {type(error).__name__}: {error}") from error


def _checked(found: Any, name: str) -> object:
    """The callback that `found` is or makes, with its methods checked."""
    is_callback = not inspect.isclass(found) and any(hasattr(found, event) for event in EVENTS)
    callback = _make(found, name) if callable(found) and not is_callback else found
    check_callback(callback, f"callback '{name}'")
    return callback


def _make(maker: Callable[[], object], name: str) -> object:
    try:
        inspect.signature(maker).bind()
    except TypeError as error:
        raise ConfigError(
            f"callback '{name}' cannot be called without arguments: {error}; name a factory function without arguments"
        ) from None
    except ValueError:
        pass  # some classes written in C have no signature
    return maker()


def _candidates(names: dict[str, Any]) -> list[str]:
    """Names in a module that --callback could refer to."""
    return [name for name, value in names.items() if not name.startswith("_") and not inspect.ismodule(value)]

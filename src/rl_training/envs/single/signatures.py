"""Arguments compared with the signature of a constructor, wrapper or function before the call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from rl_training.errors import ConfigError
from rl_training.validation import suggest


def check_arguments(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    name: str,
    remedy: Callable[[list[str]], str],
    *,
    refusal: str = "",
    num_given: int = 0,
    registered: Collection[str] = (),
) -> None:
    """Raise a `ConfigError` that begins with `name`, if keyword arguments are unknown or missing.

    `refusal` stands before an unknown argument. The first `num_given` parameters and those `registered` have values;
    `remedy` says how to set the missing ones.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())[num_given:]
    except (TypeError, ValueError):  # written in C, say
        return
    by_name = {
        parameter.name: parameter.default
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    unknown = arguments.keys() - by_name.keys()
    if unknown and all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters):
        key = unknown.pop()
        raise ConfigError(f"{name}{refusal} has no argument '{key}'{suggest(key, by_name)}")
    missing = [
        key
        for key, default in by_name.items()
        if default is inspect.Parameter.empty and key not in {*registered, *arguments}
    ]
    if missing:
        names = " and ".join(f"'{key}'" for key in missing)
        raise ConfigError(f"{name} needs a value for {names}: {remedy(missing)}")

"""Printing: results to standard output, messages to standard error."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from rl_training.errors import RLTrainingError
from rl_training.terminal.streams import printable, results_stream, tell


def say(text: str) -> None:
    """Print a message to standard error, so that it does not mix with results."""
    tell(text)


def show(value: Any, lines: Iterable[str], as_json: bool) -> None:
    """Print a result: `value` as one line of JSON, or `lines`."""
    try:
        print(json_text(value) if as_json else printable("\n".join(lines)), file=results_stream(), flush=True)
    except BrokenPipeError:
        pass  # whoever reads has seen enough: `rl-training runs | head`
    except OSError as error:
        raise RLTrainingError(f"cannot write the result to standard output: {error.strerror}") from None


def put(text: str) -> None:
    """Print one line of a result."""
    show(None, [text], as_json=False)


def json_text(value: Any) -> str:
    """A value as one line of JSON; values of env_kwargs that JSON does not have are written as text."""
    return json.dumps(_to_json(value))


def _to_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_to_json(item) for item in value]
    return value if value is None or isinstance(value, (str, int, float)) else str(value)

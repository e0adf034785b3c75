"""Environments given as Python objects: a table of this process, by ids such as `python:MyEnv`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rl_training.errors import ConfigError, EnvError

PREFIX = "python:"
"""Begins the id of an environment that only this process has; no module of that name is ever imported for it."""
ID = re.compile(r"python:[A-Za-z0-9_.-]*[A-Za-z0-9_]")


@dataclass(frozen=True)
class GivenEnv:
    """An environment that was given as an object."""

    make: Callable[..., Any]
    """Makes one environment."""
    vector: Any = None
    """The vector environment to train in; None: training environments are made by `make`."""
    source: object = None
    """What the user gave, to recognize it."""


_table: dict[str, GivenEnv] = {}


def is_given_id(env_id: str | None) -> bool:
    """Whether an environment id names an object of a Python process."""
    return env_id is not None and env_id.startswith(PREFIX)


def has_given(env_id: str) -> bool:
    """Whether this process has the object of an id."""
    return env_id in _table


def find_given(env_id: str) -> GivenEnv:
    """The object of an id; an `EnvError` with the remedy if this process does not have it."""
    if env_id not in _table:
        raise EnvError(
            f"environment '{env_id}' is an object of the Python process that trained on it, and this process does not"
            f" have it: pass it again (PPO.load(RUN, env=...), resume(RUN, env=...)), or register it with"
            f" rl_training.envs.register_env('{env_id}', make), on the command line in a file given with --plugin"
        )
    return _table[env_id]


def find_vector(env_id: str) -> Any:
    """The vector environment that was given under an id; None for any other id."""
    return find_given(env_id).vector if is_given_id(env_id) else None


def put_given(env_id: str, given: GivenEnv) -> None:
    """Put an object into the table, in place of one that had its id."""
    if not ID.fullmatch(env_id):
        raise ConfigError(
            f"bad environment id {env_id!r:.100}: write '{PREFIX}' and letters, digits, _, . or -"
        )
    _table[env_id] = given


def new_id(name: str, source: object) -> str:
    """The id of an object: `python:` and its name, numbered if another object has it."""
    stem = PREFIX + (re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "env")
    number, env_id = 1, stem
    while env_id in _table and _table[env_id].source is not source:
        number += 1
        env_id = f"{stem}-{number}"
    return env_id

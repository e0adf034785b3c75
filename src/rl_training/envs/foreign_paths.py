"""Refuses paths in the `env_kwargs` of a checkpoint that the user has not allowed.

An environment may open the files that its arguments name, so a changed checkpoint could make it read any file.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rl_training.envs.factory import EnvSettings
from rl_training.envs.wrapping.trust import listed_wrappers
from rl_training.errors import EnvError

FILE_SUFFIX = re.compile(
    r"\.(bin|cfg|conf|csv|dae|db|dll|gz|h5|hdf5|ini|jpe?g|json|mjb|mjcf|mp4|msh|npy|npz|obj|onnx|parquet|pickle|pkl|png"
    r"|pth?|py|rom|safetensors|sdf|so|stl|tar|toml|tsv|txt|urdf|usda?|wad|xml|ya?ml|zip)$",
    re.IGNORECASE,
)
SHOWS_PATH = re.compile(r"[/\\]|^~|^\.|^[A-Za-z]:")

_allowed: set[Path] = set()


def allow_path(path: str | Path) -> None:
    """Allow checkpoints to name this file, or files in this folder, in their `env_kwargs`."""
    _allowed.add(_resolve(str(path)))


def allow_paths_of(env_kwargs: Mapping[str, Any]) -> None:
    """Allow the paths of a trusted configuration: the user's own, or one already checked."""
    for _, path in find_paths(env_kwargs):
        allow_path(path)


def find_paths(env_kwargs: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Key and text of every argument of the environment or of a wrapper that is or looks like a path."""
    env_arguments = {key: value for key, value in env_kwargs.items() if key not in EnvSettings.model_fields}
    found = list(_paths_in(env_arguments, "env_kwargs"))
    for index, call in enumerate(listed_wrappers(env_kwargs)):
        found += _paths_in(call.arguments, f"env_kwargs.wrappers.list.{index}")
    return list(dict.fromkeys(found))


def refuse_unknown_paths(env_kwargs: Mapping[str, Any]) -> None:
    """Raise an `EnvError` if the `env_kwargs` of a checkpoint name a path that is not allowed."""
    unknown = [(key, path) for key, path in find_paths(env_kwargs) if not _is_allowed(path)]
    if not unknown:
        return
    key, path = unknown[0]
    flags = shlex.join(word for _, text in unknown for word in ("--allow-path", text))
    raise EnvError(
        f"{key} of this checkpoint is the path {path!r}, and a checkpoint opens only allowed files: review it,"
        f" then pass {flags} (in Python: rl_training.envs.foreign_paths.allow_path({path!r}))"
    )


def _paths_in(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _paths_in(name, key)
            yield from _paths_in(item, f"{key}.{name}")
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from _paths_in(item, key)
    elif isinstance(value, (str, bytes)):
        text = os.fsdecode(value)
        if _is_path(text):
            yield key, text


def _is_path(text: str) -> bool:
    if SHOWS_PATH.search(text) or FILE_SUFFIX.search(text):
        return True
    try:
        return os.path.lexists(text)
    except ValueError:  # a character that paths cannot contain
        return False


def _is_allowed(text: str) -> bool:
    path = _resolve(text)
    return not _allowed.isdisjoint({path, *path.parents})


def _resolve(text: str) -> Path:
    try:
        return Path(text).expanduser().resolve()
    except (OSError, ValueError, RuntimeError):  # not a path, or no such user
        return Path(text)

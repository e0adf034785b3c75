"""The gate: which code, paths and servers a checkpoint may use.

A checkpoint is a stranger's text: it never runs code, opens a file or sends data that its user has not allowed in this
process. What a configuration would use is a list of `Need`s, made by the room that reads the setting. The user allows
code with `load_code` (`--plugin`), paths with `allow_path` (`--allow-path`), and what his own configuration names.
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import inspect
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.errors import ConfigError, EnvError
from rl_training.plugins.extras import KNOWN_PACKAGES
from rl_training.plugins.given import is_given_id
from rl_training.plugins.user_code import (
    is_allowed,
    is_of_program,
    located,
    module_name,
    split_source,
)

GYMNASIUM = "gymnasium.wrappers"
WRITE_FILES = ("RecordVideo",)
"""Wrappers of Gymnasium that need permission: a checkpoint must not choose where to write."""
FILE_SUFFIX = re.compile(
    r"\.(bin|cfg|conf|csv|dae|db|dll|gz|h5|hdf5|ini|jpe?g|json|mjb|mjcf|mp4|msh|npy|npz|obj|onnx|parquet|pickle|pkl|png"
    r"|pth?|py|rom|safetensors|sdf|so|stl|tar|toml|tsv|txt|urdf|usda?|wad|xml|ya?ml|zip)$",
    re.IGNORECASE,
)
SHOWS_PATH = re.compile(r"[/\\]|^~|^\.|^[A-Za-z]:")
MAX_SHOWN = 5
"""Plugins named in one message."""

_shipped = set(KNOWN_PACKAGES)
"""Modules whose classes a checkpoint may name without a plugin."""
_paths: set[Path] = set()
_servers: set[str] = set()


class Kind(enum.Enum):
    """What could be misused."""

    CODE = "code"
    PATH = "path"
    SERVER = "server"


@dataclass(frozen=True)
class Need:
    """Code, a path or a server that a configuration names."""

    kind: Kind
    what: str
    """Who names it, for messages: `environment 'file.py:Env'`, `env_kwargs.file`."""
    name: str
    """`module:name` or `file.py:name`, the path, or the address."""
    remedy: str = ""
    """A further remedy, for messages."""


def ship(*modules: str) -> None:
    """Let checkpoints name the classes of these modules of the package."""
    _shipped.update(modules)


def is_shipped(source: str) -> bool:
    """Whether the classes of a module need no plugin."""
    return source in _shipped or source == GYMNASIUM


def allow_path(path: str | Path) -> None:
    """Allow checkpoints to name this file, or files in this folder, in their `env_kwargs`."""
    _paths.add(_resolve(str(path)))


def allow(needs: Iterable[Need]) -> None:
    """Allow the paths and servers of a trusted configuration: the user's own, or one already checked."""
    for need in needs:
        if need.kind is Kind.PATH:
            allow_path(need.name)
        elif need.kind is Kind.SERVER:
            _servers.add(need.name)


def refuse_unknown(needs: Iterable[Need], metadata: Mapping[str, Any]) -> None:
    """Raise for the first of a checkpoint's needs that the user has not allowed; `metadata` cannot allow it."""
    needs = list(needs)
    for need in needs:
        if need.kind is Kind.CODE:
            _refuse_code(need, metadata)
        elif need.kind is Kind.PATH:
            _refuse_path(need, needs)
        elif need.name not in _servers and need.name != os.environ.get("MLFLOW_TRACKING_URI"):
            raise ConfigError(
                f"{need.what} is {need.name!r} in this checkpoint, and a checkpoint does not choose where data is sent:"
                f" review it, then {need.remedy}"
            )


def code_in(needs: Iterable[Need]) -> list[str]:
    """The code among the needs, as `source:name`, without what is shipped with packages."""
    names = dict.fromkeys(need.name for need in needs if need.kind is Kind.CODE)
    parts = {name: split_source(name) for name in names if not is_given_id(name)}
    return [
        name for name, (source, attribute) in parts.items() if attribute and not is_shipped(source)
    ]


def flags_for(needs: Iterable[Need], plugins: Iterable[str] = ()) -> list[str]:
    """The command line options that allow another process the same; `plugins` come first."""
    needs = list(needs)
    places = [
        *plugins,
        *(name if is_allowed(name) else split_source(name)[0] for name in code_in(needs)),
    ]
    words = [("--plugin", place) for place in places]
    words += [("--allow-path", need.name) for need in needs if need.kind is Kind.PATH]
    return [word for pair in dict.fromkeys(words) for word in pair]


def unknown_code(name: str) -> str | None:
    """Code that using `source:name` would run without the user's permission, as a --plugin argument; else None.

    Code that is already imported is allowed where it is a class: only environments, wrappers and networks are used.
    """
    source, attribute = split_source(name)
    if not attribute or is_given_id(name):
        return None
    if attribute in WRITE_FILES:
        return None if is_allowed(name) else name
    with contextlib.suppress(
        ImportError, OSError, ValueError, RuntimeError
    ):  # not installed, or not a path
        if is_shipped(source):
            importlib.import_module(source)
        source = located(source)
    module = sys.modules.get(module_name(Path(source)) if source.endswith(".py") else source)
    if module is None:
        return None if is_shipped(source) else name.rpartition(":")[0]
    if source == GYMNASIUM or inspect.isclass(vars(module).get(attribute)) or is_allowed(name):
        return None
    return name if attribute in vars(module) or "__getattr__" in vars(module) else None


def paths_in(value: Any, key: str) -> Iterator[Need]:
    """Every text in an argument, however nested, that is or looks like a path."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from paths_in(name, key)
            yield from paths_in(item, f"{key}.{name}")
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from paths_in(item, key)
    elif isinstance(value, (str, bytes)):
        text = os.fsdecode(value)
        if _is_path(text):
            yield Need(Kind.PATH, key, text)


def network_needs(network: Any) -> list[Need]:
    """The code of the setting `network`; none for a class of the running program, for which nothing is imported."""
    if not isinstance(network, str) or is_of_program(network):
        return []
    return [
        Need(
            Kind.CODE,
            f"network '{network}'",
            network,
            ", or the class itself: load(path, network=...)",
        )
    ]


def recorded_plugins(metadata: Mapping[str, Any]) -> list[str]:
    """Modules and files that a checkpoint's metadata names. For messages only: never import them."""
    found = metadata.get("plugins")
    texts = [text for text in found if isinstance(text, str)] if isinstance(found, list) else []
    return [text for text in texts if text.isprintable() and 0 < len(text) < 1000][:MAX_SHOWN]


def _refuse_code(need: Need, metadata: Mapping[str, Any]) -> None:
    code = unknown_code(need.name)
    if code is None:
        return
    place = _recorded_plugin(need.name, metadata) or code
    error = ConfigError if need.remedy else EnvError
    raise error(
        f"{need.what} would import '{place}'; checkpoints never run code: review it, then pass"
        f" --plugin {shlex.quote(place)} (in Python: rl_training.envs.factory.load_code({place!r}){need.remedy})"
    )


def _refuse_path(need: Need, needs: list[Need]) -> None:
    unknown = [
        other.name
        for other in needs
        if other.kind is Kind.PATH and not _is_allowed_path(other.name)
    ]
    if need.name not in unknown:
        return
    flags = shlex.join(word for path in dict.fromkeys(unknown) for word in ("--allow-path", path))
    raise EnvError(
        f"{need.what} of this checkpoint is the path {need.name!r}, and a checkpoint opens only allowed files: review"
        f" it, then pass {flags} (in Python: rl_training.plugins.gate.allow_path({need.name!r}))"
    )


def _recorded_plugin(name: str, metadata: Mapping[str, Any]) -> str | None:
    """The recorded plugin that provides `name`: the same module or file (by name if it was moved) and function."""
    place, attribute = split_source(name)
    path = Path(place)
    for known in recorded_plugins(metadata):
        known_place, function = split_source(known)
        is_moved = (
            path.suffix == ".py" and not path.is_file() and Path(known_place).name == path.name
        )
        is_same = known_place in (place, str(path.absolute())) or is_moved
        if is_same and function in ("", attribute):
            return known
    return None


def _is_path(text: str) -> bool:
    if SHOWS_PATH.search(text) or FILE_SUFFIX.search(text):
        return True
    try:
        return os.path.lexists(text)
    except ValueError:  # a character that paths cannot contain
        return False


def _is_allowed_path(text: str) -> bool:
    path = _resolve(text)
    return not _paths.isdisjoint({path, *path.parents})


def _resolve(text: str) -> Path:
    try:
        return Path(text).expanduser().resolve()
    except (OSError, ValueError, RuntimeError):  # not a path, or no such user
        return Path(text)

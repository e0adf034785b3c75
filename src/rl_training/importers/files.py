"""Reads the zip file of a Stable-Baselines3 model: settings as plain JSON, weights as tensors; runs no code of it."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_training.errors import CheckpointError
from rl_training.files import open_regular
from rl_training.importers.pickles import Record, read_pickle

Weights = dict[str, Tensor]
MAX_BYTES = 1 << 30
"""Limit of the file and of what it unpacks to."""
MAX_JSON_BYTES = 1 << 26
MAX_RATIO = 200
"""Limit of the size of a member over its compressed size; SB3 does not compress."""
MAX_MEMBERS = 100
MEMBER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,99}")
VARIABLES = ("pytorch_variables.pth", "tensors.pth")
"""Tensors outside the networks; second name: SB3 < 1.0."""
OPTIMIZER = re.compile(r"(\w+?)[._]optimizer\.pth")
NOT_READABLE = (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, ValueError, OSError)


@dataclass(frozen=True)
class Archive:
    """Content of a model's zip file that can be read without running code."""

    path: Path
    settings: Mapping[str, Any]
    """Plain JSON values of `data`; of a pickled value, the attributes that SB3 wrote beside it as text."""
    weights: Weights
    """The policy's state_dict."""
    variables: Weights
    """Tensors outside the policy, such as `log_ent_coef`."""
    optimizers: Mapping[str, Mapping[str, Any]]
    """State of each optimizer by its name, such as `actor`."""
    version: str
    """Version of SB3 that wrote the file."""


def read_archive(path: Path) -> Archive:
    """Read a model's zip file, or raise a `CheckpointError` that names the member at fault."""
    with open_regular(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                infos = archive.infolist()
                _check_members(path, infos)
                contents = {info.filename: archive.read(info) for info in infos}
                for info in infos:
                    if len(contents[info.filename]) != info.file_size:
                        raise zipfile.BadZipFile(f"the size of member '{info.filename}' differs")
        except NOT_READABLE as error:
            raise CheckpointError(f"'{path}' is not a readable zip file: {error!s:.200}") from None
    for name in ("data", "policy.pth"):
        if name not in contents:
            raise CheckpointError(
                f"'{path}' is not a model of Stable-Baselines3: it has no member '{name}'"
            )
    tensors: Weights = {}
    optimizers = {}
    for name, data in contents.items():
        match = OPTIMIZER.fullmatch(name)
        if match:
            optimizers[match[1]] = _read_optimizer(path, name, data)
        elif name in VARIABLES:
            tensors |= _read_tensors(path, name, data)
    settings = _read_settings(path, contents["data"])
    weights = _read_tensors(path, "policy.pth", contents["policy.pth"])
    given = contents.get("_stable_baselines3_version", b"before 1.0")[:32]
    version = given.decode("ascii", "replace").strip()
    version = version if re.fullmatch(r"[\w. ]+", version) else "unknown"
    return Archive(path, settings, weights, tensors, optimizers, version)


def _check_members(path: Path, infos: list[zipfile.ZipInfo]) -> None:
    """Refuse members that are too large, encrypted, doubled or named like a path."""
    if len(infos) > MAX_MEMBERS:
        raise CheckpointError(
            f"'{path}' has {len(infos):,} members, more than the {MAX_MEMBERS} of a model"
        )
    names: set[str] = set()
    for info in infos:
        name = info.filename
        if not MEMBER_NAME.fullmatch(name):
            raise CheckpointError(
                f"'{path}' has a member named {name!r:.100}, which no model of SB3 has"
            )
        if name in names:
            raise CheckpointError(f"'{path}' has two members named '{name}'")
        if info.flag_bits & 1:
            raise CheckpointError(f"member '{name}' of '{path}' is encrypted")
        limit = MAX_JSON_BYTES if name == "data" else MAX_BYTES
        if info.file_size > min(limit, MAX_RATIO * max(1, info.compress_size)):
            raise CheckpointError(
                f"member '{name}' of '{path}' would unpack to {info.file_size:,} bytes: refused"
            )
        names.add(name)
    total = sum(info.file_size for info in infos)
    if total > MAX_BYTES:
        raise CheckpointError(
            f"'{path}' would unpack to {total:,} bytes, more than the limit of {MAX_BYTES:,}"
        )


def _read_settings(path: Path, data: bytes) -> dict[str, Any]:
    """The settings without the pickles that SB3 stores beside readable attributes; that of `train_freq` is data."""
    try:
        settings = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"'data' of '{path}' is not JSON: {error!s:.200}") from None
    if not isinstance(settings, dict):
        raise CheckpointError(f"'data' of '{path}' is not a JSON object")
    for key, value in settings.items():
        pickled = value.pop(":serialized:", None) if isinstance(value, dict) else None
        if key == "train_freq" and pickled is not None:
            settings[key] = _read_train_freq(pickled)
    return settings


def _read_train_freq(pickled: Any) -> list[Any] | None:
    """Number and unit (`step` or `episode`); None if they cannot be read."""
    with contextlib.suppress(CheckpointError, ValueError, TypeError, AttributeError):
        found = read_pickle(base64.b64decode(pickled), "'train_freq'")
        count, unit = found.arguments if isinstance(found, Record) else found
        return [count, unit.arguments[0] if isinstance(unit, Record) else unit]
    return None


def _read_tensors(path: Path, name: str, data: bytes) -> dict[str, Tensor]:
    """The tensors of a member by their names; anything else is refused."""
    tensors: dict[str, Tensor] = {}
    for key, value in _load(path, name, data).items():
        if value is None:
            continue
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise CheckpointError(
                f"'{name}' of '{path}' holds {key!r:.100}, which is not a tensor with a name"
            )
        tensors[key] = _checked_tensor(path, name, key, value)
    return tensors


def _read_optimizer(path: Path, name: str, data: bytes) -> dict[str, Any]:
    state = _load(path, name, data)
    entries, groups = state.get("state"), state.get("param_groups")
    if not isinstance(entries, dict) or not isinstance(groups, list):
        entries = {"": None}
    for key, entry in entries.items():
        if not isinstance(entry, dict):
            raise CheckpointError(f"'{name}' of '{path}' is not the state of an optimizer")
        for part, value in entry.items():
            if isinstance(value, Tensor):
                entry[part] = _checked_tensor(path, name, f"{key}.{part}", value)
    return state


def _load(path: Path, name: str, data: bytes) -> dict[Any, Any]:
    _refuse_compressed(path, name, data)
    try:
        loaded = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (
        Exception
    ) as error:  # torch raises many types of errors for damaged and for hostile files
        text = str(error).partition("Please file an issue")[0].strip()
        lines = [line.strip() for line in text.splitlines()]
        named = [line for line in lines if "GLOBAL" in line or "Unsupported" in line]
        detail = " ".join(named or lines[:1]) or type(error).__name__
        raise CheckpointError(
            f"'{name}' of '{path}' holds more than tensors, or is damaged: {detail:.300}"
        ) from None
    if loaded is not None and not isinstance(loaded, dict):
        raise CheckpointError(
            f"'{name}' of '{path}' holds a {type(loaded).__name__}, not tensors by name"
        )
    return loaded or {}


def _refuse_compressed(path: Path, name: str, data: bytes) -> None:
    """Refuse a file of tensors that torch would unpack to more than its size."""
    if data[:2] != b"PK":
        return
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as inner:
            infos = inner.infolist()
    except NOT_READABLE as error:
        raise CheckpointError(f"'{name}' of '{path}' is damaged: {error!s:.200}") from None
    is_compressed = any(info.compress_type != zipfile.ZIP_STORED for info in infos)
    if is_compressed or sum(info.file_size for info in infos) > len(data):
        raise CheckpointError(
            f"'{name}' of '{path}' is compressed inside, which torch never does: refused"
        )


def _checked_tensor(path: Path, name: str, key: str, tensor: Tensor) -> Tensor:
    """A tensor that is as large as its storage says, of finite numbers."""
    where = f"tensor '{key:.100}' in '{name}' of '{path}'"
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        raise CheckpointError(f"{where} is not a plain tensor")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise CheckpointError(f"{where} claims more numbers than the file holds")
    tensor = tensor.detach()
    if tensor.is_floating_point():
        tensor = tensor.float()
        if not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{where} holds NaN or infinite numbers")
    return tensor

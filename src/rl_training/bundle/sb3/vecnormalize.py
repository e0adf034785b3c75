"""Statistics of SB3's VecNormalize, read from its file without SB3 and without unpickling."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rl_training.bundle.sb3.pickle_reader import Record, plain, read_pickle
from rl_training.errors import CheckpointError
from rl_training.files import read_limited

MAX_BYTES = 1 << 26
CLASS = "stable_baselines3.common.vec_env.vec_normalize.VecNormalize"
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Statistics:
    """Running mean, variance and count."""

    mean: Array
    variance: Array
    count: float


@dataclass(frozen=True)
class VecNormalizeState:
    """The statistics and settings of a VecNormalize that decide how observations and rewards are normalized."""

    obs: dict[str, Statistics] = field(default_factory=dict)
    """By key of a Dict observation; the key is empty for other observations. Empty: they are not normalized."""
    returns: Statistics | None = None
    """Of the discounted returns; None: rewards are not normalized."""
    clip_obs: float = 10.0
    clip_reward: float = 10.0
    epsilon: float = 1e-8
    gamma: float = 0.99


def read_vecnormalize(path: Path) -> VecNormalizeState:
    """Read the file that `VecNormalize.save` wrote."""
    source = f"'{path}'"
    record = read_pickle(read_limited(path, MAX_BYTES), source)
    if not isinstance(record, Record) or CLASS not in (record.name, *_names(record)):
        raise CheckpointError(f"{source} is not a file of VecNormalize")
    found = _obs_statistics(record, source) if _flag(record, "norm_obs", source) else {}
    returns = _statistics(record.get("ret_rms"), source) if _flag(record, "norm_reward", source) else None
    numbers = {name: _number(record, name, source) for name in ("clip_obs", "clip_reward", "epsilon", "gamma")}
    return VecNormalizeState(found, returns, **numbers)


def _names(record: Record) -> list[str]:
    """Names of the classes among the arguments of a record: `copyreg.__newobj__` and the like take the class."""
    return [getattr(argument, "path", "") for argument in record.arguments]


def _obs_statistics(record: Record, source: str) -> dict[str, Statistics]:
    rms = record.get("obs_rms")
    if isinstance(rms, Record) and rms.get("mean") is None and rms.items:
        rms = dict(rms.items)
    if isinstance(rms, dict):
        return {str(key): _statistics(value, source) for key, value in rms.items()}
    return {"": _statistics(rms, source)}


def _statistics(rms: Any, source: str) -> Statistics:
    if not isinstance(rms, Record):
        raise CheckpointError(f"{source} has no running mean and variance")
    values = [np.asarray(plain(rms.get(name)), dtype=np.float64) for name in ("mean", "var", "count")]
    mean, variance, count = values
    if mean.shape != variance.shape or count.shape != () or not all(np.isfinite(value).all() for value in values):
        raise CheckpointError(f"{source} has statistics that are not finite, or of two shapes")
    if (variance < 0).any() or count < 0:
        raise CheckpointError(f"{source} has a negative variance or count")
    return Statistics(mean, variance, float(count))


def _flag(record: Record, name: str, source: str) -> bool:
    value = plain(record.get(name))
    if not isinstance(value, (bool, np.bool_)):
        raise CheckpointError(f"{source} has no setting '{name}'")
    return bool(value)


def _number(record: Record, name: str, source: str) -> float:
    value = plain(record.get(name))
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not 0 < float(value) < np.inf:
        raise CheckpointError(f"{source} has no positive number '{name}'")
    return float(value)

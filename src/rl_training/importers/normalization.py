"""The statistics of SB3's VecNormalize, read without unpickling, as our normalizers and scales of inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.errors import CheckpointError
from rl_training.files import read_limited
from rl_training.importers.networks import Model
from rl_training.importers.pickles import Record, read_pickle
from rl_training.importers.settings import Report
from rl_training.models.normalizer import CLIP, EPSILON
from rl_training.spaces.given import Array, ObsLeaf
from rl_training.spaces.observations import ObsSpec

MAX_BYTES = 1 << 26
VECNORMALIZE = "stable_baselines3.common.vec_env.vec_normalize.VecNormalize"
BYTES = 255.0
SWITCHES, NUMBERS = ("norm_obs", "norm_reward"), ("clip_obs", "clip_reward", "epsilon", "gamma")


@dataclass(frozen=True)
class Statistics:
    """Running mean, variance and count."""

    mean: Array
    variance: Array
    count: float


@dataclass(frozen=True)
class VecNormalizeState:
    """The statistics and settings of a VecNormalize that decide how observations and rewards are normalized."""

    obs: dict[str, Statistics]
    """By key of a Dict observation; the key is empty for other observations. Empty: they are not normalized."""
    returns: Statistics | None
    """Of the discounted returns; None: rewards are not normalized."""
    clip_obs: float
    clip_reward: float
    epsilon: float
    gamma: float


def read_vecnormalize(path: Path) -> VecNormalizeState:
    """Read the file that `VecNormalize.save` wrote."""
    source = f"'{path}'"
    record = read_pickle(read_limited(path, MAX_BYTES), source)
    # `copyreg.__newobj__` and the like have the class among their arguments.
    names = (
        [record.name, *(getattr(one, "path", "") for one in record.arguments)]
        if isinstance(record, Record)
        else []
    )
    if VECNORMALIZE not in names:
        raise CheckpointError(f"{source} is not a file of VecNormalize")
    values = {name: record.get(name) for name in (*SWITCHES, *NUMBERS)}
    for name in SWITCHES:
        if not isinstance(values[name], (bool, np.bool_)):
            raise CheckpointError(f"{source} has no setting '{name}'")
    for name in NUMBERS:
        is_number = isinstance(values[name], (int, float, np.number))
        if not is_number or values[name] is True or not 0 < float(values[name]) < np.inf:
            raise CheckpointError(f"{source} has no positive number '{name}'")
    rms, obs, returns = record.get("obs_rms"), {}, None
    if values["norm_obs"]:
        parts = rms.items if isinstance(rms, Record) else rms  # of an OrderedDict, or of a dict
        parts = parts if isinstance(parts, dict) and parts else {"": rms}
        obs = {str(key): _statistics(value, source) for key, value in parts.items()}
    if values["norm_reward"]:
        returns = _statistics(record.get("ret_rms"), source)
    return VecNormalizeState(obs, returns, *(float(values[name]) for name in NUMBERS))


def _statistics(rms: Any, source: str) -> Statistics:
    if not isinstance(rms, Record):
        raise CheckpointError(f"{source} has no running mean and variance")
    mean, variance, count = (
        np.asarray(rms.get(name), dtype=np.float64) for name in ("mean", "var", "count")
    )
    is_finite = all(np.isfinite(value).all() for value in (mean, variance, count))
    if mean.shape != variance.shape or count.shape != () or not is_finite:
        raise CheckpointError(f"{source} has statistics that are not finite, or of two shapes")
    if (variance < 0).any() or count < 0:
        raise CheckpointError(f"{source} has a negative variance or count")
    return Statistics(mean, variance, float(count))


def read_normalization(
    spec: ObsSpec, state: VecNormalizeState | None, model: Model, report: Report
) -> tuple[dict[str, dict[str, Tensor]], Model]:
    """Our normalizers' statistics by the setting that switches them on, and the model with the scale of its inputs."""
    if spec.dtype == "uint8" and not spec.leaves and len(spec.shape) > 1 and not spec.image_shapes:
        raise CheckpointError(
            f"bytes of shape {spec.shape} are an image for SB3 and a vector here: no counterpart"
        )
    pixel_scale = BYTES if model.settings.values.get("normalize_images") is False else 1.0
    feature_scale: Tensor | None = None
    found: dict[str, dict[str, Tensor]] = {}
    scales = torch.cat([torch.ones(0, dtype=torch.float64), *map(_our_scale, spec.parts)])
    if state is None or not state.obs:
        if not bool((scales == 1).all()):
            feature_scale = (1.0 / scales).float()
    else:
        if spec.image_shapes:
            raise CheckpointError("VecNormalize normalizes images, which has no counterpart here")
        mean, variance, count = _flat_statistics(spec, state)
        clip = state.clip_obs / CLIP
        # Ours clips to ±10: the standard deviation is scaled, so that 10 of ours are `clip_obs`, and the weights back.
        variance = (variance + state.epsilon) * (scales * clip).square() - EPSILON
        found["normalize_obs"] = _normalizer(mean * scales, variance, count)
        report.take("VecNormalize, observations", f"normalize_obs, {count:,.0f} observations")
        if clip != 1.0:
            feature_scale = torch.full((spec.num_features,), clip)
            kept = "is kept by scaling the statistics: training on changes it to 10"
            report.leave("clip_obs", f"{state.clip_obs:g} {kept}")
    if state is not None and state.returns is not None:
        report.take("VecNormalize, rewards", "normalize_reward")
        if state.clip_reward != CLIP:
            effect = f"normalized rewards are clipped to ±{CLIP:g} here"
            report.leave("clip_reward", f"{state.clip_reward:g}: {effect}")
        mean = torch.from_numpy(state.returns.mean.reshape(-1).copy())
        variance = torch.from_numpy((state.returns.variance + state.epsilon).reshape(-1).copy())
        found["normalize_reward"] = _normalizer(mean, variance - EPSILON, state.returns.count)
    return found, replace(model, pixel_scale=pixel_scale, feature_scale=feature_scale)


def _normalizer(mean: Tensor, variance: Tensor, count: float) -> dict[str, Tensor]:
    return {"mean": mean, "variance": variance, "count": torch.tensor(count, dtype=torch.float64)}


def _our_scale(leaf: ObsLeaf) -> Tensor:
    """Our features over SB3's, [features]: bytes that are not an image are divided by 255 here only."""
    num_features = 0 if leaf.is_image else leaf.width
    return torch.full((num_features,), leaf.scale, dtype=torch.float64)


def _flat_statistics(spec: ObsSpec, state: VecNormalizeState) -> tuple[Tensor, Tensor, float]:
    """Mean and variance of each feature; categories are not normalized by VecNormalize."""
    means, variances = [], []
    for leaf in spec.parts:
        key, width = str(leaf.path[0]) if leaf.path else "", leaf.width
        found = state.obs.get(key)
        if found is None and leaf.choices and state.clip_obs >= 1.0:
            found = Statistics(np.zeros(width), np.full(width, 1.0 - state.epsilon), 0.0)
        if found is None or found.mean.size != width:
            what = f"part '{key}' of the observation" if key else "the observation"
            raise CheckpointError(
                f"VecNormalize does not have {width} statistics for {what} of this environment"
            )
        means.append(torch.from_numpy(found.mean.reshape(-1).copy()))
        variances.append(torch.from_numpy(found.variance.reshape(-1).copy()))
    return torch.cat(means), torch.cat(variances), next(iter(state.obs.values())).count

"""From the statistics of VecNormalize, and from SB3's reading of bytes, to our normalizers and inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rl_training.bundle.sb3.layouts import Inputs
from rl_training.bundle.sb3.report import Report
from rl_training.bundle.sb3.vecnormalize import Statistics, VecNormalizeState
from rl_training.errors import CheckpointError
from rl_training.models.normalizer import CLIP, EPSILON
from rl_training.spaces.observations import ObsLeaf, ObsSpec

WHOLE = ""
"""Key of the statistics of an observation that is not a Dict."""
BYTES = 255.0


@dataclass(frozen=True)
class Normalization:
    """Our statistics of observations and returns, by buffer name, and the inputs of the networks."""

    inputs: Inputs
    obs: dict[str, Tensor] | None = None
    returns: dict[str, Tensor] | None = None


def read_normalization(
    spec: ObsSpec, state: VecNormalizeState | None, normalize_images: bool, report: Report
) -> Normalization:
    """Express how SB3 reads and normalizes observations by our normalizer and by factors of the first weights."""
    if spec.dtype == "uint8" and not spec.leaves and len(spec.shape) > 1 and not spec.image_shapes:
        raise CheckpointError(f"bytes of shape {spec.shape} are an image for SB3 and a vector here: no counterpart")
    pixel_scale = 1.0 if normalize_images else BYTES
    scales = _our_scales(spec)
    if state is None or not state.obs:
        factor = None if bool((scales == 1).all()) else (1.0 / scales).float()
        return Normalization(Inputs(factor, pixel_scale), returns=_returns(state, report))
    if spec.image_shapes:
        raise CheckpointError("VecNormalize normalizes images, which has no counterpart here")
    mean, variance, count = _flat_statistics(spec, state)
    clip = state.clip_obs / CLIP
    # Ours clips to ±10: the standard deviation is scaled, so that 10 of ours are `clip_obs`, and the weights back.
    obs = {
        "mean": mean * scales,
        "variance": (variance + state.epsilon) * (scales * clip).square() - EPSILON,
        "count": torch.tensor(count, dtype=torch.float64),
    }
    report.take("VecNormalize, observations", f"normalize_obs, {count:,.0f} observations")
    factor = None
    if clip != 1.0:
        factor = torch.full((spec.num_features,), clip)
        report.leave("clip_obs", f"{state.clip_obs:g} is kept by scaling the statistics: training on changes it to 10")
    return Normalization(Inputs(factor, pixel_scale), obs, _returns(state, report))


def _our_scales(spec: ObsSpec) -> Tensor:
    """Our features over SB3's, [features]: bytes that are not an image are divided by 255 here only."""
    if not spec.leaves:
        scale = 1.0 / BYTES if spec.dtype == "uint8" and not spec.image_shapes else 1.0
        return torch.full((spec.num_features,), scale, dtype=torch.float64)
    parts = [torch.full((leaf.width,), leaf.scale, dtype=torch.float64) for leaf in spec.leaves if not leaf.is_image]
    return torch.cat(parts) if parts else torch.ones(0, dtype=torch.float64)


def _flat_statistics(spec: ObsSpec, state: VecNormalizeState) -> tuple[Tensor, Tensor, float]:
    """Mean and variance of each feature; categories are not normalized by VecNormalize."""
    means, variances = [], []
    whole = ObsLeaf((), (spec.num_features,))
    for leaf in spec.leaves or (whole,):
        key, width = str(leaf.path[0]) if leaf.path else WHOLE, leaf.width
        found = state.obs.get(key)
        if found is None and leaf.choices and state.clip_obs >= 1.0:
            means.append(torch.zeros(width, dtype=torch.float64))
            variances.append(torch.full((width,), 1.0 - state.epsilon, dtype=torch.float64))
            continue
        if found is None or found.mean.size != width:
            what = f"part '{key}' of the observation" if key else "the observation"
            raise CheckpointError(f"VecNormalize does not have {width} statistics for {what} of this environment")
        means.append(torch.from_numpy(found.mean.reshape(-1).copy()))
        variances.append(torch.from_numpy(found.variance.reshape(-1).copy()))
    return torch.cat(means), torch.cat(variances), next(iter(state.obs.values())).count


def _returns(state: VecNormalizeState | None, report: Report) -> dict[str, Tensor] | None:
    """Statistics of the discounted returns, by which rewards are divided."""
    if state is None or state.returns is None:
        return None
    statistics: Statistics = state.returns
    report.take("VecNormalize, rewards", "normalize_reward")
    if state.clip_reward != CLIP:
        report.leave("clip_reward", f"{state.clip_reward:g}: normalized rewards are clipped to ±{CLIP:g} here")
    mean, variance = (
        torch.from_numpy(one.reshape(-1).copy()) for one in (statistics.mean, statistics.variance + state.epsilon)
    )
    return {"mean": mean, "variance": variance - EPSILON, "count": torch.tensor(statistics.count, dtype=torch.float64)}

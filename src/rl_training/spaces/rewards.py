"""The transform of rewards: scaled, shifted, then clipped; the same for environments and for datasets."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import model_validator

from rl_training.errors import ConfigError
from rl_training.spaces.given import Array
from rl_training.validation import FrozenConfig


class RewardTransformConfig(FrozenConfig):
    """Scale, shift and clip bounds of a reward, applied in this order."""

    scale: float = 1.0
    """Factor."""
    shift: float = 0.0
    """Added after scaling."""
    clip_min: float | None = None
    """Lower bound, applied last."""
    clip_max: float | None = None
    """Upper bound, applied last."""

    @model_validator(mode="before")
    @classmethod
    def _read_clip_pair(cls, values: Any) -> Any:
        """Accept `clip: [low, high]` for the two bounds."""
        if not isinstance(values, dict) or "clip" not in values:
            return values
        values = dict(values)
        clip = values.pop("clip")
        if not isinstance(clip, (list, tuple)) or len(clip) != 2:
            raise ValueError(f"clip must be [low, high], not {clip!r}")
        if values.get("clip_min") is not None or values.get("clip_max") is not None:
            raise ValueError("give either clip or clip_min and clip_max, not both")
        values["clip_min"], values["clip_max"] = clip
        return values

    @model_validator(mode="after")
    def _check_bounds(self) -> RewardTransformConfig:
        check_bounds(self.clip_min, self.clip_max)
        return self


def transform_rewards(rewards: Array, config: RewardTransformConfig | None) -> Array:
    """Transform an array of rewards; without a config they are returned unchanged."""
    if config is None:
        return rewards
    rewards = rewards * config.scale + config.shift
    return (
        rewards
        if config.clip_min is config.clip_max is None
        else np.clip(rewards, config.clip_min, config.clip_max)
    )


def check_bounds(low: float | None, high: float | None) -> None:
    """Raise a `ConfigError` if the lower clip bound lies above the upper one."""
    if low is not None and high is not None and low > high:
        raise ConfigError(f"the lower clip bound {low} is above the upper one {high}")

"""From a stored observation to the flat float vector a network reads."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.data.spaces import ObsSpec
from rl_training.models.normalizer import RunningNormalizer


def flatten(obs: Tensor, spec: ObsSpec) -> Tensor:
    """Flatten a Box, one-hot code a Discrete, scale bytes to [0, 1]: [B, *shape] becomes [B, features]."""
    if spec.num_categories is not None:
        return F.one_hot(obs, spec.num_categories).float()
    features = obs.reshape(obs.shape[0], -1)
    return features.float() / 255.0 if spec.dtype == "uint8" else features


class ObsEncoder(nn.Module):
    """Flatten observations, and normalize them when asked to."""

    def __init__(self, spec: ObsSpec, *, normalize: bool) -> None:
        super().__init__()
        self._spec = spec
        self.num_features = spec.num_features
        self.normalizer = RunningNormalizer(self.num_features) if normalize else None

    def forward(self, obs: Tensor) -> Tensor:
        """Turn [B, *shape] into [B, features]."""
        features = flatten(obs, self._spec)
        return features if self.normalizer is None else self.normalizer(features)

    def update_statistics(self, obs: Tensor) -> None:
        """Let the normalizer, if there is one, see a batch of observations."""
        if self.normalizer is not None:
            self.normalizer.update(flatten(obs, self._spec))

"""From a stored observation to the flat float vector a network reads."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.data.spaces import ObsSpec
from rl_training.models.normalizer import RunningNormalizer


class ObsEncoder(nn.Module):
    """Flatten a Box, one-hot code a Discrete, scale bytes to [0, 1]; normalize when asked to."""

    def __init__(self, spec: ObsSpec, *, normalize: bool = False) -> None:
        super().__init__()
        self._spec = spec
        self.num_features = spec.num_features
        self.normalizer = RunningNormalizer(self.num_features) if normalize else None

    def forward(self, obs: Tensor) -> Tensor:
        """Turn [B, *shape] into [B, features]."""
        features = self._flatten(obs)
        return features if self.normalizer is None else self.normalizer(features)

    def update_statistics(self, obs: Tensor) -> None:
        """Let the normalizer, if there is one, see a batch of observations."""
        if self.normalizer is not None:
            self.normalizer.update(self._flatten(obs))

    def _flatten(self, obs: Tensor) -> Tensor:
        if self._spec.num_categories is not None:
            return F.one_hot(obs, self._spec.num_categories).float()
        if self._spec.dtype == "uint8":
            return obs.reshape(obs.shape[0], -1).float() / 255.0
        return obs.reshape(obs.shape[0], -1)

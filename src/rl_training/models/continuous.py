"""Networks for continuous control: the squashed Gaussian policy and the ensemble of critics."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.data.spaces import Spaces
from rl_training.models.encoders import ObsEncoder
from rl_training.models.mlp import MLP, Activation, EnsembleMLP

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class SquashedGaussianPolicy(nn.Module):
    """A Gaussian whose mean and deviation depend on the observation, squashed into [-1, 1] by tanh."""

    def __init__(
        self,
        spaces: Spaces,
        hidden_sizes: Sequence[int],
        *,
        activation: Activation,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.encoder = ObsEncoder(spaces.obs)
        self.network = MLP(
            self.encoder.num_features,
            hidden_sizes,
            2 * spaces.action.num_components,
            activation=activation,
            generator=generator,
        )

    def forward(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [B, A] made from standard normal `noise`, and their log-probabilities [B]."""
        mean, log_std = self.network(self.encoder(obs)).chunk(2, -1)
        log_std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
        before_tanh = mean + log_std.exp() * noise
        log_prob = -0.5 * noise.square() - log_std - HALF_LOG_TWO_PI
        # SAC appendix C, eq. 21, in the form log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2x)), which cannot overflow.
        log_prob = log_prob - 2.0 * (math.log(2.0) - before_tanh - F.softplus(-2.0 * before_tanh))
        return before_tanh.tanh(), log_prob.sum(-1)

    def mode(self, obs: Tensor) -> Tensor:
        """The squashed mean, [B, A]."""
        mean: Tensor = self.network(self.encoder(obs)).chunk(2, -1)[0]
        return mean.tanh()


class EnsembleCritic(nn.Module):
    """Several action-value functions evaluated as one batched network."""

    def __init__(
        self,
        spaces: Spaces,
        hidden_sizes: Sequence[int],
        *,
        num_members: int,
        activation: Activation,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.encoder = ObsEncoder(spaces.obs)
        self.networks = EnsembleMLP(
            num_members,
            self.encoder.num_features + spaces.action.num_components,
            hidden_sizes,
            1,
            activation=activation,
            generator=generator,
        )

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Each member's value of each pair, [members, B]."""
        values: Tensor = self.networks(torch.cat([self.encoder(obs), actions], -1))
        return values.squeeze(-1)

    def first(self, obs: Tensor, actions: Tensor) -> Tensor:
        """The first member's value of each pair, [B], at a fraction of the work."""
        return self.networks.member(0, torch.cat([self.encoder(obs), actions], -1)).squeeze(-1)

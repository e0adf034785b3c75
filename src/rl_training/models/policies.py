"""Policies: distributions over actions given preprocessed observations, and their imitation losses."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.models.actions import masked
from rl_training.models.actor_critic import HALF_LOG_TWO_PI, CategoricalHead
from rl_training.models.encoders import ObsNetwork
from rl_training.models.mlp import MLPSpec
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.spec import Spaces

PolicyKind = Literal["deterministic", "gaussian"]


class Policy(ObsNetwork, ABC):
    """An MLP whose outputs parametrize actions."""

    outputs_per_component = 1

    def __init__(self, spaces: Spaces, mlp_spec: MLPSpec) -> None:
        super().__init__(spaces.obs, mlp_spec)
        num_outputs = sum(spaces.action.choices) or spaces.action.num_components
        self.network = mlp_spec.make(self.num_features, self.outputs_per_component * num_outputs)

    def outputs(self, obs: Tensor) -> Tensor:
        """Raw outputs of the network, [B, outputs]."""
        outputs: Tensor = self.network(self.features(obs))
        return outputs

    @abstractmethod
    def mode(self, obs: Tensor, mask: Tensor | None = None) -> Tensor:
        """The deterministic action: the mean, squashed if the policy is, or the argmax."""

    @abstractmethod
    def sample(self, obs: Tensor, generator: torch.Generator, mask: Tensor | None = None) -> Tensor:
        """Sample an action."""


class SquashedGaussianPolicy(Policy):
    """A Gaussian with state-dependent mean and standard deviation, squashed into [-1, 1] by tanh."""

    outputs_per_component = 2

    def forward(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [B, A] from standard normal `noise` (reparametrized), and their log-probabilities [B]."""
        mean, log_std = self._gaussian(obs)
        before_tanh = mean + log_std.exp() * noise
        log_prob = -0.5 * noise.square() - log_std - HALF_LOG_TWO_PI
        # SAC appendix C, eq. 26, in the form log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2x)), which cannot overflow.
        log_prob = log_prob - 2.0 * (math.log(2.0) - before_tanh - F.softplus(-2.0 * before_tanh))
        return before_tanh.tanh(), log_prob.sum(-1)

    def mode(self, obs: Tensor, mask: Tensor | None = None) -> Tensor:
        """The squashed mean, [B, A]."""
        return self._gaussian(obs)[0].tanh()

    def sample(self, obs: Tensor, generator: torch.Generator, mask: Tensor | None = None) -> Tensor:
        """Sample, then squash."""
        mean, log_std = self._gaussian(obs)
        noise = torch.empty_like(mean).normal_(generator=generator)
        return (mean + log_std.exp() * noise).tanh()

    def _gaussian(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.network(self.features(obs)).chunk(2, -1)
        return mean, log_std.clamp(-20.0, 2.0)


class ImitationPolicy(Policy):
    """A policy that can be trained on given actions."""

    @abstractmethod
    def imitation_loss(self, obs: Tensor, actions: Tensor, mask: Tensor | None = None) -> Tensor:
        """Loss of each given action, [B]."""


class DeterministicPolicy(ImitationPolicy):
    """A deterministic continuous action, squashed into [-1, 1] by tanh."""

    def mode(self, obs: Tensor, mask: Tensor | None = None) -> Tensor:
        """The action, [B, A]."""
        return self.outputs(obs).tanh()

    def sample(self, obs: Tensor, generator: torch.Generator, mask: Tensor | None = None) -> Tensor:
        """The same action."""
        return self.mode(obs)

    def imitation_loss(self, obs: Tensor, actions: Tensor, mask: Tensor | None = None) -> Tensor:
        """Squared error, averaged over the components."""
        return (self.mode(obs) - actions).square().mean(-1)


class TanhMeanGaussianPolicy(DeterministicPolicy):
    """A Gaussian whose mean is squashed into [-1, 1], with a state-independent standard deviation.

    Only the mean is squashed, samples are clipped: under a squashed sample, an action at a bound, of which datasets are
    full, would have an infinite preimage and neither a log-density nor a gradient.
    """

    def __init__(self, spaces: Spaces, mlp_spec: MLPSpec) -> None:
        super().__init__(spaces, mlp_spec)
        self.log_std = nn.Parameter(torch.zeros(spaces.action.num_components))

    def sample(self, obs: Tensor, generator: torch.Generator, mask: Tensor | None = None) -> Tensor:
        """Sample, clipped to the bounds."""
        mean = self.mode(obs)
        return self.sample_from_noise(mean, torch.empty_like(mean).normal_(generator=generator))

    def sample_from_noise(self, mean: Tensor, noise: Tensor) -> Tensor:
        """Actions from the mean and standard normal `noise`, clipped to the bounds."""
        return (mean + self._log_std().exp() * noise).clamp(-1.0, 1.0)

    def imitation_loss(self, obs: Tensor, actions: Tensor, mask: Tensor | None = None) -> Tensor:
        """Negative log-density."""
        return self.negative_log_prob(self.mode(obs), actions)

    def negative_log_prob(self, mean: Tensor, actions: Tensor) -> Tensor:
        """Negative log-density of `actions` given the mean, [B]."""
        log_std = self._log_std()
        scaled = (actions - mean) * (-log_std).exp()
        return (0.5 * scaled.square() + log_std + HALF_LOG_TWO_PI).sum(-1)

    def _log_std(self) -> Tensor:
        return self.log_std.clamp(-5.0, 2.0)


class CategoricalPolicy(ImitationPolicy):
    """One categorical distribution for each discrete component of the action."""

    def __init__(self, spaces: Spaces, mlp_spec: MLPSpec) -> None:
        super().__init__(spaces, mlp_spec)
        self.head = CategoricalHead(spaces.action)

    def mode(self, obs: Tensor, mask: Tensor | None = None) -> Tensor:
        """The deterministic action: the mean, squashed if the policy is, or the argmax."""
        return self.head.mode(masked(self.outputs(obs), mask))

    def sample(self, obs: Tensor, generator: torch.Generator, mask: Tensor | None = None) -> Tensor:
        """Sample from the distribution."""
        return self.head.sample(masked(self.outputs(obs), mask), generator)

    def imitation_loss(self, obs: Tensor, actions: Tensor, mask: Tensor | None = None) -> Tensor:
        """Cross entropy."""
        return -self.head.log_prob_and_entropy(masked(self.outputs(obs), mask), actions)[0]


def make_imitation_policy(kind: PolicyKind, spaces: Spaces, mlp_spec: MLPSpec) -> ImitationPolicy:
    """The policy of that kind for Box actions, a categorical policy for discrete actions."""
    if spaces.action.kind is not ActionKind.CONTINUOUS:
        return CategoricalPolicy(spaces, mlp_spec)
    return (DeterministicPolicy if kind == "deterministic" else TanhMeanGaussianPolicy)(
        spaces, mlp_spec
    )

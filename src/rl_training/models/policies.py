"""Policies that can imitate: each acts, and says how far it is from given actions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from rl_training.data.spaces import ActionKind, Spaces
from rl_training.models.actor_critic import HALF_LOG_TWO_PI, CategoricalHead
from rl_training.models.encoders import ObsEncoder
from rl_training.models.mlp import MLP, Activation

PolicyKind = Literal["deterministic", "gaussian"]
LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0


class ImitationPolicy(nn.Module, ABC):
    """A perceptron whose outputs mean actions."""

    def __init__(
        self, spaces: Spaces, hidden_sizes: Sequence[int], *, activation: Activation, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.encoder = ObsEncoder(spaces.obs)
        self.network = MLP(
            self.encoder.num_features,
            hidden_sizes,
            sum(spaces.action.choices) or spaces.action.num_components,
            activation=activation,
            generator=generator,
        )

    @abstractmethod
    def mode(self, obs: Tensor) -> Tensor:
        """The action the policy holds for best."""

    @abstractmethod
    def sample(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        """Draw an action, where the policy is random."""

    @abstractmethod
    def imitation_loss(self, obs: Tensor, actions: Tensor) -> Tensor:
        """How far each of the given actions is from the policy, [B]."""

    def act(self, obs: Tensor, generator: torch.Generator | None) -> Tensor:
        """Draw with the generator, or without one take the best action."""
        return self.mode(obs) if generator is None else self.sample(obs, generator)

    def _outputs(self, obs: Tensor) -> Tensor:
        outputs: Tensor = self.network(self.encoder(obs))
        return outputs


class DeterministicPolicy(ImitationPolicy):
    """One continuous action for each observation, squashed into [-1, 1] by tanh."""

    def mode(self, obs: Tensor) -> Tensor:
        """The action, [B, A]."""
        return self._outputs(obs).tanh()

    def sample(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        """The same action."""
        return self.mode(obs)

    def imitation_loss(self, obs: Tensor, actions: Tensor) -> Tensor:
        """The squared error, as a mean over the components."""
        return (self.mode(obs) - actions).square().mean(-1)


class TanhMeanGaussianPolicy(ImitationPolicy):
    """A Gaussian whose mean is squashed into [-1, 1], and whose deviation is the same for every observation.

    Only the mean is squashed: were the draw itself, then an action at a bound, of which data is full, would have an
    infinite preimage, and its log-density neither a value nor a gradient to learn from. Draws are clipped instead.
    """

    def __init__(
        self, spaces: Spaces, hidden_sizes: Sequence[int], *, activation: Activation, generator: torch.Generator
    ) -> None:
        super().__init__(spaces, hidden_sizes, activation=activation, generator=generator)
        self.log_std = nn.Parameter(torch.zeros(spaces.action.num_components))

    def mode(self, obs: Tensor) -> Tensor:
        """The mean, [B, A]."""
        return self._outputs(obs).tanh()

    def sample(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        """Draw, within the bounds."""
        mean = self.mode(obs)
        return self.moved(mean, torch.empty_like(mean).normal_(generator=generator))

    def moved(self, mean: Tensor, noise: Tensor) -> Tensor:
        """Actions made from the mean and standard normal `noise`, within the bounds."""
        return (mean + self._log_std().exp() * noise).clamp(-1.0, 1.0)

    def imitation_loss(self, obs: Tensor, actions: Tensor) -> Tensor:
        """The negative log-density."""
        return self.surprise(self.mode(obs), actions)

    def surprise(self, mean: Tensor, actions: Tensor) -> Tensor:
        """The negative log-density of `actions` under a policy of that mean, [B]."""
        log_std = self._log_std()
        scaled = (actions - mean) * (-log_std).exp()
        return (0.5 * scaled.square() + log_std + HALF_LOG_TWO_PI).sum(-1)

    def _log_std(self) -> Tensor:
        return self.log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)


class CategoricalPolicy(ImitationPolicy):
    """One categorical distribution for each discrete component of the action."""

    def __init__(
        self, spaces: Spaces, hidden_sizes: Sequence[int], *, activation: Activation, generator: torch.Generator
    ) -> None:
        super().__init__(spaces, hidden_sizes, activation=activation, generator=generator)
        self.head = CategoricalHead(spaces.action)

    def mode(self, obs: Tensor) -> Tensor:
        """The most likely action."""
        return self.head.mode(self._outputs(obs))

    def sample(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        """Draw by the probabilities."""
        return self.head.sample(self._outputs(obs), generator)

    def imitation_loss(self, obs: Tensor, actions: Tensor) -> Tensor:
        """The cross entropy."""
        return -self.head.log_prob_and_entropy(self._outputs(obs), actions)[0]


def make_imitation_policy(
    kind: PolicyKind,
    spaces: Spaces,
    hidden_sizes: Sequence[int],
    *,
    activation: Activation,
    generator: torch.Generator,
) -> ImitationPolicy:
    """The policy of that kind for Box actions, a categorical one for discrete actions."""
    classes = {"deterministic": DeterministicPolicy, "gaussian": TanhMeanGaussianPolicy}
    policy = classes[kind] if spaces.action.kind is ActionKind.CONTINUOUS else CategoricalPolicy
    return policy(spaces, hidden_sizes, activation=activation, generator=generator)

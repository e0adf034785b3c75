"""The policy and value network of the on-policy algorithms, with one head for each kind of action.

A head reads the policy's raw outputs [B, num_outputs] as a distribution over model actions.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.models.encoders import ObsNetwork, ObsPreprocessor
from rl_training.models.mlp import EnsembleMLP, Layers
from rl_training.spaces.actions import ActionKind, ActionSpec
from rl_training.spaces.spec import Spaces

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


class CategoricalHead(nn.Module):
    """One categorical distribution for each discrete component of the action."""

    def __init__(self, spec: ActionSpec) -> None:
        super().__init__()
        self._choices = list(spec.choices)
        self._is_single = spec.kind is ActionKind.DISCRETE
        self.num_outputs = sum(spec.choices)

    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        """Draw by the exponential race: argmax of logits minus log of exponential noise."""
        noise = torch.empty_like(outputs).exponential_(generator=generator)
        return self.mode(outputs - noise.log())

    def mode(self, outputs: Tensor) -> Tensor:
        """The component-wise argmax."""
        if self._is_single:
            return outputs.argmax(-1)
        return torch.stack([part.argmax(-1) for part in torch.split(outputs, self._choices, -1)], -1)

    def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the components, which are independent."""
        if self._is_single:
            return _categorical(outputs, actions)
        pairs = [
            _categorical(part, action)
            for part, action in zip(torch.split(outputs, self._choices, -1), actions.unbind(-1), strict=True)
        ]
        log_probs, entropies = zip(*pairs, strict=True)
        return torch.stack(log_probs).sum(0), torch.stack(entropies).sum(0)


class GaussianHead(nn.Module):
    """A diagonal Gaussian whose standard deviation does not depend on the observation."""

    def __init__(self, spec: ActionSpec, log_std_init: float) -> None:
        super().__init__()
        self.num_outputs = spec.num_components
        self.log_std = nn.Parameter(torch.full((spec.num_components,), log_std_init))

    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        """Mean plus scaled noise; the bounds are applied where the action meets the environment."""
        noise = torch.empty_like(outputs).normal_(generator=generator)
        return outputs + self.log_std.exp() * noise

    def mode(self, outputs: Tensor) -> Tensor:
        """The mean."""
        return outputs

    def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over the components, which are independent."""
        scaled = (actions - outputs) * (-self.log_std).exp()
        log_prob = (-0.5 * scaled.square() - self.log_std - HALF_LOG_TWO_PI).sum(-1)
        entropy = (0.5 + HALF_LOG_TWO_PI + self.log_std).sum().expand_as(log_prob)
        return log_prob, entropy


class ActorCritic(ObsNetwork):
    """Policy and value function: two perceptrons of one shape, evaluated as a pair."""

    def __init__(self, spaces: Spaces, layers: Layers, *, normalize_obs: bool, log_std_init: float) -> None:
        super().__init__(spaces.obs, layers, orthogonal=True)
        self.encoder = ObsPreprocessor(spaces.obs, normalize=normalize_obs)
        self.head: CategoricalHead | GaussianHead
        if spaces.action.kind is ActionKind.CONTINUOUS:
            self.head = GaussianHead(spaces.action, log_std_init)
        else:
            self.head = CategoricalHead(spaces.action)
        # Member 0 is the policy and member 1 the value, of which only the first output is read.
        num_inputs, num_outputs = self.num_features, self.head.num_outputs
        self.networks = EnsembleMLP(2, num_inputs, num_outputs, layers, output_gains=(0.01, 1.0))
        with torch.no_grad():  # where the last layer is wider than it is deep, its columns are not yet of gain 1
            value_output = self.networks.weights[-1][1, :, 0]
            value_output /= value_output.norm()

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """The policy's raw outputs [B, num_outputs] and the values [B]."""
        policy, value = self.networks(self.features(self.encoder(obs))).unbind(0)
        return policy, value[:, 0]


def _categorical(logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    log_probs = logits.log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    return -F.nll_loss(log_probs, actions, reduction="none"), entropy

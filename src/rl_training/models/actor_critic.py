"""The policy and value network of the on-policy algorithms, with one head for each kind of action.

A head reads the policy's raw outputs [B, num_outputs] as a distribution over model actions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.models.actions import masked
from rl_training.models.encoders import ObsNetwork, make_preprocessor
from rl_training.models.mlp import MLP, EnsembleMLP, MLPSpec
from rl_training.spaces.actions import ActionKind, ActionSpec
from rl_training.spaces.spec import Spaces

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
POLICY_PREFIX = "networks.policy."
VALUE_PREFIXES = ("networks.value.", "memories.1.")
"""Beginnings of the names of the parameters that are the value function's alone; a batched network has none."""
POLICY_GAIN, VALUE_GAIN = 0.01, 1.0
"""Gains of the orthogonal initialization of the output layers."""
BATCHED_NAME = re.compile(r"networks\.((weight|bias)_(\d{1,6})|layer_norms\.\d+\.(?:scale|offset))")


class CategoricalHead(nn.Module):
    """One categorical distribution for each discrete component of the action."""

    def __init__(self, spec: ActionSpec) -> None:
        super().__init__()
        self._choices = list(spec.choices)
        self._is_single = spec.kind is ActionKind.DISCRETE
        self.num_outputs = sum(spec.choices)

    def sample(self, outputs: Tensor, generator: torch.Generator) -> Tensor:
        """Sample by the Gumbel-max trick: argmax of logits minus the logarithm of exponential noise."""
        noise = torch.empty_like(outputs).exponential_(generator=generator)
        return self.mode(outputs - noise.log())

    def mode(self, outputs: Tensor) -> Tensor:
        """The component-wise argmax."""
        if self._is_single:
            return outputs.argmax(-1)
        return torch.stack(
            [part.argmax(-1) for part in torch.split(outputs, self._choices, -1)], -1
        )

    def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy [B], summed over the independent components."""
        if self._is_single:
            return _categorical(outputs, actions)
        pairs = [
            _categorical(part, action)
            for part, action in zip(
                torch.split(outputs, self._choices, -1), actions.unbind(-1), strict=True
            )
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
        """Mean plus scaled noise; actions are clipped to their bounds when executed."""
        noise = torch.empty_like(outputs).normal_(generator=generator)
        return outputs + self.log_std.exp() * noise

    def mode(self, outputs: Tensor) -> Tensor:
        """The mean."""
        return outputs

    def log_prob_and_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy [B], summed over the independent components."""
        scaled = (actions - outputs) * (-self.log_std).exp()
        log_prob = (-0.5 * scaled.square() - self.log_std - HALF_LOG_TWO_PI).sum(-1)
        entropy = (0.5 + HALF_LOG_TWO_PI + self.log_std).sum().expand_as(log_prob)
        return log_prob, entropy


class StackedPolicyAndValue(EnsembleMLP):
    """Policy and value function: two MLPs of equal shape, evaluated as one batched network.

    Member 0 is the policy; member 1 the value function, of which only the first output is used.
    """

    def __init__(self, num_inputs: int, num_outputs: int, spec: MLPSpec) -> None:
        super().__init__(2, num_inputs, num_outputs, spec, output_gains=(POLICY_GAIN, VALUE_GAIN))
        with (
            torch.no_grad()
        ):  # orthogonal initialization normalizes the columns of a tall layer only
            value_output = self.weights[-1][1, :, 0]
            value_output /= value_output.norm()

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """The policy's raw outputs [B, num_outputs] and the state values [B]."""
        policy, value = EnsembleMLP.forward(self, features).unbind(0)
        return policy, value[:, 0]


class PolicyAndValue(nn.Module):
    """Policy and value function: two MLPs, each with its own hidden layers."""

    def __init__(
        self, num_inputs: int, num_outputs: int, policy_spec: MLPSpec, value_spec: MLPSpec
    ) -> None:
        super().__init__()
        self.policy = MLP(num_inputs, num_outputs, policy_spec, POLICY_GAIN)
        self.value = MLP(num_inputs, 1, value_spec, VALUE_GAIN)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """The policy's raw outputs [B, num_outputs] and the state values [B]; features [B, in], or [2, B, in]."""
        policy_features, value_features = (features, features) if features.dim() == 2 else features
        return self.policy(policy_features), self.value(value_features).squeeze(-1)


class ActorCritic(ObsNetwork):
    """Policy and value function of observations; both read the same CNN features.

    Without `value_spec` the value function has the hidden layers of the policy, and both are one batched network.
    """

    def __init__(
        self,
        spaces: Spaces,
        mlp_spec: MLPSpec,
        value_spec: MLPSpec | None = None,
        *,
        normalize_obs: bool,
        log_std_init: float,
        num_inputs: int | None = None,
    ) -> None:
        super().__init__(spaces.obs, mlp_spec, orthogonal=True)
        self.preprocessor = make_preprocessor(spaces.obs, normalize=normalize_obs)
        self.head: CategoricalHead | GaussianHead
        if spaces.action.kind is ActionKind.CONTINUOUS:
            self.head = GaussianHead(spaces.action, log_std_init)
        else:
            self.head = CategoricalHead(spaces.action)
        sizes = num_inputs or self.num_features, self.head.num_outputs
        self.networks: StackedPolicyAndValue | PolicyAndValue
        if value_spec is None:
            self.networks = StackedPolicyAndValue(*sizes, mlp_spec)
        else:
            self.networks = PolicyAndValue(*sizes, mlp_spec, value_spec)

    def forward(
        self,
        obs: Tensor,
        mask: Tensor | None = None,
        state: Tensor | None = None,
        starts: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The policy's raw outputs [B, num_outputs], invalid options masked, and the state values [B].

        `state` and `starts` are None: they are for a policy with memory.
        """
        inputs = obs if self.preprocessor is None else self.preprocessor(obs)
        outputs, values = self.networks(self.features(inputs))
        return outputs if mask is None else masked(outputs, mask), values

    def parameters_by_role(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """The policy's parameters, with those of shared features, and the value function's."""
        named = list(self.named_parameters())
        value = [one for name, one in named if name.startswith(VALUE_PREFIXES)]
        return [one for name, one in named if not name.startswith(VALUE_PREFIXES)], value


def split_networks(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Saved weights of an `ActorCritic` with a batched network, in the form of one with two networks.

    Other names and shapes stay as they are.
    """
    split = {}
    matches = {name: BATCHED_NAME.fullmatch(name) for name in weights}
    layers = [int(match[3]) for match in matches.values() if match and match[3]]
    for name, tensor in weights.items():
        match = matches[name]
        is_batched = tensor.dim() == 3 and len(tensor) == 2
        if match is None or not is_batched:
            split[name] = tensor
            continue
        kind, layer = match[2], match[3]
        policy, value = tensor.mT if kind == "weight" else tensor.squeeze(1)
        if layer is not None and int(layer) == max(layers):
            value = value[:1]  # of the last layer, only the first output is the value
        split[f"{POLICY_PREFIX}{match[1]}"] = policy
        split[f"{VALUE_PREFIXES[0]}{match[1]}"] = value
    return split


def _categorical(logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    log_probs = logits.log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    if actions.dim() > 1:  # sequences
        return log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1), entropy
    return -F.nll_loss(log_probs, actions, reduction="none"), entropy

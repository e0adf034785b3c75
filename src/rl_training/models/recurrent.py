"""The policy and value network with memory, of the on-policy algorithms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rl_training.models.actions import masked
from rl_training.models.actor_critic import ActorCritic
from rl_training.models.memory import EnsembleMemory, MemorySpec
from rl_training.models.mlp import MLPSpec
from rl_training.spaces.spec import Spaces


class RecurrentActorCritic(ActorCritic):
    """Policy and value function, each with its own memory between the observation's features and its MLP.

    `forward` takes sequences; `step` one observation per environment. Both memories are one batched network, unless
    policy and value function are two networks.
    """

    def __init__(
        self,
        spaces: Spaces,
        mlp_spec: MLPSpec,
        value_spec: MLPSpec | None = None,
        *,
        memory: MemorySpec,
        **options: Any,
    ) -> None:
        super().__init__(spaces, mlp_spec, value_spec, num_inputs=memory.size, **options)
        sizes = [2] if value_spec is None else [1, 1]
        self.memories = nn.ModuleList(
            EnsembleMemory(count, self.num_features, memory, mlp_spec.generator) for count in sizes
        )

    @property
    def state_size(self) -> int:
        """Length of a state row."""
        return sum(self._state_sizes())

    def initial_state(self, count: int) -> Tensor:
        """The state at the start of an episode, zeros [count, state_size]."""
        return torch.zeros(count, self.state_size, device=next(self.parameters()).device)

    def forward(
        self, obs: Tensor, mask: Tensor | None = None, state: Tensor | None = None, starts: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The policy's raw outputs [S, L, num_outputs] and values [S, L] of sequences [S, L, ...].

        `state` [S, state_size] is the state before the first step of each sequence; `starts` [S, L] marks the steps
        at which another episode begins.
        """
        assert state is not None
        outputs, values, _ = self._remember(obs.transpose(0, 1), state, None if starts is None else starts.T)
        outputs = outputs.transpose(0, 1)
        return outputs if mask is None else masked(outputs, mask), values.T

    def step(self, obs: Tensor, state: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """The policy's raw outputs [B, num_outputs], values [B] and the next state for observations [B, ...]."""
        outputs, values, next_state = self._remember(obs.unsqueeze(0), state, None)
        return masked(outputs[0], mask), values[0], next_state

    def next_values(self, obs: Tensor, state: Tensor, next_obs: Tensor) -> Tensor:
        """Values [B] of the observations that follow `obs`, before which the state was `state`."""
        return self.step(next_obs, self.step(obs, state)[2])[1]

    def _remember(self, obs: Tensor, state: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs [L, B, num_outputs], values [L, B] and the last state for observations [L, B, ...]."""
        length, batch = obs.shape[:2]
        flat = obs.flatten(0, 1)
        features = self.features(flat if self.preprocessor is None else self.preprocessor(flat))
        inputs = features.unflatten(0, (length, batch))
        states = torch.split(state, self._state_sizes(), 1)
        pairs = [memory(inputs, part, starts) for memory, part in zip(self.memories, states, strict=True)]
        remembered = torch.cat([outputs for outputs, _ in pairs])  # [2, L, B, size]
        outputs, values = self.networks(remembered.flatten(1, 2))
        next_state = torch.cat([part for _, part in pairs], 1)
        return outputs.unflatten(0, (length, batch)), values.unflatten(0, (length, batch)), next_state

    def _state_sizes(self) -> list[int]:
        return [memory.state_size for memory in self.memories]  # type: ignore[misc]

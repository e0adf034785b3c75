"""Recurrent memory, LSTM or GRU, as one batched network, and the policy and value network that has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rl_training.models.actions import masked
from rl_training.models.actor_critic import ActorCritic
from rl_training.models.mlp import MLPSpec
from rl_training.spaces.spec import Spaces

MemoryKind = Literal["lstm", "gru"]
NUM_GATES: dict[MemoryKind, int] = {"lstm": 4, "gru": 3}


@dataclass(frozen=True)
class MemorySpec:
    """Kind and size of a memory."""

    kind: MemoryKind
    size: int


class EnsembleMemory(nn.Module):
    """E memories, each [B, in] to [B, size] per step; initialized and computed like torch's LSTM and GRU.

    The state of all members is one row per sequence, [B, state_size]; zeros at the start of an episode.
    """

    input_weight: Tensor
    recurrent_weight: Tensor
    bias: Tensor
    recurrent_bias: Tensor

    def __init__(
        self, num_members: int, num_inputs: int, spec: MemorySpec, generator: torch.Generator
    ) -> None:
        super().__init__()
        self._spec = spec
        self._num_members = num_members
        width, bound = NUM_GATES[spec.kind] * spec.size, spec.size**-0.5
        shapes = {
            "input_weight": num_inputs,
            "recurrent_weight": spec.size,
            "bias": 1,
            "recurrent_bias": 1,
        }
        if spec.kind == "lstm":
            del shapes["recurrent_bias"]  # it would be added to the other bias
        for name, rows in shapes.items():
            values = torch.empty(num_members, rows, width).uniform_(
                -bound, bound, generator=generator
            )
            self.register_parameter(name, nn.Parameter(values))

    @property
    def state_size(self) -> int:
        """Length of a state row: the hidden vectors of all members, for an LSTM their cells too."""
        return self._num_members * self._spec.size * (2 if self._spec.kind == "lstm" else 1)

    def forward(
        self, inputs: Tensor, state: Tensor, starts: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Outputs [E, L, B, size] for inputs [L, B, in], and the state after the last step.

        `state` [B, state_size] is the state before the first step; where `starts` [L, B], it is zeros.
        """
        length, batch, _ = inputs.shape
        flat = inputs.reshape(1, length * batch, -1).expand(self._num_members, -1, -1)
        projected = torch.baddbmm(self.bias, flat, self.input_weight).view(
            -1, length, batch, self.bias.shape[-1]
        )
        hidden, *cell = self._unpack(state)
        outputs = []
        for t in range(length):
            if starts is not None:
                not_start = (~starts[t]).to(hidden.dtype).unsqueeze(-1)
                hidden, cell = hidden * not_start, [part * not_start for part in cell]
            hidden, cell = self._step(projected[:, t], hidden, cell)
            outputs.append(hidden)
        return torch.stack(outputs, 1), torch.cat([hidden, *cell]).transpose(0, 1).flatten(1)

    def _unpack(self, state: Tensor) -> tuple[Tensor, ...]:
        """Hidden vectors, and for an LSTM cells, [E, B, size] each."""
        rows = state.view(len(state), -1, self._spec.size).transpose(0, 1)
        return torch.split(rows, self._num_members)

    def _step(
        self, projected: Tensor, hidden: Tensor, cell: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """One step from projected inputs [E, B, gates * size]."""
        if self._spec.kind == "lstm":
            gates = torch.baddbmm(projected, hidden, self.recurrent_weight)
            input_gate, forget_gate, candidate, output_gate = gates.chunk(4, -1)
            memory = forget_gate.sigmoid() * cell[0] + input_gate.sigmoid() * candidate.tanh()
            return output_gate.sigmoid() * memory.tanh(), [memory]
        recurrent = torch.baddbmm(self.recurrent_bias, hidden, self.recurrent_weight)
        (reset, update, new), (reset_h, update_h, new_h) = (
            projected.chunk(3, -1),
            recurrent.chunk(3, -1),
        )
        keep = (update + update_h).sigmoid()
        candidate = (new + (reset + reset_h).sigmoid() * new_h).tanh()
        return candidate + keep * (hidden - candidate), []


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
        self,
        obs: Tensor,
        mask: Tensor | None = None,
        state: Tensor | None = None,
        starts: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The policy's raw outputs [S, L, num_outputs] and values [S, L] of sequences [S, L, ...].

        `state` [S, state_size] is the state before the first step of each sequence; `starts` [S, L] marks the steps
        at which another episode begins.
        """
        assert state is not None
        outputs, values, _ = self._remember(
            obs.transpose(0, 1), state, None if starts is None else starts.T
        )
        outputs = outputs.transpose(0, 1)
        return outputs if mask is None else masked(outputs, mask), values.T

    def step(
        self, obs: Tensor, state: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The policy's raw outputs [B, num_outputs], values [B] and the next state for observations [B, ...]."""
        outputs, values, next_state = self._remember(obs.unsqueeze(0), state, None)
        return masked(outputs[0], mask), values[0], next_state

    def next_values(self, obs: Tensor, state: Tensor, next_obs: Tensor) -> Tensor:
        """Values [B] of the observations that follow `obs`, before which the state was `state`."""
        return self.step(next_obs, self.step(obs, state)[2])[1]

    def _remember(
        self, obs: Tensor, state: Tensor, starts: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs [L, B, num_outputs], values [L, B] and the last state for observations [L, B, ...]."""
        length, batch = obs.shape[:2]
        flat = obs.flatten(0, 1)
        features = self.features(flat if self.preprocessor is None else self.preprocessor(flat))
        inputs = features.unflatten(0, (length, batch))
        states = torch.split(state, self._state_sizes(), 1)
        pairs = [
            memory(inputs, part, starts) for memory, part in zip(self.memories, states, strict=True)
        ]
        remembered = torch.cat([outputs for outputs, _ in pairs])  # [2, L, B, size]
        outputs, values = self.networks(remembered.flatten(1, 2))
        next_state = torch.cat([part for _, part in pairs], 1)
        return (
            outputs.unflatten(0, (length, batch)),
            values.unflatten(0, (length, batch)),
            next_state,
        )

    def _state_sizes(self) -> list[int]:
        return [memory.state_size for memory in self.memories]  # type: ignore[misc]

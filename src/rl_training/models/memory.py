"""Recurrent memory, LSTM or GRU: several of equal shape as one batched network, over single steps or sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

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

    def __init__(self, num_members: int, num_inputs: int, spec: MemorySpec, generator: torch.Generator) -> None:
        super().__init__()
        self._spec = spec
        self._num_members = num_members
        width, bound = NUM_GATES[spec.kind] * spec.size, spec.size**-0.5
        shapes = {"input_weight": num_inputs, "recurrent_weight": spec.size, "bias": 1, "recurrent_bias": 1}
        if spec.kind == "lstm":
            del shapes["recurrent_bias"]  # it would be added to the other bias
        for name, rows in shapes.items():
            values = torch.empty(num_members, rows, width).uniform_(-bound, bound, generator=generator)
            self.register_parameter(name, nn.Parameter(values))

    @property
    def state_size(self) -> int:
        """Length of a state row: the hidden vectors of all members, for an LSTM their cells too."""
        return self._num_members * self._spec.size * (2 if self._spec.kind == "lstm" else 1)

    def forward(self, inputs: Tensor, state: Tensor, starts: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Outputs [E, L, B, size] for inputs [L, B, in], and the state after the last step.

        `state` [B, state_size] is the state before the first step; where `starts` [L, B], it is zeros.
        """
        length, batch, _ = inputs.shape
        flat = inputs.reshape(1, length * batch, -1).expand(self._num_members, -1, -1)
        projected = torch.baddbmm(self.bias, flat, self.input_weight).view(-1, length, batch, self.bias.shape[-1])
        hidden, *cell = self._unpack(state)
        outputs = []
        for t in range(length):
            if starts is not None:
                goes_on = (~starts[t]).to(hidden.dtype).unsqueeze(-1)
                hidden, cell = hidden * goes_on, [part * goes_on for part in cell]
            hidden, cell = self._step(projected[:, t], hidden, cell)
            outputs.append(hidden)
        return torch.stack(outputs, 1), torch.cat([hidden, *cell]).transpose(0, 1).flatten(1)

    def _unpack(self, state: Tensor) -> tuple[Tensor, ...]:
        """Hidden vectors, and for an LSTM cells, [E, B, size] each."""
        rows = state.view(len(state), -1, self._spec.size).transpose(0, 1)
        return torch.split(rows, self._num_members)

    def _step(self, projected: Tensor, hidden: Tensor, cell: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """One step from projected inputs [E, B, gates * size]."""
        if self._spec.kind == "lstm":
            gates = torch.baddbmm(projected, hidden, self.recurrent_weight)
            enter, keep, new, out = gates.chunk(4, -1)
            memory = keep.sigmoid() * cell[0] + enter.sigmoid() * new.tanh()
            return out.sigmoid() * memory.tanh(), [memory]
        recurrent = torch.baddbmm(self.recurrent_bias, hidden, self.recurrent_weight)
        (reset, update, new), (reset_h, update_h, new_h) = projected.chunk(3, -1), recurrent.chunk(3, -1)
        keep = (update + update_h).sigmoid()
        candidate = (new + (reset + reset_h).sigmoid() * new_h).tanh()
        return candidate + keep * (hidden - candidate), []

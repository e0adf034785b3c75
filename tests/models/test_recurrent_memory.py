"""The batched memory against torch's LSTM and GRU with the same weights, member by member."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rl_training.models.memory import EnsembleMemory, MemoryKind, MemorySpec

NUM_INPUTS, SIZE, LENGTH, BATCH = 3, 5, 9, 4
for_both_kinds = pytest.mark.parametrize("kind", ["lstm", "gru"])
for_one_and_two_members = pytest.mark.parametrize("members", [1, 2])


def make(kind: MemoryKind, members: int) -> EnsembleMemory:
    return EnsembleMemory(
        members, NUM_INPUTS, MemorySpec(kind, SIZE), torch.Generator().manual_seed(0)
    )


def as_torch(memory: EnsembleMemory, kind: MemoryKind, member: int) -> nn.LSTM | nn.GRU:
    """Torch's network with the weights of one member."""
    network: nn.LSTM | nn.GRU = (nn.LSTM if kind == "lstm" else nn.GRU)(NUM_INPUTS, SIZE)
    recurrent_bias = torch.zeros(1) if kind == "lstm" else memory.recurrent_bias[member, 0]
    with torch.no_grad():
        network.weight_ih_l0.copy_(memory.input_weight[member].T)
        network.weight_hh_l0.copy_(memory.recurrent_weight[member].T)
        network.bias_ih_l0.copy_(memory.bias[member, 0])
        network.bias_hh_l0.copy_(recurrent_bias)
    return network


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def unpacked(state: Tensor, kind: MemoryKind, members: int) -> list[Tensor]:
    """Hidden vectors and cells, [members, B, size] each: a row holds all hidden vectors, then all cells."""
    parts = state.reshape(len(state), 2 if kind == "lstm" else 1, members, SIZE)
    return [parts[:, index].transpose(0, 1) for index in range(parts.shape[1])]


def run_torch(
    network: nn.LSTM | nn.GRU, inputs: Tensor, before: list[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Outputs [L, B, size] and the state parts after, from state parts [B, size]."""
    parts = [part.unsqueeze(0).contiguous() for part in before]
    outputs, after = network(inputs, tuple(parts) if len(parts) == 2 else parts[0])
    return outputs, [part[0] for part in (after if len(parts) == 2 else (after,))]


@for_both_kinds
@for_one_and_two_members
def test_sequences_and_their_gradients_equal_torch(kind: MemoryKind, members: int) -> None:
    memory, inputs = make(kind, members), random(LENGTH, BATCH, NUM_INPUTS)
    state = random(BATCH, memory.state_size, seed=2)
    outputs, after = memory(inputs, state)
    assert outputs.shape == (members, LENGTH, BATCH, SIZE)
    assert after.shape == state.shape
    weight = random(LENGTH, BATCH, SIZE, seed=3)
    (outputs * weight).sum().backward()
    befores, afters = unpacked(state, kind, members), unpacked(after, kind, members)
    for member in range(members):
        network = as_torch(memory, kind, member)
        expected, parts = run_torch(network, inputs, [part[member] for part in befores])
        torch.testing.assert_close(outputs[member], expected, rtol=0, atol=1e-6)
        for part, wanted in zip(afters, parts, strict=True):
            torch.testing.assert_close(part[member], wanted, rtol=0, atol=1e-6)
        (expected * weight).sum().backward()
        pairs = [
            (memory.input_weight, network.weight_ih_l0),
            (memory.recurrent_weight, network.weight_hh_l0),
            (memory.bias, network.bias_ih_l0),
        ]
        for own, wanted in pairs + (
            [(memory.recurrent_bias, network.bias_hh_l0)] if kind == "gru" else []
        ):
            assert own.grad is not None
            assert wanted.grad is not None
            torch.testing.assert_close(
                own.grad[member], wanted.grad.t().view_as(own[member]), rtol=1e-5, atol=1e-5
            )


@for_both_kinds
@for_one_and_two_members
def test_an_episode_that_starts_within_a_sequence_begins_with_zeros(
    kind: MemoryKind, members: int
) -> None:
    memory, inputs = make(kind, members), random(LENGTH, BATCH, NUM_INPUTS)
    state = random(BATCH, memory.state_size, seed=2)
    starts = torch.zeros(LENGTH, BATCH, dtype=torch.bool)
    first_steps = {
        0: [],
        1: [0],
        2: [4],
        3: [3, 8],
    }  # of each sequence: none, its first, one and two within it
    for row, steps in first_steps.items():
        starts[steps, row] = True
    outputs, after = memory(inputs, state, starts)
    befores, afters = unpacked(state, kind, members), unpacked(after, kind, members)
    for member in range(members):
        network = as_torch(memory, kind, member)
        for row, steps in first_steps.items():
            parts, pieces = [part[member, row : row + 1] for part in befores], []
            for begin, end in zip([0, *steps], [*steps, LENGTH], strict=True):
                if begin in steps:
                    parts = [torch.zeros(1, SIZE)] * len(parts)
                if begin < end:
                    piece, parts = run_torch(network, inputs[begin:end, row : row + 1], parts)
                    pieces.append(piece)
            torch.testing.assert_close(
                outputs[member, :, row], torch.cat(pieces)[:, 0], rtol=0, atol=1e-6
            )
            for part, wanted in zip(afters, parts, strict=True):
                torch.testing.assert_close(part[member, row], wanted[0], rtol=0, atol=1e-6)


@for_both_kinds
@for_one_and_two_members
def test_single_steps_that_pass_the_state_on_equal_one_sequence(
    kind: MemoryKind, members: int
) -> None:
    memory, inputs = make(kind, members), random(LENGTH, BATCH, NUM_INPUTS)
    state = torch.zeros(BATCH, memory.state_size)
    expected, last = memory(inputs, state)
    for t in range(LENGTH):
        outputs, state = memory(inputs[t : t + 1], state)
        torch.testing.assert_close(outputs[:, 0], expected[:, t], rtol=0, atol=1e-6)
    torch.testing.assert_close(state, last, rtol=0, atol=1e-6)


@for_both_kinds
def test_initial_weights_are_uniform_within_torchs_bound(kind: MemoryKind) -> None:
    memory = EnsembleMemory(2, 40, MemorySpec(kind, 64), torch.Generator().manual_seed(0))
    for parameter in memory.parameters():
        assert parameter.abs().max() <= 64**-0.5
        assert parameter.std().item() == pytest.approx(64**-0.5 / 3**0.5, rel=0.05)
    assert not torch.equal(memory.input_weight[0], memory.input_weight[1])

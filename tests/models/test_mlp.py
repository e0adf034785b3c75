"""MLPs against torch: activations, layer normalization, initialization, names of the parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rl_training.models.actor_critic import PolicyAndValue
from rl_training.models.mlp import MLP, Activation, EnsembleMLP, LayerNorm, MLPSpec

FUNCTIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "tanh": torch.tanh,
    "silu": F.silu,
    "gelu": F.gelu,
    "elu": F.elu,
}
SIZES = (5, 4)


def make_spec(
    activation: Activation = "tanh", *, layer_norm: bool = False, sizes: tuple[int, ...] = SIZES
) -> MLPSpec:
    return MLPSpec(sizes, activation, torch.Generator().manual_seed(0), layer_norm)


def shaken(module: torch.nn.Module) -> torch.nn.Module:
    """Scales and offsets that differ from 1 and 0, and between the members."""
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    return module


def inputs(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


def reference(
    state: dict[str, Tensor], x: Tensor, activation: Activation, member: int | None = None
) -> Tensor:
    """The network again, by functions of torch; of a member of an ensemble, whose weights are [in, out]."""
    own = state if member is None else {name: tensor[member] for name, tensor in state.items()}
    last = sum(name.startswith("weight_") for name in own) - 1
    for layer in range(last + 1):
        weight, bias = own[f"weight_{layer}"], own[f"bias_{layer}"]
        x = F.linear(x, weight if member is None else weight.T, bias.flatten())
        if layer == last:
            return x
        if f"layer_norms.{layer}.scale" in own:
            scale, offset = (
                own[f"layer_norms.{layer}.{name}"].flatten() for name in ("scale", "offset")
            )
            x = F.layer_norm(x, x.shape[-1:], scale, offset)
        x = FUNCTIONS[activation](x)
    raise AssertionError


def gradients(network: torch.nn.Module, output: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(output.square().sum(), list(network.parameters())))


@pytest.mark.parametrize("layer_norm", [False, True], ids=["plain", "layer_norm"])
@pytest.mark.parametrize("activation", get_args(Activation))
class TestForwardAndGradient:
    def test_of_one_network_equal_torch(self, activation: Activation, layer_norm: bool) -> None:
        network = shaken(MLP(3, 2, make_spec(activation, layer_norm=layer_norm)))
        x = inputs(7, 3)
        expected = reference(dict(network.named_parameters()), x, activation)
        torch.testing.assert_close(network(x), expected)
        torch.testing.assert_close(gradients(network, network(x)), gradients(network, expected))

    def test_of_every_member_of_an_ensemble_equal_torch(
        self, activation: Activation, layer_norm: bool
    ) -> None:
        network = shaken(EnsembleMLP(3, 3, 2, make_spec(activation, layer_norm=layer_norm)))
        x, state = inputs(7, 3), dict(network.named_parameters())
        expected = torch.stack([reference(state, x, activation, member) for member in range(3)])
        torch.testing.assert_close(network(x), expected)
        torch.testing.assert_close(network(x.expand(3, -1, -1).contiguous()), expected)
        torch.testing.assert_close(gradients(network, network(x)), gradients(network, expected))
        assert isinstance(network, EnsembleMLP)
        for member in range(3):
            torch.testing.assert_close(network.member(member, x), expected[member])


def test_layer_normalization_equals_a_hand_worked_row() -> None:
    norm = LayerNorm(2)
    norm.scale.data.copy_(torch.tensor([2.0, 3.0]))
    norm.offset.data.copy_(torch.tensor([10.0, 20.0]))
    # The row (1, 5) has mean 3 and standard deviation 2, and becomes (-1, 1).
    torch.testing.assert_close(
        norm(torch.tensor([[1.0, 5.0]])), torch.tensor([[8.0, 23.0]]), atol=1e-4, rtol=0
    )


def test_layer_normalization_adds_parameters_and_changes_no_other() -> None:
    for make in (
        lambda spec: MLP(3, 2, spec),
        lambda spec: EnsembleMLP(2, 3, 2, spec, output_gains=(0.01, 1.0)),
    ):
        plain, normalized = make(make_spec()), make(make_spec(layer_norm=True))
        names = [f"{kind}_{layer}" for layer in range(3) for kind in ("weight", "bias")]
        assert list(plain.state_dict()) == names
        added = [
            f"layer_norms.{layer}.{name}" for layer in range(2) for name in ("scale", "offset")
        ]
        assert list(normalized.state_dict()) == names + added
        for name in names:
            assert torch.equal(plain.state_dict()[name], normalized.state_dict()[name])
        assert len(normalized.weights) == len(normalized.biases) == 3


def test_separate_policy_and_value_networks_are_orthogonal_with_their_gains() -> None:
    networks = PolicyAndValue(9, 3, make_spec(sizes=(8, 6)), make_spec(sizes=(7,)))
    for network, gains in (
        (networks.policy, (2**0.5, 2**0.5, 0.01)),
        (networks.value, (2**0.5, 1.0)),
    ):
        for weight, gain in zip(network.weights, gains, strict=True):
            torch.testing.assert_close(
                weight @ weight.T, gain**2 * torch.eye(len(weight)), atol=1e-5, rtol=1e-4
            )
        assert not any(bias.any() for bias in network.biases)
    outputs, values = networks(inputs(5, 9))
    assert outputs.shape == (5, 3)
    assert values.shape == (5,)
    assert networks.value.weights[-1].shape == (1, 7)

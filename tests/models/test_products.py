"""Layers multiplied by oneDNN equal those multiplied by BLAS, to rounding; a run keeps the library it began with."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rl_training.algorithms.compiling import compiled
from rl_training.errors import CheckpointError
from rl_training.models import products
from rl_training.models.mlp import MLP, EnsembleMLP, MLPSpec
from rl_training.models.products import is_available, linear, products_by
from rl_training.runtime import execution
from rl_training.runtime.execution import Execution, faster_products

pytestmark = pytest.mark.skipif(not is_available("onednn"), reason="torch was built without oneDNN")
SPEC = MLPSpec((128, 128), "relu", torch.Generator().manual_seed(0))


def gradients(x: Tensor, network: torch.nn.Module) -> list[Tensor]:
    """The output of a network, and the gradients of a loss by the input and by every parameter."""
    output = network(x)
    loss = (output * torch.linspace(-1.0, 1.0, output.numel()).view(output.shape)).sum()
    return [output, *torch.autograd.grad(loss, [x, *network.parameters()])]


@pytest.fixture
def every_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "SMALLEST_WORK", 0)


@pytest.mark.usefixtures("every_product")
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("num_members", [0, 2, 3])
def test_a_network_has_the_same_outputs_and_gradients(num_members: int, layer_norm: bool) -> None:
    spec = MLPSpec((128, 96), "relu", torch.Generator().manual_seed(0), layer_norm)
    network = EnsembleMLP(num_members, 7, 3, spec) if num_members else MLP(7, 3, spec)
    x = torch.randn(40, 7, generator=spec.generator, requires_grad=True)
    expected = gradients(x.double().detach().requires_grad_(), network.double())
    network.float()
    with products_by("onednn"):
        found = gradients(x, network)
        with torch.no_grad():
            assert torch.equal(network(x), found[0])
            if num_members:
                alone = network.member(1, x)  # type: ignore[operator]
                torch.testing.assert_close(alone, found[0][1], rtol=1e-5, atol=1e-5)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("every_product")
def test_each_member_has_inputs_of_its_own() -> None:
    network = EnsembleMLP(2, 7, 3, SPEC)
    x = torch.randn(2, 40, 7, requires_grad=True)
    expected = gradients(x, network)
    with products_by("onednn"):
        found = gradients(x, network)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("every_product")
def test_inputs_and_gradients_may_be_views() -> None:
    rows = torch.randn(40, 3, 64)
    x, weight = rows[:, 1, :].requires_grad_(), torch.randn(32, 64, requires_grad=True)
    found = []
    for library in ("blas", "onednn"):
        with products_by(library):  # type: ignore[arg-type]
            output = linear(x, weight, torch.zeros(32))
            found.append([output, *torch.autograd.grad(output.sum(), [x, weight])])
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


class Loss:
    """A loss with its gradient, as an update computes them."""

    def __init__(self) -> None:
        self.weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
        self.weight.requires_grad_()

    def step(self, x: Tensor) -> tuple[Tensor, ...]:
        hidden = torch.relu(linear(x, self.weight, torch.zeros(64)))
        loss = linear(hidden, self.weight, torch.zeros(64)).square().mean()
        return (loss.detach(), *torch.autograd.grad(loss, [self.weight]))


@pytest.mark.usefixtures("every_product")
def test_a_compiled_step_multiplies_with_it_too() -> None:
    x, loss = torch.randn(32, 64, generator=torch.Generator().manual_seed(2)), Loss()
    expected = loss.step(x)
    with products_by("onednn"):
        graph = compiled(loss.step, enabled=True)
        torch.testing.assert_close(graph(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        (torch.ones(2, 64), torch.ones(64, 64)),  # too small to gain
        (torch.ones(512, 128, dtype=torch.float64), torch.ones(128, 128, dtype=torch.float64)),
    ],
)
def test_small_and_double_products_stay_with_blas(
    x: Tensor, weight: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_product", None)
    with products_by("onednn"):
        assert linear(x, weight, torch.zeros(len(weight), dtype=x.dtype)).sum() == x.sum() * len(
            weight
        )


@pytest.mark.parametrize(
    ("vendor", "capability", "limit", "expected"),
    [
        ("AuthenticAMD", "AVX512", None, "onednn"),
        ("AuthenticAMD", "AVX512", "AVX2", "blas"),
        ("AuthenticAMD", "AVX2", None, "blas"),
        ("GenuineIntel", "AVX512", None, "blas"),
        ("", "NO AVX", None, "blas"),
    ],
)
def test_the_processor_decides(
    vendor: str, capability: str, limit: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "processor_field", lambda name: vendor)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    if limit is not None:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert faster_products() == expected


def test_a_checkpoint_without_the_entry_is_of_a_run_with_blas() -> None:
    saved = {"num_threads": 1, "compile": False}
    assert Execution.from_metadata(saved) == Execution(1, False, "blas")
    assert Execution.from_metadata({**saved, "products": "onednn"}).products == "onednn"
    with pytest.raises(CheckpointError, match="products"):
        Execution.from_metadata({**saved, "products": "other"})

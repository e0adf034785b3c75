"""Matrix products of the networks' layers, by the faster of the two libraries that torch brings.

torch multiplies float32 matrices with its BLAS, on x86 Intel's MKL. On processors of other makers MKL does not use
AVX-512 and reaches half of the speed of oneDNN, which torch brings for other types (benchmarks/products.py). The
library changes the last bits of a product, so a run's choice is part of its checkpoints.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

Library = Literal["blas", "onednn"]
LIBRARIES: tuple[str, ...] = get_args(Library)
SMALLEST_WORK = 3_000_000
"""Multiplications of one product below which calling oneDNN costs more than it saves."""

_library: Library = "blas"


@contextlib.contextmanager
def products_by(library: Library) -> Iterator[None]:
    """Multiply with this library inside the block."""
    global _library
    before, _library = _library, library
    try:
        yield
    finally:
        _library = before


def is_available(library: Library) -> bool:
    """Whether this build of torch can multiply float32 matrices with the library."""
    return library == "blas" or (
        torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """One layer: x [B, in], weight [out, in] and bias [out] give [B, out]."""
    if not is_for_onednn(x, weight):
        return F.linear(x, weight, bias)
    if not torch.is_grad_enabled():
        return _product(x, weight, bias)
    output: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return output


def is_for_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether `linear` multiplies these by oneDNN; weights of several networks, [E, in, out], count one by one."""
    return (
        _library == "onednn"
        and x.shape[-2] * weight.shape[-2] * weight.shape[-1] >= SMALLEST_WORK
        and x.dtype is torch.float32
        and x.device.type == "cpu"
    )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The matrix product of x and the transposed weight, plus bias."""
    is_traced = torch.compiler.is_compiling()
    product: Tensor = (_traced_product if is_traced else _onednn_product)(x, weight, bias)
    return product


def _onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _traced_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
    """The same for the compiler, which takes an operator of oneDNN itself for a product with constant weights."""
    return torch.ops.rl_training.product(x, weight, bias)


_operators: Any = torch.library.Library("rl_training", "DEF")  # type: ignore[no-untyped-call]
_operators.define("product(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
_operators.impl("product", _onednn_product, "CPU")
_operators.impl("product", lambda x, weight, bias: x.new_empty(len(x), len(weight)), "Meta")


class _Linear(torch.autograd.Function):
    """`linear` with the products of its gradient by the same library."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        gradient = (
            gradient.contiguous()
        )  # oneDNN takes no expanded tensors, such as the gradient of a sum
        for_x, for_weight, _ = ctx.needs_input_grad
        return (
            _product(gradient, weight.t()) if for_x else None,
            _product(gradient.t(), x.t()) if for_weight else None,
            gradient.sum(0) if for_weight else None,
        )

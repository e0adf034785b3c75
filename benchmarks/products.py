"""Matrix products of the networks' layers by torch's BLAS and by oneDNN, with their gradients, on one thread.

    python benchmarks/products.py            # a minute; writes the table of docs/speed.md

Counted is processor time, the best of many short turns. `models/products.py` takes oneDNN from about 3 million
multiplications on, and only where the table of the processor says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from pages import write_block
from speed import PAGE

from rl_training.models import products
from rl_training.runtime.execution import faster_products

SHAPES = (
    (64, 64, 64),
    (256, 64, 64),
    (64, 256, 256),
    (256, 256, 256),
    (256, 400, 300),
    (1024, 256, 256),
    (256, 512, 512),
)


def microseconds(call: Callable[[], object]) -> float:
    """Processor time of a call: the best of 12 turns."""
    best = float("inf")
    for _ in range(12):
        started = time.process_time()
        for _ in range(100):
            call()
        best = min(best, (time.process_time() - started) / 100)
    return best * 1e6


def measure(batch: int, inputs: int, outputs: int) -> tuple[float, float, float, float]:
    """Forward, and forward with gradients, by BLAS and by oneDNN."""
    x, weight = torch.randn(batch, inputs), torch.randn(outputs, inputs)
    bias, gradient = torch.zeros(outputs), torch.randn(batch, outputs)
    tensors = [tensor.requires_grad_() for tensor in (x, weight, bias)]

    def forward() -> None:
        with torch.no_grad():
            products.linear(x, weight, bias)

    def both() -> None:
        torch.autograd.grad(products.linear(x, weight, bias), tensors, gradient)

    found = []
    for call in (forward, both):
        for library in ("blas", "onednn"):
            with products.products_by(library):  # type: ignore[arg-type]
                found.append(microseconds(call))
    return found[0], found[1], found[2], found[3]


def main() -> None:
    torch.set_num_threads(1)
    products.SMALLEST_WORK = 0
    lines = [
        "| batch x inputs x outputs | BLAS, µs | oneDNN, µs | ratio | with gradients: BLAS | oneDNN | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for shape in SHAPES:
        one, two, three, four = measure(*shape)
        cells = [f"{one:.0f}", f"{two:.0f}", f"{one / two:.2f}", f"{three:.0f}", f"{four:.0f}"]
        lines.append(
            f"| {' x '.join(map(str, shape))} | {' | '.join(cells)} | {three / four:.2f} |"
        )
    capability = torch.backends.cpu.get_cpu_capability()
    lines += ["", f"One thread, {capability}; this package takes `{faster_products()}` here."]
    write_block(PAGE, "products", lines)


if __name__ == "__main__":
    main()

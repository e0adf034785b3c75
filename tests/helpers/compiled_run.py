"""A compiled update in a process of its own: prints the losses it computes, or the named error that stopped it."""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

from rl_training.algorithms import compiling
from rl_training.algorithms.optim import Adam, descend
from rl_training.errors import CompilationError


class Regression:
    """A linear network that learns to predict `y` from `x`."""

    def __init__(self, num_inputs: int) -> None:
        self.network = nn.Linear(num_inputs, 1)
        nn.init.ones_(self.network.weight)
        nn.init.zeros_(self.network.bias)
        self.optimizer = Adam(self.network.parameters())
        self.optimizer.set_learning_rate(0.1)

    def stateful_members(self) -> dict[str, object]:
        return {"network": self.network, "optimizer": self.optimizer}

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        loss = (torch.tanh(self.network(x)).squeeze(1) - y).square().mean()
        descend(loss, self.optimizer)
        return loss.detach()


if __name__ == "__main__":
    if sys.argv[1] == "one-folder":  # as if every machine had the same name for its kernels
        compiling._cache_folder = lambda: "rl_training-shared"
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(256, 70, generator=generator), torch.randn(256, generator=generator)
    step = compiling.compiled(Regression(70).step, True)
    try:
        print(*(f"{step(x, y).item():.6f}" for _ in range(3)))
    except CompilationError as error:
        print(error)

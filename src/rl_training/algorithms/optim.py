"""Adam, gradient steps and Polyak updates, in a form that runs eagerly and inside a compiled graph.

The functions of torch that are private (`_fused_adam_`, `_fused_adamw_`, `_foreach_norm`, `_foreach_lerp_`) are called
here only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.algorithms.config import Schedule


class Adam:
    """Adam (Kingma & Ba, algorithm 1) over a fixed list of parameters, with a constant or scheduled learning rate.

    With `weight_decay` it is AdamW (Loshchilov & Hutter 2019): each step first multiplies every parameter by
    1 - learning_rate * weight_decay.

    `torch.optim.Adam` spends more time in Python than the step takes at the sizes used here, and cannot be traced
    together with the loss. The moments, the step count and the learning rate are tensors for the same reason.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        learning_rate: float | Schedule | None = None,
        *,
        eps: float = 1e-8,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
    ) -> None:
        self.parameters: list[Tensor] = list(parameters)
        self.schedule = learning_rate if isinstance(learning_rate, Schedule) else None
        self._constant = learning_rate if isinstance(learning_rate, (int, float)) else None
        self._eps = eps
        self._beta1, self._beta2 = betas
        self._weight_decay = weight_decay
        self._first = [torch.zeros_like(p) for p in self.parameters]
        self._second = [torch.zeros_like(p) for p in self.parameters]
        device = self.parameters[0].device
        self._step = torch.zeros((), device=device)
        self._learning_rate = torch.zeros((), device=device)
        if self._constant is not None:
            self.set_learning_rate(self._constant)

    def set_learning_rate(self, value: float) -> None:
        """Set the learning rate of the next steps."""
        self._learning_rate.fill_(value)

    def follow_schedule(self, progress: float) -> None:
        """Set the learning rate to its schedule's value when `progress` of training is done; a constant stays."""
        if self.schedule is not None:
            self.set_learning_rate(self.schedule.at(progress))

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], scale: Tensor | None = None) -> None:
        """Update the parameters with the gradients, each multiplied by `scale`."""
        self._step += 1.0
        if torch.compiler.is_compiling():
            self._step_by_formula(gradients, scale)
            return
        step = torch._fused_adamw_ if self._weight_decay else torch._fused_adam_
        step(
            self.parameters,
            [gradient.contiguous() for gradient in gradients],  # the kernel walks raw memory
            self._first,
            self._second,
            [],
            [self._step] * len(self.parameters),
            lr=self._learning_rate,
            beta1=self._beta1,
            beta2=self._beta2,
            weight_decay=self._weight_decay,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
            grad_scale=None if scale is None else scale.reciprocal(),
        )

    def _step_by_formula(self, gradients: Sequence[Tensor], scale: Tensor | None = None) -> None:
        """The same step in elementary operations, which the compiler fuses."""
        # 1 - beta^step, in the form that keeps its precision while beta^step is close to 1.
        first_correction = -torch.expm1(self._step * _log(self._beta1))
        second_correction = -torch.expm1(self._step * _log(self._beta2))
        for parameter, gradient, first, second in zip(
            self.parameters, gradients, self._first, self._second, strict=True
        ):
            gradient = gradient if scale is None else gradient * scale
            if self._weight_decay:
                parameter.mul_(1.0 - self._learning_rate * self._weight_decay)
            first.lerp_(gradient, 1.0 - self._beta1)
            second.lerp_(gradient.square(), 1.0 - self._beta2)
            denominator = (second / second_correction).sqrt() + self._eps
            parameter.sub_(self._learning_rate * (first / first_correction) / denominator)

    def state_dict(self) -> dict[str, Any]:
        """Moments, step count and learning rate."""
        return {
            "first": list(self._first),
            "second": list(self._second),
            "step": self._step,
            "learning_rate": self._learning_rate,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, into the same tensors; a constant learning rate stays as configured."""
        for own, saved in zip(
            [*self._first, *self._second], [*state["first"], *state["second"]], strict=True
        ):
            if own.shape != saved.shape:
                raise ValueError(
                    f"a moment of shape {tuple(saved.shape)} does not fit {tuple(own.shape)}"
                )
            own.copy_(saved)
        self._step.copy_(state["step"])
        if self._constant is None:
            self._learning_rate.copy_(state["learning_rate"])


class JointAdam:
    """Optimizers that step together on one loss, whose gradient is clipped as a whole; each has its learning rate."""

    def __init__(self, *optimizers: Adam) -> None:
        self.optimizers = optimizers

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters of all of them."""
        return [parameter for optimizer in self.optimizers for parameter in optimizer.parameters]

    def step(self, gradients: Sequence[Tensor], scale: Tensor | None = None) -> None:
        """Update the parameters with the gradients, each multiplied by `scale`."""
        start = 0
        for optimizer in self.optimizers:
            end = start + len(optimizer.parameters)
            optimizer.step(gradients[start:end], scale)
            start = end


def descend(
    loss: Tensor, optimizer: Adam | JointAdam, max_grad_norm: float | None = None
) -> Tensor:
    """Take one optimizer step on `loss` and return the gradient norm before clipping."""
    gradients = torch.autograd.grad(loss, optimizer.parameters)
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    scale = None if max_grad_norm is None else (max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
    optimizer.step(gradients, scale)
    return norm


@torch.no_grad()
def polyak(source: nn.Module, target: nn.Module, tau: float) -> None:
    """Polyak update of the target network: target += tau * (source - target), parameter by parameter."""
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), tau)


def _log(beta: float) -> float:
    return math.log(beta) if beta else -math.inf

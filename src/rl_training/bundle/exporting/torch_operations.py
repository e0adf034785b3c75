"""The operations of a bundle in torch, for its exporter to ONNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_training.models.actions import masked


def _one_hot(x: Tensor, choices: list[int], start: list[int]) -> Tensor:
    index = x.reshape(x.shape[0], len(start)) - torch.tensor(start)
    columns = [(index[:, n : n + 1] == torch.arange(count)).float() for n, count in enumerate(choices)]
    return torch.cat(columns, 1)


def _normalize(x: Tensor, mean: Tensor, scale: Tensor, limit: float) -> Tensor:
    return ((x - mean) * scale).clamp(-limit, limit)


def _image(x: Tensor, plane: list[int], channels_last: bool) -> Tensor:
    x = x.movedim(-1, -3) if channels_last else x
    return x.to(torch.float32).reshape(x.shape[0], -1, *plane)


def _layer_norm(x: Tensor, scale: Tensor, offset: Tensor, epsilon: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], scale, offset, epsilon)


def _lstm(
    x: Tensor, state: Tensor, input_weight: Tensor, recurrent_weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    hidden, cell = state.chunk(2, 1)
    enter, keep, new, out = (x @ input_weight + bias + hidden @ recurrent_weight).chunk(4, 1)
    cell = keep.sigmoid() * cell + enter.sigmoid() * new.tanh()
    hidden = out.sigmoid() * cell.tanh()
    return hidden, torch.cat([hidden, cell], 1)


def _gru(
    x: Tensor, state: Tensor, input_weight: Tensor, recurrent_weight: Tensor, bias: Tensor, recurrent_bias: Tensor
) -> tuple[Tensor, Tensor]:
    reset, update, new = (x @ input_weight + bias).chunk(3, 1)
    reset_h, update_h, new_h = (state @ recurrent_weight + recurrent_bias).chunk(3, 1)
    candidate = (new + (reset + reset_h).sigmoid() * new_h).tanh()
    hidden = candidate + (update + update_h).sigmoid() * (state - candidate)
    return hidden, hidden.clone()


def _dueling(x: Tensor, width: int) -> Tensor:
    parts = x.reshape(x.shape[0], -1, width)
    value, advantages = parts[:, :1], parts[:, 1:]
    return (value + advantages - advantages.mean(1, keepdim=True)).flatten(1)


def _categorical_mean(x: Tensor, support: Tensor) -> Tensor:
    return (x.reshape(x.shape[0], -1, support.shape[0]).softmax(-1) * support).sum(-1)


def _argmax(x: Tensor, choices: list[int]) -> Tensor:
    return torch.stack([part.argmax(-1) for part in torch.split(x, choices, -1)], -1)


def _clip(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(x.double(), low), high)


def _cast(x: Tensor, shape: list[int], dtype: str) -> Tensor:
    return x.reshape(x.shape[0], *shape).to(getattr(torch, dtype))


TORCH_OPERATIONS: dict[str, Callable[..., Any]] = {
    "flatten": lambda x: (x[:, None] if x.dim() == 1 else x).to(torch.float32).flatten(1),
    "one_hot": _one_hot,
    "scale": lambda x, factor: x * factor,
    "concat": lambda *parts: torch.cat(parts, 1),
    "normalize": _normalize,
    "image": _image,
    "conv2d": lambda x, weight, bias, stride: F.conv2d(x, weight, bias, stride),
    "linear": lambda x, weight, bias: F.linear(x, weight, bias),
    "layer_norm": _layer_norm,
    "batch_norm": lambda x, scale, offset: x * scale + offset,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "silu": F.silu,
    "gelu": F.gelu,
    "elu": F.elu,
    "lstm": _lstm,
    "gru": _gru,
    "dueling": _dueling,
    "quantile_mean": lambda x, width: x.reshape(x.shape[0], -1, width).mean(-1),
    "categorical_mean": _categorical_mean,
    "mask": masked,
    "argmax": _argmax,
    "offset": lambda x, start: x + torch.tensor(start),
    "to_bounds": lambda x, low, high: low + (x + 1.0) * 0.5 * (high - low),
    "clip": _clip,
    "cast": _cast,
}
"""Function of each operation of `rl_training.bundle.operations`: its inputs, then its settings by name."""

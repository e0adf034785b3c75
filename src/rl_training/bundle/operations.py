"""The operations of a policy in NumPy: each builder checks its settings, tensors and shapes once, when a bundle loads.

A builder takes the settings of the operation and the shapes of its inputs, and returns a function of batches and the
shape of its output. Shapes are of one observation; arrays have the batch dimension in front.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from rl_training.bundle.reading import MAX_CHOICES, Array, Settings, count
from rl_training.bundle.spaces import ACTION_DTYPES
from rl_training.errors import BundleError, EnvError

INVALID = float(np.finfo(np.float32).min)
"""Value of an action that a mask forbids."""
MAX_STRIDE = 1024


@dataclass(frozen=True)
class Value:
    """Shape of one observation's part of a value, and its dtype."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def size(self) -> int:
        """Numbers per observation."""
        return count(self.shape)


Function = Callable[..., Any]
Built = tuple[Function, tuple[Value, ...]]
Builder = Callable[..., Built]


def _row(settings: Settings, value: Value) -> int:
    """Length of a value that must be a row of float32."""
    if len(value.shape) != 1 or value.dtype != "float32":
        raise BundleError(
            f"{settings.where}: the input is {value.dtype} {list(value.shape)}, not a row of float32"
        )
    return value.shape[0]


def _flatten(settings: Settings, x: Value) -> Built:
    size = x.size
    return lambda x: x.reshape(len(x), size).astype(np.float32, copy=False), (Value((size,)),)


def _one_hot(settings: Settings, x: Value) -> Built:
    choices = settings.sizes("choices", most=MAX_CHOICES)
    start = settings.starts("start")
    if x.dtype != "int64" or not len(choices) == len(start) == x.size:
        raise BundleError(f"{settings.where}: the input is not {len(choices)} categories")
    width = count((sum(choices),))
    counts, first = np.asarray(choices), np.cumsum([0, *choices[:-1]])

    def run(x: Array) -> Array:
        index = x.reshape(len(x), len(start)) - start
        if (index < 0).any() or (index >= counts).any():
            raise EnvError(
                f"the observation has a category outside of its space: {len(choices)} of {choices!s:.100}"
            )
        encoded = np.zeros((len(x), width), np.float32)
        np.put_along_axis(encoded, index + first, 1.0, 1)
        return encoded

    return run, (Value((width,)),)


def _of_rows(run: Function, *tensors: str, numbers: tuple[str, ...] = ()) -> Builder:
    """An operation on the numbers of a row, with tensors as long as the row, and numbers."""

    def build(settings: Settings, x: Value) -> Built:
        shape = (_row(settings, x),)
        given = [settings.tensor(key, shape) for key in tensors]
        factors = [np.float32(settings.number(key)) for key in numbers]
        return lambda x: run(x, *given, *factors), (x,)

    return build


def _concat(settings: Settings, *parts: Value) -> Built:
    width = sum(_row(settings, part) for part in parts)
    return lambda *parts: np.concatenate(parts, 1), (Value((count((width,)),)),)


def _normalize(x: Array, mean: Array, scale: Array, limit: np.float32) -> Any:
    return np.minimum(np.maximum((x - mean) * scale, -limit), limit)


def _image(settings: Settings, x: Value) -> Built:
    """Bytes of an image, or of a stack of images, as float32 [channels, height, width]."""
    is_last, plane = settings.flag("channels_last"), settings.sizes("plane")
    moved = (*x.shape[:-3], *x.shape[-1:], *x.shape[-3:-1]) if is_last else x.shape
    if (
        x.dtype != "uint8"
        or len(plane) != 2
        or moved[-2:] != plane
        or (is_last and len(x.shape) < 3)
    ):
        raise BundleError(
            f"{settings.where}: the input is {x.dtype} {list(x.shape)}, not an image of that size"
        )
    shape = (x.size // count(plane), *plane)

    def run(x: Array) -> Array:
        x = np.moveaxis(x, -1, -3) if is_last else x
        return x.reshape(len(x), *shape).astype(np.float32)

    return run, (Value(shape),)


def _conv2d(settings: Settings, x: Value) -> Built:
    if len(x.shape) != 3 or x.dtype != "float32":
        raise BundleError(f"{settings.where}: the input is not float32 [channels, height, width]")
    weight = settings.tensor("weight", (None, x.shape[0], None, None))
    bias = settings.tensor("bias", (len(weight),))
    stride, kernel = settings.whole("stride", 1, MAX_STRIDE), weight.shape[2:]
    height, width = (
        (size - side) // stride + 1 for size, side in zip(x.shape[1:], kernel, strict=True)
    )
    if height < 1 or width < 1:
        raise BundleError(f"{settings.where}: the kernel is larger than the image")
    count((height * width, weight[0].size))  # the patches that the product reads
    flat = np.ascontiguousarray(weight.reshape(len(weight), -1).T)
    output = Value((len(weight), height, width))
    count(output.shape)
    return lambda x: conv2d(x, flat, bias, kernel, stride), (output,)


def _linear(settings: Settings, x: Value) -> Built:
    weight = settings.tensor("weight", (None, _row(settings, x)))
    bias = settings.tensor("bias", (len(weight),))
    transposed = np.ascontiguousarray(weight.T)
    return lambda x: x @ transposed + bias, (Value((len(weight),)),)


def _layer_norm(x: Array, scale: Array, offset: Array, epsilon: np.float32) -> Any:
    fraction = np.float32(1.0 / x.shape[1])
    x = x - np.add.reduce(x, 1, keepdims=True) * fraction
    variance = np.add.reduce(x * x, 1, keepdims=True) * fraction
    return x / np.sqrt(variance + epsilon) * scale + offset


def _gelu(x: Array) -> Array:
    erf = np.fromiter(map(math.erf, (x * math.sqrt(0.5)).ravel().tolist()), np.float32, x.size)
    return 0.5 * x * (1.0 + erf.reshape(x.shape))


def conv2d(x: Array, weight: Array, bias: Array, kernel: tuple[int, ...], stride: int) -> Array:
    """Convolve [B, C, H, W] with `weight` [C * kernel, out] as one product of patches (im2col)."""
    windows = sliding_window_view(x, kernel, (2, 3))[
        :, :, ::stride, ::stride
    ]  # [B, C, h, w, kernel]
    batch, _, height, width = windows.shape[:4]
    patches = windows.transpose(0, 2, 3, 1, 4, 5).reshape(batch * height * width, -1)
    product = patches @ weight + bias
    return product.reshape(batch, height, width, -1).transpose(0, 3, 1, 2)


def sigmoid(x: Array) -> Array:
    """The logistic function, without an exponential that overflows."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def lstm_step(
    x: Array, state: Array, weight: Array, recurrent: Array, bias: Array
) -> tuple[Array, Array]:
    """Output [B, size] and next state [B, 2 * size]: hidden vector and cell."""
    hidden, cell = np.split(state, 2, 1)
    input_gate, forget_gate, candidate, output_gate = np.split(
        x @ weight + bias + hidden @ recurrent, 4, 1
    )
    cell = sigmoid(forget_gate) * cell + sigmoid(input_gate) * np.tanh(candidate)
    hidden = sigmoid(output_gate) * np.tanh(cell)
    return hidden, np.concatenate([hidden, cell], 1)


def gru_step(
    x: Array, state: Array, weight: Array, recurrent: Array, bias: Array, recurrent_bias: Array
) -> tuple[Array, Array]:
    """Output [B, size], which is the next state too."""
    reset, update, new = np.split(x @ weight + bias, 3, 1)
    reset_h, update_h, new_h = np.split(state @ recurrent + recurrent_bias, 3, 1)
    candidate = np.tanh(new + sigmoid(reset + reset_h) * new_h)
    hidden = candidate + sigmoid(update + update_h) * (state - candidate)
    return hidden, hidden


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "tanh": np.tanh,
    "silu": lambda x: (
        0.5 * x * (1.0 + np.tanh(0.5 * x))
    ),  # x sigmoid(x), without an exponential that overflows
    "gelu": _gelu,
    "elu": lambda x: np.where(x > 0.0, x, np.expm1(np.minimum(x, 0.0))),
}


def _activation(name: str) -> Builder:
    def build(settings: Settings, x: Value) -> Built:
        if x.dtype != "float32":
            raise BundleError(f"{settings.where}: the input is {x.dtype}, not float32")
        return ACTIVATIONS[name], (x,)

    return build


def _memory(step: Function, num_gates: int, num_parts: int, *bias_keys: str) -> Builder:
    """A recurrent step: output and next state from the input and the state [hidden, or hidden and cell]."""

    def build(settings: Settings, x: Value, state: Value) -> Built:
        size = _row(settings, state) // num_parts
        weight = settings.tensor("input_weight", (_row(settings, x), num_gates * size))
        recurrent = settings.tensor("recurrent_weight", (size, num_gates * size))
        biases = [settings.tensor(key, (num_gates * size,)) for key in bias_keys]
        if state.shape != (num_parts * size,):
            raise BundleError(
                f"{settings.where}: the state has {state.shape[0]} numbers, not {num_parts * size}"
            )
        return lambda x, state: step(x, state, weight, recurrent, *biases), (Value((size,)), state)

    return build


def _groups(settings: Settings, x: Value, width: int) -> int:
    """Number of groups of `width` numbers, such as the quantiles of an action, in a row."""
    size = _row(settings, x)
    if size % width:
        raise BundleError(f"{settings.where}: {size} numbers are not groups of {width}")
    return size // width


def _dueling(settings: Settings, x: Value) -> Built:
    """State value plus advantages minus their mean (Wang et al. 2016, eq. 9); `width` numbers for each."""
    width = settings.whole("width", 1)
    num_actions = _groups(settings, x, width) - 1
    if num_actions < 1:
        raise BundleError(f"{settings.where}: {x.size} numbers are a value without advantages")

    def run(x: Array) -> Any:
        parts = x.reshape(len(x), -1, width)
        value, advantages = parts[:, :1], parts[:, 1:]
        return (value + advantages - advantages.mean(1, keepdims=True)).reshape(len(x), -1)

    return run, (Value((num_actions * width,)),)


def _quantile_mean(settings: Settings, x: Value) -> Built:
    width = settings.whole("width", 1)
    output = Value((_groups(settings, x, width),))
    return lambda x: x.reshape(len(x), -1, width).mean(-1), (output,)


def _categorical_mean(settings: Settings, x: Value) -> Built:
    """Mean of the distribution that the logits of each action give to the atoms of `support` (C51)."""
    support = settings.tensor("support", (None,))

    def run(x: Array) -> Any:
        logits = x.reshape(len(x), -1, len(support))
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        return (weights * support).sum(-1) / weights.sum(-1)

    return run, (Value((_groups(settings, x, len(support)),)),)


def _mask(settings: Settings, x: Value, mask: Value) -> Built:
    if _row(settings, x) != mask.size or mask.dtype != "bool":
        raise BundleError(
            f"{settings.where}: {x.size} values do not fit a mask of {mask.size} options"
        )
    return lambda x, mask: x if mask is None else np.where(mask, x, np.float32(INVALID)), (x,)


def _argmax(settings: Settings, x: Value) -> Built:
    """The largest value of each component, [components]."""
    choices = settings.sizes("choices", most=MAX_CHOICES)
    if not choices or sum(choices) != _row(settings, x):
        raise BundleError(
            f"{settings.where}: the options of {list(choices)!s:.100} are not the {x.size} values"
        )
    output = (Value((len(choices),), "int64"),)
    if len(choices) == 1:
        return lambda x: x.argmax(1)[:, None], output
    ends = np.cumsum(choices)[:-1]
    return lambda x: np.stack([part.argmax(1) for part in np.split(x, ends, 1)], 1), output


def _offset(settings: Settings, x: Value) -> Built:
    start = settings.starts("start")
    if x.dtype != "int64" or x.shape != start.shape:
        raise BundleError(f"{settings.where}: the input is not {len(start)} integers")
    return lambda x: x + start, (x,)


def _to_bounds(settings: Settings, x: Value) -> Built:
    """Map [-1, 1] onto the bounds."""
    shape = (_row(settings, x),)
    low, high = (settings.tensor(key, shape, "float64") for key in ("low", "high"))
    return lambda x: low + (x + 1.0) * 0.5 * (high - low), (Value(shape, "float64"),)


def _clip(settings: Settings, x: Value) -> Built:
    low, high = (
        settings.tensor(key, x.shape, "float64", may_be_infinite=True) for key in ("low", "high")
    )
    if x.dtype not in ("float32", "float64") or (low > high).any():
        raise BundleError(f"{settings.where}: the bounds do not fit the input")
    return lambda x: np.minimum(np.maximum(x, low), high), (Value(x.shape, "float64"),)


def _cast(settings: Settings, x: Value) -> Built:
    """The action in the shape and dtype of the environment's space."""
    shape, dtype = settings.sizes("shape"), settings.text("dtype", sum(ACTION_DTYPES.values(), ()))
    if count(shape) != x.size:
        raise BundleError(f"{settings.where}: {x.size} numbers do not have the shape {list(shape)}")
    return lambda x: x.reshape(len(x), *shape).astype(dtype, copy=False), (Value(shape, dtype),)


OPERATIONS: dict[str, tuple[int, Builder]] = {
    "flatten": (1, _flatten),
    "one_hot": (1, _one_hot),
    "scale": (1, _of_rows(lambda x, factor: x * factor, numbers=("factor",))),
    "concat": (-1, _concat),
    "normalize": (1, _of_rows(_normalize, "mean", "scale", numbers=("limit",))),
    "image": (1, _image),
    "conv2d": (1, _conv2d),
    "linear": (1, _linear),
    "layer_norm": (1, _of_rows(_layer_norm, "scale", "offset", numbers=("epsilon",))),
    "batch_norm": (1, _of_rows(lambda x, scale, offset: x * scale + offset, "scale", "offset")),
    **{name: (1, _activation(name)) for name in ACTIVATIONS},
    "lstm": (2, _memory(lstm_step, 4, 2, "bias")),
    "gru": (2, _memory(gru_step, 3, 1, "bias", "recurrent_bias")),
    "dueling": (1, _dueling),
    "quantile_mean": (1, _quantile_mean),
    "categorical_mean": (1, _categorical_mean),
    "mask": (2, _mask),
    "argmax": (1, _argmax),
    "offset": (1, _offset),
    "to_bounds": (1, _to_bounds),
    "clip": (1, _clip),
    "cast": (1, _cast),
}
"""Number of inputs (-1: one or more) and builder of each operation."""

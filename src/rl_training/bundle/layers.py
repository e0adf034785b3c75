"""The larger layers in NumPy: convolution by patches, and the steps of LSTM and GRU."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from rl_training.bundle.reading import Array


def conv2d(x: Array, weight: Array, bias: Array, kernel: tuple[int, ...], stride: int) -> Array:
    """Convolve [B, C, H, W] with `weight` [C * kernel, out] as one product of patches (im2col)."""
    windows = sliding_window_view(x, kernel, (2, 3))[:, :, ::stride, ::stride]  # [B, C, h, w, kernel]
    batch, _, height, width = windows.shape[:4]
    patches = windows.transpose(0, 2, 3, 1, 4, 5).reshape(batch * height * width, -1)
    product = patches @ weight + bias
    return product.reshape(batch, height, width, -1).transpose(0, 3, 1, 2)


def sigmoid(x: Array) -> Array:
    """The logistic function, without an exponential that overflows."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def lstm_step(x: Array, state: Array, weight: Array, recurrent: Array, bias: Array) -> tuple[Array, Array]:
    """Output [B, size] and next state [B, 2 * size]: hidden vector and cell."""
    hidden, cell = np.split(state, 2, 1)
    enter, keep, new, out = np.split(x @ weight + bias + hidden @ recurrent, 4, 1)
    cell = sigmoid(keep) * cell + sigmoid(enter) * np.tanh(new)
    hidden = sigmoid(out) * np.tanh(cell)
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

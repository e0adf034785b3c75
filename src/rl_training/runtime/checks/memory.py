"""Refuses networks, buffers and batches that do not fit into memory, before they are allocated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import pairwise
from math import prod

import torch

from rl_training.algorithms.config import HINDSIGHT, AlgorithmConfig
from rl_training.errors import ConfigError
from rl_training.memory import available_memory, describe_need
from rl_training.models.encoders import IMAGE_FEATURES, layer_sizes
from rl_training.replay.frame_replay import replay_bytes
from rl_training.replay.transitions import StepFields, storage_bytes
from rl_training.spaces.spec import Spaces

BYTES_OF_A_WEIGHT = 4 * 4
"""Float32 weight, gradient and the two moments of Adam."""

INDEX_BYTES = {"prioritized": 9, HINDSIGHT: 8}
"""Bytes per transition beside the transition itself: priority with sum-tree nodes; index in the episode."""


def check_replay_fits(
    spaces: Spaces,
    capacity: int,
    total_steps: int,
    kind: str = "uniform",
    fields: StepFields | None = None,
    key: str = "buffer_capacity",
) -> None:
    """Refuse a replay buffer that would exceed the available memory before the run ends."""
    count = min(capacity, total_steps)
    further = storage_bytes(spaces, count, fields) - storage_bytes(spaces, count)
    needed = replay_bytes(spaces, count) + further + INDEX_BYTES.get(kind, 0) * count
    _check_fits(needed, count, "replay", key)


def check_rollout_fits(spaces: Spaces, num_steps: int, num_envs: int, fields: StepFields | None = None) -> None:
    """Refuse a rollout of `num_steps` steps of every environment that exceeds the available memory."""
    count = num_steps * num_envs
    _check_fits(
        storage_bytes(spaces, count, fields), num_steps, f"rollout of {num_envs:,} x {num_steps:,}", "num_steps"
    )


def check_batch_fits(spaces: Spaces, batch_size: int) -> None:
    """Refuse a batch that exceeds the available memory."""
    _check_fits(storage_bytes(spaces, batch_size), batch_size, "batch", "batch_size")


def count_weights(config: AlgorithmConfig, spaces: Spaces) -> tuple[tuple[int, ...], int]:
    """Layer sizes of the largest network of the algorithm, and a lower bound of its number of weights."""
    return _largest_network(config, spaces)[1:]


def _largest_network(config: AlgorithmConfig, spaces: Spaces) -> tuple[str, tuple[int, ...], int]:
    """The key that sets its hidden layers, its layer sizes and a lower bound of its number of weights."""
    images = spaces.obs.image_shapes if config.network is None else ()
    inputs = spaces.obs.num_features + IMAGE_FEATURES * len(images)
    convolutions = sum(prod(size) for shape in images for size in layer_sizes(shape))
    actions = sum(spaces.action.choices) or spaces.action.num_components
    has_own_input = config.network is not None or getattr(config, "memory", None) is not None  # of a size unknown here
    found = []
    for place, (key, hidden_sizes) in enumerate(config.network_sizes().items()):
        sizes = (inputs, *hidden_sizes, 1 if place else actions)  # the first acts, the second is a critic
        if has_own_input:
            sizes = sizes[1:]
        found.append((key, sizes, convolutions + sum(fan_in * fan_out for fan_in, fan_out in pairwise(sizes))))
    return max(found, key=lambda network: network[-1])


@contextlib.contextmanager
def check_networks_fit(config: AlgorithmConfig, spaces: Spaces, device: torch.device) -> Iterator[None]:
    """Refuse networks that exceed the memory: on the CPU before they are created, elsewhere when allocation fails."""
    key, sizes, count = _largest_network(config, spaces)
    needed, available = count * BYTES_OF_A_WEIGHT, available_memory()
    remedy = f"set algo_kwargs.{key} smaller than {list(sizes[1:-1])}"
    if device.type == "cpu" and available is not None and needed > available:
        raise ConfigError(
            f"a network with layers of {', '.join(f'{size:,}' for size in sizes)} has {count:,} weights and"
            f" {describe_need(needed, available)} (weights, gradients and the two moments of Adam): {remedy}"
        )
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # on the CPU torch raises a RuntimeError
        if not isinstance(error, (MemoryError, torch.OutOfMemoryError)) and "memory" not in str(error):
            raise
        raise ConfigError(
            f"the networks do not fit into the memory of '{device}'; one has {count:,} weights, which"
            f" take {needed / 1e9:,.2f} GB with gradients and the two moments of Adam: {remedy}"
        ) from error


def _check_fits(needed: int, count: int, what: str, key: str) -> None:
    available = available_memory()
    if available is None or needed <= available:
        return
    largest = int(count * available / needed * 0.8)
    what = what if key == "num_steps" else f"{what} of {count:,}"
    remedy = f"set algo_kwargs.{key} to {largest:,} or less" if largest else "lower num_envs"
    raise ConfigError(f"a {what} transitions {describe_need(needed, available)}: {remedy}")


@contextlib.contextmanager
def translate_memory_errors() -> Iterator[None]:
    """Raise a failed allocation of a buffer as a `ConfigError` that names the settings to lower."""
    try:
        yield
    except (MemoryError, OverflowError, ValueError) as error:
        raise ConfigError(
            f"the buffer cannot be allocated ({error}): set algo_kwargs.buffer_capacity or algo_kwargs.num_steps lower"
        ) from None

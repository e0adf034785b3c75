"""Buffers and batches that cannot fit into memory are refused before they are filled."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rl_training.algorithms.config import HINDSIGHT
from rl_training.data.frame_replay import replay_bytes
from rl_training.data.memory import available_memory, describe_need
from rl_training.data.spaces import Spaces
from rl_training.data.transitions import storage_bytes
from rl_training.errors import ConfigError

INDEX_BYTES = {"prioritized": 9, HINDSIGHT: 8}
"""What a kind of replay keeps besides each transition: a priority with the sums above it; its place in its episode."""


def check_replay_fits(
    spaces: Spaces, capacity: int, total_steps: int, kind: str = "uniform", key: str = "buffer_capacity"
) -> None:
    """Refuse a replay buffer that would outgrow the memory before the run ends."""
    count = min(capacity, total_steps)
    _check_fits(replay_bytes(spaces, count) + INDEX_BYTES.get(kind, 0) * count, count, "replay", key)


def check_rollout_fits(spaces: Spaces, num_steps: int, num_envs: int) -> None:
    """Refuse a rollout of `num_steps` steps of every environment that the memory cannot hold."""
    count = num_steps * num_envs
    _check_fits(storage_bytes(spaces, count), num_steps, f"rollout of {num_envs:,} x {num_steps:,}", "num_steps")


def check_batch_fits(spaces: Spaces, batch_size: int) -> None:
    """Refuse a batch that no memory could hold."""
    _check_fits(storage_bytes(spaces, batch_size), batch_size, "batch", "batch_size")


def _check_fits(needed: int, count: int, what: str, key: str) -> None:
    available = available_memory()
    if available is None or needed <= available:
        return
    largest = int(count * available / needed * 0.8)
    what = what if key == "num_steps" else f"{what} of {count:,}"
    remedy = f"set algo_kwargs.{key} to {largest:,} or less" if largest else "lower num_envs"
    raise ConfigError(f"a {what} transitions {describe_need(needed, available)}: {remedy}")


@contextlib.contextmanager
def naming_lack_of_memory() -> Iterator[None]:
    """Say which setting asks for more than the system will promise."""
    try:
        yield
    except (MemoryError, OverflowError, ValueError) as error:
        raise ConfigError(
            f"the buffer cannot be made ({error}): set algo_kwargs.buffer_capacity or algo_kwargs.num_steps lower"
        ) from None

"""How much memory there is, so that a replay buffer that cannot fit is refused before it is filled."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from rl_training.data.frame_replay import replay_bytes
from rl_training.data.spaces import Spaces
from rl_training.data.transitions import storage_bytes
from rl_training.errors import ConfigError

CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def check_replay_fits(spaces: Spaces, capacity: int, total_steps: int) -> None:
    """Refuse a replay buffer that would outgrow the memory before the run ends."""
    count = min(capacity, total_steps)
    _check_fits(replay_bytes(spaces, count), count, "replay", "buffer_capacity")


def check_batch_fits(spaces: Spaces, batch_size: int) -> None:
    """Refuse a batch that no memory could hold."""
    _check_fits(storage_bytes(spaces, batch_size), batch_size, "batch", "batch_size")


def _check_fits(needed: int, count: int, what: str, key: str) -> None:
    available = available_memory()
    if available is not None and needed > available:
        raise ConfigError(
            f"a {what} of {count:,} transitions needs {needed / 1e9:,.2f} GB of memory and {available / 1e9:,.2f} GB"
            f" are free: set algo_kwargs.{key} to {int(count * available / needed * 0.8):,} or less"
        )


@contextlib.contextmanager
def naming_lack_of_memory() -> Iterator[None]:
    """Say which setting asks for more than the system will promise."""
    try:
        yield
    except (MemoryError, OverflowError, ValueError) as error:
        raise ConfigError(
            f"the buffer cannot be made ({error}): set algo_kwargs.buffer_capacity or algo_kwargs.num_steps lower"
        ) from None


def available_memory() -> int | None:
    """Bytes that can still be had, by the system and by the container's limit; None where it cannot be told."""
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) * 1024)
    for limit, usage in CGROUP_FILES:
        with contextlib.suppress(OSError, ValueError):
            found.append(int(Path(limit).read_text()) - int(Path(usage).read_text()))
    if not found:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return max(0, min(found)) if found else None

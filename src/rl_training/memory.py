"""Free memory, so that allocations that cannot fit are refused in advance."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from rl_training.errors import DatasetError

CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def available_memory() -> int | None:
    """Free memory in bytes, the smaller of the system's and the container's; None if unknown."""
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(
            int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) * 1024
        )
    for limit, usage in CGROUP_FILES:
        with contextlib.suppress(OSError, ValueError):
            found.append(int(Path(limit).read_text()) - int(Path(usage).read_text()))
    if not found:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return max(0, min(found)) if found else None


def describe_need(needed: int, available: int) -> str:
    """Text of needed and free memory."""
    return f"needs {needed / 1e9:,.2f} GB of memory and {available / 1e9:,.2f} GB are free"


def check_data_fits(needed: int, what: str, remedy: str) -> None:
    """Raise a `DatasetError` if `needed` bytes exceed the free memory."""
    available = available_memory()
    if available is not None and needed > available:
        raise DatasetError(f"{what} {describe_need(needed, available)}: {remedy}")

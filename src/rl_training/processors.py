"""Which processors there are, and how many this process may use."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def usable_processors() -> int:
    """Processors that this process may use: the fewest of affinity, the container's quota and OMP_NUM_THREADS."""
    found = [os.cpu_count() or 1]
    with contextlib.suppress(AttributeError, OSError):  # not on every system
        found.append(len(os.sched_getaffinity(0)))
    with contextlib.suppress(KeyError, ValueError):
        found.append(int(os.environ["OMP_NUM_THREADS"].split(",")[0]))
    return max(1, min([*found, *_quotas()]))


def processor_field(name: str) -> str:
    """A field of the first processor in /proc/cpuinfo; empty where there is none."""
    return _processor_fields().get(name, "")


@functools.cache
def _processor_fields() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    lines = [line.partition(":") for line in text.partition("\n\n")[0].splitlines()]
    return {key.strip(): value.strip() for key, _, value in lines}


def _quotas() -> Iterator[int]:
    """Processors that the control groups of this process allow, rounded up."""
    paths = [CGROUPS]
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            root = CGROUPS / "cpu" if "cpu" in controllers.split(",") else CGROUPS
            if "cpu" in controllers.split(",") or not controllers:
                own = root / name.lstrip("/")
                paths += [
                    own,
                    *(parent for parent in own.parents if parent.is_relative_to(CGROUPS)),
                ]
    for path in dict.fromkeys(paths):
        with contextlib.suppress(OSError, ValueError):
            quota, period = (path / "cpu.max").read_text().split()  # "max" is no number
            yield -(-int(quota) // int(period))
        with contextlib.suppress(OSError, ValueError):
            quota, period = (
                (path / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")
            )
            if int(quota) > 0:
                yield -(-int(quota) // int(period))

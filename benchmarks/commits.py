"""Training speed of two commits of this repository, in one run on one machine.

    python benchmarks/commits.py BEFORE                      # against the checked-out commit
    python benchmarks/commits.py BEFORE AFTER --repeats 5 sac_halfcheetah iql

Each commit is checked out into a temporary folder and runs its own speed worker (`speed_worker.py`, for offline
algorithms `offline_worker.py`) on one thread, eagerly. The commits take turns; each turn is a new process; the order
alternates between rounds. Printed are the median speed of each commit and the median, smallest and largest ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from speed import CASES, OFFLINE_CASES, ROOT


def measure(checkout: Path, case: str) -> float:
    """Steps (offline: updates) per second of one turn."""
    if case in OFFLINE_CASES:
        words = ["offline_worker.py", "speed", "ours", case, "1"]
    else:
        words = ["speed_worker.py", "ours", case, "1"]
    answer = subprocess.run(
        [sys.executable, str(checkout / "benchmarks" / words[0]), *words[1:]],
        env={**os.environ, "PYTHONPATH": str(checkout / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(json.loads(answer.stdout.splitlines()[-1])["steps_per_second"])


def compare(before: Path, after: Path, case: str, repeats: int) -> None:
    """Print the medians and ratios of one case."""
    speeds: dict[Path, list[float]] = {before: [], after: []}
    for turn in range(repeats):
        for checkout in (before, after) if turn % 2 == 0 else (after, before):
            speeds[checkout].append(measure(checkout, case))
    ratios = [new / old for old, new in zip(speeds[before], speeds[after], strict=True)]
    medians = [statistics.median(values) for values in speeds.values()]
    print(
        f"{case:16} {medians[0]:10,.1f} {medians[1]:10,.1f}  ratio {statistics.median(ratios):.3f}"
        f"  ({min(ratios):.3f} to {max(ratios):.3f})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", help="a commit")
    parser.add_argument("after", nargs="?", default="HEAD", help="another commit (default: HEAD)")
    parser.add_argument("cases", nargs="*", help="cases (default: all)")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        checkouts = [Path(folder) / "before", Path(folder) / "after"]
        for checkout, commit in zip(checkouts, (arguments.before, arguments.after), strict=True):
            subprocess.run(
                ["git", "worktree", "add", "-q", "--detach", checkout, commit], cwd=ROOT, check=True
            )
        try:
            print(f"{'case':16} {'before':>10} {'after':>10}")
            for case in arguments.cases or [*CASES, *OFFLINE_CASES]:
                compare(*checkouts, case, arguments.repeats)
        finally:
            for checkout in checkouts:
                subprocess.run(
                    ["git", "worktree", "remove", "--force", checkout], cwd=ROOT, check=True
                )


if __name__ == "__main__":
    main()

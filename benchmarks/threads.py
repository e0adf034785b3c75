"""What threads cost: SAC at 256x256 with one and two threads, on a quiet and on a busy machine.

    python benchmarks/threads.py            # a few minutes; let nothing else run

OpenMP's threads wait for each other by spinning (`active`), by sleeping (`passive`), or by spinning for a short time
and then sleeping, which is what the package sets. Beside other busy processes a spinning thread takes the processor
from the thread that it waits for. Each contender trains in a new
process, in alternating order, beside 0, 1 or 2 processes that only compute. Printed are steps per second (median of
the repeats) and the ratio to one thread under the same load.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

WORKER = Path(__file__).parent / "speed_worker.py"
CONTENDERS = {
    "1 thread": (1, {}),
    "2 threads": (2, {}),
    "2 active": (2, {"OMP_WAIT_POLICY": "ACTIVE"}),
    "2 passive": (2, {"OMP_WAIT_POLICY": "PASSIVE"}),
}
"""Number of threads, and variables; without any, the package's own way of waiting (`processors.py`)."""


def measure(case: str, threads: int, variables: dict[str, str], num_busy: int) -> float:
    """Steps per second of one turn beside `num_busy` busy processes."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(num_busy)]
    try:
        answer = subprocess.run(
            [sys.executable, str(WORKER), "ours", case, str(threads)],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        for process in busy:
            process.kill()
            process.wait()
    return float(json.loads(answer.stdout.splitlines()[-1])["steps_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", default="sac_halfcheetah")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    for num_busy in (0, 1, 2):
        speeds: dict[str, list[float]] = {name: [] for name in CONTENDERS}
        for turn in range(options.repeats):
            names = list(CONTENDERS) if turn % 2 == 0 else list(reversed(CONTENDERS))
            for name in names:
                speeds[name].append(measure(options.case, *CONTENDERS[name], num_busy))
        single = statistics.median(speeds["1 thread"])
        for name, values in speeds.items():
            median = statistics.median(values)
            print(
                f"{num_busy} busy  {name:10} {median:8.1f} steps/s  {median / single:5.2f} of one thread",
                flush=True,
            )


if __name__ == "__main__":
    main()

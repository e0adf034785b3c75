"""What a study costs over shell loops, and what its driver uses.

    python benchmarks/studies.py                # a few minutes; let nothing else run

Eight seeds of PPO on CartPole-v1, 20,000 steps each, two at a time: as `rl-training train --seeds 0..7 --jobs 2`, and
as two shell loops of four single commands each. The contenders alternate. Printed are the seconds of each turn, the
median ratio, and the processor time and the peak memory of the study's driver (its worker processes not counted).
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

NUM_SEEDS, NUM_LOOPS = 8, 2
TRAIN = [
    sys.executable,
    "-m",
    "rl_training",
    "train",
    "ppo",
    "CartPole-v1",
    "total_timesteps=20000",
    "-q",
]


def run_loops(folder: Path) -> float:
    """Seconds of two shell loops at once, each with half of the seeds."""
    start = time.monotonic()
    loops = []
    for number in range(NUM_LOOPS):
        seeds = " ".join(str(seed) for seed in range(number, NUM_SEEDS, NUM_LOOPS))
        text = f"for seed in {seeds}; do {shlex.join(TRAIN)} --seed $seed; done"
        loops.append(subprocess.Popen(["sh", "-c", text], cwd=folder, stdout=subprocess.DEVNULL))
    for loop in loops:
        assert loop.wait() == 0
    return time.monotonic() - start


class DriverWatch(threading.Thread):
    """Reads the processor time and the peak memory of a process from /proc while it lives."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.cpu_seconds, self.peak_bytes = 0.0, 0

    def run(self) -> None:
        ticks = os.sysconf("SC_CLK_TCK")
        while True:
            try:
                fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
                status = Path(f"/proc/{self.pid}/status").read_text()
            except OSError:
                return
            self.cpu_seconds = (int(fields[11]) + int(fields[12])) / ticks
            for line in status.splitlines():
                if line.startswith("VmHWM"):
                    self.peak_bytes = int(line.split()[1]) * 1024
            time.sleep(0.05)


def run_study(folder: Path) -> tuple[float, DriverWatch]:
    """Seconds of the study, and what its driver used."""
    start = time.monotonic()
    words = [*TRAIN, "--seeds", f"0..{NUM_SEEDS - 1}", "--jobs", str(NUM_LOOPS)]
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL)
    watch = DriverWatch(process.pid)
    watch.start()
    assert process.wait() == 0
    return time.monotonic() - start, watch


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    ratios = []
    for turn in range(parser.parse_args().repeats):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if turn % 2:
                loops = run_loops(folder)
                study, watch = run_study(folder)
            else:
                study, watch = run_study(folder)
                loops = run_loops(folder)
        ratios.append(study / loops)
        print(
            f"study {study:.1f} s, loops {loops:.1f} s, ratio {ratios[-1]:.3f};"
            f" driver {watch.cpu_seconds:.2f} s of processor ({watch.cpu_seconds / study:.1%} of a core),"
            f" {watch.peak_bytes / 1e6:.0f} MB",
            flush=True,
        )
    print(f"median ratio {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()

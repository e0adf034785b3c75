"""Peak memory of loading and training on 2 million transitions of 17+6 dimensions, as a multiple of the arrays.

    python benchmarks/offline_memory.py

Each kind of file is trained on (IQL, 200 updates) in a process of its own. What the same run takes on 2,000
transitions, which is Python and its libraries, is subtracted. Pages of a mapped file count as memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

RESULT = Path(__file__).parent / "results" / "offline_memory.json"
RUN = """
import sys
from pathlib import Path
from rl_training import TrainConfig
from rl_training.runtime.run import run_training

own = {"dataset_kind": sys.argv[1], "dataset_path": sys.argv[2], "hidden_sizes": [64, 64], "reward_scale": 0.5}
run_training(TrainConfig(algo="iql", total_timesteps=200, output_dir=Path(sys.argv[3]), algo_kwargs=own, num_threads=1))
status = Path("/proc/self/status").read_text()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
"""


def make_arrays(count: int) -> dict[str, Any]:
    """Random walks in episodes of 1,000 steps."""
    rng = np.random.default_rng(0)
    obs = np.cumsum(rng.normal(size=(count, 17)).astype(np.float32), 0, dtype=np.float32)
    next_obs = np.roll(obs, -1, 0)
    ends = np.arange(count) % 1000 == 999
    next_obs[ends] += 1.0
    return {
        "obs": obs,
        "actions": rng.uniform(-1, 1, (count, 6)).astype(np.float32),
        "rewards": rng.normal(size=count).astype(np.float32),
        "next_obs": next_obs,
        "terminated": np.zeros(count, np.bool_),
        "truncated": ends,
    }


def save(kind: str, path: Path, arrays: dict[str, Any]) -> None:
    if kind == "pt":
        import torch

        torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, path)
    else:
        (np.savez_compressed if kind == "npz, compressed" else np.savez)(path, **arrays)


def peak_bytes(kind: str, path: Path, folder: Path) -> int:
    command = [sys.executable, "-c", RUN, kind.split(",")[0], str(path), str(folder)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise SystemExit(answer.stderr[-3000:])
    return int(answer.stdout.split()[-1]) * 1024


def main() -> None:
    large, small = make_arrays(2_000_000), make_arrays(2_000)
    size = sum(array.nbytes for array in large.values())
    record: dict[str, Any] = {"bytes_of_arrays": size, "peak_over_arrays": {}}
    for kind in ("npz", "npz, compressed", "pt"):
        with tempfile.TemporaryDirectory() as folder:
            peaks = []
            for name, arrays in (("small", small), ("large", large)):
                path = Path(folder) / f"{name}.{kind.split(',')[0]}"
                save(kind, path, arrays)
                peaks.append(peak_bytes(kind, path, Path(folder)))
        record["peak_over_arrays"][kind] = round((peaks[1] - peaks[0]) / size, 3)
        print(kind, record["peak_over_arrays"][kind], flush=True)
    RESULT.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

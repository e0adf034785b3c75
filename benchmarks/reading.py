"""Which files and functions of the package one training step enters: what a reader opens to follow it.

    python benchmarks/reading.py            # SAC on Pendulum-v1 and PPO on CartPole-v1
    python benchmarks/reading.py --list     # with the functions by file

A training runs until it is warm; then one iteration is traced, from the end of one update to the end of the next: for
SAC one environment step and one update, for PPO one rollout and one update. Logging, evaluation and checkpoints fall
outside of it. Only code of `rl_training` counts; comprehensions and lambdas count as part of their function.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import rl_training
from rl_training import DefaultExperimentManager, TrainConfig

PACKAGE = Path(rl_training.__file__).parent
CASES: dict[str, dict[str, Any]] = {
    "sac": {"env_id": "Pendulum-v1", "algo_kwargs": {"learning_starts": 20, "batch_size": 16, "hidden_sizes": [16]}},
    "ppo": {"env_id": "CartPole-v1", "num_envs": 2, "algo_kwargs": {"num_steps": 8, "minibatch_size": 8}},
}
UPDATES_BEFORE = 10


class Tracer:
    """A callback that records every function of the package entered between two updates."""

    def __init__(self) -> None:
        self.entered: dict[str, set[str]] = defaultdict(set)
        self._updates = 0

    def on_update_end(self, trainer: Any, result: Any) -> None:
        self._updates += 1
        if self._updates == UPDATES_BEFORE:
            sys.setprofile(self._note)
        elif self._updates == UPDATES_BEFORE + 1:
            sys.setprofile(None)
            trainer.request_stop("traced")

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        code: CodeType = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(PACKAGE)):
            return
        name = code.co_qualname if hasattr(code, "co_qualname") else code.co_name
        if code.co_name.startswith("<"):  # a comprehension or a lambda
            return
        self.entered[str(Path(code.co_filename).relative_to(PACKAGE))].add(name)


def trace(algo: str) -> dict[str, set[str]]:
    """The functions by file."""
    tracer = Tracer()
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            algo=algo, total_timesteps=1000, output_dir=Path(folder), log_interval=1000, eval_episodes=1, **CASES[algo]
        )
        DefaultExperimentManager().setup(config, callbacks=[tracer]).train()
    return tracer.entered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="list the functions")
    arguments = parser.parse_args()
    for algo in CASES:
        entered = trace(algo)
        print(f"{algo}: {len(entered)} files, {sum(map(len, entered.values()))} functions")
        if arguments.list:
            for file, names in sorted(entered.items()):
                print(f"  {file}: {', '.join(sorted(names))}")


if __name__ == "__main__":
    main()

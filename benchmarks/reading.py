"""Which files and functions of the package one training step enters: what a reader opens to follow it.

    python benchmarks/reading.py            # SAC and PPO on Pendulum-v1
    python benchmarks/reading.py --run      # a whole run of SAC, from the configuration to the last checkpoint
    python benchmarks/reading.py --list     # with the functions by file

A training runs until it is warm; then one iteration is traced, from within one environment step to within the next
one after an update: for SAC one environment step and one update, for PPO one rollout and one update. Log lines,
evaluations, checkpoints and the ends of episodes fall outside of it. Only code of `rl_training` counts; comprehensions
and lambdas count as part of their function. Of a whole run the files of `experiment` and `runtime` are counted: what
lies between a configuration and its checkpoints beside environments, algorithm and networks.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import gymnasium as gym

import rl_training
from rl_training import DefaultExperimentManager, TrainConfig

PACKAGE = str(Path(rl_training.__file__).parent)
CASES: dict[str, dict[str, Any]] = {
    "sac": {"steps": 1, "algo_kwargs": {"learning_starts": 20, "hidden_sizes": [16]}},
    "ppo": {"steps": 16, "algo_kwargs": {"num_steps": 16, "minibatch_size": 8}},
}
STEPS_BEFORE = 160


class Tracer(gym.Wrapper[Any, Any, Any, Any]):
    """An environment that traces the package between two of its steps."""

    entered: ClassVar[dict[str, set[str]]] = {}
    steps_traced = 1
    is_done = False

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._count = 0

    def step(self, action: Any) -> Any:
        answer = self.env.step(action)
        self._count += 1
        if self._count == STEPS_BEFORE and not Tracer.is_done:
            Tracer.is_done = True  # the environments of evaluations are not traced
            sys.setprofile(note)
        elif self._count == STEPS_BEFORE + self.steps_traced:
            sys.setprofile(None)
        return answer


def note(frame: FrameType, event: str, _: Any) -> None:
    """Record the function that is entered."""
    code = frame.f_code
    if (
        event == "call"
        and code.co_filename.startswith(PACKAGE)
        and not code.co_name.startswith("<")
    ):
        name = getattr(code, "co_qualname", code.co_name)
        Tracer.entered[str(Path(code.co_filename).relative_to(PACKAGE))].add(name)


def trace(algo: str) -> dict[str, set[str]]:
    """The functions of one step with its update, by file."""
    case = CASES[algo]
    gym.register("Traced-v0", lambda: Tracer(gym.make("Pendulum-v1")), max_episode_steps=1000)
    Tracer.entered, Tracer.steps_traced, Tracer.is_done = defaultdict(set), case["steps"], False
    train(algo, "Traced-v0")
    del gym.registry["Traced-v0"]
    return Tracer.entered


def trace_run(algo: str) -> dict[str, set[str]]:
    """The functions of a whole run in `experiment` and `runtime`, by file."""
    train(algo, "Pendulum-v1")  # imports run code, too
    Tracer.entered = defaultdict(set)
    sys.setprofile(note)
    train(algo, "Pendulum-v1")
    sys.setprofile(None)
    return {
        file: names
        for file, names in Tracer.entered.items()
        if file.startswith(("experiment", "runtime"))
    }


def train(algo: str, env_id: str) -> None:
    """A short run with one log line, evaluation and checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            algo=algo,
            env_id=env_id,
            total_timesteps=320,
            output_dir=Path(folder),
            log_interval=320,
            checkpoint_interval=320,
            eval_episodes=1,
            algo_kwargs={**CASES[algo]["algo_kwargs"], "eval_interval": 320},
        )
        DefaultExperimentManager().setup(config).train()


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="list the functions")
    parser.add_argument("--run", action="store_true", help="trace a whole run")
    arguments = parser.parse_args()
    for algo in CASES:
        entered = trace_run(algo) if arguments.run else trace(algo)
        print(f"{algo}: {len(entered)} files, {sum(map(len, entered.values()))} functions")
        if arguments.list:
            for file, names in sorted(entered.items()):
                print(f"  {file}: {', '.join(sorted(names))}")


if __name__ == "__main__":
    main()

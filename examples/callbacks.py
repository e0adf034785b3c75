"""Callbacks: print what you want to see, stop at a target, save something of your own, write each log line elsewhere.

python examples/callbacks.py
rl-training train ppo CartPole-v1 --callback examples/callbacks.py:LongestEpisode    # the same on the command line
"""

import argparse
import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_training import PPO
from rl_training.runtime.trainer import CollectResult, TrainerState, TrainResult


class LongestEpisode:
    """Prints each new record. No base class is needed: methods with the names of events are called."""

    def __init__(self) -> None:
        self.longest = 0

    def on_collect_end(self, trainer: TrainerState, result: CollectResult) -> None:
        """Called after each collection, with the training episodes that ended in it."""
        longest = max(result.episode_lengths, default=0)
        if longest > self.longest:
            self.longest = int(longest)
            print(f"step {trainer.global_step:,}: a training episode of {self.longest} steps")

    # Both together put the record into every checkpoint: a resumed run knows it, and does not print it again.
    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint."""
        return {"longest": self.longest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """State from a checkpoint."""
        self.longest = state["longest"]


class StopAtTarget:
    """Ends the run when an evaluation reaches a return; for this alone, `early_stopping` needs no code."""

    def __init__(self, target: float) -> None:
        self.target, self.is_reached = target, False

    def on_eval_end(self, trainer: TrainerState, metrics: Mapping[str, float]) -> None:
        """Called after each evaluation. The run saves a checkpoint and ends at its next step boundary."""
        if metrics["eval_return_mean"] >= self.target:
            self.is_reached = True
            trainer.request_stop(f"eval return {metrics['eval_return_mean']:.1f}, target {self.target:g}")


class MetricsAsCsv:
    """Writes some columns of each log line as CSV, and at the end a summary, into the run folder."""

    COLUMNS = ("global_step", "train_return_mean", "entropy", "approx_kl")

    def on_log(self, trainer: TrainerState, metrics: Mapping[str, float]) -> None:
        """Called with each line of metrics.jsonl; appended, because a resumed run continues the file."""
        path = trainer.run_dir / "mine.csv"
        is_new = not path.exists()
        with path.open("a", newline="") as file:
            if is_new:
                csv.writer(file).writerow(self.COLUMNS)
            csv.writer(file).writerow([metrics.get(name) for name in self.COLUMNS])

    def on_train_end(self, trainer: TrainerState, result: TrainResult) -> None:
        """Called once the run is saved, also if it was stopped, but not if it failed."""
        summary = {"stop_reason": result.stop_reason, "gradient_steps": trainer.update_count, **result.metrics}
        (trainer.run_dir / "summary.json").write_text(json.dumps(summary, indent=2))


def main() -> None:
    """Train to a first target, then continue the same run to a second one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--total-timesteps", type=int, default=50_000)
    parser.add_argument("--output-dir", type=Path, default=Path("runs"))
    options = parser.parse_args()

    settings: dict[str, Any] = vars(options)  # total_timesteps and output_dir are settings of a run
    agent = PPO("CartPole-v1", eval_interval=2048, **settings)
    record, table = LongestEpisode(), MetricsAsCsv()
    for target in (150.0, 450.0):  # the second learn() continues where the first was stopped
        stop = StopAtTarget(target)
        result = agent.learn(callbacks=[record, stop, table], progress=False)
        print(f"stopped: {result.stop_reason or 'all steps are done'}")
        if not stop.is_reached or result.metrics["global_step"] >= options.total_timesteps:
            break  # Ctrl-C, which saves the run as a target does; or no step is left
    for name in ("mine.csv", "summary.json"):
        path = result.run_dir / name
        print(f"{len(path.read_text().splitlines())} lines in {path}")


if __name__ == "__main__":
    main()

"""Make the data sets of the offline study: random, medium, medium-replay, expert and medium-expert.

    python benchmarks/offline_datasets.py                   Pendulum-v1 and HalfCheetah-v5
    python benchmarks/offline_datasets.py Pendulum-v1       one of them

A SAC agent is trained to a medium step and then on to an expert step. *Medium* and *expert* are what its policy does
there, with noise of deviation 0.1; *medium-replay* is its replay buffer at the medium step, everything it had seen so
far; *random* are uniform actions; *medium-expert* is half of each. Files go to benchmarks/datasets/, their hashes and
returns to benchmarks/results/offline_datasets.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.data.dataset_loaders import mix_datasets, save_transition_dataset
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.recording import record_random_actions
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import record_checkpoint, resume_training
from rl_training.spaces.spec import Spaces

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks" / "datasets"
RECORD = ROOT / "benchmarks" / "results" / "offline_datasets.json"


@dataclass(frozen=True)
class Source:
    """How the agent of one environment is trained, and how much of it is recorded."""

    medium_step: int
    expert_step: int
    num_recorded: int
    algo_kwargs: dict[str, Any]


SOURCES = {
    "Pendulum-v1": Source(10_000, 30_000, 10_000, {"train_frequency": 4}),
    "HalfCheetah-v5": Source(40_000, 80_000, 40_000, {"learning_starts": 5_000}),
}


def make_datasets(env_id: str, source: Source) -> dict[str, TransitionDataset]:
    random = record_random_actions(env_id, {}, source.num_recorded, np.random.SeedSequence(0))
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            algo="sac",
            env_id=env_id,
            total_timesteps=source.medium_step,
            output_dir=Path(folder),
            num_threads=1,
            compile=True,
            algo_kwargs=source.algo_kwargs,
        )
        trained = run_training(config)
        replay = replay_of(trained.checkpoint_path)
        medium = record_checkpoint(
            trained.checkpoint_path, source.num_recorded, seed=1, noise=0.1
        ).dataset
        trained = resume_training(trained.run_dir, total_timesteps=source.expert_step)
        expert = record_checkpoint(
            trained.checkpoint_path, source.num_recorded, seed=2, noise=0.1
        ).dataset
    mixed = mix_datasets([medium, expert], [0.5, 0.5], 0)
    return {
        "random": random,
        "medium-replay": replay,
        "medium": medium,
        "medium-expert": mixed,
        "expert": expert,
    }


def replay_of(checkpoint: Path) -> TransitionDataset:
    """The replay buffer in a checkpoint of a run with one environment, as the environment saw it."""
    state = load_checkpoint(checkpoint)
    spaces = Spaces.from_state_dict(state.algorithm_state["spaces"])
    assert state.buffer_state is not None
    segments = [segment.arrays for segment in state.buffer_state["segments"]]
    fields = {
        name: np.concatenate([np.asarray(arrays[name])[:, 0] for arrays in segments])
        for name in segments[0]
    }
    fields["truncated"][-1] |= not fields["terminated"][
        -1
    ]  # the last episode ends where the recording does
    fields["actions"] = spaces.action.to_env(fields["actions"])
    return TransitionDataset.from_dict(fields)


def describe(dataset: TransitionDataset) -> dict[str, Any]:
    returns = np.asarray(dataset.episode_returns())
    return {
        "fingerprint": dataset.fingerprint,
        "transitions": len(dataset),
        "episodes": len(returns),
        "return_mean": round(float(returns.mean()), 1),
        "return_std": round(float(returns.std()), 1),
        "return_max": round(float(returns.max()), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("env_ids", nargs="*", default=list(SOURCES), metavar="ENV_ID")
    FOLDER.mkdir(exist_ok=True)
    for env_id in parser.parse_args().env_ids:
        for kind, dataset in make_datasets(env_id, SOURCES[env_id]).items():
            name = f"{env_id}-{kind}"
            path = FOLDER / f"{name}.npz"
            path.unlink(missing_ok=True)
            save_transition_dataset(path, dataset)
            record = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
            record[name] = describe(dataset)
            RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
            print(name, record[name], flush=True)


if __name__ == "__main__":
    main()

"""Device, seeds, folder and checkpoints of a run."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.errors import ConfigError, EnvError
from rl_training.experiment.checkpointing import CheckpointState, save_checkpoint
from rl_training.experiment.codec import UnsavableStateError
from rl_training.experiment.config import TrainConfig, serialize_train_config
from rl_training.experiment.run_folder import (
    TrainingRun,
    create_training_run,
    now,
    package_versions,
)
from rl_training.plugins.user_code import loaded_code

ENVIRONMENTS = ("trainer", "collector", "envs", "environments")
"""Path of the environment states in a checkpoint."""
VECTOR_STATE = ("trainer", "collector", "envs", "vector", "custom_state")
"""Path of the state of a user-defined vector environment."""

__all__ = [
    "RunSeeds",
    "TrainingRun",
    "create_training_run",
    "resolve_device",
    "save_training_checkpoint",
    "serialize_train_config",
    "translate_save_errors",
]


def resolve_device(device: str) -> torch.device:
    """The named device; `auto` is the first accelerator that can allocate memory, else the CPU."""
    if device != "auto":
        try:
            resolved = torch.device(device)
            torch.Generator(torch.zeros(1, device=resolved).device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"device '{device}' cannot be used: {reason}; use auto or cpu"
            ) from None
        return resolved
    for name, backend in (("cuda", torch.cuda), ("mps", torch.backends.mps)):
        with contextlib.suppress(RuntimeError, AssertionError):
            if backend.is_available():
                torch.zeros(1, device=name)
                return torch.device(name)
    return torch.device("cpu")


@dataclasses.dataclass(frozen=True)
class RunSeeds:
    """Independent seeds of the components of a run, spawned from one seed."""

    env: np.random.SeedSequence
    policy: np.random.SeedSequence
    replay: np.random.SeedSequence
    evaluation: np.random.SeedSequence
    data: np.random.SeedSequence

    @classmethod
    def from_seed(cls, seed: int) -> RunSeeds:
        """Spawn the five seeds."""
        return cls(*np.random.SeedSequence(seed).spawn(5))

    def env_seeds(self, num_envs: int) -> list[int]:
        """One seed for each training environment."""
        return [int(seed) for seed in self.env.generate_state(num_envs)]

    def eval_seeds(self, num_episodes: int) -> list[int]:
        """One seed for each evaluation episode."""
        return [int(seed) for seed in self.evaluation.generate_state(num_episodes)]

    def policy_generator(self, device: torch.device) -> torch.Generator:
        """Generator of initial weights, actions and noise."""
        return torch.Generator(device).manual_seed(
            int(self.policy.generate_state(1, np.uint64)[0] >> 1)
        )

    def replay_generator(self) -> np.random.Generator:
        """Generator that samples batches."""
        return np.random.default_rng(self.replay)


def save_training_checkpoint(
    path: str | Path,
    *,
    config: TrainConfig,
    algorithm_state: dict[str, Any],
    trainer_state: dict[str, Any],
    buffer_state: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
    base: Path | None = None,
    workspace: Path | None = None,
) -> Path:
    """Write a checkpoint for `load_checkpoint`; files unchanged since the checkpoint `base` are hard-linked.

    It is prepared in the folder `workspace` (default: beside `path`).
    """
    metadata = {
        "saved": now(),
        "versions": package_versions(),
        "plugins": loaded_code(),
        **(metadata or {}),
    }
    values = serialize_train_config(config)
    state = CheckpointState(algorithm_state, buffer_state, trainer_state, values, metadata)
    return save_checkpoint(path, state, base=base, workspace=workspace)


@contextlib.contextmanager
def translate_save_errors() -> Iterator[None]:
    """Raise an unsavable environment state as an `EnvError` that names the environment and the place in its state."""
    try:
        yield
    except UnsavableStateError as error:
        index = len(ENVIRONMENTS)
        if error.path[: len(VECTOR_STATE)] == VECTOR_STATE:
            place = "/".join(map(str, error.path[len(VECTOR_STATE) :]))
            raise EnvError(
                f"the vector environment cannot be saved: the return value of get_state() at '{place}' {error.problem}"
            ) from None
        if error.path[:index] != ENVIRONMENTS or len(error.path) < index + 2:
            raise
        env, part, *rest = error.path[index:]
        source = {"custom_state": "the return value of get_state()", "obs": "the observation"}.get(
            part, f"the {part}"
        )
        place = f" at '{'/'.join(map(str, rest))}'" if rest else ""
        raise EnvError(
            f"environment {env} cannot be saved: {source}{place} {error.problem}"
        ) from None

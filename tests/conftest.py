"""Shared set-up: one thread, quiet runs, and small configurations for every registered algorithm."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "helpers"))
# Two test processes share the processors: threads that wait by spinning would keep each other from working.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import pytest
import torch
import warm
from browser_tools import open_browser

from rl_training import TrainConfig
from rl_training.envs.factory import make_env
from rl_training.errors import EnvError
from rl_training.experiment.registry import Loop, get_algorithm_spec, list_algorithm_specs
from rl_training.replay.transitions import FIELDS, Transitions
from rl_training.spaces.observations import ObsSpec
from rl_training.spaces.spec import describe_spaces
from rl_training.testing.case import TEST_ENVS

TESTS = Path(__file__).parent
HELPERS = TESTS / "helpers"
SMALL: dict[Loop, dict[str, Any]] = {
    Loop.ON_POLICY: {
        "num_steps": 16,
        "minibatch_size": 16,
        "update_epochs": 2,
        "hidden_sizes": [8, 8],
    },
    Loop.OFF_POLICY: {
        "buffer_capacity": 500,
        "batch_size": 16,
        "learning_starts": 32,
        "train_frequency": 4,
        "gradient_steps": 2,
        "hidden_sizes": [8, 8],
    },
    Loop.OFFLINE: {
        "dataset_kind": "random",
        "dataset_size": 300,
        "batch_size": 16,
        "hidden_sizes": [8, 8],
    },
}
BOX_TESTED = ("sac", "bc", "cql")
"""Tested on Box actions although they also accept Discrete ones."""
FAULTY = ("ppo", "dqn", "sac", "iql")
"""One for each loop and each kind of action; the stored checkpoints of older versions are theirs."""
MEMORY, MIN_MEMORY_BYTES = Path("/dev/shm"), 4 << 30
TRY_ALL = bool(os.environ.get("RL_TRAINING_TEST_ALL"))


def pytest_configure() -> None:
    """Put temporary folders into memory, if it has room for them and programs in it may run (compiled graphs do).

    Runs sync their files again and again: waiting for a disk takes longer than training a small run.
    """
    warm.take_over_workers()
    if (
        not MEMORY.is_dir()
        or not os.access(MEMORY, os.W_OK)
        or os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    ):
        return
    if shutil.disk_usage(MEMORY).free > MIN_MEMORY_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_unconfigure() -> None:
    """Wait for the processes that tests started."""
    warm.close()


def algorithms_for_faults() -> list[str]:
    """The algorithms that the fault tests run: one for each loop. `RL_TRAINING_TEST_ALL=1`: all."""
    return [spec.name for spec in list_algorithm_specs()] if TRY_ALL else ["ppo", "sac", "iql"]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@functools.cache
def env_of(algo: str) -> str:
    """The environment that an algorithm is tested on."""
    algorithm_class = get_algorithm_spec(algo).algorithm_class()
    for env_id in TEST_ENVS[1:] if algo in BOX_TESTED else TEST_ENVS:
        env = make_env(env_id)
        with contextlib.closing(env), contextlib.suppress(EnvError):
            algorithm_class.check_spaces(describe_spaces(env.observation_space, env.action_space))
            return env_id
    raise LookupError(
        f"'{algo}' accepts the spaces of none of {', '.join(TEST_ENVS)}: add an environment that it accepts"
    )


def small_config(algo: str, output_dir: Path, **changes: Any) -> TrainConfig:
    """Configuration of a run that takes about a second."""
    spec = get_algorithm_spec(algo)
    small = {
        name: value
        for name, value in SMALL[spec.loop].items()
        if name in spec.config_class().model_fields
    }
    algo_kwargs = {**small, **changes.pop("algo_kwargs", {})}
    values: dict[str, Any] = {
        "algo": algo,
        "env_id": env_of(algo),
        "seed": 1,
        "total_timesteps": 128,
        "eval_episodes": 2,
        "output_dir": output_dir,
        "device": "cpu",
        "num_threads": 1,
        "compile": False,
        "algo_kwargs": algo_kwargs,
    }
    return TrainConfig(**{**values, **changes})


def as_observation(spec: ObsSpec, stored: np.ndarray) -> Any:
    """The observation whose stored form is `stored` [..., features]."""
    if not spec.leaves:
        return stored
    leading = stored.shape[:-1]
    shapes = {leaf.path[0]: leaf.shape for leaf in spec.leaves}
    return {
        name: stored[..., spec.columns(name)].reshape(*leading, *shape)
        for name, shape in shapes.items()
    }


def step_of(*values: Any) -> dict[str, Any]:
    """A step of every environment for a buffer: observations, actions, rewards, next observations, the two flags."""
    return dict(zip(FIELDS, values, strict=True))


def as_collected(algorithm: Any, rollout: Transitions) -> Transitions:
    """The rollout with the fields that `act` stores beside its steps; the algorithm's generator stays as it is."""
    state = algorithm.generator.get_state()
    masks = [None] * len(rollout.obs) if rollout.masks is None else rollout.masks
    rows = [
        algorithm.act(obs, explore=True, mask=mask).fields
        for obs, mask in zip(rollout.obs, masks, strict=True)
    ]
    algorithm.generator.set_state(state)
    return replace(
        rollout, extras={name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    )


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A headless browser."""
    with open_browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver

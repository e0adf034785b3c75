"""Compares an imported policy with SB3's own, which SB3 loads in a process of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from rl_training.algorithms.base import Algorithm
from rl_training.envs.factory import EnvSource
from rl_training.errors import CheckpointError, ConfigError
from rl_training.evaluation.prediction import predict
from rl_training.experiment.config import TrainConfig
from rl_training.importers import reference
from rl_training.importers.files import Archive
from rl_training.importers.settings import ALGORITHMS, part_of
from rl_training.spaces.actions import ActionKind

NUM_OBSERVATIONS = 512
TOLERANCE = 1e-5
TIMEOUT_SECONDS = 600


@dataclass(frozen=True)
class Verification:
    """Result of a comparison of deterministic actions."""

    num_observations: int
    largest_difference: float
    """Of continuous actions, in units of the environment or of half the range of a component if that is more."""
    num_different: int
    """Actions that differ by more than the tolerance."""


def verify(
    algorithm: Algorithm[Any],
    config: TrainConfig,
    archive: Archive,
    vecnormalize: Path | None,
    python: str | None = None,
) -> Verification:
    """Compare the actions of both policies, or raise if they differ; `python` is an interpreter that has SB3.

    SB3 unpickles the model, which can run code: only for files that are trusted.
    """
    env = EnvSource.parse(config.required_env_id, config.env_kwargs).make(with_wrappers=False)
    try:
        obs = _observations(env)
        request = _request(config.algo, archive, vecnormalize, env, is_dict=isinstance(obs, dict))
    finally:
        env.close()
    expected = _actions_of_sb3(request, obs, python or sys.executable)
    actions = np.asarray(predict(algorithm, obs))
    spec = algorithm.spaces.action
    if actions.shape != expected.shape:
        raise CheckpointError(
            f"SB3 gives actions of shape {expected.shape}, the import {actions.shape}"
        )
    if spec.kind is ActionKind.CONTINUOUS:
        half = (spec.high - spec.low) / 2
        unit = np.maximum(1.0, np.where(np.isfinite(half), half, 1.0))
        differences = np.abs(actions.astype(np.float64) - expected) / unit
    else:
        differences = (actions != expected).astype(np.float64)
    found = Verification(
        len(actions), float(differences.max()), int((differences > TOLERANCE).sum())
    )
    if found.num_different:
        raise CheckpointError(
            f"the import acts differently from SB3 in {found.num_different:,} of {differences.size:,} actions"
            f" (largest difference {found.largest_difference:.3g}): nothing was written"
        )
    return found


def _observations(env: Any) -> Any:
    """Observations under random actions, as the environment gives them."""
    env.action_space.seed(0)
    seen = [env.reset(seed=0)[0]]
    while len(seen) < NUM_OBSERVATIONS:
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        seen.append(env.reset()[0] if terminated or truncated else obs)
    if isinstance(seen[0], dict):
        return {key: np.stack([np.asarray(obs[key]) for obs in seen]) for key in seen[0]}
    return np.stack([np.asarray(obs) for obs in seen])


def _request(
    algo: str, archive: Archive, vecnormalize: Path | None, env: Any, *, is_dict: bool
) -> dict[str, Any]:
    """What the script of the reference is told, except for the files that it reads and writes."""
    row = ALGORITHMS[algo]
    spaces = None
    # Today's SB3 cannot read spaces of the package gym: it gets the environment's.
    if str(part_of(archive.settings, "observation_space").get(":type:")).startswith("<class 'gym."):
        names = ("observation_space", "action_space")
        spaces = {name: _described(getattr(env, name)) for name in names}
    return {
        "model": str(archive.path.resolve()),
        "package": row.package.partition(".")[0],
        "name": row.title,
        "is_dict": is_dict,
        "vecnormalize": None if vecnormalize is None else str(vecnormalize.resolve()),
        "old_spaces": spaces,
    }


def _described(space: Any) -> dict[str, Any]:
    if isinstance(space, Discrete):
        return {"n": int(space.n)}
    if isinstance(space, Box):
        bounds = {"low": space.low.tolist(), "high": space.high.tolist()}
        return {"n": None, **bounds, "dtype": str(space.dtype)}
    raise ConfigError(
        f"--verify cannot give SB3 the space {space} for a model that was written with gym"
    )


def _actions_of_sb3(request: dict[str, Any], obs: Any, python: str) -> Any:
    """Actions of the model, by a process that runs SB3; its failure is a `ConfigError` with its last line."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.savez(folder / "observations.npz", **(obs if isinstance(obs, dict) else {"obs": obs}))
        (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        command = [python, reference.__file__, name]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ConfigError(f"--verify cannot run '{python}': {error!s:.200}") from None
        if done.returncode == 0:
            return np.load(folder / "actions.npy", allow_pickle=False)
    last = (done.stderr.strip().splitlines() or ["it gave no message"])[-1]
    if re.search(r"No module named '(stable_baselines3|sb3_contrib)'", last):
        raise ConfigError(
            f"--verify needs SB3, which '{python}' does not have: pip install stable-baselines3 sb3-contrib, or name"
            " a Python that has it with --sb3-python PATH"
        )
    raise ConfigError(f"--verify: SB3 cannot load the model: {last:.300}")

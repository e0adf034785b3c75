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

from rl_training.bundle.sb3 import reference
from rl_training.bundle.sb3.conversion import Conversion
from rl_training.envs.factory import EnvSource
from rl_training.errors import CheckpointError, ConfigError
from rl_training.evaluation.prediction import predict
from rl_training.spaces.actions import ActionKind

NUM_OBSERVATIONS = 512
TOLERANCE = 1e-5
TIMEOUT_SECONDS = 600
CLASSES = {
    "ppo": ("PPO", False),
    "a2c": ("A2C", False),
    "dqn": ("DQN", False),
    "sac": ("SAC", False),
    "td3": ("TD3", False),
    "ddpg": ("DDPG", False),
    "qrdqn": ("QRDQN", True),
    "tqc": ("TQC", True),
    "crossq": ("CrossQ", True),
}
"""SB3's class of each algorithm, and whether it is in sb3-contrib."""


@dataclass(frozen=True)
class Verification:
    """Result of a comparison of deterministic actions."""

    num_observations: int
    largest_difference: float
    """Of continuous actions, in units of the environment or of half the range of a component if that is more."""
    num_different: int
    """Actions that differ by more than the tolerance."""


def verify(conversion: Conversion, vecnormalize: Path | None, python: str | None = None) -> Verification:
    """Compare the actions of both policies, or raise if they differ; `python` is an interpreter that has SB3.

    SB3 unpickles the model, which can run code: only for files that are trusted.
    """
    obs = _observations(conversion)
    expected = _actions_of_sb3(conversion, vecnormalize, obs, python or sys.executable)
    actions = np.asarray(predict(conversion.algorithm, obs))
    spec = conversion.algorithm.spaces.action
    if actions.shape != expected.shape:
        raise CheckpointError(f"SB3 gives actions of shape {expected.shape}, the import {actions.shape}")
    if spec.kind is ActionKind.CONTINUOUS:
        span = np.where(np.isfinite(spec.high - spec.low), (spec.high - spec.low) / 2, 1.0)
        differences = np.abs(actions.astype(np.float64) - expected) / np.maximum(1.0, span)
    else:
        differences = (actions != expected).astype(np.float64)
    found = Verification(len(actions), float(differences.max()), int((differences > TOLERANCE).sum()))
    if found.num_different:
        raise CheckpointError(
            f"the import acts differently from SB3 in {found.num_different:,} of {differences.size:,} actions"
            f" (largest difference {found.largest_difference:.3g}): nothing was written"
        )
    return found


def _observations(conversion: Conversion) -> Any:
    """Observations of the environment under random actions, as the environment gives them."""
    config = conversion.config
    env = EnvSource.parse(config.required_env_id, config.env_kwargs).make(with_wrappers=False)
    try:
        env.action_space.seed(0)
        seen = [env.reset(seed=0)[0]]
        while len(seen) < NUM_OBSERVATIONS:
            obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
            seen.append(env.reset()[0] if terminated or truncated else obs)
    finally:
        env.close()
    if isinstance(seen[0], dict):
        return {key: np.stack([np.asarray(obs[key]) for obs in seen]) for key in seen[0]}
    return np.stack([np.asarray(obs) for obs in seen])


def _actions_of_sb3(conversion: Conversion, vecnormalize: Path | None, obs: Any, python: str) -> Any:
    """Actions of the model, by a process that runs SB3."""
    name, is_contrib = CLASSES[conversion.config.algo]
    with tempfile.TemporaryDirectory() as folder:
        files = {key: str(Path(folder) / key) for key in ("observations.npz", "actions.npy", "request.json")}
        np.savez(files["observations.npz"], **(obs if isinstance(obs, dict) else {"obs": obs}))
        request = {
            "model": str(conversion.archive.path.resolve()),
            "name": name,
            "is_contrib": is_contrib,
            "is_dict": isinstance(obs, dict),
            "vecnormalize": None if vecnormalize is None else str(vecnormalize.resolve()),
            "old_spaces": _old_spaces(conversion),
            "observations": files["observations.npz"],
            "actions": files["actions.npy"],
        }
        Path(files["request.json"]).write_text(json.dumps(request), encoding="utf-8")
        _run([python, reference.__file__, files["request.json"]], python)
        return np.load(files["actions.npy"], allow_pickle=False)


def _old_spaces(conversion: Conversion) -> dict[str, Any] | None:
    """The environment's spaces for a model that holds those of the package gym, which today's SB3 cannot read."""
    space = conversion.archive.settings.get("observation_space")
    if not isinstance(space, dict) or not str(space.get(":type:")).startswith("<class 'gym."):
        return None
    config = conversion.config
    env = EnvSource.parse(config.required_env_id, config.env_kwargs).make(with_wrappers=False)
    found = {"observation_space": env.observation_space, "action_space": env.action_space}
    env.close()
    return {name: _described(space) for name, space in found.items()}


def _described(space: Any) -> dict[str, Any]:
    if isinstance(space, Discrete):
        return {"n": int(space.n)}
    if not isinstance(space, Box):
        raise ConfigError(f"--verify cannot give SB3 the space {space} for a model that was written with gym")
    return {"n": None, "low": space.low.tolist(), "high": space.high.tolist(), "dtype": str(space.dtype)}


def _run(command: list[str], python: str) -> None:
    """Run the script of the reference; its failure is a `ConfigError` with the last line of its error."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"--verify cannot run '{python}': {error!s:.200}") from None
    if done.returncode == 0:
        return
    last = (done.stderr.strip().splitlines() or ["it gave no message"])[-1]
    if re.search(r"No module named '(stable_baselines3|sb3_contrib)'", last):
        raise ConfigError(
            f"--verify needs SB3, which '{python}' does not have: pip install stable-baselines3 sb3-contrib, or name"
            " a Python that has it with --sb3-python PATH"
        )
    raise ConfigError(f"--verify: SB3 cannot load the model: {last:.300}")

"""Models that others trained with SB3 1.0 to 2.4 import, and reach the scores that their authors logged.

They lie beside the repository (`../shared/sb3`) and are not part of it; without them these tests are skipped.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TESTS

from rl_training.importers.files import read_archive
from rl_training.importers.normalization import read_vecnormalize
from rl_training.importers.sb3 import convert, import_sb3
from rl_training.importers.verification import verify
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training

FOLDER = TESTS.parent.parent / "shared" / "sb3"
NAMES = [path.stem for path in sorted(FOLDER.glob("*.zip"))] or ["ppo__CartPole-v1_1"]
TODAY = {"Hopper-v3": "Hopper-v5"}
"""Environments that exist under another version only."""
EPISODES = 20


def source(name: str) -> tuple[Path, str, Path | None]:
    """The model's file, its environment and its statistics; skips where they are not there."""
    path = FOLDER / f"{name}.zip"
    if not path.is_file():
        pytest.skip("the models of others are not beside the repository")
    env_id = name.partition("__")[2].rpartition("_")[0]
    if env_id in TODAY:
        pytest.importorskip("mujoco")
    statistics = FOLDER / f"{name}.vecnormalize.pkl"
    return path, TODAY.get(env_id, env_id), statistics if statistics.is_file() else None


@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_others_reaches_the_score_of_its_author(name: str, tmp_path: Path) -> None:
    path, env_id, statistics = source(name)
    changes = {"output_dir": str(tmp_path), "eval_episodes": EPISODES}
    imported = import_sb3(path, env_id, vecnormalize=statistics, changes=changes)
    assert imported.conversion.config.algo == name.partition("__")[0]
    with np.load(path.with_name(f"{name}.evaluations.npz"), allow_pickle=False) as file:
        logged: Any = file["results"][-1]
    score = imported.result.metrics["eval_return_mean"]
    assert score >= logged.mean() - logged.std() - 1e-6
    run = imported.result.run_dir
    assert evaluate_checkpoint(run)["eval_return_mean"] == score
    origin = json.loads((run / "metadata.json").read_text())["imported"]
    assert (origin["file"], origin["package"]) == (path.name, "stable-baselines3")


@pytest.mark.parametrize("name", ["dqn__CartPole-v1_1", "a2c__CartPole-v1_1"])
def test_training_on_does_not_hurt_a_model_of_others(name: str, tmp_path: Path) -> None:
    path, env_id, statistics = source(name)
    changes = {"output_dir": str(tmp_path)}
    imported = import_sb3(path, env_id, vecnormalize=statistics, changes=changes)
    score, step = imported.result.metrics["eval_return_mean"], imported.conversion.global_step
    result = resume_training(imported.result.run_dir, total_timesteps=step + 4000)
    assert score == result.metrics["best_eval_return_mean"] == 500.0
    assert result.metrics["eval_return_mean"] == 500.0


@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_others_acts_as_in_sb3(name: str) -> None:
    pytest.importorskip("stable_baselines3")
    pytest.importorskip("sb3_contrib")
    path, env_id, statistics = source(name)
    state = None if statistics is None else read_vecnormalize(statistics)
    conversion = convert(read_archive(path), state, {"env_id": env_id})
    found = verify(conversion.algorithm, conversion.config, conversion.archive, statistics)
    assert found.num_different == 0

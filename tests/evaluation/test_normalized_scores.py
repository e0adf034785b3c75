"""Scores between a random policy and an expert, where both are known for the environment as it is configured."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import pytest
from conftest import small_config

from rl_training.envs.factory import EnvSource
from rl_training.errors import ConfigError
from rl_training.evaluation.evaluator import normalized_score, reference_scores
from rl_training.runtime.run import run_training


def test_random_is_0_and_an_expert_100() -> None:
    assert normalized_score(EnvSource.parse("HalfCheetah-v5", {}), -280.178953) == pytest.approx(
        0.0
    )
    assert normalized_score(EnvSource.parse("HalfCheetah-v5", {}), 12135.0) == pytest.approx(100.0)
    # halfcheetah-medium: 42.4 for behaviour cloning is a return of 4,984.
    assert normalized_score(EnvSource.parse("HalfCheetah-v2", {}), 4984.0) == pytest.approx(
        42.4, abs=0.01
    )


def test_no_score_without_a_reference_for_just_this_environment() -> None:
    assert (
        normalized_score(EnvSource.parse("Hopper-v5", {}), 100.0) is None
    )  # its reward differs from that of the references
    assert normalized_score(EnvSource.parse("Hopper-v4", {}), 100.0) is not None
    assert (
        normalized_score(EnvSource.parse("HalfCheetah-v5", {"ctrl_cost_weight": 0.0}), 100.0)
        is None
    )
    assert (
        normalized_score(EnvSource.parse("HalfCheetah-v5", {"max_episode_steps": 100}), 100.0)
        is None
    )
    assert (
        normalized_score(EnvSource.parse("HalfCheetah-v5", {"backend": "async"}), 100.0) is not None
    )


def test_every_reference_names_an_environment_and_is_in_order() -> None:
    for env_id, (random, expert) in reference_scores().items():
        assert random < expert
        assert env_id in gym.registry or env_id.endswith(("-v2", "-v3"))


def test_an_evaluation_reports_it_and_early_stopping_can_use_it(tmp_path: Path) -> None:
    options = {
        "early_stopping": {"metric": "eval_normalized_score", "target_value": 0.0},
        "eval_interval": 64,
    }
    result = run_training(small_config("sac", tmp_path, algo_kwargs=options))
    random, expert = reference_scores()["Pendulum-v1"]
    expected = 100.0 * (result.metrics["eval_return_mean"] - random) / (expert - random)
    assert result.metrics["eval_normalized_score"] == pytest.approx(expected)
    unknown = small_config("dqn", tmp_path / "other", env_id="Acrobot-v1", algo_kwargs=options)
    with pytest.raises(ConfigError, match="unknown metric 'eval_normalized_score'"):
        run_training(unknown)
    assert not (tmp_path / "other").exists()

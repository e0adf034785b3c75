"""SAC through its trainer function."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_tools import stored_rows
from conftest import small_config
from run_tools import StopAt, assert_same_end

from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.runtime.sac_trainer import train_sac
from rl_training.runtime.workflows import resume_training


@pytest.mark.parametrize("alpha", ["auto", 0.2])
def test_it_trains_with_a_learned_and_a_fixed_temperature(alpha: object, tmp_path: Path) -> None:
    result = train_sac(small_config("sac", tmp_path, algo_kwargs={"alpha": alpha}))
    assert {"critic_loss", "actor_loss", "alpha", "entropy"} <= result.metrics.keys()
    assert (result.metrics["alpha"] == pytest.approx(0.2)) == (alpha == 0.2)


@pytest.mark.parametrize("num_envs", [1, 4])
def test_the_ratio_of_updates_to_steps_is_kept(num_envs: int, tmp_path: Path) -> None:
    options = {"train_frequency": 1, "gradient_steps": 1, "learning_starts": 32}
    result = train_sac(small_config("sac", tmp_path, num_envs=num_envs, algo_kwargs=options))
    assert result.metrics["gradient_steps"] == 128 - 32


def test_stored_actions_are_in_model_space(tmp_path: Path) -> None:
    result = train_sac(small_config("sac", tmp_path))
    actions = stored_rows(load_checkpoint(result.run_dir).buffer_state)["actions"]
    assert -1 <= actions.min() < -0.5
    assert 0.5 < actions.max() <= 1  # Pendulum's own bound is 2


def test_a_run_on_discrete_actions_that_stops_and_goes_on_equals_one_that_never_stopped(tmp_path: Path) -> None:
    whole = train_sac(small_config("sac", tmp_path / "whole", env_id="CartPole-v1"))
    stopped = train_sac(
        small_config("sac", tmp_path / "stopped", env_id="CartPole-v1"), callbacks=[StopAt(77, "update")]
    )
    assert stopped.metrics["global_step"] < 128
    assert_same_end(whole, resume_training(stopped.run_dir))

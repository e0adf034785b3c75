"""The trainer functions of PPO, DQN and SAC, in the forms people use them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from checkpoint_tools import stored_rows
from conftest import small_config
from run_tools import StopAt, assert_same_end

from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.logs import read_metrics
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.dqn_trainer import train_dqn
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.sac_trainer import train_sac
from rl_training.runtime.workflows import resume_training


def test_sync_and_async_environments_give_the_same_run(tmp_path: Path) -> None:
    states = []
    for backend in ("sync", "async"):
        config = small_config(
            "ppo", tmp_path / backend, num_envs=3, env_kwargs={"backend": backend}
        )
        states.append(
            load_checkpoint(train_ppo(config).run_dir).algorithm_state["members"]["policy"]
        )
    assert all((states[0][name] == states[1][name]).all() for name in states[0])


def test_it_learns_and_logs_at_the_asked_intervals(tmp_path: Path) -> None:
    config = small_config(
        "ppo", tmp_path, env_id="Pendulum-v1", log_interval=32, algo_kwargs={"eval_interval": 64}
    )
    lines = list(read_metrics(train_ppo(config).run_dir / "metrics.jsonl"))
    assert [line["global_step"] for line in lines] == [32, 64, 96, 128]
    assert ["eval_return_mean" in line for line in lines] == [False, True, False, True]
    losses = (
        "policy_loss",
        "value_loss",
        "entropy",
        "approx_kl",
        "clip_fraction",
        "explained_variance",
    )
    assert all(np.isfinite(line[name]) for line in lines for name in losses)


def test_a_saved_state_can_start_a_new_run(tmp_path: Path) -> None:
    state = load_checkpoint(train_ppo(small_config("ppo", tmp_path / "a")).run_dir)
    second = train_ppo(
        small_config("ppo", tmp_path / "b", total_timesteps=256), checkpoint_state=state
    )
    assert second.metrics["global_step"] == 256
    assert second.run_dir.parent == tmp_path / "b"


@pytest.mark.parametrize("options", [{}, {"double": True}, {"dueling": True}, {"n_step": 3}])
def test_dqn_trains_with_each_option(options: dict, tmp_path: Path) -> None:
    result = train_dqn(small_config("dqn", tmp_path, num_envs=3, algo_kwargs=options))
    assert result.metrics["critic_loss"] > 0
    assert result.metrics["gradient_steps"] == (result.metrics["global_step"] - 32) // 4 * 2


def test_dqn_acts_on_a_discrete_observation_and_epsilon_falls(tmp_path: Path) -> None:
    seen = {}

    class Watch(Callback):
        def on_update_end(self, trainer, result) -> None:
            seen[trainer.global_step] = trainer.algorithm.epsilon()

    options = {"epsilon_start": 1.0, "epsilon_end": 0.1, "exploration_fraction": 0.5}
    config = small_config("dqn", tmp_path, env_id="FrozenLake-v1", algo_kwargs=options)
    train_dqn(config, callbacks=[Watch()])
    assert seen[48] == pytest.approx(1.0 - 0.9 * 48 / 64)
    assert seen[64] == seen[128] == pytest.approx(0.1)


@pytest.mark.parametrize("alpha", ["auto", 0.2])
def test_sac_trains_with_a_learned_and_a_fixed_temperature(alpha: object, tmp_path: Path) -> None:
    result = train_sac(small_config("sac", tmp_path, algo_kwargs={"alpha": alpha}))
    assert {"critic_loss", "actor_loss", "alpha", "entropy"} <= result.metrics.keys()
    assert (result.metrics["alpha"] == pytest.approx(0.2)) == (alpha == 0.2)
    actions = stored_rows(load_checkpoint(result.run_dir).buffer_state)["actions"]
    assert -1 <= actions.min() < -0.5
    assert 0.5 < actions.max() <= 1  # in model space: Pendulum's own bound is 2


def test_a_run_on_discrete_actions_that_stops_and_goes_on_equals_one_that_never_stopped(
    tmp_path: Path,
) -> None:
    whole, stopping = (
        small_config("sac", tmp_path / name, env_id="CartPole-v1") for name in ("whole", "stopped")
    )
    stopped = train_sac(stopping, callbacks=[StopAt(77, "update")])
    assert stopped.metrics["global_step"] < 128
    assert_same_end(train_sac(whole), resume_training(stopped.run_dir))

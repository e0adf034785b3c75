"""DQN through its trainer function, with each of its options."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import small_config

from rl_training.runtime.callbacks import Callback
from rl_training.runtime.dqn_trainer import train_dqn


@pytest.mark.parametrize("options", [{}, {"double": True}, {"dueling": True}, {"n_step": 3}])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_it_trains_with_each_option(options: dict, num_envs: int, tmp_path: Path) -> None:
    result = train_dqn(small_config("dqn", tmp_path, num_envs=num_envs, algo_kwargs=options))
    assert result.metrics["critic_loss"] > 0
    assert result.metrics["gradient_steps"] == (result.metrics["global_step"] - 32) // 4 * 2


def test_it_acts_on_a_discrete_observation(tmp_path: Path) -> None:
    result = train_dqn(small_config("dqn", tmp_path, env_id="FrozenLake-v1"))
    assert result.metrics["global_step"] == 128


def test_epsilon_falls_over_the_run(tmp_path: Path) -> None:
    seen = {}

    class Watch(Callback):
        def on_update_end(self, trainer, result) -> None:
            seen[trainer.global_step] = trainer.algorithm.epsilon()

    options = {"epsilon_start": 1.0, "epsilon_end": 0.1, "exploration_fraction": 0.5}
    train_dqn(small_config("dqn", tmp_path, algo_kwargs=options), callbacks=[Watch()])
    assert seen[48] == pytest.approx(1.0 - 0.9 * 48 / 64)
    assert seen[64] == seen[128] == pytest.approx(0.1)

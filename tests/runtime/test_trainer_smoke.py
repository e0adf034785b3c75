"""PPO through its trainer function, in the forms people use it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import small_config

from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.logs import read_metrics
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.workflows import resume_training


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("backend", ["sync", "async"])
def test_it_trains_on_discrete_and_continuous_actions(env_id: str, backend: str, tmp_path: Path) -> None:
    config = small_config("ppo", tmp_path, env_id=env_id, num_envs=2, env_kwargs={"backend": backend})
    result = train_ppo(config, run_suffix="smoke")
    assert result.run_dir.name == f"ppo__{env_id}__seed1__smoke"
    expected = {"policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "explained_variance"}
    assert expected <= result.metrics.keys()


def test_sync_and_async_environments_give_the_same_run(tmp_path: Path) -> None:
    states = []
    for backend in ("sync", "async"):
        config = small_config("ppo", tmp_path / backend, num_envs=3, env_kwargs={"backend": backend})
        states.append(load_checkpoint(train_ppo(config).run_dir).algorithm_state["members"]["policy"])
    assert all((states[0][name] == states[1][name]).all() for name in states[0])


def test_a_run_in_worker_processes_is_resumed_exactly(tmp_path: Path) -> None:
    changes = {"num_envs": 3, "env_kwargs": {"backend": "async"}, "total_timesteps": 192}
    whole = train_ppo(small_config("ppo", tmp_path / "whole", **changes))
    half = train_ppo(small_config("ppo", tmp_path / "half", **{**changes, "total_timesteps": 96}))
    resumed = resume_training(half.run_dir, total_timesteps=192)
    one, other = (load_checkpoint(result.run_dir) for result in (whole, resumed))
    for first, second in zip(
        *(s.trainer_state["collector"]["envs"]["environments"] for s in (one, other)), strict=True
    ):
        assert (first["obs"] == second["obs"]).all()
        assert first["generator"] == second["generator"]
    policies = [state.algorithm_state["members"]["policy"] for state in (one, other)]
    assert all((policies[0][name] == policies[1][name]).all() for name in policies[0])


def test_a_rollout_is_always_completed(tmp_path: Path) -> None:
    result = train_ppo(small_config("ppo", tmp_path, total_timesteps=100, num_envs=4))
    assert result.metrics["global_step"] == 128


def test_it_learns_and_logs_at_the_asked_intervals(tmp_path: Path) -> None:
    config = small_config("ppo", tmp_path, log_interval=32, algo_kwargs={"eval_interval": 64})
    lines = list(read_metrics(train_ppo(config).run_dir / "metrics.jsonl"))
    assert [line["global_step"] for line in lines] == [32, 64, 96, 128]
    assert ["eval_return_mean" in line for line in lines] == [False, True, False, True]
    assert all(np.isfinite(line["policy_loss"]) for line in lines)


def test_a_saved_state_can_start_a_new_run(tmp_path: Path) -> None:
    first = train_ppo(small_config("ppo", tmp_path / "a"))
    state = load_checkpoint(first.run_dir)
    second = train_ppo(small_config("ppo", tmp_path / "b", total_timesteps=256), checkpoint_state=state)
    assert second.metrics["global_step"] == 256
    assert second.run_dir.parent == tmp_path / "b"


def test_it_refuses_another_algorithms_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dqn"):
        train_ppo(small_config("dqn", tmp_path))

"""`init_from`: a new run starts with the networks of another."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import small_config

from rl_training import BC, DQN, PPO, SAC, TD3, TrainConfig
from rl_training.errors import ConfigError
from rl_training.experiment.checkpoint_folder import CheckpointFolder
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.config import parse_overrides
from rl_training.experiment.logs import read_metrics
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.workflows import resume_training


class Start:
    """Keeps the networks with which a run starts, and ends it there."""

    def __init__(self) -> None:
        self.members: dict[str, Any] = {}

    def on_train_start(self, trainer: TrainerState) -> None:
        states = {
            name: one.state_dict() for name, one in trainer.algorithm.stateful_members().items()
        }
        self.members = {
            name: {
                key: value.clone()
                for key, value in state.items()
                if isinstance(value, torch.Tensor)
            }
            for name, state in states.items()
        }
        trainer.request_stop("seen")


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def members_of(agent: Any) -> dict[str, Any]:
    return {name: one.state_dict() for name, one in agent.algorithm.stateful_members().items()}


def test_all_networks_are_copied_and_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    old = SAC(small_config("sac", tmp_path / "old"))
    old.learn()
    start = Start()
    result = SAC(small_config("sac", tmp_path / "new", seed=5, init_from=old.run_dir)).learn(
        callbacks=[start]
    )
    source = members_of(old)
    for name in ("actor", "critic", "target_critic"):
        assert equal(start.members[name], source[name])
    assert not equal(start.members["temperature"], source["temperature"])
    assert (
        f"initial weights of actor, critic, target_critic from '{old._checkpoint}' (sac, step 128)"
        in (capfd.readouterr().err)
    )
    recorded = json.loads((result.run_dir / "metadata.json").read_text())["init_from"]
    assert recorded["taken"] == ["actor", "critic", "target_critic"]
    assert recorded["checkpoint"] == str(old._checkpoint)
    assert f"init_from: {old.run_dir}" in (result.run_dir / "config.yaml").read_text()


def test_a_trained_policy_collects_the_warm_up_and_its_score_is_the_first(tmp_path: Path) -> None:
    old = DQN(small_config("dqn", tmp_path / "old"))
    old.learn()
    settings = {"learning_starts": 96, "epsilon_end": 0.0}
    config = small_config(
        "dqn", tmp_path / "new", init_from=old.run_dir, total_timesteps=96, algo_kwargs=settings
    )
    run_dir = DQN(config).learn().run_dir
    rows = load_checkpoint(run_dir).buffer_state["segments"][0].arrays
    assert (old.predict(rows["obs"].reshape(96, -1)) == rows["actions"].reshape(96)).all()
    first = next(read_metrics(run_dir / "metrics.jsonl"))
    assert (first["global_step"], "eval_return_mean" in first) == (0, True)
    assert CheckpointFolder(run_dir / "checkpoints").best == (
        "step_000000000000",
        first["eval_return_mean"],
    )


def test_the_policy_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    old = TD3(small_config("td3", tmp_path / "old"))
    old.learn()
    start = Start()
    config = small_config(
        "td3",
        tmp_path / "new",
        seed=5,
        init_from=old.save(tmp_path / "policy"),
        init_parts="policy",
    )
    TD3(config).learn(callbacks=[start])
    source = members_of(old)
    assert equal(start.members["actor"], source["actor"])
    assert equal(start.members["target_actor"], source["target_actor"])
    assert not equal(start.members["critic"], source["critic"])
    told = capfd.readouterr().err
    assert "random initial weights of critic: init_parts is policy" in told
    assert (
        "WARNING: updates by a critic with random weights change the policy for the worse" in told
    )


def test_the_policy_alone_of_two_networks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    old = PPO(small_config("ppo", tmp_path / "old", algo_kwargs={"critic_hidden_sizes": [5]}))
    old.learn()
    start = Start()
    settings = {"critic_hidden_sizes": [6], "critic_learning_rate": 1e-3}
    config = small_config(
        "ppo",
        tmp_path / "new",
        seed=5,
        init_from=old.run_dir,
        init_parts="policy",
        algo_kwargs=settings,
    )
    PPO(config).learn(callbacks=[start])
    for name, weight in members_of(old)["policy"].items():
        found = start.members["policy"][name]
        assert (found.shape == weight.shape and torch.equal(found, weight)) == (
            ".value." not in name
        ), name
    assert (
        "random initial weights of the value function of policy: init_parts is policy"
        in capfd.readouterr().err
    )


def test_two_networks_take_the_weights_of_a_batched_one(tmp_path: Path) -> None:
    settings = {"layer_norm": True, "hidden_sizes": [8, 7], "activation": "silu"}
    old = PPO(small_config("ppo", tmp_path / "old", algo_kwargs=settings))
    old.learn()
    config = small_config(
        "ppo",
        tmp_path / "new",
        seed=5,
        init_from=old.run_dir,
        algo_kwargs={**settings, "critic_learning_rate": 1e-9, "actor_learning_rate": 2e-9},
    )
    new = PPO(config)
    new.learn()
    obs = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        new.algorithm.policy(obs), old.algorithm.policy(obs), rtol=1e-4, atol=1e-5
    )


def test_networks_of_other_shapes_are_left_and_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    old = SAC(small_config("sac", tmp_path / "old"))
    old.learn()
    start = Start()
    env_id = old.config.env_id
    config = small_config("td3", tmp_path / "new", env_id=env_id, init_from=old.run_dir)
    TD3(config).learn(callbacks=[start])
    assert equal(start.members["critic"], members_of(old)["critic"])
    told = capfd.readouterr().err
    assert "random initial weights of actor: '" in told
    assert "in the checkpoint" in told


def test_what_cannot_be_used_is_refused_before_a_folder_exists(tmp_path: Path) -> None:
    old = PPO(small_config("ppo", tmp_path / "old"))
    old.learn()
    new = tmp_path / "new"
    wrong: list[tuple[TrainConfig, str]] = [
        (
            small_config("ppo", new, init_from=old.run_dir, algo_kwargs={"hidden_sizes": [9, 9]}),
            r"policy: .*\[2, 4, 9\]",
        ),
        (
            small_config("ppo", new, init_from=old.run_dir, env_id="Acrobot-v1"),
            "observation or action space differs",
        ),
        (small_config("dqn", new, init_from=old.run_dir), "do not fit this run: network: "),
    ]
    for config, message in wrong:
        with pytest.raises(ConfigError, match=message):
            {"ppo": PPO, "dqn": DQN}[config.algo](config).learn()
    with pytest.raises(ConfigError, match="bad value for init_from: 'missing' does not exist"):
        PPO(small_config("ppo", new, init_from="missing")).learn()
    assert not new.exists()


def test_the_new_run_resumes_without_the_old_one(tmp_path: Path) -> None:
    old = PPO(small_config("ppo", tmp_path / "old"))
    old.learn()
    agent = PPO(small_config("ppo", tmp_path / "new", init_from=old.run_dir))
    agent.learn(callbacks=[Start()])
    shutil.rmtree(tmp_path / "old")
    assert resume_training(agent.run_dir or "").metrics["global_step"] == 128
    with pytest.raises(
        ConfigError,
        match=r"'init_from' cannot change from .* on resume: it has an effect only when",
    ):
        resume_training(
            agent.run_dir or "", total_timesteps=256, changes={"init_from": "elsewhere"}
        )


def test_observation_statistics_come_with_the_networks(tmp_path: Path) -> None:
    old = BC(small_config("bc", tmp_path / "old", algo_kwargs={"normalize_obs": True}))
    old.learn()
    start = Start()
    settings = {"normalize_obs": True, "dataset_seed": 77}
    BC(small_config("bc", tmp_path / "new", init_from=old.run_dir, algo_kwargs=settings)).learn(
        callbacks=[start]
    )
    source = members_of(old)
    assert equal(start.members["preprocessor"], source["preprocessor"])
    with pytest.raises(ConfigError, match="set normalize_obs as there"):
        BC(small_config("bc", tmp_path / "other", init_from=old.run_dir)).learn()


def test_an_agent_starts_from_another(tmp_path: Path) -> None:
    old = PPO(small_config("ppo", tmp_path / "old"))
    with pytest.raises(ConfigError, match="not trained yet"):
        PPO("CartPole-v1", init_from=old)
    old.learn()
    agent = PPO("CartPole-v1", init_from=old, hidden_sizes=[8, 8], preset=False)
    assert agent.config.init_from == old._checkpoint
    assert parse_overrides(["init_from=runs/a", "init_parts=policy"]) == {
        "init_from": "runs/a",
        "init_parts": "policy",
    }

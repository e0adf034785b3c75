"""The classes users call: learn, evaluate, predict, save, load."""

from __future__ import annotations

import builtins
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import HELPERS, small_config

import rl_training
from rl_training import DQN, PPO, SAC
from rl_training.errors import CheckpointError, ConfigError, EnvError, RLTrainingError
from rl_training.runtime.workflows import resume_training

CLASSES = {"ppo": PPO, "dqn": DQN, "sac": SAC}
OBS_SHAPE = {"ppo": 4, "dqn": 4, "sac": 3}


@pytest.mark.parametrize("algo", list(CLASSES))
def test_learn_evaluate_predict_save_load(algo: str, tmp_path: Path) -> None:
    agent = CLASSES[algo](small_config(algo, tmp_path / "runs"))
    result = agent.learn()
    assert agent.evaluate()["eval_return_mean"] == result.metrics["eval_return_mean"]
    assert agent.evaluate(num_episodes=4)["eval_episodes"] == 4
    assert str(agent.algorithm) == algo
    obs = np.full(OBS_SHAPE[algo], 0.1)
    assert isinstance(agent.predict(obs), np.ndarray if algo == "sac" else int)
    path = agent.save(tmp_path / "saved")
    loaded = CLASSES[algo].load(path)
    assert np.array_equal(loaded.predict(obs), agent.predict(obs))
    assert loaded.evaluate() == agent.evaluate()
    from_run = CLASSES[algo].load(result.run_dir)
    assert np.array_equal(from_run.predict(obs), agent.predict(obs))


@pytest.mark.parametrize("algo", list(CLASSES))
def test_predict_does_not_touch_the_disk(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = CLASSES[algo](small_config(algo, tmp_path / "runs"))
    result = agent.learn()
    loaded = CLASSES[algo].load(result.run_dir)
    shutil.rmtree(tmp_path / "runs")

    def forbidden(*args: object, **kwargs: object) -> None:
        raise AssertionError("predict opened a file")

    monkeypatch.setattr(builtins, "open", forbidden)
    monkeypatch.setattr(os, "open", forbidden)
    for one in (agent, loaded):
        one.predict(np.zeros((3, OBS_SHAPE[algo])))


def test_stochastic_predictions_vary_and_deterministic_ones_do_not(tmp_path: Path) -> None:
    agent = SAC(small_config("sac", tmp_path))
    agent.learn()
    obs = np.zeros(3)
    assert len({float(agent.predict(obs)[0]) for _ in range(5)}) == 1
    assert len({float(agent.predict(obs, deterministic=False)[0]) for _ in range(5)}) == 5


@pytest.mark.parametrize("kind", ["discrete", "multi_discrete", "box", "unbounded"])
def test_ppo_acts_in_every_kind_of_space(kind: str, tmp_path: Path) -> None:
    env_id = f"{HELPERS / 'toy_envs.py'}:NoisyEnv"
    config = small_config("ppo", tmp_path, env_id=env_id, env_kwargs={"action": kind}, num_envs=2)
    agent = PPO(config)
    agent.learn()
    # The environment itself asserts that each action lies in its space.
    assert agent.evaluate(3)["eval_episodes"] == 3


def test_actions_reach_the_environments_bounds(tmp_path: Path) -> None:
    env_id = f"{HELPERS / 'toy_envs.py'}:NoisyEnv"
    config = small_config("sac", tmp_path, env_id=env_id, env_kwargs={"action": "box"})
    agent = SAC(config)
    agent.learn()
    actions = agent.predict(np.random.default_rng(0).normal(size=(2000, 3)), deterministic=False)
    assert (actions.min(0) >= [-2, 0]).all()
    assert (actions.max(0) <= [2, 5]).all()
    assert (actions.max(0) - actions.min(0) > [3, 4]).all()


def test_a_normalizer_travels_with_the_policy(tmp_path: Path) -> None:
    config = small_config(
        "ppo", tmp_path, algo_kwargs={"normalize_obs": True, "normalize_reward": True}
    )
    agent = PPO(config)
    result = agent.learn()
    encoder = PPO.load(result.run_dir)._trained().policy.preprocessor
    assert encoder.normalizer.count == 128
    before = encoder.normalizer.mean.clone()
    agent.evaluate()
    agent.predict(np.ones((100, 4)))
    assert (agent._trained().policy.preprocessor.normalizer.mean == before).all()


def test_wrong_use_is_named(tmp_path: Path) -> None:
    config = small_config("ppo", tmp_path)
    with pytest.raises(ConfigError, match="learn"):
        PPO(config).predict(np.zeros(4))
    with pytest.raises(ConfigError, match="DQN trains 'dqn'"):
        DQN(config)
    agent = PPO(config)
    result = agent.learn()
    with pytest.raises(CheckpointError, match="is a checkpoint of 'ppo', not of 'dqn'"):
        DQN.load(result.run_dir)
    with pytest.raises(EnvError, match=r"\(3,\)"):
        agent.predict(np.zeros(3))
    with pytest.raises(CheckpointError, match="not overwritten"):
        agent.save(result.checkpoint_path)
    with pytest.raises(ConfigError, match="0"):
        agent.evaluate(num_episodes=0)


def test_a_saved_policy_cannot_be_resumed_and_says_so(tmp_path: Path) -> None:
    agent = PPO(small_config("ppo", tmp_path / "runs"))
    agent.learn()
    saved = agent.save(tmp_path / "saved")
    with pytest.raises(RLTrainingError, match="policy only"):
        resume_training(saved, total_timesteps=1000)


def test_the_top_level_names_are_importable() -> None:
    assert set(rl_training.__all__) >= {"TrainConfig", "PPO", "DQN", "SAC", "__version__"}
    assert all(getattr(rl_training, name) for name in rl_training.__all__)
    with pytest.raises(AttributeError, match="PPPO"):
        _ = rl_training.PPPO


def test_a_loaded_agent_does_not_silently_train_from_scratch(tmp_path: Path) -> None:
    agent = PPO(small_config("ppo", tmp_path))
    agent.learn()
    loaded = PPO.load(agent.save(tmp_path / "policy"))
    with pytest.raises(ConfigError, match="learn\\(\\) would not use its weights: resume its run"):
        loaded.learn()
    assert PPO(loaded.config).learn().metrics["global_step"] == 128

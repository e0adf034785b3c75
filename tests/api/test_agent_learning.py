"""An agent that learns again: continued, extended, loaded; its parts, its output and its saved policies."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import HELPERS, small_config

import rl_training
from rl_training import DQN, PPO, SAC
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.registry import BUILT_IN_CLASSES
from rl_training.runtime.trainer import TrainerState


class StopAt:
    """Requests a stop at a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_collect_end(self, trainer: TrainerState, result: object) -> None:
        if trainer.global_step >= self.step:
            trainer.request_stop("enough for now")


class Rates:
    """Keeps the learning rate of each line of metrics."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def on_log(self, trainer: TrainerState, metrics: Mapping[str, float]) -> None:
        self.rates.append(metrics["learning_rate"])


class Break:
    """Fails at the first evaluation."""

    def on_eval_end(self, trainer: TrainerState, metrics: object) -> None:
        raise RuntimeError("broken callback")


def same_weights(first: Any, second: Any) -> bool:
    own, other = first.policy.state_dict(), second.policy.state_dict()
    return own.keys() == other.keys() and all(torch.equal(own[name], other[name]) for name in own)


@pytest.mark.parametrize("name", ["PPO", "SAC", "DQN"])
def test_a_stopped_agent_continues_exactly(name: str, tmp_path: Path) -> None:
    make = getattr(rl_training, name)
    whole = make(small_config(BUILT_IN_CLASSES[name], tmp_path / "whole"))
    expected = whole.learn()
    agent = make(small_config(BUILT_IN_CLASSES[name], tmp_path / "parts"))
    first = agent.learn(callbacks=[StopAt(64)])
    assert first.stop_reason == "enough for now"
    assert not first.was_interrupted
    assert replace(first, stop_reason="interrupted by SIGINT").was_interrupted
    second = agent.learn()
    assert second.run_dir == first.run_dir == agent.run_dir
    assert second.metrics["global_step"] == expected.metrics["global_step"]
    assert second.metrics["eval_return_mean"] == expected.metrics["eval_return_mean"]
    assert same_weights(agent, whole)


def test_a_finished_agent_says_how_to_extend_it_and_is_extended(tmp_path: Path) -> None:
    agent = PPO(small_config("ppo", tmp_path / "a"))
    agent.learn()
    with pytest.raises(
        ConfigError, match=r"its last step, 128 of 128: extend it with learn\(total_timesteps=N\)"
    ):
        agent.learn()
    result = agent.learn(total_timesteps=256)
    assert result.metrics["global_step"] == 256
    assert agent.config.total_timesteps == 256
    assert len(list((tmp_path / "a").iterdir())) == 1
    assert agent.evaluate()["eval_return_mean"] == result.metrics["eval_return_mean"]
    with pytest.raises(ConfigError, match="total_timesteps 100 is too small"):
        agent.learn(total_timesteps=100)


def test_the_schedules_of_an_extended_run_begin_again_if_asked(tmp_path: Path) -> None:
    rate = {"kind": "linear", "start": 1e-3, "end": 0.0}
    for schedules, expected in (("restart", 1e-3), ("stretch", 0.0)):
        agent = PPO(small_config("ppo", tmp_path, algo_kwargs={"learning_rate": rate}))
        agent.learn()
        seen = Rates()
        agent.learn(total_timesteps=256, schedules=schedules, callbacks=[seen])
        assert seen.rates[0] == pytest.approx(expected, rel=0.2)


def test_an_agent_whose_run_is_gone_does_not_start_again_in_silence(tmp_path: Path) -> None:
    agent = PPO(small_config("ppo", tmp_path))
    result = agent.learn()
    shutil.rmtree(result.run_dir)
    with pytest.raises(CheckpointError, match="does not exist"):
        agent.learn(total_timesteps=256)


def test_the_first_learn_takes_a_length_too(tmp_path: Path) -> None:
    agent = PPO(small_config("ppo", tmp_path))
    assert agent.learn(64).metrics["global_step"] == 64
    assert agent.config.total_timesteps == 64


def test_a_loaded_run_continues(tmp_path: Path) -> None:
    agent = DQN(small_config("dqn", tmp_path / "runs"))
    result = agent.learn()
    loaded = DQN.load(result.run_dir, device="cpu")
    assert loaded.run_dir == result.run_dir
    assert loaded.learn(total_timesteps=256).run_dir == result.run_dir
    agent.learn(total_timesteps=300)
    assert agent._global_step == 300
    best = DQN.load(sorted((result.run_dir / "checkpoints").glob("step_*"))[0])
    with pytest.raises(
        CheckpointError, match="whose later checkpoints and metrics would be discarded"
    ):
        best.learn()


def test_an_agent_whose_run_failed_continues_from_its_checkpoint(tmp_path: Path) -> None:
    config = small_config(
        "ppo", tmp_path, checkpoint_interval=16, algo_kwargs={"eval_interval": 64}
    )
    agent = PPO(config)
    with pytest.raises(RuntimeError, match="broken callback"):
        agent.learn(callbacks=[Break()])
    with pytest.raises(ConfigError, match="not trained yet"):
        agent.predict(np.zeros(4))
    failed = agent.run_dir
    assert agent.learn().run_dir == failed
    whole = PPO(config)
    whole.learn()
    assert same_weights(agent, whole)


def test_an_agent_in_its_own_environment_continues(tmp_path: Path) -> None:
    env_id = f"{HELPERS / 'toy_envs.py'}:NoisyEnv"
    agent = PPO(small_config("ppo", tmp_path, env_id=env_id, env_kwargs={"action": "box"}))
    agent.learn(callbacks=[StopAt(32)])
    assert agent.learn().metrics["global_step"] == 128


@pytest.mark.parametrize("name", list(BUILT_IN_CLASSES))
def test_every_agent_has_a_policy_that_is_a_module(name: str, tmp_path: Path) -> None:
    agent = getattr(rl_training, name)(
        small_config(BUILT_IN_CLASSES[name], tmp_path, total_timesteps=32)
    )
    with pytest.raises(ConfigError, match="not trained yet"):
        _ = agent.policy
    assert agent.run_dir is None
    result = agent.learn(progress=False)
    assert any(weight.dim() == 2 or weight.dim() == 3 for weight in agent.policy.parameters())
    assert agent.policy in agent.algorithm.stateful_members().values()
    text = repr(agent)
    assert text.startswith(f"{name}('")
    assert (
        f"trained to step {int(result.metrics['global_step'])} in {result.run_dir}, eval return "
        in text
    )


def test_without_progress_nothing_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = small_config("ppo", tmp_path)
    agent = PPO(config, progress=False)
    agent.learn()
    agent.evaluate()
    PPO(config).learn(progress=False)
    assert capfd.readouterr() == ("", "")
    PPO(config).learn()
    assert "step 128/128" in capfd.readouterr().err


def test_save_replaces_a_saved_policy_and_nothing_else(tmp_path: Path) -> None:
    agent = PPO(small_config("ppo", tmp_path / "runs"))
    result = agent.learn()
    path = agent.save(tmp_path / "policy", overwrite=True)
    agent.learn(total_timesteps=256)
    with pytest.raises(CheckpointError, match="exists already and is not overwritten"):
        agent.save(path)
    assert agent.save(path, overwrite=True) == path
    assert same_weights(PPO.load(path), agent)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["policy", "runs"]
    notes = path / "notes.txt"
    notes.write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(path)
    checkpoint = agent._checkpoint
    for other in (
        path,
        tmp_path / "folder",
        tmp_path / "file",
        tmp_path / "link",
        checkpoint,
        result.run_dir,
    ):
        with pytest.raises(CheckpointError, match="is not overwritten: choose another path"):
            agent.save(other, overwrite=True)
    assert notes.read_text() == (tmp_path / "file").read_text() == "mine"
    PPO.load(result.run_dir)


def test_a_saved_policy_does_not_learn_and_says_what_does(tmp_path: Path) -> None:
    agent = SAC(small_config("sac", tmp_path))
    agent.learn()
    loaded = SAC.load(agent.save(tmp_path / "policy"))
    assert loaded.run_dir is None
    with pytest.raises(
        ConfigError, match=r"SAC.load\(RUN\).learn\(\).*SAC\(..., init_from='.*policy'\)"
    ):
        loaded.learn()
    assert f"trained to step 128 in {tmp_path / 'policy'}" in repr(loaded)

"""A run that begins on recorded data and goes on in the environment: one algorithm, one folder, one curve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TRY_ALL, small_config, step_of
from run_tools import StopAt, assert_same_end

from rl_training import TrainConfig
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.envs.rewards import RewardTransformConfig
from rl_training.errors import ConfigError, RLTrainingError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.logs import read_metrics
from rl_training.replay.mixed_replay import MixedReplay
from rl_training.replay.replay_buffer import ReplayBuffer
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import run_training
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.workflows import resume_training
from rl_training.spaces.spec import describe_spaces

FINE_TUNED = ["td3_bc", "iql", "awac", "cql"]


def two_stages(
    algo: str, output_dir: Path, *, online: dict[str, Any] | None = None, **changes: Any
) -> TrainConfig:
    stage = {"after_updates": 64, "learning_starts": 16, "train_frequency": 2, **(online or {})}
    own = {"online": stage, "eval_interval": 64, **changes.pop("algo_kwargs", {})}
    return small_config(algo, output_dir, **{"total_timesteps": 160, "algo_kwargs": own, **changes})


class Watch(Callback):
    """Keeps every batch, and the step at which environments were first stepped."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.collected_from: int | None = None

    def on_train_start(self, trainer: TrainerState) -> None:
        update = trainer.algorithm.update
        trainer.algorithm.update = lambda batch: (self.batches.append(batch), update(batch))[1]  # type: ignore[method-assign]

    def on_collect_end(self, trainer: TrainerState, result: Any) -> None:
        if self.collected_from is None and trainer.global_step:  # at step 0 the data is collected
            self.collected_from = trainer.global_step - result.steps


@pytest.mark.parametrize("algo", FINE_TUNED)
def test_updates_come_first_then_steps_at_the_pace_that_was_asked_for(
    algo: str, tmp_path: Path
) -> None:
    watch = Watch()
    result = run_training(two_stages(algo, tmp_path), callbacks=[watch])
    assert watch.collected_from == 64
    assert result.metrics["global_step"] == 160
    # 96 steps online, the first 16 of them without updates, then one update for two steps.
    assert result.metrics["gradient_steps"] == len(watch.batches) == 64 + (96 - 16) // 2
    lines = list(read_metrics(result.run_dir / "metrics.jsonl"))
    steps = [line["global_step"] for line in lines]
    assert steps == sorted(steps)
    assert [line["global_step"] for line in lines if "eval_return_mean" in line] == [64, 128, 160]


@pytest.mark.parametrize("algo", FINE_TUNED if TRY_ALL else ["iql"])
@pytest.mark.parametrize(
    ("event", "step"), [("update", 40), ("eval", 64), ("collect", 71), ("update", 101)]
)
def test_a_stop_in_either_stage_leaves_no_trace(
    algo: str, event: str, step: int, tmp_path: Path
) -> None:
    whole = run_training(two_stages(algo, tmp_path / "whole", num_envs=2))
    stopped = run_training(
        two_stages(algo, tmp_path / "stopped", num_envs=2), callbacks=[StopAt(step, event)]
    )
    assert stopped.metrics["global_step"] < 160
    assert_same_end(whole, resume_training(stopped.run_dir))


def test_an_online_stage_that_is_too_short_to_train_says_so(tmp_path: Path, capsys: Any) -> None:
    run_training(two_stages("iql", tmp_path, total_timesteps=70))
    assert (
        "the online stage has 6 steps and trains only after online.learning_starts, 16"
        in capsys.readouterr().err
    )


def test_a_finished_offline_stage_can_be_extended_into_the_environment(
    tmp_path: Path, capsys: Any
) -> None:
    first = run_training(two_stages("iql", tmp_path, total_timesteps=64))
    assert first.metrics["gradient_steps"] == 64
    assert "the run ends at step 64, before its online stage begins" in capsys.readouterr().err
    longer = resume_training(first.run_dir, total_timesteps=160)
    assert longer.metrics["gradient_steps"] == 104
    # The actor's learning rate is a cosine that had reached 0.
    assert "each schedule stays at its final value" in capsys.readouterr().err


def test_wrapped_rewards_are_refused_beside_recorded_ones(tmp_path: Path) -> None:
    config = two_stages("iql", tmp_path, env_kwargs={"wrappers": {"reward": {"scale": 0.1}}})
    with pytest.raises(
        ConfigError, match=r"wrappers\.reward does not reach recorded rewards: use reward_scale"
    ):
        run_training(config)
    assert not list(tmp_path.iterdir())


def tiny_replay(offline_ratio: float, **transform: float) -> tuple[MixedReplay, ReplayBuffer]:
    """Recorded observations are 0, the agent's own 1."""
    import gymnasium as gym

    spaces = describe_spaces(
        gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Box(-1, 1, (1,), np.float32)
    )
    rng, flags = np.random.default_rng(0), np.zeros(10, np.bool_)
    zeros = np.zeros((10, 2), np.float32)
    data = TransitionDataset(
        zeros, zeros[:, :1], np.zeros(10, np.float32), zeros, flags, flags, rng=rng
    )
    replay = ReplayBuffer(spaces, 10, 1, rng=rng, device=torch.device("cpu"))
    return MixedReplay(data, replay, offline_ratio, RewardTransformConfig(**transform)), replay


@pytest.mark.parametrize(("ratio", "own"), [(0.0, 8), (0.25, 6), (0.5, 4), (1.0, 0)])
def test_each_batch_holds_the_share_of_recorded_transitions(ratio: float, own: int) -> None:
    mixed, _ = tiny_replay(ratio)
    (batch,) = mixed.sample_batches(8, 1)
    assert batch.obs.sum() == 0  # nothing of its own yet
    ones = np.ones((1, 2), np.float32)
    mixed.add(
        step_of(ones, ones[:, :1], np.ones(1), ones, np.zeros(1, np.bool_), np.zeros(1, np.bool_))
    )
    for batch in mixed.sample_batches(8, 3):
        assert len(batch.rewards) == 8
        assert batch.rewards.sum() == batch.obs[:, 0].sum() == own


def test_new_rewards_are_transformed_as_the_recorded_ones_were() -> None:
    mixed, replay = tiny_replay(0.0, scale=0.5, shift=1.0, clip_max=2.0)
    flags, zeros = np.zeros(1, np.bool_), np.zeros((1, 2), np.float32)
    for reward in (-4.0, 1.0, 10.0):
        mixed.add(step_of(zeros, zeros[:, :1], np.array([reward]), zeros, flags, flags))
    (rows,) = replay.newest(3)
    assert rows["rewards"][:, 0].tolist() == [-1.0, 1.5, 2.0]


def test_exploration_disturbs_what_the_policy_would_do(tmp_path: Path) -> None:
    actions = {}
    for amount in (0.0, 0.5):
        online = {"exploration": amount, "learning_starts": 10**6}
        result = run_training(two_stages("td3_bc", tmp_path / str(amount), online=online))
        segments = load_checkpoint(result.run_dir).buffer_state["segments"]
        actions[amount] = np.concatenate([segment.arrays["actions"] for segment in segments])
    assert len(actions[0.5]) == 96
    assert np.abs(actions[0.5][0] - actions[0.0][0]).max() > 0
    assert np.abs(actions[0.5]).max() <= 1


def test_discrete_actions_are_replaced_at_random(tmp_path: Path) -> None:
    online = {"exploration": 1.0, "learning_starts": 10**6}
    result = run_training(two_stages("cql", tmp_path, env_id="CartPole-v1", online=online))
    segments = load_checkpoint(result.run_dir).buffer_state["segments"]
    actions = np.concatenate([segment.arrays["actions"] for segment in segments]).ravel()
    assert 20 < actions.sum() < 76  # 96 tosses of a coin


def test_what_cannot_go_online_says_so(tmp_path: Path) -> None:
    with pytest.raises(RLTrainingError, match="online"):
        run_training(small_config("bc", tmp_path, algo_kwargs={"online": {"after_updates": 10}}))
    with pytest.raises(ConfigError, match="env_id"):
        run_training(two_stages("iql", tmp_path, env_id=None))
    with pytest.raises(RLTrainingError, match="offline_ratio"):
        run_training(two_stages("iql", tmp_path, online={"offline_ratio": 1.5}))
    assert not list(tmp_path.iterdir())

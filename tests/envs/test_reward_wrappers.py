"""Reward transforms: scale, then shift, then clip, in training only."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_tools import stored_rows
from conftest import HELPERS, small_config

from rl_training.envs.factory import make_env
from rl_training.envs.rewards import (
    RewardClipWrapper,
    RewardScaleWrapper,
    RewardShiftWrapper,
    RewardTransformConfig,
    apply_reward_wrappers,
)
from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.runtime.run import run_training

COUNTING = f"{HELPERS / 'toy_envs.py'}:CountingEnv"


def rewards_of(env: object, steps: int = 5) -> list[float]:
    env.reset(seed=0)
    return [env.step(0)[1] for _ in range(steps)]


def counting() -> object:
    return make_env(COUNTING, {"lengths": (5,)})


def test_each_wrapper_does_one_thing() -> None:
    assert rewards_of(RewardScaleWrapper(counting(), scale=2.0)) == [2, 4, 6, 8, 10]
    assert rewards_of(RewardShiftWrapper(counting(), shift=-1.0)) == [0, 1, 2, 3, 4]
    assert rewards_of(RewardClipWrapper(counting(), clip_min=2.0, clip_max=4.0)) == [2, 2, 3, 4, 4]
    assert rewards_of(RewardClipWrapper(counting(), clip_max=3.0)) == [1, 2, 3, 3, 3]


def test_nothing_changes_without_a_transform() -> None:
    env = counting()
    assert apply_reward_wrappers(env, None) is env
    assert apply_reward_wrappers(env, RewardTransformConfig()) is env


@pytest.mark.parametrize("clip", [{"clip": [0, 5]}, {"clip_min": 0, "clip_max": 5}])
def test_the_order_is_scale_shift_clip(clip: dict) -> None:
    reward = {"scale": 2.0, "shift": -3.0, **clip}
    settings = {"wrappers": {"reward": reward}, "lengths": (5,)}
    assert rewards_of(make_env(COUNTING, settings)) == [0, 1, 3, 5, 5]
    assert rewards_of(make_env(COUNTING, settings, with_wrappers=False)) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        ({"scal": 2}, ["wrappers.reward.scal", "did you mean 'scale'"]),
        ({"clip": 3}, ["[low, high]"]),
        ({"clip": [1, 0]}, ["above"]),
        ({"clip": [0, 1], "clip_min": 0}, ["not both"]),
        ({"scale": "much"}, ["much"]),
    ],
)
def test_a_mistake_is_named(reward: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        make_env(COUNTING, {"wrappers": {"reward": reward}})
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_training_sees_the_transform_and_evaluation_the_raw_reward(
    algo: str, tmp_path: Path
) -> None:
    env_kwargs = {"lengths": [4], "wrappers": {"reward": {"scale": 0.0, "shift": 7.0}}}
    changes = {"env_id": COUNTING, "env_kwargs": env_kwargs, "total_timesteps": 72}
    result = run_training(small_config(algo, tmp_path, **changes))
    assert result.metrics["eval_return_mean"] == 1 + 2 + 3 + 4
    assert result.metrics["train_return_mean"] == 1 + 2 + 3 + 4
    stored = load_checkpoint(result.checkpoint_path).buffer_state
    stored = (stored_rows(stored) if "segments" in stored else stored["storage"])["rewards"]
    assert (stored == 7.0).all()

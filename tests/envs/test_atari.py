"""Atari games: what agents see, what training makes of lives and rewards, whole games in reports, and exact resume."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TRY_ALL, small_config
from run_tools import StopAt, assert_same_end

from rl_training.diagnostics.resume_check import check_resume
from rl_training.envs.factory import make_env, make_vector_env
from rl_training.errors import ConfigError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.runtime.recording import record_random_actions
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import resume_training

pytest.importorskip("ale_py")
pytest.importorskip("cv2")
BREAKOUT = "ALE/Breakout-v5"


def kwargs_with(**atari: Any) -> dict[str, Any]:
    return {"wrappers": {"atari": atari}, "repeat_action_probability": 0.25}


@pytest.mark.parametrize(
    ("env_id", "game"),
    [("ALE/Pong-v5", {}), ("PongNoFrameskip-v4", {"screen_size": 60, "frame_stack": 2})],
)
def test_games_are_found_without_a_plugin(env_id, game):
    code = (
        "import sys; from rl_training.envs.factory import make_env; assert 'ale_py' not in sys.modules;"
        f"env = make_env({env_id!r}, {{'wrappers': {{'atari': {game}}}}}); print(env.reset(seed=0)[0].shape)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    stack, side = game.get("frame_stack", 4), game.get("screen_size", 84)
    assert answer.stdout.strip() == str((stack, side, side))


@pytest.mark.parametrize(
    ("backend", "game"),
    [("async", {}), ("sync", {"noop_max": 0, "press_fire": False, "frame_skip": 2})],
)
def test_evaluation_sees_what_training_sees_and_reports_are_of_whole_games(backend, game):
    """The same actions in both: training has lost lives as endings and signs as rewards, and reports what is real."""
    training = make_vector_env(BREAKOUT, {**kwargs_with(**game), "backend": backend})
    plain = make_env(BREAKOUT, kwargs_with(**game), with_wrappers=False)
    obs, _ = training.reset(seed=[5])
    np.testing.assert_array_equal(obs[0], plain.reset(seed=5)[0])
    rng, total, length, endings = np.random.default_rng(0), 0.0, 0, []
    is_over = False
    while not is_over:
        action = int(rng.integers(0, 4))
        expected, raw, is_over, _, _ = plain.step(action)
        obs, rewards, terminated, truncated, info = training.step(np.array([action]))
        total, length = total + raw, length + 1
        assert rewards[0] == np.sign(raw)
        assert not truncated[0]
        if terminated[0]:
            endings.append("final_obs" in info)
        np.testing.assert_array_equal(info["final_obs"][0] if is_over else obs[0], expected)
        assert info.get("episodes") == ([(total, length)] if is_over else None)
    assert endings == [False] * 4 + [True]  # five lives: four are lost and the game goes on
    training.close()
    plain.close()


@pytest.mark.parametrize(("clip_reward", "expected"), [(True, {0.0, 1.0}), (False, {0.0, 50.0})])
def test_rewards_are_clipped_to_their_sign_if_wanted(clip_reward, expected):
    env = make_env("ALE/Asterix-v5", kwargs_with(clip_reward=clip_reward))
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    assert {float(env.step(int(rng.integers(9)))[1]) for _ in range(60)} == expected


def test_recorded_games_look_like_the_training_and_keep_their_rewards():
    data = record_random_actions(
        "ALE/Asterix-v5", kwargs_with(screen_size=42), 120, np.random.SeedSequence(0)
    )
    assert data.obs.shape == (120, 4, 42, 42)
    assert set(np.unique(data.rewards)) == {0.0, 50.0}


def test_a_game_that_waits_for_fire_goes_on_by_itself():
    for press_fire in (True, False):
        env = make_env(
            BREAKOUT,
            {**kwargs_with(press_fire=press_fire), "max_episode_steps": 200},
            with_wrappers=False,
        )
        env.reset(seed=0)
        ends = [env.step(0)[2:4] for _ in range(120)]
        assert any(terminated for terminated, _ in ends) == press_fire


def test_a_limit_counts_actions():
    env = make_env(BREAKOUT, {**kwargs_with(), "max_episode_steps": 7})
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(7)] == [False] * 6 + [True]


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match=r"wrappers\.atari is for the games of ale-py"):
        make_env("CartPole-v1", {"wrappers": {"atari": {}}})
    with pytest.raises(ConfigError, match="frameskip"):
        make_env(BREAKOUT, {**kwargs_with(), "frameskip": 4})
    with pytest.raises(ConfigError, match="frame_skipp"):
        make_env(BREAKOUT, kwargs_with(frame_skipp=4))


def test_a_game_is_brought_back_between_its_lives():
    make = partial(make_env, BREAKOUT, {**kwargs_with(), "max_episode_steps": 90})
    proof = check_resume(make, steps=120, seed=0, num_points=6)
    assert proof.num_episodes >= 3
    assert proof.is_exact, proof


@pytest.mark.parametrize("algo", ["dqn", "ppo"] if TRY_ALL else ["dqn"])
def test_a_stopped_and_resumed_run_equals_one_that_never_stopped(algo, tmp_path: Path):
    changes: dict[str, Any] = {
        "env_id": BREAKOUT,
        "env_kwargs": {**kwargs_with(screen_size=42), "max_episode_steps": 50},
        "num_envs": 2,
        "total_timesteps": 160,
        "eval_episodes": 1,
        "checkpoint_interval": 1000,
        "algo_kwargs": {"hidden_sizes": [], "eval_interval": 1000},
    }
    if algo == "dqn":
        changes["algo_kwargs"] |= {"buffer_capacity": 60, "train_frequency": 8, "gradient_steps": 1}
    config = small_config(algo, tmp_path, **changes)
    whole = run_training(config, run_suffix="whole")
    stopped = run_training(config, run_suffix="part", callbacks=[StopAt(70, "collect")])
    assert stopped.stop_reason == "test"
    resumed = resume_training(stopped.run_dir)
    assert_same_end(whole, resumed)
    checkpoint = load_checkpoint(resumed.checkpoint_path)
    assert checkpoint.metadata["exactness"] == "exact"

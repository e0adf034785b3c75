"""Making environments, and what the collector stores of them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from conftest import HELPERS
from gymnasium.vector import AutoresetMode
from stored_steps import collect

from rl_training.envs.factory import EnvSource, make_env, make_vector_env
from rl_training.errors import ConfigError, EnvError

TOYS = f"{HELPERS / 'toy_envs.py'}"
COUNTING = f"{TOYS}:CountingEnv"


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize("num_envs", [1, 4])
def test_no_stored_transition_joins_two_episodes(backend: str, num_envs: int) -> None:
    with closing(make_vector_env(COUNTING, {"backend": backend}, num_envs=num_envs)) as envs:
        assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        stored, _ = collect(envs, 23)
    episode, step = stored["obs"][..., 0], stored["obs"][..., 1]
    next_episode, next_step = stored["next_obs"][..., 0], stored["next_obs"][..., 1]
    assert (episode == next_episode).all()
    assert (next_step == step + 1).all()
    lengths = np.array([3, 5, 2])[episode.astype(int) % 3]
    ended = next_step == lengths
    assert (ended == (stored["terminated"] | stored["truncated"])).all()
    assert (stored["terminated"] == (ended & (episode % 2 == 0))).all()
    assert ended.sum() >= 6 * num_envs
    assert (step[0] == 0).all()
    assert (step[1:][ended[:-1]] == 0).all()
    assert (episode[1:][ended[:-1]] == episode[:-1][ended[:-1]] + 1).all()


def test_raw_returns_are_reported_under_reward_wrappers() -> None:
    wrappers = {"reward": {"scale": 0.5, "shift": 1.0}}
    stored, result = collect(make_vector_env(COUNTING, {"wrappers": wrappers}), 8)
    assert result.episode_returns == [1 + 2 + 3, 1 + 2 + 3 + 4 + 5]
    assert stored["rewards"][:3, 0].tolist() == [1.5, 2.0, 2.5]


def test_gymnasium_id_module_class_and_file_class_are_made() -> None:
    for env_id in ("CartPole-v1", "gymnasium.envs:CartPole-v1"):
        assert make_env(env_id).spec.id == "CartPole-v1"
    by_module = make_env("gymnasium.envs.classic_control.cartpole:CartPoleEnv")
    assert type(by_module.unwrapped).__name__ == "CartPoleEnv"
    assert make_env(COUNTING, {"lengths": (9,)}).unwrapped.lengths == (9,)


def test_max_episode_steps_truncates() -> None:
    for env_id, arguments in (("CartPole-v1", {}), (COUNTING, {"lengths": (9,)})):
        env = make_env(env_id, {"max_episode_steps": 2, **arguments})
        env.reset(seed=0)
        assert [env.step(action)[3] for action in (0, 1)] == [False, True]


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("CartPol-v1", ["CartPol-v1", "did you mean 'CartPole-v"]),
        ("no_such_module_xyz:Env", ["no_such_module_xyz"]),
        ("nowhere.py:Env", ["nowhere.py", "does not exist"]),
        (f"{TOYS}:CountingEnvv", ["CountingEnvv", "did you mean 'CountingEnv'"]),
    ],
)
def test_an_environment_that_cannot_be_found_is_named(env_id: str, words: list[str]) -> None:
    with pytest.raises(EnvError) as error:
        make_env(env_id)
    assert all(word in str(error.value) for word in words)


def test_refused_arguments_and_unknown_backend_are_named() -> None:
    with pytest.raises(ConfigError, match="gravitty"):
        make_env("Pendulum-v1", {"gravitty": 1})
    with pytest.raises(ConfigError, match="asinc"):
        make_vector_env("CartPole-v1", {"backend": "asinc"})


def test_the_environments_own_info_is_not_needed(tmp_path: Path) -> None:
    gym.register("Noisy-test-v0", entry_point=lambda **kwargs: make_env(f"{TOYS}:NoisyEnv", kwargs))
    try:
        envs = make_vector_env("Noisy-test-v0", num_envs=2)
        envs.reset(seed=[0, 1])
        assert envs.step(np.array([0, 0]))[4].keys() <= {"final_obs", "_final_obs", "episodes"}
        envs.close()
    finally:
        del gym.registry["Noisy-test-v0"]


def test_an_evaluation_episode_without_an_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    from rl_training.evaluation import evaluator

    monkeypatch.setattr(evaluator, "MAX_EPISODE_STEPS", 7)
    monkeypatch.setattr(
        evaluator, "act_in", lambda algorithm, active, obs: np.zeros(len(obs), np.int64)
    )
    evaluator = evaluator.Evaluator(EnvSource.parse(COUNTING, {"lengths": (10**9,)}), seeds=[1, 2])
    assert evaluator.run_episodes(None, lambda num_done: None) == (
        [28.0, 28.0],
        [7, 7],
        [None, None],
    )  # type: ignore[arg-type]
    evaluator.close()

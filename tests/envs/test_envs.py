"""Making environments, and what the collector stores of them."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from checkpoint_tools import stored_rows
from conftest import HELPERS
from gymnasium.vector import AutoresetMode

from rl_training.algorithms.base import ActResult
from rl_training.envs.factory import EnvSource, make_env, make_vector_env
from rl_training.errors import ConfigError, EnvError
from rl_training.replay.replay_buffer import ReplayBuffer
from rl_training.runtime.collector import Collector
from rl_training.runtime.trainer import TrainerState
from rl_training.spaces.spec import describe_spaces

TOYS = f"{HELPERS / 'toy_envs.py'}"


def collect(num_envs: int, backend: str, steps: int, **env_kwargs: object) -> dict[str, np.ndarray]:
    """Collect with random actions, and return the stored arrays [steps, envs, ...]."""
    envs = make_vector_env(
        f"{TOYS}:CountingEnv", {"backend": backend, **env_kwargs}, num_envs=num_envs
    )
    spaces = describe_spaces(envs.single_observation_space, envs.single_action_space)
    device = torch.device("cpu")
    buffer = ReplayBuffer(
        spaces, steps * num_envs, num_envs, rng=np.random.default_rng(0), device=device
    )
    collector = Collector(envs, spaces, device)
    collector.reset(list(range(num_envs)))
    state = TrainerState(None, Path())  # type: ignore[arg-type]
    act = lambda obs, *_: ActResult(torch.zeros(len(obs), dtype=torch.int64))  # noqa: E731
    result = collector.collect(act, buffer, steps, state)
    collector.close()
    assert result.steps == state.global_step == steps * num_envs
    return {**stored_rows(buffer.state_dict()), "returns": np.array(result.episode_returns)}


@pytest.mark.parametrize("backend", ["sync", "async"])
@pytest.mark.parametrize("num_envs", [1, 4])
def test_no_stored_transition_joins_two_episodes(backend: str, num_envs: int) -> None:
    stored = collect(num_envs, backend, 23)
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
    stored = collect(1, "sync", 8, wrappers=wrappers)
    assert stored["returns"].tolist() == [1 + 2 + 3, 1 + 2 + 3 + 4 + 5]
    assert stored["rewards"][:3, 0].tolist() == [1.5, 2.0, 2.5]


def test_gymnasium_id_module_class_and_file_class_are_made() -> None:
    assert make_env("CartPole-v1").spec.id == "CartPole-v1"
    by_module = make_env("gymnasium.envs.classic_control.cartpole:CartPoleEnv")
    assert type(by_module.unwrapped).__name__ == "CartPoleEnv"
    assert make_env(f"{TOYS}:CountingEnv", {"lengths": (9,)}).unwrapped.lengths == (9,)


def test_gymnasiums_own_module_and_id_form_is_made() -> None:
    assert make_env("gymnasium.envs:CartPole-v1").spec.id == "CartPole-v1"


def test_max_episode_steps_truncates() -> None:
    env = make_env("CartPole-v1", {"max_episode_steps": 2})
    env.reset(seed=0)
    assert [env.step(0)[3], env.step(1)[3]] == [False, True]
    own = make_env(f"{TOYS}:CountingEnv", {"max_episode_steps": 2, "lengths": (9,)})
    own.reset(seed=0)
    assert [own.step(0)[3], own.step(0)[3]] == [False, True]


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_vector_environments_reset_within_the_step(backend: str) -> None:
    envs = make_vector_env("CartPole-v1", {"backend": backend}, num_envs=2)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert envs.num_envs == 2
    envs.close()


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
    evaluator = evaluator.Evaluator(
        EnvSource.parse(f"{TOYS}:CountingEnv", {"lengths": (10**9,)}), seeds=[1, 2]
    )
    assert evaluator.run_episodes(None, lambda num_done: None) == (
        [28.0, 28.0],
        [7, 7],
        [None, None],
    )  # type: ignore[arg-type]
    evaluator.close()

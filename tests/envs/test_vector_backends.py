"""Environments stepped all at once: what they store is true, and what they cannot do is said."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from conftest import HELPERS, small_config
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from run_tools import StopAt, assert_same_end
from stored_steps import collect

from rl_training.diagnostics.env_doctor import check_environment
from rl_training.envs.factory import make_vector_env
from rl_training.envs.parallel.vector import TrainingEnv
from rl_training.envs.rewards import RewardTransformConfig, apply_reward_wrappers
from rl_training.errors import ConfigError, EnvError, RLTrainingError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.codec import pack, unpack
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import resume_training
from rl_training.spaces.rewards import transform_rewards
from rl_training.spaces.spec import describe_spaces

NEEDS_ENVPOOL = pytest.mark.skipif(
    importlib.util.find_spec("envpool") is None, reason="EnvPool is not installed"
)
ENVPOOL = pytest.param("envpool", marks=NEEDS_ENVPOOL)
BACKENDS = ["vector", ENVPOOL]


class Walker(gym.Env):
    """Walks a noisy line until it is past the end of it."""

    observation_space = gym.spaces.Box(-100.0, 100.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return np.ones(1, np.float32), 1.0, False, False, {}


class Walkers(VectorEnv):
    """Several walkers in one array; the observation is always the same array."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

    def __init__(self, num_envs: int, mode: str = "plain") -> None:
        self.num_envs = num_envs
        self.mode = mode
        self.single_observation_space = Walker.observation_space
        self.single_action_space = Walker.action_space
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.places = np.zeros(num_envs)
        self.hidden: list[list[list[int]]] = [[[0] * num_envs]]
        self.shown = np.zeros((num_envs, 1), np.float32)
        if mode == "same step":
            self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.places[:] = self.np_random.uniform(0.0, 1.0, self.num_envs)
        self.hidden = [[[0] * self.num_envs]]
        return self._show(), {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        self.places += self.np_random.uniform(0.0, 1.0, self.num_envs) + actions
        if self.mode == "hidden":
            self.hidden[0][0] = [count + 1 for count in self.hidden[0][0]]
            self.places += np.array(self.hidden[0][0])
        if self.mode == "global chance":
            self.places += np.random.uniform(size=self.num_envs)
        if self.mode == "raise" and self.places.max() > 5:
            raise RuntimeError("they stumbled")
        ones = np.ones(self.num_envs)
        return self._show(), ones, self.places > 8, ones == 0, {}

    def _show(self) -> Any:
        self.shown[:, 0] = self.places
        return self.shown


@pytest.fixture(autouse=True)
def _walkers() -> Iterator[None]:
    gym.register(
        "Walkers-v0", entry_point=lambda mode="plain": Walker(), vector_entry_point=Walkers
    )
    yield
    del gym.registry["Walkers-v0"]


def put_cartpole(env: gym.Env, obs: np.ndarray) -> None:
    env.unwrapped.state = obs.astype(np.float64)
    env.unwrapped.steps_beyond_terminated = None


def put_pendulum(env: gym.Env, obs: np.ndarray) -> None:
    env.unwrapped.state = np.array([np.arctan2(obs[1], obs[0]), obs[2]], np.float64)


class TestTransitions:
    @pytest.mark.parametrize(
        ("backend", "env_id", "put"),
        [
            ("vector", "CartPole-v1", put_cartpole),
            pytest.param("envpool", "CartPole-v1", put_cartpole, marks=NEEDS_ENVPOOL),
            pytest.param("envpool", "Pendulum-v1", put_pendulum, marks=NEEDS_ENVPOOL),
        ],
    )
    def test_each_is_what_one_environment_does_from_there(
        self, backend: str, env_id: str, put: Any
    ) -> None:
        kwargs = {"backend": backend, "max_episode_steps": 25}
        rows, _ = collect(make_vector_env(env_id, kwargs, num_envs=4), 200)
        alone = gym.make(env_id).unwrapped
        alone.reset(seed=0)
        to_env = describe_spaces(alone.observation_space, alone.action_space).action.to_env
        lengths = np.zeros(4, int)
        for step in range(200):
            lengths += 1
            actions = to_env(rows["actions"][step])
            for index in range(4):
                put(alone, rows["obs"][step, index])
                next_obs, reward, terminated, _, _ = alone.step(actions[index])
                found = {name: rows[name][step, index] for name in rows}
                # At its fastest, EnvPool's pendulum turns a little further.
                if env_id != "Pendulum-v1" or abs(next_obs[2]) < 8:
                    np.testing.assert_allclose(found["next_obs"], next_obs, rtol=1e-4, atol=1e-5)
                np.testing.assert_allclose(found["rewards"], reward, rtol=1e-4, atol=1e-4)
                assert found["terminated"] == terminated
            assert rows["truncated"][step].tolist() == (lengths >= 25).tolist()
            ended = rows["terminated"][step] | rows["truncated"][step]
            lengths[ended] = 0
            if step < 199:
                assert np.array_equal(rows["obs"][step + 1, ~ended], rows["next_obs"][step, ~ended])
                if env_id == "CartPole-v1":  # a new episode begins near the middle
                    assert np.abs(rows["obs"][step + 1, ended]).max(initial=0.0) <= 0.05
        assert rows["truncated"].any()
        assert rows["terminated"].any() == (env_id == "CartPole-v1")

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_an_episode_that_terminates_at_its_limit_has_both_endings(self, backend: str) -> None:
        limit = None
        for _ in range(2):
            envs = make_vector_env(
                "CartPole-v1", {"backend": backend, "max_episode_steps": limit}, num_envs=1
            )
            envs.reset(seed=3)
            info: dict[str, Any] = {}
            length = 0
            while not info:
                *_, terminated, truncated, info = envs.step(np.ones(1, int))
                length += 1
            assert terminated.tolist() == [True]
            assert truncated.tolist() == [limit is not None]
            assert info["episodes"] == [(length, length)]
            envs.close()
            limit = length

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_the_limit_is_the_environments_own_or_a_longer_one(self, backend: str) -> None:
        for kwargs, limit in (({}, 200), ({"max_episode_steps": 230}, 230)):
            env_id = "CartPole-v0" if backend == "vector" else "Pendulum-v1"
            envs = make_vector_env(env_id, {"backend": backend, **kwargs}, num_envs=2)
            obs, _ = envs.reset(seed=0)
            for step in range(1, limit + 1):
                if backend == "vector":  # lean against the fall
                    actions = (
                        obs[:, 2] + 0.5 * obs[:, 3] + 0.05 * obs[:, 0] + 0.1 * obs[:, 1] > 0
                    ).astype(int)
                else:
                    actions = np.zeros((2, 1), np.float32)
                obs, _, terminated, truncated, _ = envs.step(actions)
                assert not terminated.any()
                assert truncated.tolist() == [step == limit] * 2

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_wrappers_change_the_rewards_of_training_but_not_the_returns(
        self, backend: str
    ) -> None:
        kwargs = {
            "backend": backend,
            "wrappers": {"reward": {"scale": 0.5, "shift": 1.0, "clip": [0.0, 1.25]}},
        }
        envs = make_vector_env("CartPole-v1", kwargs, num_envs=3)
        envs.reset(seed=0)
        episodes = []
        for _ in range(30):
            _, rewards, _, _, info = envs.step(np.ones(3, int))
            assert rewards.tolist() == [1.25] * 3
            episodes += info.get("episodes", [])
        assert len(episodes) >= 6
        assert all(total == length and 5 < length < 15 for total, length in episodes)

    @pytest.mark.parametrize(
        "config",
        [
            None,
            {},
            {"scale": 0.1, "shift": -0.7},
            {"clip_min": -0.5},
            {"scale": 3.0, "clip_max": 1.0},
        ],
    )
    def test_rewards_together_are_transformed_as_rewards_alone(self, config: dict | None) -> None:
        class Given(Walker):
            def step(self, action: Any) -> tuple[Any, ...]:
                return np.zeros(1), action, False, False, {}

        settings = None if config is None else RewardTransformConfig(**config)
        rewards = np.random.default_rng(0).normal(size=50)
        wrapped = apply_reward_wrappers(Given(), settings)
        assert transform_rewards(rewards, settings).tolist() == [
            wrapped.step(reward)[1] for reward in rewards
        ]

    def test_a_limit_holds_for_an_environment_that_knows_none_and_arrays_are_copied(self) -> None:
        envs = make_vector_env(
            "Walkers-v0", {"backend": "vector", "max_episode_steps": 4}, num_envs=3
        )
        obs, _ = envs.reset(seed=0)
        seen = [(obs, obs.copy())]
        for step in range(1, 9):
            obs, _, terminated, truncated, info = envs.step(np.zeros(3, int))
            assert truncated.tolist() == [step in (4, 8)] * 3
            seen += [(array, array.copy()) for array in (obs, info.get("final_obs", obs))]
            assert not terminated.any()
        assert all(np.array_equal(*pair) for pair in seen)
        assert (
            seen[8][0].min() > 1.0 >= seen[7][0].max()
        )  # the last of an episode, and the first of the next

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_seeds_decide_everything(self, backend: str) -> None:
        one, two, other = (
            collect(make_vector_env("CartPole-v1", {"backend": backend}, num_envs=8), 60, seed)[0]
            for seed in (1, 1, 2)
        )
        assert all(np.array_equal(one[name], two[name]) for name in one)
        assert not np.array_equal(one["obs"][0], other["obs"][0])
        assert len(np.unique(one["obs"][0, :, 0])) == 8


class TestRefusals:
    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize("kwargs", [{"max_restarts": 1}, {"worker_timeout": 3.0}])
    def test_settings_of_workers(self, backend: str, kwargs: dict) -> None:
        with pytest.raises(ConfigError, match=f"{next(iter(kwargs))} .*backend: {backend}.*sync"):
            make_vector_env("CartPole-v1", {"backend": backend, **kwargs}, num_envs=2)

    @pytest.mark.parametrize(
        ("backend", "env_id", "kwargs", "words"),
        [
            ("vector", "Pendulum-v1", {}, "no vectorized implementation.*CartPole-v0, CartPole-v1"),
            ("vector", "CartPole-v9", {}, "unknown environment 'CartPole-v9'.*CartPole-v"),
            ("vector", f"{HELPERS / 'toy_envs.py'}:BrokenEnv", {}, "takes registered ids"),
            ("vector", "CartPole-v1", {"colour": 1}, "refuses its env_kwargs.*colour"),
            ("vector", "Walkers-v0", {"mode": "hidden"}, "not all in NumPy arrays"),
            ("vector", "Walkers-v0", {"mode": "global chance"}, "not all in NumPy arrays"),
            ("vector", "Walkers-v0", {"mode": "same step"}, "resets within the step"),
            *(
                pytest.param("envpool", *case, marks=NEEDS_ENVPOOL)
                for case in (
                    ("CartPole-v9", {}, "EnvPool has no 'CartPole-v9'.*CartPole-v"),
                    ("Pong-v5", {}, "Gymnasium, used in evaluation, does not"),
                    ("Blackjack-v1", {}, "Gymnasium's, used in evaluation"),
                    ("CartPole-v1", {"sutton_barto_reward": True}, "refuses"),
                )
            ),
        ],
    )
    def test_environments(self, backend: str, env_id: str, kwargs: dict, words: str) -> None:
        with pytest.raises(RLTrainingError, match=words):
            make_vector_env(env_id, {"backend": backend, **kwargs}, num_envs=2)

    def test_envpool_where_it_is_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "envpool", None)
        with pytest.raises(EnvError, match=r'pip install "rl-training\[envpool\]"'):
            make_vector_env("CartPole-v1", {"backend": "envpool"})

    def test_a_fault_tells_the_seeds_the_actions_and_the_traceback(self) -> None:
        envs = make_vector_env("Walkers-v0", {"backend": "vector", "mode": "raise"}, num_envs=2)
        envs.reset(seed=[11, 12])
        with pytest.raises(EnvError) as caught:
            _ = [envs.step(np.array([0, 1])) for _ in range(9)]
        for words in (
            "failed in step: it raised RuntimeError: they stumbled",
            "[11, 12]",
            "[0 1]",
            "line",
            "in step",
        ):
            assert words in str(caught.value)


def go_on(envs: TrainingEnv, rng: np.random.Generator, num_steps: int) -> list[Any]:
    """All that the environments tell in so many steps."""
    told = []
    for _ in range(num_steps):
        *arrays, info = envs.step(rng.integers(0, 2, envs.num_envs))
        told += [*(array.tobytes() for array in arrays), info.get("episodes")]
    return told


class TestResume:
    @pytest.mark.parametrize(
        ("env_id", "num_envs"), [("CartPole-v1", 4), ("CartPole-v1", 3000), ("Walkers-v0", 5)]
    )
    def test_a_vectorized_environment_goes_on_to_the_bit(self, env_id: str, num_envs: int) -> None:
        kwargs = {"backend": "vector", "max_episode_steps": 30}
        one, other = (make_vector_env(env_id, kwargs, num_envs=num_envs) for _ in range(2))
        one.reset(seed=5)
        go_on(one, np.random.default_rng(1), 40)
        tensors: dict[str, torch.Tensor] = {}
        saved = unpack(json.loads(json.dumps(pack(one.state(), tensors))), tensors)
        _, inexact_reasons = other.restore(saved)
        assert inexact_reasons == []
        told = go_on(one, np.random.default_rng(2), 60)
        assert go_on(other, np.random.default_rng(2), 60) == told

    def test_a_state_of_another_shape_is_refused(self) -> None:
        envs = make_vector_env("CartPole-v1", {"backend": "vector"}, num_envs=2)
        envs.reset(seed=0)
        state = envs.state()
        state["batch"]["arrays"]["state"] = np.zeros((4, 1))
        with pytest.raises(ValueError, match="'state'"):
            envs.restore(state)

    @pytest.mark.parametrize("algo", ["ppo", "dqn"])
    @pytest.mark.parametrize(("event", "step"), [("collect", 50), ("update", 77)])
    def test_a_run_on_a_vectorized_environment_resumes_exactly(
        self, algo: str, event: str, step: int, tmp_path: Path
    ) -> None:
        n_step = {"n_step": 3} if algo == "dqn" else {}
        env_kwargs = {"backend": "vector", "wrappers": {"reward": {"scale": 0.1}}}
        changes = {
            "num_envs": 4,
            "total_timesteps": 192,
            "env_kwargs": env_kwargs,
            "algo_kwargs": n_step,
        }
        config = small_config(algo, tmp_path, **changes)
        whole = run_training(config, run_suffix="whole")
        stopped = run_training(config, run_suffix="part", callbacks=[StopAt(step, event)])
        assert stopped.metrics["global_step"] < 192
        resumed = resume_training(stopped.run_dir)
        assert_same_end(whole, resumed)
        assert load_checkpoint(resumed.checkpoint_path).metadata["exactness"] == "exact"

    @NEEDS_ENVPOOL
    def test_an_envpool_begins_new_episodes_and_says_so(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        changes = {"num_envs": 2, "env_kwargs": {"backend": "envpool"}}
        config = small_config("dqn", tmp_path, **changes)
        stopped = run_training(config, callbacks=[StopAt(50, "collect")])
        checkpoint = load_checkpoint(stopped.checkpoint_path)
        assert checkpoint.metadata["exactness"] == "approximate"
        assert "starts new episodes" in checkpoint.metadata["inexact_reasons"][0]
        row = checkpoint.buffer_state["position"]
        capfd.readouterr()
        resumed = resume_training(stopped.run_dir)
        assert "exactness: approximate" in capfd.readouterr().err
        checkpoint = load_checkpoint(resumed.checkpoint_path)
        assert len(checkpoint.metadata["inexact_reasons"]) == 1
        (segment,) = checkpoint.buffer_state["segments"]
        rows = segment.arrays
        assert (rows["truncated"] | rows["terminated"])[row - 1].all()
        assert np.abs(rows["obs"][row]).max() <= 0.05
        assert not np.array_equal(rows["obs"][row], rows["obs"][0])

    def test_a_run_that_is_not_exactly_where_it_was_ends_its_episodes_there(
        self, tmp_path: Path
    ) -> None:
        env_id = f"{HELPERS / 'faulty_envs.py'}:GlobalChance"
        config = small_config("dqn", tmp_path, env_id=env_id, algo_kwargs={"n_step": 3})
        stopped = run_training(config, callbacks=[StopAt(50, "collect")])
        row = load_checkpoint(stopped.checkpoint_path).buffer_state["position"]
        resumed = resume_training(stopped.run_dir)
        (segment,) = load_checkpoint(resumed.checkpoint_path).buffer_state["segments"]
        assert (segment.arrays["truncated"] | segment.arrays["terminated"])[row - 1].all()

    @NEEDS_ENVPOOL
    def test_the_same_seed_gives_the_same_run_in_envpools_threads(self, tmp_path: Path) -> None:
        changes = {"num_envs": 8, "env_kwargs": {"backend": "envpool"}}
        one, two = (run_training(small_config("ppo", tmp_path / name, **changes)) for name in "ab")
        assert_same_end(one, two)


@pytest.mark.parametrize(
    ("backend", "env_id", "exactness"),
    [
        ("vector", "CartPole-v1", "exact"),
        ("vector", "Pendulum-v1", "unknown"),
        pytest.param("envpool", "CartPole-v1", "approximate", marks=NEEDS_ENVPOOL),
    ],
)
def test_the_doctor_knows_the_backend(backend: str, env_id: str, exactness: str) -> None:
    report = check_environment(env_id, {"backend": backend}, steps=50)
    assert report.exactness == exactness
    assert report.has_errors == (exactness == "unknown")
    assert ("no vectorized implementation" in str(report.findings)) == (exactness == "unknown")

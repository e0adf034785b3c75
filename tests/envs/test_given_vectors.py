"""Vector environments of the user's: what is stored at episode ends, exact resume, evaluation, and refusals."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import warm
from conftest import TESTS
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from run_tools import StopAt, assert_same_checkpoint, assert_same_end
from stored_steps import collect
from test_given_envs import SMALL, Counter

from rl_training import PPO, SAC, TrainConfig
from rl_training.envs import register_env
from rl_training.envs.factory import make_vector_env
from rl_training.envs.parallel.vector import TrainingEnv
from rl_training.errors import ConfigError, EnvError, RLTrainingError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.plugins import given
from rl_training.runtime.workflows import record_checkpoint, resume_training


@pytest.fixture(autouse=True)
def _own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given, "_table", {})


class Counters(VectorEnv):
    """Environment i counts to `lengths[i]`; an observation is the time and a random number."""

    def __init__(
        self, lengths: tuple[int, ...] = (2, 3), mode: Any = AutoresetMode.SAME_STEP
    ) -> None:
        self.num_envs, self.lengths = len(lengths), np.array(lengths)
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = Counter.observation_space
        self.single_action_space = Counter.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.times = np.zeros(self.num_envs, np.int64)
        self.shown = np.zeros((self.num_envs, 2), np.float32)
        self.masks: list[list[bool]] = []
        self.is_closed = False

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        self.masks.append(mask.tolist())
        self.times[mask] = 0
        return self._show(mask), {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        self.times += 1
        actions[:] = 0  # what it does with them is its own affair
        rewards, ended = self.times.astype(np.float64), self.times >= self.lengths
        obs, infos = self._show(np.ones(self.num_envs, np.bool_)), {}
        if ended.any() and self.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP:
            infos = {"final_obs": obs.copy(), "_final_obs": ended}
            self.times[ended] = 0
            obs = self._show(ended)
        return obs, rewards, ended, np.zeros(self.num_envs, np.bool_), infos

    def _show(self, mask: Any) -> Any:
        """Always the same array."""
        self.shown[mask, 0] = self.times[mask]
        self.shown[mask, 1] = self.np_random.random(int(mask.sum()))
        return self.shown

    def close_extras(self, **kwargs: Any) -> None:
        self.is_closed = True


class SavableCounters(Counters):
    def get_state(self) -> dict[str, Any]:
        return {"times": self.times.copy(), "shown": self.shown.copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        self.times, self.shown = state["times"], state["shown"]


class Drifting(gym.vector.VectorObservationWrapper):
    """Adds a number that grows with every call."""

    def __init__(self, env: VectorEnv) -> None:
        super().__init__(env)
        self.drift = np.zeros(2, np.float32)

    def observations(self, observations: Any) -> Any:
        self.drift += 0.25
        return observations + self.drift


class ForgetfulCounters(SavableCounters):
    def set_state(self, state: dict[str, Any]) -> None:
        pass


class GloballyRandom(SavableCounters):
    def _show(self, mask: Any) -> Any:
        self.shown[:, 1] = np.random.random()
        return super()._show(mask)


def makers(lengths: tuple[int, ...] = (2, 3)) -> list[Any]:
    return [lambda length=length: Counter(length) for length in lengths]


def async_vector(mode: AutoresetMode) -> VectorEnv:
    return AsyncVectorEnv(makers(), autoreset_mode=mode)


VECTORS: dict[str, Callable[[], VectorEnv]] = {
    "custom same step": Counters,
    "custom disabled": lambda: Counters(mode=AutoresetMode.DISABLED),
    "sync": lambda: SyncVectorEnv(makers()),
    "async": lambda: async_vector(AutoresetMode.NEXT_STEP),
    "async disabled": lambda: async_vector(AutoresetMode.DISABLED),
    "async same step": lambda: async_vector(AutoresetMode.SAME_STEP),
    "wrapped sync": lambda: RecordEpisodeStatistics(SyncVectorEnv(makers())),
}
"""Vector environments whose episodes have two and three steps."""


def training_env(envs: VectorEnv, eval_env: Any = Counter, **env_kwargs: Any) -> TrainingEnv:
    env_id = register_env("python:Tested", envs, eval_env=eval_env)
    return make_vector_env(env_id, env_kwargs, num_envs=envs.num_envs)


@pytest.mark.parametrize("kind", VECTORS)
def test_no_reset_step_is_stored_and_the_last_observation_is_the_episodes(kind: str) -> None:
    with closing(VECTORS[kind]()) as vector:
        rows, result = collect(training_env(vector, wrappers={"reward": {"scale": 2.0}}), 6)
    # Episodes of 2 and 3 steps: time before, time after, and whether the episode ended, worked out by hand.
    assert rows["obs"][..., 0].T.tolist() == [[0, 1, 0, 1, 0, 1], [0, 1, 2, 0, 1, 2]]
    assert rows["next_obs"][..., 0].T.tolist() == [[1, 2, 1, 2, 1, 2], [1, 2, 3, 1, 2, 3]]
    assert rows["terminated"].T.tolist() == [[0, 1, 0, 1, 0, 1], [0, 0, 1, 0, 0, 1]]
    assert rows["rewards"].T.tolist() == [[2, 4, 2, 4, 2, 4], [2, 4, 6, 2, 4, 6]]
    assert not rows["truncated"].any()
    assert rows["actions"].any()
    episodes = sorted(zip(result.episode_returns, result.episode_lengths, strict=True))
    assert episodes == [(3, 2)] * 3 + [(6, 3)] * 2
    # Within an episode the next observation is the one that the next step begins with, bit for bit.
    going_on = rows["terminated"][:-1] == 0
    assert np.array_equal(rows["next_obs"][:-1][going_on], rows["obs"][1:][going_on])


def test_ended_environments_are_reset_by_their_mask() -> None:
    envs = Counters(mode=AutoresetMode.DISABLED)
    collect(training_env(envs), 3)
    assert envs.masks == [[True, True], [True, False], [False, True]]


class TestRefusals:
    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (
                lambda: Counters(mode=AutoresetMode.NEXT_STEP),
                r"Counters resets in the step after.*SAME_STEP.*reset_mask",
            ),
            (
                lambda: Counters(mode=None),
                r"autoreset_mode'\] of Counters is not set.*SAME_STEP",
            ),
            (
                lambda: gym.make_vec("CartPole-v1", num_envs=2),
                r"CartPoleVectorEnv resets in the step.*vectorization_mode='sync'",
            ),
            (
                lambda: AsyncVectorEnv(makers(), shared_memory=False),
                "AsyncVectorEnv resets in the step after",
            ),
        ],
    )
    def test_a_step_that_only_resets_is_refused(
        self, make: Callable[[], VectorEnv], words: str
    ) -> None:
        with closing(make()) as vector, pytest.raises(EnvError, match=words):
            PPO(vector, eval_env=Counter, **SMALL)

    @pytest.mark.parametrize(
        ("make", "settings", "words"),
        [
            (Counters, {}, r"this Counters has no spec .*: pass eval_env=\.\.\."),
            (
                lambda: RecordEpisodeStatistics(gym.make_vec("Pendulum-v1", 2, "sync")),
                {},
                r"pass eval_env=\.\.\.",
            ),
            (
                Counters,
                {"eval_env": "CartPole-v1"},
                "the evaluation environment has the space",
            ),
            (Counters, {"eval_env": Counters()}, "eval_env cannot be a Counters"),
            (
                Counters,
                {"eval_env": Counter, "num_envs": 3},
                "num_envs=3 is given beside a vector environment of 2: leave it out",
            ),
        ],
    )
    def test_evaluation_and_number_of_environments(
        self, make: Callable[[], VectorEnv], settings: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(RLTrainingError, match=words):
            PPO(make(), **settings, **SMALL)

    def test_its_number_of_environments_is_its_own(self) -> None:
        env_id = register_env("python:Two", Counters(), eval_env=Counter)
        words = "num_envs is 1, but the vector environment has 2: use that number"
        with pytest.raises(ConfigError, match=words):
            make_vector_env(env_id)

    @pytest.mark.parametrize(
        "env_kwargs",
        [
            {"backend": "async"},
            {"max_episode_steps": 3},
            {"length": 3},
            {"max_restarts": 1},
            {"wrappers": {"list": ["gymnasium.wrappers:FlattenObservation"]}},
        ],
    )
    def test_settings_that_it_would_ignore(self, env_kwargs: dict[str, Any]) -> None:
        words = r"env_kwargs\.\S+ not supported with a vector environment"
        with pytest.raises(ConfigError, match=words):
            training_env(Counters(), **env_kwargs)

    @pytest.mark.parametrize(
        ("call", "answer", "words"),
        [
            (
                "step",
                lambda self: (self.shown, 0.0, self.times > 9, self.times > 9, {}),
                "rewards have the",
            ),
            (
                "step",
                lambda self: (self.shown, self.times),
                "it should return obs, rewards, terminated",
            ),
            ("step", lambda self: 1 / 0, "ZeroDivisionError"),
            (
                "step",
                lambda self: (self.shown, self.times, self.times < 9, self.times > 9, {}),
                "its infos have no 'final_obs'",
            ),
            ("reset", lambda self: (zeros(3, 2), {}), "it returned 3 observations, not 2"),
            ("reset", lambda self: (zeros(2, 4), {}), "observation 0"),
            ("reset", lambda self: zeros(2, 2), "it should return obs, infos"),
        ],
    )
    def test_wrong_answers_are_named(
        self, call: str, answer: Callable[..., Any], words: str
    ) -> None:
        method = {call: lambda self, *actions, **options: answer(self)}
        envs = training_env(type("Counters", (Counters,), method)())
        with pytest.raises(RLTrainingError) as caught:
            collect(envs, 1)
        assert f"vector environment Counters failed in {call}" in str(caught.value)
        assert words in str(caught.value)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def train(vector: VectorEnv, folder: Path, **more: Any) -> Any:
    return PPO(vector, eval_env=Counter, output_dir=folder, **SMALL).learn(**more)


def exactness(run_dir: Path) -> str:
    return str(json.loads((run_dir / "metadata.json").read_text())["exactness"])


class TestResuming:
    @pytest.mark.parametrize("kind", ["savable", "savable disabled", "wrapped disabled", "sync"])
    def test_it_is_exact(self, kind: str, tmp_path: Path) -> None:
        def make() -> VectorEnv:
            if kind.startswith("sync"):
                return SyncVectorEnv([Counter, lambda: Counter(3)])
            mode = AutoresetMode.DISABLED if "disabled" in kind else AutoresetMode.SAME_STEP
            made: VectorEnv = SavableCounters(mode=mode)
            return Drifting(made) if "wrapped" in kind else made

        whole = train(make(), tmp_path / "whole")
        part = train(make(), tmp_path / "part", callbacks=[StopAt(40, "collect")])
        assert part.metrics["global_step"] < 96
        given._table.clear()
        again = resume_training(part.run_dir, env=make(), eval_env=Counter)
        assert_same_end(whole, again)
        assert (exactness(whole.run_dir), exactness(again.run_dir)) == ("exact", "exact")

    def test_an_agent_continues_in_the_same_object(self, tmp_path: Path) -> None:
        vector = SavableCounters()
        agent = PPO(vector, eval_env=Counter, output_dir=tmp_path / "part", **SMALL)
        agent.learn(callbacks=[StopAt(40, "collect")])
        assert not vector.is_closed
        assert_same_end(train(SavableCounters(), tmp_path / "whole"), agent.learn())

    @pytest.mark.parametrize("kind", ["custom same step", "async", "wrapped sync"])
    def test_without_a_state_it_is_approximate_from_the_first_step(
        self, kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        settings = {**SMALL, "progress": True}
        with closing(VECTORS[kind]()) as vector:
            agent = PPO(vector, eval_env=Counter, output_dir=tmp_path, **settings)
            part = agent.learn(callbacks=[StopAt(40, "collect")])
            assert exactness(part.run_dir) == "approximate"
            assert "has no get_state and set_state" in " ".join(capfd.readouterr().err.split())
            again = agent.learn()
            assert again.metrics["global_step"] == 96
        assert load_checkpoint(again.checkpoint_path).metadata["exactness"] == "approximate"
        assert "a resumed run starts new episodes" in " ".join(capfd.readouterr().err.split())

    @pytest.mark.parametrize(
        ("kind", "words"),
        [
            (ForgetfulCounters, "after set_state returns something else"),
            (GloballyRandom, "numpy's global generator"),
        ],
    )
    def test_a_state_that_is_not_all_is_told(
        self, kind: type[Counters], words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        agent = PPO(kind(), eval_env=Counter, output_dir=tmp_path, **{**SMALL, "progress": True})
        agent.learn(callbacks=[StopAt(40, "collect")])
        again = agent.learn()
        assert words in " ".join(capfd.readouterr().err.split())
        assert exactness(again.run_dir) == "approximate"

    def test_a_state_that_no_file_can_hold_is_named_before_the_first_step(
        self, tmp_path: Path
    ) -> None:
        vector = type("Bad", (SavableCounters,), {"get_state": lambda self: {"window": object()}})()
        with pytest.raises(
            EnvError, match=r"return value of get_state\(\) at 'window' has type object"
        ):
            train(vector, tmp_path)
        assert vector.masks == [[True, True]]

    def test_a_single_environment_evaluates_but_does_not_go_on(self, tmp_path: Path) -> None:
        part = train(SavableCounters(), tmp_path, callbacks=[StopAt(40, "collect")])
        given._table.clear()
        agent = PPO.load(part.run_dir, env=Counter, progress=False)
        assert agent.evaluate(1)["eval_length_mean"] == 5
        with pytest.raises(
            ConfigError, match="trained in a vector environment, and was given a single one"
        ):
            agent.learn()
        given._table.clear()
        agent = PPO.load(part.run_dir, progress=False)
        with pytest.raises(
            EnvError, match=r"'python:SavableCounters' is an object .* pass it again"
        ):
            agent.learn()


class TestUse:
    def test_its_specification_makes_the_evaluation_environments(self, tmp_path: Path) -> None:
        vector = gym.make_vec(
            "Pendulum-v1", num_envs=2, vectorization_mode="sync", wrappers=[_short]
        )
        settings = {
            name: SMALL[name]
            for name in ("seed", "eval_episodes", "num_threads", "compile", "progress")
        }
        agent = SAC(
            vector,
            preset=False,
            total_timesteps=64,
            learning_starts=16,
            output_dir=tmp_path,
            **settings,
        )
        assert agent.config.num_envs == 2
        assert agent.learn().metrics["eval_length_mean"] == 9
        assert record_checkpoint(agent.run_dir or Path(), 20).dataset.obs.shape == (20, 3)
        vector.close()

    def test_it_is_used_by_a_configuration_too(self, tmp_path: Path) -> None:
        vector = gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")
        config = TrainConfig(algo="ppo", env_id=vector)
        assert (config.env_id, config.num_envs) == ("python:CartPole-v1", 3)
        with pytest.raises(ConfigError, match="num_envs=4 is given beside"):
            TrainConfig(algo="ppo", env_id=vector, num_envs=4)

    def test_dictionaries_are_stored_alike(self) -> None:
        def envs() -> VectorEnv:
            return SyncVectorEnv([lambda make=make: AsDict(make()) for make in makers()])

        rows, other = (
            collect(training_env(vector, lambda: AsDict(Counter())), 6)[0]
            for vector in (envs(), RecordEpisodeStatistics(envs()))
        )
        for name in rows:
            assert np.array_equal(rows[name], other[name]), name


def _short(env: gym.Env) -> gym.Env:
    return gym.wrappers.TimeLimit(env, 9)


class AsDict(gym.ObservationWrapper):
    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self.observation_space = gym.spaces.Dict({"now": Counter.observation_space})

    def observation(self, obs: Any) -> Any:
        return {"now": obs}


def test_the_example_of_the_page_survives_a_kill(tmp_path: Path) -> None:
    page = (TESTS.parent / "docs" / "environments.md").read_text()
    section = (
        page.partition("### Your own vector environment")[2]
        .partition("\n### ")[0]
        .partition("\n## ")[0]
    )
    code = section.partition("```python\n")[2].partition("\n```")[0]
    command = (
        section.partition("```\n")[2].partition("```\n")[2].splitlines()[0].split("#")[0].split()
    )
    runs = []
    for name in ("whole", "killed"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / command[1]).write_text(code.replace("100_000", "8_192"))
        process = warm.start([command[1]], folder, warm.SCRIPT)
        if name == "killed":
            deadline = time.monotonic() + 60
            while not list(folder.glob("runs/*/checkpoints/last")) and time.monotonic() < deadline:
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            assert process.returncode == -signal.SIGKILL
            process = warm.start([command[1]], folder, warm.SCRIPT)
        out, err = process.communicate()
        assert process.returncode == 0, err
        runs.append((out, *folder.glob("runs/*")))
    assert runs[0][0] == runs[1][0]
    assert_same_checkpoint(*(run_dir / "checkpoints" / "last" for _, run_dir in runs))
    assert exactness(runs[1][1]) == "exact"

"""Environments given as Python objects: classes, functions and instances, here, in workers and in other processes."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from conftest import TESTS, small_config
from run_tools import StopAt, assert_same_end
from stored_steps import collect
from toy_envs import Step, Timed

from rl_training import PPO, DefaultExperimentManager, TrainConfig
from rl_training.cli import main
from rl_training.envs import register_env
from rl_training.envs.factory import load_code, make_vector_env
from rl_training.errors import ConfigError, EnvError, RLTrainingError
from rl_training.plugins import given
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training
from rl_training.studies import Study

SMALL: dict[str, Any] = {
    "seed": 1,
    "total_timesteps": 96,
    "eval_episodes": 2,
    "device": "cpu",
    "num_threads": 1,
    "compile": False,
    "progress": False,
    "num_steps": 16,
    "minibatch_size": 16,
    "update_epochs": 1,
    "hidden_sizes": [8],
}


class Counter(Timed):
    """Counts its steps and draws a number; the reward of a step is its number in the episode."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length: int = 5) -> None:
        self.length = length

    def step(self, action: Any) -> Step:
        self.time += 1
        return self.observe(), float(self.time), self.time >= self.length, False, {}

    def observe(self) -> Any:
        return np.array([self.time, self.np_random.random()], np.float32)


def make_counter(length: int = 4) -> gym.Env:
    return Counter(length)


class Locked(Counter):
    """Cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Shared(Counter):
    """Copies share their time."""

    def __init__(self) -> None:
        super().__init__()
        self.times = SharedTimes()

    def step(self, action: Any) -> Step:
        self.times.count += 1
        obs, _, *rest = super().step(action)
        return obs, float(self.times.count), *rest


class SharedTimes:
    count = 0

    def __deepcopy__(self, memo: Any) -> SharedTimes:
        return self


@pytest.fixture(autouse=True)
def _own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given, "_table", {})


def local_class() -> type[gym.Env]:
    class Inner(Counter):
        """Of no module."""

    return Inner


INNER = local_class()
IMPORTS = (
    f"import sys\n\nsys.path += [{str(TESTS / 'envs')!r}, {str(TESTS)!r}]\n"
    "from test_given_envs import SMALL, Counter\n"
)
"""How a file or process of its own begins that uses what stands above."""


def run_python(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)


def plugin_that_registers(env_id: str, length: int, path: Path) -> Path:
    path.write_text(
        f"{IMPORTS}from rl_training.envs import register_env\n\n\n"
        f"def make():\n    return Counter({length})\n\n\nregister_env({env_id!r}, make)\n"
    )
    return path


OBJECTS: dict[str, tuple[Any, str, float]] = {
    "class": (Counter, f"{__name__}:Counter", 5),
    "function": (make_counter, f"{__name__}:make_counter", 4),
    "local class": (INNER, "python:Inner", 5),
    "lambda": (lambda: Counter(6), "python:lambda", 6),
    "partial": (functools.partial(Counter, 3), "python:Counter", 3),
    "instance": (Counter(7), "python:Counter", 7),
    "wrapped instance": (gym.wrappers.TimeLimit(Counter(99), 4), "python:Counter", 4),
    "registered instance": (gym.make("CartPole-v1"), "CartPole-v1", 0),
    "changed instance": (gym.make("CartPole-v1", max_episode_steps=8), "python:CartPole-v1", 0),
    "stacked instance": (
        gym.wrappers.FrameStackObservation(gym.make("CartPole-v1"), 2),
        "python:CartPole-v1",
        0,
    ),
}


class TestObjects:
    @pytest.mark.parametrize("kind", list(OBJECTS))
    def test_each_kind_is_trained_evaluated_and_resumed_exactly(
        self, kind: str, tmp_path: Path
    ) -> None:
        env, env_id, length = OBJECTS[kind]
        agent, other = (
            PPO(env, output_dir=tmp_path / name, num_envs=2, preset=False, **SMALL)
            for name in ("whole", "part")
        )
        assert (agent.config.env_id, other.config.env_id) == (env_id, env_id)
        whole = agent.learn()
        other.learn(callbacks=[StopAt(40, "collect")])
        again = other.learn()
        assert_same_end(whole, again)
        assert json.loads((again.run_dir / "metadata.json").read_text())["exactness"] == "exact"
        if length:
            assert whole.metrics["eval_length_mean"] == length
            assert agent.evaluate(1)["eval_return_mean"] == length * (length + 1) / 2

    def test_a_keyword_and_a_configuration_take_them_too(self) -> None:
        make = OBJECTS["lambda"][0]
        assert PPO(env_id=make, **SMALL).config.env_id == "python:lambda"
        config = TrainConfig(algo="ppo", env_id=make)
        assert config.env_id == "python:lambda"
        assert config.replace(seed=3).env_id == "python:lambda"
        assert TrainConfig(algo="ppo", env_id=Counter).env_id == f"{__name__}:Counter"

    def test_a_class_of_a_file_is_named_by_its_path(self, tmp_path: Path) -> None:
        path = tmp_path / "own_file.py"
        path.write_text(
            "from test_given_envs import Counter\n\n\nclass Longer(Counter):\n    pass\n"
        )
        assert PPO(load_code(str(path)).Longer, **SMALL).config.env_id == f"{path}:Longer"

    def test_arguments_are_those_of_the_object(self, tmp_path: Path) -> None:
        agent = PPO(INNER, env_kwargs={"length": 9}, output_dir=tmp_path, **SMALL)
        assert agent.learn().metrics["eval_length_mean"] == 9
        with pytest.raises(ConfigError, match="has no argument 'lenght': did you mean 'length'"):
            PPO(INNER, env_kwargs={"lenght": 9}, output_dir=tmp_path / "no", **SMALL).learn()
        assert not (tmp_path / "no").exists()

    def test_an_instance_is_left_alone(self, tmp_path: Path) -> None:
        env = Counter(7)
        env.reset(seed=5)
        env.step(0)
        agent = PPO(env, output_dir=tmp_path, **SMALL)
        env.length = 99
        assert agent.learn().metrics["eval_length_mean"] == 7
        assert (env.time, env.length) == (1, 99)

    def test_two_objects_of_one_name_are_two_environments(self, tmp_path: Path) -> None:
        agents = [
            PPO(functools.partial(Counter, length), output_dir=tmp_path, **SMALL)
            for length in (3, 6)
        ]
        assert [agent.config.env_id for agent in agents] == ["python:Counter", "python:Counter-2"]
        assert [agent.learn().metrics["eval_length_mean"] for agent in agents] == [3, 6]
        assert [agent.evaluate(1)["eval_length_mean"] for agent in agents] == [3, 6]

    @pytest.mark.parametrize(
        ("env", "words"),
        [
            (Locked(), "this Locked cannot be copied.*pass a function that returns a new one"),
            (Shared(), "two copies of this Shared do not behave alike.*pass a function"),
            (gym.vector.SyncVectorEnv, "cannot be SyncVectorEnv: give an environment id"),
            (dict, "cannot be dict: give an environment id"),
            (5, "takes an environment id, a class, a function .*, not a int"),
        ],
    )
    def test_what_cannot_be_used_is_refused_with_the_remedy(self, env: Any, words: str) -> None:
        with pytest.raises(RLTrainingError, match=words):
            PPO(env, **SMALL)

    def test_what_a_function_returns_is_checked(self, tmp_path: Path) -> None:
        with pytest.raises(EnvError, match=r"returned None, not a gymnasium\.Env"):
            PPO(lambda: None, output_dir=tmp_path, **SMALL).learn()
        assert not list(tmp_path.iterdir())

    def test_an_evaluation_environment_is_for_vector_environments(self) -> None:
        with pytest.raises(ConfigError, match="eval_env is for a vector environment"):
            PPO(Counter, eval_env=Counter, **SMALL)
        with pytest.raises(ConfigError, match="'eval_env' is given beside a TrainConfig"):
            PPO(TrainConfig(algo="ppo", env_id="CartPole-v1"), eval_env=Counter)


class TestWorkers:
    def test_a_partial_is_sent_to_worker_processes(self, tmp_path: Path) -> None:
        make = functools.partial(Counter, 3)
        config = small_config("ppo", tmp_path, env_id=make, env_kwargs={"backend": "async"})
        whole = run_training(config, run_suffix="whole")
        part = run_training(config, run_suffix="part", callbacks=[StopAt(40, "collect")])
        assert_same_end(whole, resume_training(part.run_dir))
        assert whole.metrics["eval_length_mean"] == 3

    def test_an_instance_is_sent_too(self) -> None:
        env_id = register_env("python:Seven", Counter(7))
        with closing(make_vector_env(env_id, {"backend": "async"}, num_envs=2)) as envs:
            assert collect(envs, 7)[0]["terminated"].sum(0).tolist() == [1, 1]

    def test_what_cannot_be_sent_is_refused_with_the_remedy(self, tmp_path: Path) -> None:
        agent = PPO(
            lambda: Counter(), env_kwargs={"backend": "async"}, output_dir=tmp_path, **SMALL
        )
        with pytest.raises(
            EnvError, match=r"cannot be sent to the worker processes.*top level of a module.*sync"
        ):
            agent.learn()
        assert not list(tmp_path.iterdir())


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A run on a lambda, of which this process knows nothing any more."""
    return (
        PPO(lambda: Counter(6), output_dir=tmp_path, **SMALL)
        .learn(callbacks=[StopAt(40, "collect")])
        .run_dir
    )


class TestOtherProcesses:
    @pytest.fixture(autouse=True)
    def _forget(self, finished: Path) -> None:
        given._table.clear()

    def test_a_missing_object_is_asked_for(
        self, finished: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = r"'python:lambda' is an object of the Python process.*PPO\.load\(RUN, env=\.\.\.\).*register_env"
        for call in (
            evaluate_checkpoint,
            resume_training,
            lambda path: PPO.load(path, progress=False).learn(),
        ):
            with pytest.raises(EnvError, match=words):
                call(finished)
        assert main(["eval", str(finished)]) == 2
        assert "register_env('python:lambda', make)" in " ".join(capsys.readouterr().err.split())
        assert main(["doctor", "--env", "python:lambda"]) == 1
        assert "this process does not have it" in " ".join(capsys.readouterr().out.split())
        assert PPO.load(finished, progress=False).predict([0.0, 0.5]) in (0, 1)

    def test_load_takes_it_again(self, finished: Path) -> None:
        agent = PPO.load(finished, env=lambda: Counter(6), progress=False)
        assert agent.evaluate(1)["eval_length_mean"] == 6
        assert agent.learn().metrics["global_step"] == 96
        metadata = json.loads((finished / "metadata.json").read_text())
        assert (metadata["env_id"], metadata["exactness"]) == ("python:lambda", "exact")

    @pytest.mark.parametrize("form", ["manager", "function", "register"])
    def test_resume_takes_it_again(self, form: str, finished: Path) -> None:
        if form == "manager":
            result = DefaultExperimentManager().resume(finished, env=lambda: Counter(6)).train()
        elif form == "function":
            result = resume_training(finished, env=Counter(6))
        else:
            register_env("python:lambda", functools.partial(Counter, 6))
            result = resume_training(finished)
        assert result.metrics["eval_length_mean"] == 6

    def test_a_plugin_registers_it_for_the_command_line(
        self, finished: Path, tmp_path: Path
    ) -> None:
        plugin = plugin_that_registers("python:lambda", 6, tmp_path / "again.py")
        assert main(["eval", str(finished)]) == 2
        assert main(["resume", str(finished), "--plugin", str(plugin)]) == 0
        assert json.loads((finished / "metadata.json").read_text())["status"] == "finished"

    def test_an_ordinary_run_does_not_take_another(self, tmp_path: Path) -> None:
        run_dir = run_training(
            small_config("ppo", tmp_path, env_id=f"{__name__}:make_counter")
        ).run_dir
        assert (
            PPO.load(run_dir, env=make_counter, progress=False).evaluate(1)["eval_length_mean"] == 4
        )
        with pytest.raises(ConfigError, match="cannot be replaced: leave env= out"):
            PPO.load(run_dir, env=Counter)

    def test_a_study_asks_for_a_module(self, tmp_path: Path) -> None:
        config = TrainConfig(algo="ppo", env_id=lambda: Counter(6), total_timesteps=64)
        study = Study(
            {"algo": "ppo", "env_id": config.env_id, "total_timesteps": 64},
            seeds=1,
            output_dir=tmp_path,
        )
        with pytest.raises(
            ConfigError, match=r"is an object of a Python process.*write module:Name"
        ):
            study.run(jobs=1)


def test_a_bad_id_is_refused() -> None:
    for env_id in ("MyEnv", "python:", "python:a/b", "python:..", "module:MyEnv"):
        with pytest.raises(ConfigError, match="bad environment id"):
            register_env(env_id, Counter)


def test_a_script_of_its_own_trains_in_worker_processes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"{IMPORTS}from rl_training import PPO\n\n\n"
        "class Mine(Counter):\n    pass\n\n\n"
        "if __name__ == '__main__':\n"
        "    agent = PPO(Mine, env_kwargs={'backend': 'async'}, output_dir='runs', **SMALL)\n"
        "    print(agent.config.env_id, agent.learn().metrics['eval_length_mean'])\n"
    )
    done = run_python(str(script), folder=tmp_path)
    assert done.stdout.split() == ["python:Mine", "5.0"], done.stderr


def test_a_plugin_gives_an_object_to_worker_processes(tmp_path: Path) -> None:
    load_code(str(plugin_that_registers("python:Three", 3, tmp_path / "registers.py")))
    with closing(make_vector_env("python:Three", {"backend": "async"})) as envs:
        assert collect(envs, 3)[0]["terminated"].tolist() == [[False], [False], [True]]


def test_objects_of_no_file_are_refused_for_worker_processes(tmp_path: Path) -> None:
    code = (
        f"{IMPORTS}from rl_training import PPO\n"
        "class Mine(Counter): pass\n"
        "PPO(Mine, env_kwargs={'backend': 'async'}, output_dir='runs', **SMALL).learn()\n"
    )
    done = run_python("-c", code, folder=tmp_path)
    assert (
        "cannot be sent to the worker processes of backend: async (it is defined in no file)"
        in done.stderr
    )
    assert not (tmp_path / "runs").exists()

"""Wrappers that a configuration names: where they apply, what they remember, whose code runs, and wrong ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warm
from conftest import TESTS, small_config
from run_tools import StopAt, assert_same_checkpoint, assert_same_end

from rl_training.cli import main
from rl_training.envs.factory import EnvSource, load_code, make_env, make_vector_env
from rl_training.errors import ConfigError, EnvError, RLTrainingError
from rl_training.evaluation.evaluator import Evaluator, normalized_score
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.plugins import user_code
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import evaluate_checkpoint, record_checkpoint, resume_training

GYM = "gymnasium.wrappers"
PLUS_3, TIMES_3 = ({f"own_wrappers.py:{name}": {"number": 3.0}} for name in ("Plus", "Times"))
STACK = {f"{GYM}:FrameStackObservation": {"stack_size": 3}}
FILE = """
import gymnasium as gym
import numpy as np
from pathlib import Path

Path(__file__).with_suffix(".ran").touch()
seen = [0]


class Plus(gym.ObservationWrapper):
    \"\"\"Adds a number to every observation.\"\"\"

    def __init__(self, env, number=1.0):
        super().__init__(env)
        self.number = number
        low, high = env.observation_space.low, env.observation_space.high
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, low.shape, np.float32)

    def observation(self, obs):
        return (np.asarray(obs) + self.number).astype(np.float32)


class Times(Plus):
    def observation(self, obs):
        return (np.asarray(obs) * self.number).astype(np.float32)


class Walks(Plus):
    \"\"\"The number grows with every step of the run.\"\"\"

    def observation(self, obs):
        self.number += 0.01
        return super().observation(obs)


class DrawsGlobally(Plus):
    def observation(self, obs):
        return super().observation(obs) + np.float32(np.random.random())


class CountsInItsModule(Plus):
    def observation(self, obs):
        seen[0] += 1
        return super().observation(obs)


class NoWrapper:
    def __init__(self, env):
        pass


def twice(env, number=2.0):
    return Times(Plus(env, number), number)


def forgets(env):
    Plus(env)


def raises(env):
    raise RuntimeError("out of wrapping paper")
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file of wrappers that no process has loaded."""
    path = tmp_path / "own_wrappers.py"
    path.write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(user_code, "_loaded", {})
    monkeypatch.setattr(user_code, "_allowed_functions", set())
    yield path
    forget()


def forget() -> None:
    """Forget, as a new process would, which files were loaded. Only for tests with the fixture `file`."""
    for name in list(sys.modules):
        if name.startswith(f"{user_code.FILE_MODULE}own_wrappers"):
            del sys.modules[name]
    user_code._loaded.clear()
    user_code._allowed_functions.clear()


def listed(*items: Any, **more: Any) -> dict[str, Any]:
    return {**more, "wrappers": {"list": list(items)}}


class TestApplying:
    @pytest.mark.parametrize(
        ("wrappers", "factor", "number"),
        [
            ((PLUS_3, TIMES_3), 3, 9),
            ((TIMES_3, PLUS_3), 3, 3),
            (({"own_wrappers.py:twice": {"number": 4.0}},), 4, 16),
        ],
    )
    def test_the_first_is_the_innermost_and_a_function_takes_the_environment_first(
        self, wrappers: Any, factor: int, number: int, file: Path
    ) -> None:
        plain = make_env("CartPole-v1").reset(seed=1)[0]
        wrapped = make_env("CartPole-v1", listed(*wrappers)).reset(seed=1)[0]
        assert np.allclose(wrapped, plain * factor + number)

    def test_rewards_are_transformed_outside_of_it_and_only_in_training(self) -> None:
        double = {f"{GYM}:ClipReward": {"max_reward": 0.5}}
        settings = {"wrappers": {"list": [double], "reward": {"scale": 10.0}}}
        for is_training, reward in ((True, 5.0), (False, 0.5)):
            env = make_env("CartPole-v1", settings, with_wrappers=is_training)
            env.reset(seed=0)
            assert env.step(0)[1] == reward

    @pytest.mark.parametrize("backend", ["sync", "async"])
    def test_training_evaluation_and_worker_processes_have_it(
        self, file: Path, backend: str
    ) -> None:
        settings = listed("own_wrappers.py:twice", STACK, backend=backend)
        with closing(make_vector_env("CartPole-v1", settings, num_envs=2)) as envs:
            assert envs.reset(seed=1)[0].shape == (2, 3, 4)
        evaluator = Evaluator(EnvSource.parse("CartPole-v1", settings), [1])
        assert evaluator.spaces.obs.shape == (3, 4)
        evaluator.close()

    def test_a_recording_has_it(self, tmp_path: Path) -> None:
        result = run_training(small_config("ppo", tmp_path, env_kwargs=listed(STACK)))
        assert record_checkpoint(result.run_dir, 20).dataset.obs.shape == (20, 3, 4)

    def test_a_wrapped_environment_has_no_normalized_score(self) -> None:
        sources = (
            EnvSource.parse("HalfCheetah-v5", settings)
            for settings in ({}, listed(f"{GYM}:ClipAction"))
        )
        plain, wrapped = (normalized_score(source, 100.0) for source in sources)
        assert plain is not None
        assert wrapped is None

    def test_statistics_that_begin_anew_are_warned_of(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        run_training(
            small_config("ppo", tmp_path, env_kwargs=listed(f"{GYM}:NormalizeObservation"))
        )
        told = " ".join(capfd.readouterr().err.split())
        assert "begins its statistics anew in every evaluation episode" in told
        assert "algo_kwargs.normalize_obs=true" in told


WRAPPERS = {
    "stack": (STACK, f"{GYM}:TimeAwareObservation"),
    "statistics": (f"{GYM}:NormalizeObservation", f"{GYM}:NormalizeReward"),
    "sticky": (
        {f"{GYM}:StickyAction": {"repeat_action_probability": 0.5}},
        {f"{GYM}:DelayObservation": {"delay": 2}},
    ),
    "own": ("own_wrappers.py:Walks", "own_wrappers.py:twice"),
}


class TestResuming:
    @pytest.mark.parametrize(
        ("name", "backend"), [*((name, "sync") for name in WRAPPERS), ("own", "async")]
    )
    def test_it_is_exact(self, name: str, backend: str, file: Path, tmp_path: Path) -> None:
        config = small_config(
            "ppo", tmp_path, num_envs=2, env_kwargs=listed(*WRAPPERS[name], backend=backend)
        )
        whole = run_training(config, run_suffix="whole")
        part = run_training(config, run_suffix="part", callbacks=[StopAt(40, "collect")])
        assert part.metrics["global_step"] < 128
        again = resume_training(part.run_dir)
        assert_same_end(whole, again)
        assert json.loads((again.run_dir / "metadata.json").read_text())["exactness"] == "exact"

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("DrawsGlobally", "numpy's global generator"),
            ("CountsInItsModule", "variable of its module 'seen'"),
        ],
    )
    def test_what_is_not_saved_is_told(
        self, name: str, words: str, file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        config = small_config("ppo", tmp_path, env_kwargs=listed(f"own_wrappers.py:{name}"))
        part = run_training(config, callbacks=[StopAt(40, "collect")])
        again = resume_training(part.run_dir)
        assert words in " ".join(capfd.readouterr().err.split())
        assert load_checkpoint(again.checkpoint_path).metadata["exactness"] == "approximate"


class TestTrust:
    """A checkpoint may name wrappers of Gymnasium, and code of the user's only if the user names it too."""

    def test_a_function_of_an_imported_file_must_be_named_itself(
        self, file: Path, tmp_path: Path
    ) -> None:
        config = small_config("ppo", tmp_path, env_kwargs=listed("own_wrappers.py:twice"))
        run_dir = run_training(config).run_dir
        forget()
        load_code(str(file))
        with pytest.raises(EnvError, match=r"own_wrappers\.py:twice"):
            evaluate_checkpoint(run_dir)
        load_code(f"{file}:twice")
        assert evaluate_checkpoint(run_dir)["eval_episodes"] == 2

    def test_gymnasiums_own_need_no_permission(self, tmp_path: Path) -> None:
        run_dir = run_training(small_config("ppo", tmp_path, env_kwargs=listed(STACK))).run_dir
        assert evaluate_checkpoint(run_dir)["eval_episodes"] == 2


class TestMistakes:
    @pytest.mark.parametrize(
        ("items", "words"),
        [
            (
                ["gymnasium.wrappers:FrameStackObservatio"],
                "has no wrapper 'FrameStackObservatio': did you mean",
            ),
            (["gymnasium.wrappers:FrameStack"], "did you mean 'FrameStackObservation'?"),
            (["FlattenObservation"], "did you mean 'gymnasium.wrappers:FlattenObservation'?"),
            (["gymnasium.wrappers:vector"], "has no wrapper 'vector'"),
            (
                ["gymnasium.wrappers.vector:FlattenObservation"],
                "let the class inherit from gymnasium.Wrapper",
            ),
            (["own_wrappers.py:Pluss"], "did you mean 'Plus'?"),
            (["own_wrappers.py:NoWrapper"], "let the class inherit from gymnasium.Wrapper"),
            (["own_wrappers.py:forgets"], "wrapper 'own_wrappers.py:forgets' returned None"),
            (["own_wrappers.py:raises"], "out of wrapping paper"),
            (["missing.py:Plus"], "file 'missing.py' does not exist"),
            (
                [{f"{GYM}:FrameStackObservation": {"stack_sise": 3}}],
                "has no argument 'stack_sise': did you mean",
            ),
            ([f"{GYM}:FrameStackObservation"], "needs a value for 'stack_size'"),
            (
                [{f"{GYM}:FrameStackObservation": {"stack_size": "x"}}],
                "FrameStackObservation' refuses its arguments",
            ),
            (
                [{"wrapper": f"{GYM}:FlattenObservation", "n": 1}],
                "is no wrapper: write module:Name",
            ),
            ([{f"{GYM}:FlattenObservation": 3}], "is no wrapper: write module:Name"),
            ([3], "3 is no wrapper"),
            (f"{GYM}:FlattenObservation", "should be a list of wrappers"),
        ],
    )
    def test_they_are_named_before_anything_is_made(
        self, items: Any, words: str, file: Path, tmp_path: Path
    ) -> None:
        config = small_config("ppo", tmp_path / "runs", env_kwargs={"wrappers": {"list": items}})
        with pytest.raises(RLTrainingError) as caught:
            run_training(config)
        assert words in " ".join(str(caught.value).split())
        assert not (tmp_path / "runs").exists()

    @pytest.mark.parametrize("backend", ["vector", "envpool"])
    def test_simulators_of_many_environments_do_not_have_it(self, backend: str) -> None:
        words = rf"wrappers.list not supported with backend: {backend}.*sync or async"
        with pytest.raises(ConfigError, match=words):
            make_vector_env("CartPole-v1", listed(STACK, backend=backend))


def test_the_example_of_the_page_survives_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (TESTS.parent / "docs" / "environments.md").read_text()
    section = page.partition("### Your own wrapper")[2].partition("\n### ")[0]
    code, settings, commands = (block.partition("\n```")[0] for block in section.split("```")[1::2])
    (tmp_path / "my_wrappers.py").write_text(code.removeprefix("python\n"))
    (tmp_path / "wrapped.yaml").write_text(settings.removeprefix("yaml\n"))
    (tmp_path / "killer.py").write_text(
        "import os, signal\n\n\nclass Killer:\n    def on_collect_end(self, trainer, result):\n"
        "        if trainer.global_step > 900:\n            os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    monkeypatch.chdir(tmp_path)
    train, resume, evaluate = (line.split("#")[0].split() for line in commands.strip().splitlines())
    quick = [
        "total_timesteps=1536",
        "checkpoint_interval=256",
        "eval_episodes=2",
        "num_threads=1",
        "compile=false",
    ]
    small = [*quick, "algo_kwargs.num_steps=128", "algo_kwargs.update_epochs=1"]

    killing = ["--run-suffix", "killed", "--callback", "killer.py:Killer"]
    killed = warm.run([*train[1:], *small, *killing], tmp_path)
    assert killed.returncode == -9, killed.stderr
    (run_dir,) = (tmp_path / "runs").glob("*killed")
    for words in (resume, evaluate):
        done = warm.run(
            [str(run_dir) if word == "runs/RUN" else word for word in words[1:]], tmp_path
        )
        assert done.returncode == 0, done.stderr
    assert main([*train[1:], *small, "--run-suffix", "whole"]) == 0
    (whole,) = (tmp_path / "runs").glob("*whole")
    assert_same_checkpoint(*(folder / "checkpoints" / "last" for folder in (run_dir, whole)))
    assert json.loads((run_dir / "metadata.json").read_text())["exactness"] == "exact"

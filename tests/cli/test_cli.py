"""The command line: what each command does, prints, writes and returns."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import warm
from run_tools import contents
from terminals import use_terminal

from rl_training.algorithms.ppo import PPOConfig
from rl_training.cli import load_config, main
from rl_training.cli.program import LoadingNotice
from rl_training.experiment import registry
from rl_training.experiment.config import load_config_file

PATIENCE_SECONDS = 60
SMALL = ["num_threads=1", "compile=false", "eval_episodes=1"]
PPO = [
    "ppo",
    "CartPole-v1",
    "total_timesteps=64",
    "num_envs=2",
    "algo_kwargs.num_steps=8",
    "algo_kwargs.minibatch_size=16",
    "algo_kwargs.update_epochs=1",
    *SMALL,
]
OFF_POLICY = [
    "total_timesteps=40",
    "algo_kwargs.learning_starts=20",
    "algo_kwargs.batch_size=8",
    "algo_kwargs.hidden_sizes=[8]",
    "algo_kwargs.buffer_capacity=100",
    "algo_kwargs.train_frequency=4",
    "algo_kwargs.gradient_steps=1",
    "algo_kwargs.eval_interval=1000",
    *SMALL,
]
SAC = ["sac", "Pendulum-v1", *OFF_POLICY]

WALK = '''
import signal
from pathlib import Path

import gymnasium as gym
import numpy as np


class Walk(gym.Env):
    """Five steps of chance. While files named `interrupt*` lie in the working directory, a step sends a signal."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length=5):
        self.length, self.time = length, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._obs(), {}

    def step(self, action):
        for path in sorted(Path().glob("interrupt*")):
            path.unlink()
            signal.raise_signal(signal.SIGINT)
        self.time += 1
        return self._obs(), 1.0, False, self.time >= self.length, {}

    def _obs(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)
'''

PLUGIN = (
    WALK
    + '''

from rl_training.algorithms.dqn import DQNAlgorithm, DQNConfig
from rl_training.experiment.registry import AlgorithmSpec, Loop, register_algorithm


class EagerConfig(DQNConfig):
    """DQN with a setting of its own."""

    eagerness: float = 0.5
    """How eager it is."""


class Eager(DQNAlgorithm):
    """A user's algorithm."""


register_algorithm(AlgorithmSpec("eager", "a user's own", Eager, EagerConfig, Loop.OFF_POLICY))
gym.register("Walk-v0", Walk)
'''
)


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.out.splitlines())

    @property
    def run_dir(self) -> Path:
        return Path(self.lines["run_dir"])

    @property
    def metrics(self) -> dict[str, Any]:
        return dict(json.loads(self.lines["metrics"]))


Call = Callable[..., Answer]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """Run the command line in this process, in an empty working directory."""
    monkeypatch.chdir(tmp_path)

    def call(*args: str | Path) -> Answer:
        capsys.readouterr()
        code = main([str(arg) for arg in args])
        return Answer(code, *capsys.readouterr())

    return call


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that registers an algorithm and an environment; both are forgotten afterwards."""
    path = tmp_path / "plugin.py"
    path.write_text(PLUGIN)
    monkeypatch.setattr(registry, "_SPECS", dict(registry._SPECS))
    yield path
    gym.registry.pop("Walk-v0", None)


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    assert main(["train", *PPO, "--output-dir", str(folder), "--run-suffix", "x"]) == 0
    return folder / "ppo__CartPole-v1__seed0__x"


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of a finished run of 64 steps."""
    return Path(shutil.copytree(finished_run, tmp_path / "copies" / finished_run.name))


def logged(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def spawn(folder: Path, *command: str) -> subprocess.Popen[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def spawn_cli(folder: Path, *args: str) -> subprocess.Popen[str]:
    process: subprocess.Popen[str] = warm.start(args, folder)
    return process


def unwrap(text: str) -> str:
    """Printed commands that continue after a backslash, each in one line."""
    return re.sub(r" *\\\n *", " ", text)


def answer_of(process: subprocess.Popen[str]) -> Answer:
    return Answer(*warm.finish(process))


def screen_of(folder: Path, *args: str) -> str:
    """All that a command draws on a terminal."""
    master, slave = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "rl_training", *args]
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=slave, stderr=slave
    ) as process:
        os.close(slave)
        drawn = b""
        with contextlib.suppress(OSError):  # what the terminal says when its last writer has gone
            while part := os.read(master, 4096):
                drawn += part
    os.close(master)
    assert process.returncode == 0
    return drawn.decode()


class TestTrain:
    def test_prints_where_the_run_is_and_how_it_did(self, call: Call) -> None:
        answer = call("train", *SAC)
        assert answer.code == 0
        assert list(answer.lines) == ["run_dir", "checkpoint_path", "metrics"]
        assert answer.metrics["global_step"] == 40
        assert answer.metrics["gradient_steps"] > 0
        assert answer.metrics["eval_episodes"] == 1
        assert answer.run_dir.parent == Path("runs")
        assert {path.name for path in answer.run_dir.iterdir()} == {
            "checkpoints",
            "config.yaml",
            "evaluations.jsonl",
            "metadata.json",
            "metrics.jsonl",
            "owner",
            "run.log",
            "tensorboard",
            "timing.jsonl",
        }
        assert (Path(answer.lines["checkpoint_path"]) / "manifest.json").is_file()

    def test_json_is_apart_from_what_an_environment_prints(
        self, call: Call, tmp_path: Path
    ) -> None:
        source = WALK.replace(
            "def step(self, action):", "def step(self, action):\n        print('a step')", 1
        )
        assert "a step" in source
        (tmp_path / "walk.py").write_text(source)
        steps = [
            "total_timesteps=2",
            "algo_kwargs.num_steps=1",
        ]  # one step has no variance to explain
        words = [*steps, "algo_kwargs.normalize_advantage=false", *SMALL, "--json"]
        answer = call("train", "ppo", "walk.py:Walk", *words)
        assert len(answer.out.splitlines()) == 1
        json.loads(answer.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
        values = json.loads(answer.out)
        assert list(values) == ["run_dir", "checkpoint_path", "metrics", "stop_reason"]
        assert values["metrics"]["global_step"] == 2
        assert values["stop_reason"] is None
        assert Path(values["checkpoint_path"]).parent.parent == Path(values["run_dir"])
        assert "a step" in answer.err

    def test_flags_and_overrides_land_in_the_runs_config(self, call: Call) -> None:
        flags: dict[str, Any] = {"output_dir": "elsewhere", "total_timesteps": 32, "num_envs": 4}
        flags |= {"eval_episodes": 2, "seed": 7, "device": "cpu"}
        settings = {"num_threads": 1, "compile": False, "tags": ["a", "b"]}
        algo_kwargs = {"num_steps": 8, "gamma": 0.5, "learning_rate": 0.001}
        words = [*PPO[:2], "--run-suffix", "mine", "env_kwargs.wrappers.reward.scale=0.1"]
        for key, value in flags.items():
            words += [f"--{key.replace('_', '-')}", str(value)]
        words += [f"{key}={json.dumps(value)}" for key, value in settings.items()]
        words += [f"algo_kwargs.{key}={value}" for key, value in algo_kwargs.items()]
        answer = call("train", *words)
        assert answer.code == 0
        assert answer.run_dir == Path("elsewhere/ppo__CartPole-v1__seed7__mine")
        config = load_config_file(answer.run_dir / "config.yaml")
        wanted = {**flags, **settings, "env_kwargs": {"wrappers": {"reward": {"scale": 0.1}}}}
        assert {key: config[key] for key in wanted} == wanted
        assert config["algo_kwargs"].items() >= algo_kwargs.items()
        assert answer.metrics["eval_episodes"] == 2

    def test_the_config_of_a_run_trains_the_same_again(self, call: Call) -> None:
        first = call("train", *PPO, "--run-suffix", "first")
        second = call("train", "--config", first.run_dir / "config.yaml", "--run-suffix", "second")
        assert second.code == 0
        assert second.run_dir != first.run_dir
        assert second.metrics == first.metrics


class TestConfig:
    FILE = "seed: 2\nnum_envs: 3\nalgo_kwargs: {gamma: 0.5, ent_coef: 0.1}\n"
    WORDS = (
        "config",
        "ppo",
        "CartPole-v1",
        "--config",
        "f.yaml",
        "--num-envs",
        "4",
        "algo_kwargs.ent_coef=0.2",
        "env_kwargs.max_episode_steps=9",
    )
    PRESET = "preset ppo/cartpole.yaml"

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        (tmp_path / "f.yaml").write_text(self.FILE)

    def test_defaults_then_preset_then_file_then_command_line(self, call: Call) -> None:
        answer = call(*self.WORDS, "algo_kwargs.early_stopping.patience=3", "--json")
        assert answer.code == 0
        rows = {key: (row["value"], row["source"]) for key, row in json.loads(answer.out).items()}
        wanted = {
            "algo": ("ppo", "command line"),
            "device": ("auto", "default"),
            "total_timesteps": (100_000, self.PRESET),
            "seed": (2, "file f.yaml"),
            "num_envs": (4, "command line"),
            "algo_kwargs.vf_coef": (0.5, "default"),
            "algo_kwargs.gae_lambda": (0.8, self.PRESET),
            "algo_kwargs.learning_rate": (
                {"kind": "linear", "start": 0.001, "end": 0.0},
                self.PRESET,
            ),
            "algo_kwargs.gamma": (0.5, "file f.yaml"),
            "algo_kwargs.ent_coef": (0.2, "command line"),
            "env_kwargs.max_episode_steps": (9, "command line"),
        }
        assert {key: rows[key] for key in wanted} == wanted
        assert rows["algo_kwargs.early_stopping"][1] == "command line"
        assert {f"algo_kwargs.{key}" for key in PPOConfig.model_fields} <= rows.keys()

    def test_each_line_ends_with_its_source(self, call: Call, tmp_path: Path) -> None:
        answer = call(*self.WORDS)
        assert [path.name for path in tmp_path.iterdir()] == ["f.yaml"], "nothing is trained"
        rows = {line.split()[0]: line for line in answer.out.splitlines()}
        assert answer.code == 0
        assert rows["seed"].split(maxsplit=1)[1].split("#") == [
            "2                         ",
            " file f.yaml",
        ]
        assert rows["algo_kwargs.gae_lambda"].endswith("# preset")
        assert answer.err.splitlines() == [f"using {self.PRESET}"], "which names the file once"
        assert rows["device"].endswith("# default")
        assert rows["num_envs"].endswith("# command line")

    def test_nested_keys_have_rows_and_sources_of_their_own(self, call: Call) -> None:
        answer = call(
            "config", "sac", "Pendulum-v1", "algo_kwargs.replay={kind: prioritized, beta: 0.5}"
        )
        rows = {
            line.split()[0]: line.split(maxsplit=1)[1].split("#")
            for line in answer.out.splitlines()
        }
        assert max(map(len, answer.out.splitlines())) <= 80
        wanted = {
            "kind": ['"prioritized"', "command line"],
            "beta": ["0.5", "command line"],
            "alpha": ["0.6", "default"],
        }
        for key, row in wanted.items():
            assert [part.strip() for part in rows[f"algo_kwargs.replay.{key}"]] == row
        assert "algo_kwargs.replay" not in rows

    def test_takes_the_options_of_train(self, call: Call) -> None:
        words = [
            "ppo",
            "CartPole-v1",
            "--run-suffix",
            "x",
            "--resume-or-start",
            "--callback",
            "none.py:None",
        ]
        assert call("config", *words).out == call("config", *words[:2]).out


class TestAlgos:
    def test_lists_every_algorithm(self, call: Call) -> None:
        answer = call("algos")
        assert answer.code == 0
        names = [line.split()[0] for line in answer.out.splitlines() if line[0] != " "]
        assert names == [spec.name for spec in registry.list_algorithm_specs()]
        assert {"ppo", "dqn", "sac"} <= set(names)
        assert "on_policy   proximal policy optimization" in answer.out

    def test_lists_the_settings_of_one(self, call: Call) -> None:
        answer = call("algos", "ppo")
        assert answer.code == 0
        start, settings, _ = answer.out.split("\n\n")
        assert start == "set as NAME=VALUE; in a file under algo_kwargs"
        listed = [line.split()[0] for line in settings.splitlines() if line[0] != " "]
        assert listed == list(PPOConfig.model_fields)
        lines = answer.out.splitlines()
        place = next(number for number, line in enumerate(lines) if line.startswith("gae_lambda"))
        assert lines[place].split(maxsplit=3) == ["gae_lambda", "=", "0.95", "number from 0 to 1"]
        assert " ".join(lines[place + 1].split()) in " ".join(
            (PPOConfig.model_fields["gae_lambda"].description or "").split()
        )

    @pytest.mark.parametrize("algo", [spec.name for spec in registry.list_algorithm_specs()])
    def test_choices_ranges_and_nested_keys_are_shown_in_eighty_columns(
        self, call: Call, algo: str
    ) -> None:
        out = call("algos", algo).out
        assert max(map(len, out.splitlines())) <= 80
        rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}
        assert rows["activation"].endswith("  relu | tanh | silu | gelu | elu")
        assert rows["learning_rate"].endswith("  number > 0 | a schedule")
        assert rows["early_stopping"].endswith("  null | mapping:")
        assert rows["early_stopping.mode"].endswith("  max | min")
        assert (
            "a schedule: {kind: linear | cosine, start: number ≥ 0, end: number ≥ 0} over the run"
            in " ".join(out.split())
        )

    def test_json(self, call: Call) -> None:
        rows = {row["name"]: row for row in json.loads(call("algos", "--json").out)}
        assert rows["sac"]["loop"] == "off_policy"
        assert "soft actor-critic" in rows["sac"]["summary"]
        settings = json.loads(call("algos", "sac", "--json").out)
        assert settings["tau"]["default"] == 0.005
        assert "target networks" in settings["tau"]["meaning"]
        keys = list(settings)
        assert keys.index("replay.kind") > keys.index("replay")
        assert settings["replay.kind"]["values"] == "uniform | prioritized | her"


class TestEval:
    def test_gives_the_number_that_training_logged_and_changes_nothing(
        self, call: Call, run: Path
    ) -> None:
        before, final = contents(run), logged(run)[-1]
        answer = call("eval", "--checkpoint", run, "--json")
        assert (answer.code, len(answer.out.splitlines())) == (0, 1)
        for name in ("global_step", "eval_return_mean", "eval_return_std", "eval_episodes"):
            assert json.loads(answer.out)[name] == final[name]
        assert contents(run) == before

    def test_of_the_best_with_other_episodes(self, call: Call, run: Path) -> None:
        answer = call("eval", run / "checkpoints" / "best", "--device", "cpu")
        best = max(line.get("eval_return_mean", 0.0) for line in logged(run))
        assert answer.metrics["eval_return_mean"] == best
        assert call("eval", run, "--eval-episodes", "3").metrics["eval_episodes"] == 3


class TestResume:
    def test_extends_the_run_in_its_folder(self, call: Call, run: Path) -> None:
        before = logged(run)
        words = ["--total-timesteps", "96", "--eval-episodes", "2", "--json"]
        answer = call("resume", "--checkpoint", run, *words)
        assert (answer.code, len(answer.out.splitlines())) == (0, 1)
        values = json.loads(answer.out)
        metrics = values["metrics"]
        assert (metrics["global_step"], metrics["eval_episodes"]) == (96, 2)
        assert values["checkpoint_path"] == str(run / "checkpoints" / "step_000000000096")
        assert logged(run)[: len(before)] == before
        assert logged(run)[-1]["global_step"] == 96
        assert list(run.parent.iterdir()) == [run]

    def test_of_a_finished_run_says_so(self, call: Call, run: Path) -> None:
        before = contents(run)
        answer = call("resume", "--checkpoint", run)
        assert answer.code == 0
        assert "this run is finished at step 64" in answer.err
        assert "--total-timesteps" in answer.err
        assert answer.run_dir == run
        assert contents(run) == before

    def test_into_another_folder(self, call: Call, run: Path) -> None:
        words = ["--total-timesteps", "96", "--output-dir", "other"]
        assert call("resume", run, *words).run_dir.parent == Path("other")


class TestPlugin:
    WORDS = ("eager", "Walk-v0", *OFF_POLICY)

    def test_registers_an_algorithm_and_an_environment(self, call: Call, plugin: Path) -> None:
        answer = call(
            "train",
            *self.WORDS,
            "--plugin",
            plugin,
            "algo_kwargs.eagerness=0.25",
            "env_kwargs.length=3",
        )
        assert answer.code == 0
        assert answer.run_dir.name.startswith("eager__Walk-v0__seed0__")
        assert answer.metrics["eval_return_mean"] == 3.0
        config = load_config_file(answer.run_dir / "config.yaml")
        assert config["algo_kwargs"]["eagerness"] == 0.25
        evaluated = call("eval", "--plugin", plugin, "--checkpoint", answer.run_dir)
        assert (evaluated.code, evaluated.metrics["eval_return_mean"]) == (0, 3.0)
        resumed = call(
            "resume", "--plugin", plugin, "--checkpoint", answer.run_dir, "--total-timesteps", "48"
        )
        assert (resumed.code, resumed.metrics["global_step"]) == (0, 48)

    def test_its_settings_are_listed(self, call: Call, plugin: Path) -> None:
        assert "eager   off_policy  a user's own" in call("algos", "--plugin", plugin).out
        assert "eagerness = 0.5" in call("algos", "eager", "--plugin", plugin).out
        rows = json.loads(call("config", "eager", "Walk-v0", "--plugin", plugin, "--json").out)
        assert rows["algo_kwargs.eagerness"] == {"value": 0.5, "source": "default"}

    def test_its_algorithm_is_unknown_without_it(self, call: Call, plugin: Path) -> None:
        assert call("train", *self.WORDS).code == 2

    def test_an_environment_class_needs_no_plugin(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "walk.py").write_text(WALK)
        answer = call("train", "dqn", "walk.py:Walk", *OFF_POLICY)
        assert answer.code == 0
        assert answer.metrics["eval_return_mean"] == 5.0
        assert answer.run_dir.name.startswith("dqn__walk.py-Walk__seed0__")

    def test_its_environment_works_in_worker_processes(self, tmp_path: Path, plugin: Path) -> None:
        words = (
            "train",
            *self.WORDS,
            "--plugin",
            "plugin.py",
            "num_envs=2",
            "env_kwargs.backend=async",
        )
        answer = answer_of(spawn_cli(tmp_path, *words))
        assert answer.code == 0, answer.err
        assert answer.metrics["global_step"] == 40


WATCH = """
from pathlib import Path

class Watch:
    def on_train_start(self, trainer):
        with open("events", "a") as file:
            file.write(f"start {trainer.global_step}\\n")

class Steps(Watch):
    count = 0

    def on_collect_end(self, trainer, result):
        self.count += result.num_env_steps

    def on_train_end(self, trainer, result):
        with open("events", "a") as file:
            file.write(f"steps {self.count}\\n")

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]

class Demanding(Watch):
    def __init__(self, path): ...

class Idle: ...

watch = Watch()
number = 3

def make():
    return Watch()
"""


class TestCallbacks:
    @pytest.fixture(autouse=True)
    def _watch(self, tmp_path: Path) -> None:
        (tmp_path / "watch.py").write_text(WATCH)

    def test_a_class_an_object_or_a_function_in_a_file_or_a_module(
        self, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.syspath_prepend(tmp_path)
        names = ("watch.py:Watch", "watch.py:watch", "watch.py:make", "watch:Watch")
        words = [word for name in names for word in ("--callback", name)]
        answer = call("train", *PPO, *words)
        assert answer.code == 0, answer.err
        assert (tmp_path / "events").read_text() == "start 0\n" * 4

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("watch.py", "names no object: write FILE.py:NAME or MODULE:NAME"),
            ("watch.py:Demandin", "'watch.py' has no 'Demandin': did you mean 'Demanding'?"),
            (
                "watch.py:Demanding",
                "cannot be called without arguments: missing a required argument: 'path'",
            ),
            ("watch.py:Idle", "callback 'watch.py:Idle' has no event"),
            ("watch.py:number", "callback 'watch.py:number' has no event"),
            ("nothing.py:Watch", "file 'nothing.py' does not exist"),
            ("no_such_module:Watch", "no_such_module"),
        ],
    )
    def test_a_mistake_is_named_before_anything_is_made(
        self, call: Call, tmp_path: Path, name: str, message: str
    ) -> None:
        answer = call("train", *PPO, "--callback", name)
        assert answer.code == 2
        assert message in answer.err
        assert not (tmp_path / "runs").exists()

    def test_on_resume_too(self, call: Call, run: Path) -> None:
        assert (
            "has no event"
            in call("resume", run, "--total-timesteps", "128", "--callback", "watch.py:Idle").err
        )
        assert (
            call("resume", run, "--total-timesteps", "128", "--callback", "watch.py:Watch").code
            == 0
        )
        assert Path("events").read_text() == "start 64\n"

    def test_the_command_that_resumes_names_it(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "walk.py").write_text(WALK)
        (tmp_path / "interrupt").touch()
        answer = call("train", "dqn", "walk.py:Walk", *OFF_POLICY, "--callback", "watch.py:Steps")
        assert answer.code == 130
        command = TestInterrupted.command_in(answer)
        assert command[-2:] == ["--callback", "watch.py:Steps"]
        assert call(*command[3:]).code == 0
        assert (tmp_path / "events").read_text().splitlines()[-1] == "steps 40"


class TestInterrupted:
    """`Walk` sends SIGINT from inside a step, once for each file named `interrupt*`."""

    @pytest.fixture(autouse=True)
    def _walk(self, tmp_path: Path) -> None:
        (tmp_path / "walk.py").write_text(WALK)

    @staticmethod
    def command_in(answer: Answer) -> list[str]:
        (line,) = [line for line in unwrap(answer.err).splitlines() if " resume " in line]
        return shlex.split(line)

    def test_prints_a_command_that_goes_on(self, call: Call, tmp_path: Path) -> None:
        (tmp_path / "interrupt").touch()
        words = ["--output-dir", "my runs; $HOME", "--json"]
        answer = call("train", "dqn", "walk.py:Walk", *OFF_POLICY, *words)
        assert answer.code == 130
        values = json.loads(answer.out)
        assert values["stop_reason"] == "interrupted by SIGINT"
        assert values["metrics"]["global_step"] < 40
        run_dir = Path(values["run_dir"])
        metadata = json.loads((run_dir / "metadata.json").read_text())
        assert (metadata["status"], metadata["stop_reason"]) == ("stopped", "interrupted by SIGINT")
        command = self.command_in(answer)
        assert command[:3] == [sys.executable, "-m", "rl_training"]
        # Reading the checkpoint would not import the environment by itself.
        assert command[3:] == ["resume", str(run_dir), "--plugin", "walk.py"]
        resumed = call(*command[3:])
        assert (resumed.code, resumed.run_dir) == (0, run_dir)
        assert resumed.metrics["global_step"] == 40
        metadata = json.loads((run_dir / "metadata.json").read_text())
        assert (metadata["status"], metadata["stop_reason"]) == ("finished", None)

    def test_the_command_names_the_plugin_it_needs(
        self, call: Call, plugin: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "interrupt").touch()
        answer = call("train", "eager", "Walk-v0", *OFF_POLICY, "--plugin", "plugin.py")
        assert answer.code == 130
        resumed = answer_of(spawn(tmp_path, *self.command_in(answer)))
        assert resumed.code == 0, resumed.err
        assert resumed.metrics["global_step"] == 40

    def test_the_handlers_are_put_back(self, call: Call) -> None:
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        call("train", "dqn", "walk.py:Walk", *OFF_POLICY)
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


class TestProcess:
    """The command line as a process of its own."""

    def test_python_m_trains(self, tmp_path: Path) -> None:
        answer = answer_of(spawn_cli(tmp_path, "train", *PPO))
        assert answer.code == 0
        assert list(answer.lines) == ["run_dir", "checkpoint_path", "metrics"]
        assert (tmp_path / answer.run_dir / "config.yaml").is_file()
        assert "Warning" not in answer.err

    def test_a_terminal_shows_how_far_a_run_and_an_evaluation_are(self, tmp_path: Path) -> None:
        words = [word for word in SAC if word != "eval_episodes=1"]
        screen = screen_of(tmp_path, "train", *words, "eval_episodes=200")
        assert re.search(r"100%  40/40  evaluating: \d+ of 200 episodes", screen)
        assert re.search(r"100%  40/40  .* left  eval -\d+\.\d", screen.split("evaluating")[-1])
        lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", screen))
        drawn = [line for line in lines if "━" in line or line.startswith("step ")]
        assert max(map(len, drawn)) <= 80
        assert any(
            re.fullmatch(r"step 40  eval .* over 200 episodes  best so far", line) for line in lines
        )
        (run_dir,) = (tmp_path / "runs").iterdir()
        screen = screen_of(tmp_path, "eval", "--checkpoint", str(run_dir), "--eval-episodes", "9")
        assert "evaluating" in screen
        assert "(mean ± standard deviation of 9 episodes)" in screen

    @pytest.mark.parametrize(
        "words", [["--help"], ["train", "--help"], ["resume", "--help"], ["no-such-command"]]
    )
    def test_help_imports_nothing_heavy(self, tmp_path: Path, words: list[str]) -> None:
        program = (
            "import sys; from rl_training.cli import main; main(sys.argv[1:]);"
            " print('heavy:', sorted({'torch', 'gymnasium', 'numpy', 'tensorboard', 'matplotlib'} & set(sys.modules)))"
        )
        answer = answer_of(spawn(tmp_path, sys.executable, "-c", program, *words))
        assert answer.code == 0, answer.err
        assert answer.out.splitlines()[-1] == "heavy: []"

    def test_the_script_without_words_shows_the_commands(self, tmp_path: Path) -> None:
        answer = answer_of(spawn(tmp_path, "rl-training"))
        assert answer.code == 0
        assert "\n  train " in answer.out


class TestPlot:
    @pytest.fixture(autouse=True)
    def _matplotlib(self) -> None:
        pytest.importorskip("matplotlib")

    def test_writes_a_png_into_the_run(self, call: Call, run: Path) -> None:
        answer = call("plot", run)
        assert answer.code == 0
        picture = Path(answer.lines["picture"])
        assert picture == run / "learning_curve.png"
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert call("plot", run, "--out", "curve.png").out == "picture=curve.png\n"
        assert Path("curve.png").read_bytes() == picture.read_bytes()

    def test_demo_trains_draws_and_says_what_to_try(
        self, call: Call, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "argv", ["/somewhere/rl_training/__main__.py", "demo"])
        answer = call("demo", "--total-timesteps", "64", "--output-dir", "demo runs")
        assert answer.code == 0
        (picture,) = Path("demo runs").glob("*/learning_curve.png")
        assert f"Learning curve: {picture}" in answer.out
        suggestions = [
            shlex.split(line)
            for line in unwrap(answer.err).split("Try next:")[1].splitlines()
            if line
        ]
        assert all(words[:3] == [sys.executable, "-m", "rl_training"] for words in suggestions)
        (evaluation,) = [words for words in suggestions if "eval" in words]
        assert call(*evaluation[evaluation.index("eval") :]).code == 0


def test_a_file_is_read_as_train_reads_it(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("algo: dqn\nenv_id: CartPole-v1\nalgo_kwargs: {gamma: 0.9}\n")
    config = load_config(tmp_path / "a.yaml")
    assert (config.algo, config.algo_kwargs) == ("dqn", {"gamma": 0.9})


def test_a_line_at_the_terminal_says_that_torch_is_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = use_terminal(monkeypatch)
    notice = LoadingNotice()
    monkeypatch.setattr(sys, "meta_path", [notice, *sys.meta_path])
    assert importlib.util.find_spec("yaml.nothing") is None
    assert terminal.getvalue() == ""
    monkeypatch.delitem(sys.modules, "torch")
    assert importlib.util.find_spec("torch") is not None
    assert terminal.getvalue() == "loading PyTorch…\n"
    assert notice not in sys.meta_path

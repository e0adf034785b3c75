"""Environments of one's own: classes, factory functions, files, modules and plugins, here and in worker processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from checkpoint_tools import forge_manifest
from conftest import HELPERS, TESTS
from run_tools import assert_same_checkpoint

from rl_training.cli import main
from rl_training.envs.factory import load_code, make_env, make_vector_env
from rl_training.errors import ConfigError, EnvError
from rl_training.experiment import registry
from rl_training.experiment.checkpointing import load_checkpoint, resolve_checkpoint
from rl_training.plugins import user_code
from rl_training.plugins.gate import unknown_code
from rl_training.runtime.workflows import evaluate_checkpoint

SMALL = [
    *("num_threads=1", "compile=false", "eval_episodes=1", "total_timesteps=32", "output_dir=out"),
    *("algo_kwargs.num_steps=8", "algo_kwargs.update_epochs=1", "algo_kwargs.minibatch_size=8"),
]
CARTPOLE = ("ppo", "CartPole-v1", "num_envs=1")
ENV = """
import gymnasium as gym
import numpy as np

from {helper} import LENGTH


class Steps(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length=LENGTH):
        self.length, self.time = length, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {{}}

    def step(self, action):
        self.time += 1
        return np.zeros(2, np.float32), 1.0, False, self.time >= self.length, {{}}


class Needy(Steps):
    def __init__(self, goal, size):
        super().__init__(size)


class Broken(Steps):
    def __init__(self, licence="none"):
        self.check(licence)

    def check(self, licence):
        raise RuntimeError(f"licence {{licence}} is not valid")


class Plain:
    pass


def make_steps(length=4):
    return gym.wrappers.TimeLimit(Steps(length=100), length)


def make_nothing():
    Steps()


def make_several():
    return gym.vector.SyncVectorEnv([Steps])


def remove(path):
    __import__("pathlib").Path(path).unlink()


{more}
"""

Call = Callable[..., tuple[str, str]]
Train = Callable[..., Path]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """Run the command line in this process, in an empty working directory: what it prints, if it exits with `code`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def call(*words: str | Path, code: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        ended = main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert ended == code, err
        return out, err

    return call


@pytest.fixture
def train(call: Call) -> Train:
    """Train on the command line; the run's folder."""

    def train(*words: str | Path) -> Path:
        out, _ = call("train", *words, *SMALL)
        return Path.cwd() / dict(line.split("=", 1) for line in out.splitlines())["run_dir"]

    return train


@pytest.fixture
def write(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Path]:
    """Write an environment file and the helper that it imports, with names that no other test has used."""
    stem = "".join(letter if letter.isalnum() else "_" for letter in request.node.name)

    def write(folder: Path = tmp_path, more: str = "") -> Path:
        folder.mkdir(exist_ok=True)
        (folder / f"{stem}_helper.py").write_text("LENGTH = 5\n")
        path = folder / f"{stem}_env.py"
        path.write_text(ENV.format(helper=f"{stem}_helper", more=more))
        return path

    return write


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Forget, as a new process would, which code was loaded and what it registered."""
    specs = dict(registry._SPECS)

    def forget() -> None:
        registry._SPECS.clear()
        registry._SPECS.update(specs)
        gym.registry.pop("Mine-v0", None)
        for name in [
            name for name in sys.modules if name.startswith((user_code.FILE_MODULE, "test_"))
        ]:
            if name.endswith("_env") or name.startswith(user_code.FILE_MODULE):
                monkeypatch.delitem(sys.modules, name)
        monkeypatch.setattr(user_code, "_loaded", {})
        monkeypatch.setattr(user_code, "_registered", {})
        monkeypatch.setattr(user_code, "_allowed_functions", set())

    forget()
    yield forget
    forget()


class TestWorkers:
    def test_import_only_the_code_that_registered_the_environment(
        self, tmp_path: Path, write: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "gone_plugin.py").write_text("")
        load_code(str(tmp_path / "gone_plugin.py"))
        (tmp_path / "gone_plugin.py").unlink()
        monkeypatch.syspath_prepend(tmp_path)
        (tmp_path / "gone_module.py").write_text("")
        load_code("gone_module")
        monkeypatch.undo()
        load_code(str(write(more='gym.register("OnlyThis-v0", Steps)')))
        try:
            envs = make_vector_env("OnlyThis-v0", {"backend": "async"}, num_envs=1)
            assert envs.reset(seed=[0])[0].shape == (1, 2)
            envs.close()
        finally:
            del gym.registry["OnlyThis-v0"]

    def test_find_code_that_was_registered_without_a_plugin(self) -> None:
        gym.register("InAModule-v0", "test_user_code_no_such:Env")
        gym.register("Function-v0", make_env)
        try:
            assert user_code.code_for("InAModule-v0") == "test_user_code_no_such"
            assert user_code.code_for("Function-v0") == "rl_training.envs.factory"
            assert user_code.code_for("NoSuchId-v0") is None
        finally:
            del gym.registry["InAModule-v0"], gym.registry["Function-v0"]

    def test_start_in_the_working_directory_and_find_neighbours(
        self, tmp_path: Path, write: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = write(tmp_path / "project")
        monkeypatch.chdir(tmp_path)
        envs = make_vector_env(
            f"project/{path.name}:make_steps", {"backend": "async", "length": 3}, num_envs=1
        )
        envs.reset(seed=[0])
        assert [bool(envs.step([0])[3][0]) for _ in range(3)] == [False, False, True]
        envs.close()


class TestForms:
    def test_a_factory_function_is_called_with_env_kwargs(self, write: Any) -> None:
        env = make_env(f"{write()}:make_steps", {"length": 7})
        assert env.get_wrapper_attr("_max_episode_steps") == 7

    def test_a_file_imports_its_neighbours_from_anywhere(self, write: Any, tmp_path: Path) -> None:
        assert make_env(f"{write(tmp_path / 'elsewhere')}:Steps").unwrapped.length == 5

    def test_files_with_neighbours_of_the_same_name_each_have_their_own(
        self, tmp_path: Path
    ) -> None:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "same_name_neighbour.py").write_text(f"NAME = {name!r}\n")
            (tmp_path / name / "plugin.py").write_text("import same_name_neighbour\n")
        modules = [load_code(str(tmp_path / name / "plugin.py")) for name in ("one", "two", "one")]
        assert [module.same_name_neighbour.NAME for module in modules] == ["one", "two", "one"]

    @pytest.mark.parametrize("program", [["rl-training"], [sys.executable, "-m", "rl_training"]])
    def test_a_module_beside_you_is_found_by_both_programs(
        self, write: Any, tmp_path: Path, program: list[str]
    ) -> None:
        module = write().stem
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        command = [*program, "algos", "--plugin", module]
        answer = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True
        )
        assert answer.returncode == 0, answer.stderr + answer.stdout
        assert "ppo" in answer.stdout

    def test_a_module_beside_you_trains_and_is_a_plugin(
        self, call: Call, train: Train, write: Any
    ) -> None:
        module = write().stem
        run = train("ppo", f"{module}:Steps")
        call("resume", run, "--total-timesteps", "48", "--plugin", module)

    def test_a_module_beside_you_may_hold_a_callback(self, call: Call, write: Any) -> None:
        callback = "class Watch:\n    def on_train_end(self, trainer, result):\n        print('seen', flush=True)\n"
        module = write(more=callback).stem
        out, _ = call("train", *CARTPOLE, *SMALL, "--callback", f"{module}:Watch")
        assert "seen" in out

    def test_the_working_directory_is_only_searched_for_what_the_user_names(
        self, call: Call, train: Train, write: Any, tmp_path: Path, forget: Any
    ) -> None:
        module = write().stem
        (tmp_path / "ale_py.py").write_text("raise SystemExit('imported')")
        checkpoint = resolve_checkpoint(train(*CARTPOLE))
        forge_manifest(
            checkpoint, lambda manifest: manifest["config"].update(env_id=f"{module}:Steps")
        )
        _, err = call("eval", "--checkpoint", checkpoint, code=2)
        assert f"--plugin {module}" in err
        assert str(tmp_path) not in sys.path


def test_the_examples_of_the_page_run(train: Train, tmp_path: Path, forget: Any) -> None:
    page = (TESTS.parent / "docs" / "environments.md").read_text()
    blocks = [block.partition("\n```")[0] for block in page.split("```python\n")[1:]]
    corridor, scaled, plugin = (
        next(block for block in blocks if words in block)
        for words in ("class Corridor", "def make_scaled", "my_plugin.py")
    )
    (tmp_path / "corridor.py").write_text(f"{corridor}\n\n{scaled}")
    (tmp_path / "my_plugin.py").write_text(plugin)
    try:
        for words in (
            ["corridor.py:make_limited", "env_kwargs.length=6"],
            ["corridor:make_scaled"],
            ["Corridor-v0", "--plugin", "my_plugin.py"],
        ):
            train("ppo", *words)
    finally:
        gym.registry.pop("Corridor-v0", None)
        sys.modules.pop("corridor", None)


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_a_function_in_a_configuration_file_is_trained_and_resumed_exactly(
    call: Call, train: Train, write: Any, tmp_path: Path, forget: Any, backend: str
) -> None:
    place = f"{write().name}:make_steps"
    settings = f"env_id: {place}\nenv_kwargs: {{length: 3, backend: {backend}}}\nnum_envs: 2\ncheckpoint_interval: 16\n"
    (tmp_path / "own.yaml").write_text(f"algo: ppo\n{settings}")
    for suffix in ("whole", "part"):
        run = train("--config", "own.yaml", "--run-suffix", suffix)
    forget()
    first = run / "checkpoints" / "step_000000000016"
    assert (
        sorted(path.name for path in (run / "checkpoints").iterdir() if path.is_dir())[0]
        == first.name
    )
    call("resume", "--checkpoint", first, "--rewind", "--plugin", place)
    whole = Path(str(run).replace("part", "whole"))
    assert_same_checkpoint(run / "checkpoints" / "last", whole / "checkpoints" / "last")
    assert json.loads((run / "metadata.json").read_text())["exactness"] == "exact"


class TestFaults:
    @pytest.mark.parametrize(
        ("name", "words"),
        [
            (
                "Needy",
                ["needs a value for 'goal' and 'size': set env_kwargs.goal=… env_kwargs.size=…"],
            ),
            (
                "Broken",
                [
                    "its constructor raised RuntimeError: licence none is not valid",
                    "in check",
                    "self.check(",
                ],
            ),
            (
                "Plain",
                ["has no environment class 'Plain': let the class inherit from gymnasium.Env"],
            ),
            ("Stepps", ["has no environment class 'Stepps': did you mean 'Steps'?"]),
            ("make_step", ["did you mean 'make_steps'?"]),
            ("make_nothing", ["returned None, not a gymnasium.Env"]),
            ("make_several", ["returned a vector environment", "num_envs"]),
        ],
    )
    @pytest.mark.parametrize("command", [["train", *SMALL, "ppo"], ["doctor", "--env"]])
    def test_of_an_environment_are_named(
        self, call: Call, write: Any, name: str, words: list[str], command: list[str]
    ) -> None:
        env_id = f"{write().name}:{name}"
        is_training = command[0] == "train"
        text = " ".join(" ".join(call(*command, env_id, code=2 if is_training else 1)).split())
        assert "rl_training/envs" not in text
        for word in words if is_training else words[:1]:
            assert word in text

    def test_an_argument_that_is_not_there_is_named_with_the_nearest(self, write: Any) -> None:
        for env_id in (f"{write()}:Steps", f"{write()}:make_steps"):
            with pytest.raises(
                ConfigError, match=r"it has no argument 'lenght': did you mean 'length'\?"
            ):
                make_env(env_id, {"lenght": 3})

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("import gymnasium\nclass Env(:\n", ["line 2 of", "is not valid Python"]),
            ("import no_such_package_xyz\n", ["No module named 'no_such_package_xyz'", "line 1"]),
            ("from . import helper\n", ["relative import", "package.module:ClassName"]),
            ("value = 1 / 0\n", ["it raised ZeroDivisionError: division by zero", "value = 1 / 0"]),
            ("raise SystemExit(3)\n", ["it raised SystemExit: 3"]),
        ],
        ids=["syntax", "missing package", "relative import", "raises", "exits"],
    )
    @pytest.mark.parametrize("form", ["{name}.py:Env", "{name}:Env", "plugin"])
    def test_of_a_file_are_named(
        self,
        call: Call,
        tmp_path: Path,
        request: pytest.FixtureRequest,
        content: str,
        words: list[str],
        form: str,
    ) -> None:
        name = "".join(letter if letter.isalnum() else "_" for letter in request.node.name)
        (tmp_path / f"{name}.py").write_text(content)
        env_id = "CartPole-v1" if form == "plugin" else form.format(name=name)
        plugin = ["--plugin", f"{name}.py"] if form == "plugin" else []
        _, err = call("train", "ppo", env_id, *SMALL, *plugin, code=2)
        assert "Traceback" not in err
        assert all(word in err for word in ["cannot import '", name, *words]), err

    def test_a_registered_class_that_raises_is_named(self, write: Any) -> None:
        registered = 'gym.register("Broken-v0", Broken)\ngym.register("Nothing-v0", make_nothing)'
        load_code(str(write(more=registered)))
        try:
            with pytest.raises(
                EnvError,
                match="'Broken-v0' cannot be made: its constructor raised RuntimeError: lic",
            ):
                make_env("Broken-v0")
            with pytest.raises(EnvError, match=r"'Nothing-v0' cannot be made: .*gymnasium\.Env"):
                make_env("Nothing-v0")
        finally:
            del gym.registry["Broken-v0"], gym.registry["Nothing-v0"]

    def test_an_incomplete_name_is_named(self, call: Call, write: Any) -> None:
        name = write().name
        for env_id in (f"{name}:", f"{name}::Steps", ":Steps"):
            with pytest.raises(EnvError, match="is incomplete: write module:Cl"):
                make_env(env_id)
        with pytest.raises(EnvError, match="is neither a module nor a file"):
            make_env("here/steps:Steps")
        with pytest.raises(EnvError, match=r"has no 'make_step': did you mean 'make_steps'\?"):
            load_code(f"{name}:make_step")
        _, err = call("train", "ppo", name, *SMALL, code=2)
        assert f"'{name}' is a file: name the class or function in it" in err

    def test_an_id_that_workers_do_not_know_is_named(self) -> None:
        gym.register("OnlyHere-v0", make_env)
        try:
            with pytest.raises(
                EnvError, match="'OnlyHere-v0' is registered in the main process, but not where"
            ):
                make_vector_env(
                    "OnlyHere-v0",
                    {"backend": "async", "env_id": f"{HELPERS / 'toy_envs.py'}:CountingEnv"},
                )
        finally:
            del gym.registry["OnlyHere-v0"]


PLUGIN = """
from rl_training.algorithms.ppo import PPOAlgorithm, PPOConfig
from rl_training.experiment.registry import AlgorithmSpec, Loop, register_algorithm

gym.register("Mine-v0", Steps)
register_algorithm(AlgorithmSpec("mine", "a user's own", PPOAlgorithm, PPOConfig, Loop.ON_POLICY))
"""


class TestPluginsOfARun:
    @pytest.mark.parametrize(
        "words", [("mine", "CartPole-v1"), ("ppo", "Mine-v0")], ids=["algorithm", "environment"]
    )
    def test_are_recorded_and_named_where_they_are_missing(
        self, call: Call, train: Train, write: Any, forget: Any, words: tuple[str, str]
    ) -> None:
        path = write(more=PLUGIN)
        run = train(*words, "--plugin", path.name)
        assert json.loads((run / "metadata.json").read_text())["plugins"] == [str(path)]
        assert load_checkpoint(run).metadata["plugins"] == [str(path)]
        forget()
        unknown = {"mine": "unknown algorithm 'mine'", "ppo": "unknown environment 'Mine-v0'"}
        for command in (["eval"], ["resume", "--total-timesteps", "48"]):
            _, err = call(*command, "--checkpoint", run, code=2)
            assert f" This run was started with --plugin {path}" in err
            assert unknown[words[0]] in err
        call("resume", run, "--total-timesteps", "48", "--plugin", path)

    @pytest.mark.parametrize(
        ("name", "backend", "flag"), [("Steps", "sync", ""), ("make_steps", "async", ":make_steps")]
    )
    def test_a_relative_file_resumes_from_another_directory(
        self,
        call: Call,
        train: Train,
        write: Any,
        forget: Any,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        name: str,
        backend: str,
        flag: str,
    ) -> None:
        path = write(tmp_path / "project")
        monkeypatch.chdir(path.parent)
        run = train("ppo", f"{path.name}:{name}", f"env_kwargs.backend={backend}")
        forget()
        monkeypatch.chdir(tmp_path)
        _, err = call("resume", run, "--total-timesteps", "48", code=2)
        assert f"--plugin {path}{flag} " in err
        call("resume", run, "--total-timesteps", "48", "--plugin", f"{path}{flag}")

    def test_forged_text_is_only_shown(self, call: Call, train: Train) -> None:
        checkpoint = resolve_checkpoint(train(*CARTPOLE))
        junk = [None, "x", 3, [3, None], ["\x1b[2J"], ["a" * 5000], [["--plugin"]]]
        for plugins in (*junk, ["$(touch harm)"]):

            def change(manifest: dict[str, Any], plugins: Any = plugins) -> None:
                manifest["config"]["env_id"] = "NoSuchThing-v0"
                manifest["metadata"]["plugins"] = plugins

            forge_manifest(checkpoint, change)
            _, err = call("eval", "--checkpoint", checkpoint, code=2)
            assert "unknown environment 'NoSuchThing-v0'" in err
            assert "\x1b" not in err
            assert len(err) < 1000
        assert "--plugin '$(touch harm)'" in err


class TestFunctionsThatACheckpointNames:
    def test_are_called_only_if_the_user_named_them(
        self, train: Train, write: Any, tmp_path: Path, forget: Any
    ) -> None:
        """An allowed file holds functions that do other things than make environments."""
        victim = tmp_path / "victim"
        victim.write_text("precious")
        checkpoint = resolve_checkpoint(train(*CARTPOLE))
        path = write()
        load_code(str(path))
        changes = {"env_id": f"{path}:remove", "env_kwargs": {"path": str(victim)}}
        forge_manifest(checkpoint, lambda manifest: manifest["config"].update(changes))
        with pytest.raises(EnvError, match="checkpoints never run code"):
            evaluate_checkpoint(checkpoint)
        assert victim.read_text() == "precious"

    def test_a_class_needs_its_file_and_a_function_its_name(self, write: Any, forget: Any) -> None:
        path = write()
        assert unknown_code(f"{path}:Steps") == str(path)
        load_code(str(path))
        assert unknown_code(f"{path}:Steps") is None
        assert unknown_code(f"{path}:make_steps") == f"{path}:make_steps"
        load_code(f"{path}:make_steps")
        assert unknown_code(f"{path}:make_steps") is None
        assert unknown_code(f"{path}:remove") == f"{path}:remove"
        assert unknown_code(f"{HELPERS / 'toy_envs.py'}:CountingEnv") is not None

"""The user's own network: trained, killed, resumed, evaluated, loaded and refused through the public interface."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import warm
from conftest import TESTS, TRY_ALL, env_of, small_config
from gymnasium.spaces import Box, Dict
from oracle_envs import OBSERVATION_SPACES
from run_tools import assert_same_checkpoint
from torch import Tensor, nn

from rl_training import DQN, IQL, PPO, SAC
from rl_training.algorithms.ppo import PPOConfig
from rl_training.cli import main
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs
from rl_training.models.encoders import find_network, flatten, make_encoder, split_leaves
from rl_training.runtime.assembly import count_weights
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import (
    evaluate_checkpoint,
    load_algorithm,
    predict_checkpoint,
    resume_training,
)
from rl_training.spaces.observations import ObsSpec
from rl_training.spaces.spec import describe_observation
from rl_training.testing import check_algorithm

FILE = """
import os
import signal

import torch
from torch import nn


class MyEncoder(nn.Module):
    calls = 0

    def __init__(self, obs):
        super().__init__()
        self.num_features = 6
        self.layers = nn.Sequential(nn.Linear(obs.num_features, 6), nn.LayerNorm(6), nn.SiLU())
        self.register_buffer("scale", torch.full((1,), 0.5))

    def forward(self, obs):
        MyEncoder.calls += 1
        if os.environ.get("KILL_AT") == str(MyEncoder.calls):
            os.kill(os.getpid(), signal.SIGKILL)
        return self.layers(self.scale * obs)


class NotANetwork:
    pass
"""
SMALL = {
    "progress": False,
    "preset": False,
    "total_timesteps": 64,
    "eval_episodes": 1,
    "num_threads": 1,
}
WAYS = ("ppo", "dqn", "sac", "td3", "crossq", "iql", "cql", "bc")
"""One algorithm for each way of building networks and targets; the others share it."""
ALGOS = [spec.name for spec in list_algorithm_specs()] if TRY_ALL else WAYS
LOOPS = WAYS if TRY_ALL else ("ppo", "dqn", "iql")


class Encoder(nn.Module):
    """Reads vectors and images; one of its weights is frozen."""

    def __init__(self, obs: ObsSpec) -> None:
        super().__init__()
        self.num_features = 5
        size = int(np.prod(obs.shape)) if obs.image_shapes else obs.num_features
        self.frozen = nn.Linear(size, 7).requires_grad_(False)
        self.layer = nn.Linear(7, 5)

    def forward(self, obs: Tensor) -> Tensor:
        return torch.tanh(self.layer(self.frozen(obs.flatten(1).float())))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file with the network, in the working directory of the test."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_nets.py").write_text(FILE)
    return "my_nets.py:MyEncoder"


@pytest.mark.parametrize("algo", ALGOS)
def test_every_algorithm_trains_with_it(algo: str, file: str, tmp_path: Path) -> None:
    result = run_training(
        small_config(algo, tmp_path / "runs", total_timesteps=64, algo_kwargs={"network": file})
    )
    before, after = (load_algorithm(path)[1] for path in (_first(result.run_dir), result.run_dir))
    networks = {
        name: part for name, part in after.stateful_members().items() if isinstance(part, nn.Module)
    }
    encoders = {name: part.features for name, part in networks.items() if hasattr(part, "features")}
    assert {type(one).__name__ for one in encoders.values()} == {"MyEncoder"}
    for name, encoder in encoders.items():
        old = before.stateful_members()[name].features
        if not name.startswith("target_"):
            assert not torch.equal(encoder.layers[0].weight, old.layers[0].weight), name
        assert encoder.scale == 0.5
    again = evaluate_checkpoint(result.run_dir, device="cpu")
    assert again["eval_return_mean"] == result.metrics["eval_return_mean"]
    if algo == "iql":
        assert "value" in encoders


def _first(run_dir: Path) -> Path:
    return min((run_dir / "checkpoints").glob("step*"), key=lambda path: path.name)


@pytest.mark.parametrize("algo", LOOPS)
def test_it_keeps_the_contract_of_every_algorithm(algo: str) -> None:
    spec = get_algorithm_spec(algo)
    kwargs = {"network": Encoder, "normalize_obs": True}
    check_algorithm(spec.algorithm_class(), spec.config_class(), spec.loop, algo_kwargs=kwargs)


def test_a_class_is_trained_saved_loaded_and_continued(tmp_path: Path) -> None:
    small = {
        **SMALL,
        "output_dir": tmp_path,
        "hidden_sizes": (8,),
        "num_steps": 16,
        "minibatch_size": 16,
    }
    agent = PPO("CartPole-v1", network=Encoder, **small)
    assert agent.config.algo_kwargs["network"] == f"{__name__}:Encoder"
    assert PPOConfig(network=Encoder).network == f"{__name__}:Encoder"
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    agent.learn()
    assert torch.equal(torch.rand(3), expected)  # the global generator is as it was
    obs = np.array([0.1, -0.2, 0.05, 0.3], np.float32)
    loaded = PPO.load(agent.save(tmp_path / "policy"), progress=False)
    assert loaded.predict(obs) == agent.predict(obs)
    assert agent.run_dir is not None
    assert predict_checkpoint(agent.run_dir, obs) == agent.predict(obs)
    frozen = agent.policy.features.frozen
    assert not list(frozen.parameters())
    assert torch.equal(frozen.weight, loaded.policy.features.frozen.weight)
    assert PPO.load(agent.run_dir, progress=False).learn(96).metrics["global_step"] == 96
    other = PPO("CartPole-v1", network=Encoder, init_from=tmp_path / "policy", seed=9, **small)
    other.learn(16)
    assert torch.equal(other.policy.features.frozen.weight, frozen.weight)


def test_the_seed_decides_the_initial_weights(tmp_path: Path) -> None:
    def weights(seed: int) -> Tensor:
        torch.manual_seed(seed + 77)
        config = small_config(
            "sac", tmp_path, seed=seed, total_timesteps=2, algo_kwargs={"network": Encoder}
        )
        weight: Tensor = load_algorithm(run_training(config).run_dir)[1].actor.features.layer.weight
        return weight

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


@pytest.mark.parametrize("obs", list(OBSERVATION_SPACES))
@pytest.mark.parametrize(
    ("agent", "kwargs"), [(PPO, {"num_steps": 16}), (DQN, {"learning_starts": 8})]
)
def test_it_reads_every_kind_of_observation(
    agent: Any, kwargs: Any, obs: str, tmp_path: Path
) -> None:
    small = {**SMALL, **kwargs, "output_dir": tmp_path, "hidden_sizes": (8,)}
    made = agent("oracle_envs:OracleEnv", env_kwargs={"obs": obs}, network=Encoder, **small)
    metrics = made.learn(32).metrics
    assert metrics["gradient_steps"] > 0
    assert np.isfinite(metrics["eval_return_mean"])


@pytest.mark.parametrize("name", ["dict", "tuple", "dict_image"])
def test_the_leaves_of_an_observation_can_be_told_apart(name: str) -> None:
    space = OBSERVATION_SPACES[name]
    space.seed(4)
    spec = describe_observation(space)
    samples = [space.sample() for _ in range(3)]
    rows = torch.from_numpy(np.stack([spec.one_as_stored(one) for one in samples]))
    leaves = split_leaves(rows if spec.image_shapes else flatten(rows, spec), spec)
    assert set(leaves) == {"/".join(map(str, leaf.path)) for leaf in spec.leaves}
    for leaf in spec.leaves:
        found = leaves["/".join(map(str, leaf.path))]
        given = np.stack([np.asarray(leaf.find(one)) for one in samples])
        if leaf.choices:
            assert found.sum(1).tolist() == [len(leaf.choices)] * 3
        else:
            np.testing.assert_allclose(
                found.numpy(), given * (1.0 if leaf.is_image else leaf.scale), rtol=1e-6
            )
            assert found.dtype == (torch.uint8 if leaf.is_image else torch.float32)


class TestKilled:
    def test_a_killed_run_resumes_as_if_nothing_had_happened(
        self, file: str, tmp_path: Path
    ) -> None:
        words = [
            "train",
            "sac",
            "Pendulum-v1",
            "--no-preset",
            "total_timesteps=300",
            "checkpoint_interval=50",
        ]
        words += [
            "eval_episodes=1",
            "num_threads=1",
            "compile=false",
            "device=cpu",
            f"algo_kwargs.network={file}",
        ]
        words += ["algo_kwargs.hidden_sizes=[8]", "algo_kwargs.batch_size=16"]
        words += ["algo_kwargs.normalize_obs=true", "algo_kwargs.normalize_reward=true"]
        whole = self._command(*words, "output_dir=whole")
        assert whole.returncode == 0, whole.stderr
        assert (
            self._command(*words, "output_dir=killed", KILL_AT="700").returncode == -signal.SIGKILL
        )
        (killed,), (undisturbed,) = ((tmp_path / name).iterdir() for name in ("killed", "whole"))
        assert load_checkpoint(killed).metadata["global_step"] < 300
        refused = self._command("resume", str(killed))
        assert refused.returncode == 2
        assert f"--plugin {tmp_path / 'my_nets.py'}" in refused.stderr
        resumed = self._command("resume", str(killed), "--plugin", "my_nets.py")
        assert resumed.returncode == 0, resumed.stderr
        assert_same_checkpoint(killed, undisturbed)
        assert (killed / "metrics.jsonl").read_text() == (undisturbed / "metrics.jsonl").read_text()
        assert (
            "--plugin my_nets.py" in whole.stderr + whole.stdout
        )  # the commands that are printed at the end

    def _command(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return warm.run(words, Path.cwd(), **variables)


class TestTrust:
    @pytest.fixture
    def run_dir(self, file: str, tmp_path: Path) -> Path:
        """A run whose process is gone: its file is not imported here."""
        words = [
            "train",
            "ppo",
            "CartPole-v1",
            "--no-preset",
            "total_timesteps=32",
            "algo_kwargs.num_steps=32",
        ]
        warm.run(
            [*words, f"algo_kwargs.network={file}", "eval_episodes=1"], tmp_path
        ).check_returncode()
        (run_dir,) = (tmp_path / "runs").iterdir()
        marker = "open('imported', 'w').close()\n"
        (tmp_path / "my_nets.py").write_text(marker + FILE)
        return run_dir

    def test_a_checkpoint_never_imports_it_by_itself(
        self, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["eval", str(run_dir)]) == 2
        assert "--plugin" in capsys.readouterr().err
        assert not (tmp_path / "imported").exists()
        assert main(["eval", str(run_dir), "--plugin", "my_nets.py"]) == 0
        assert (tmp_path / "imported").exists()

    def test_the_class_itself_is_permission(self, run_dir: Path, tmp_path: Path) -> None:
        class Mine(nn.Module):
            def __init__(self, obs: ObsSpec) -> None:
                super().__init__()
                self.num_features = 6
                self.layers = nn.Sequential(
                    nn.Linear(obs.num_features, 6), nn.LayerNorm(6), nn.SiLU()
                )
                self.register_buffer("scale", torch.ones(1))

            def forward(self, obs: Tensor) -> Tensor:
                return self.layers(self.scale * obs)

        agent = PPO.load(run_dir, network=Mine, progress=False)
        assert agent.policy.features.scale == 0.5
        assert agent.learn(64).metrics["global_step"] == 64
        assert not (tmp_path / "imported").exists()


HOSTILE = (
    "os:system",
    "subprocess:Popen",
    "builtins:exec",
    "my_nets.py:a.b",
    "__main__:nothing",
    "evil",
    "",
    ":",
    3,
)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_runs_nothing(
    name: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_dir = run_training(small_config("ppo", tmp_path / "runs", total_timesteps=32)).run_dir
    (tmp_path / "my_nets.py").write_text("open('imported', 'w').close()\n")
    state = load_checkpoint(run_dir)
    state.config["algo_kwargs"]["network"] = name
    monkeypatch.setattr("rl_training.runtime.workflows.load_checkpoint", lambda *_, **__: state)
    with pytest.raises((ConfigError, CheckpointError)):
        evaluate_checkpoint(run_dir)
    assert not (tmp_path / "imported").exists()


def test_a_class_of_another_program_names_the_remedy(tmp_path: Path) -> None:
    script = FILE + (
        "\nfrom rl_training import PPO\n"
        "small = {'preset': False, 'total_timesteps': 32, 'num_steps': 32, 'progress': False}\n"
        "agent = PPO('CartPole-v1', network=MyEncoder, **small)\n"
        "agent.learn()\n"
        "print(PPO.load(agent.run_dir, progress=False).evaluate(1)['eval_return_mean'])\n"
    )
    (tmp_path / "train.py").write_text(script)
    warm.run(["train.py"], tmp_path, target=warm.SCRIPT).check_returncode()
    (run_dir,) = (tmp_path / "runs").iterdir()
    with pytest.raises(ConfigError, match=r"only the program .* load\(path, network=MyEncoder\)"):
        PPO.load(run_dir)
    with pytest.raises(ConfigError, match="only the program"):
        resume_training(run_dir, total_timesteps=64)
    (tmp_path / "my_nets.py").write_text(FILE)
    name = f"{tmp_path / 'my_nets.py'}:MyEncoder"
    words = [
        "resume",
        str(run_dir),
        "--total-timesteps",
        "64",
        "--plugin",
        str(tmp_path / "my_nets.py"),
    ]
    assert main([*words, f"algo_kwargs.network={name}"]) == 0
    assert evaluate_checkpoint(run_dir)["global_step"] == 64


WRONG = {
    "no_such.py:MyEncoder": "file 'no_such.py' does not exist",
    "no_such_module:MyEncoder": "cannot import 'no_such_module'",
    "my_nets.py:MyEncodr": "did you mean 'MyEncoder'",
    "my_nets.py:NotANetwork": "not a class that inherits torch.nn.Module",
    "my_nets.py": "write module:ClassName or path/to/file.py:ClassName",
    "my_nets": "write module:ClassName or path/to/file.py:ClassName",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_name_is_one_clear_error(name: str, file: str, tmp_path: Path) -> None:
    config = small_config("dqn", tmp_path / "runs", algo_kwargs={"network": name})
    with pytest.raises(ConfigError, match=r"algo_kwargs\.network") as caught:
        run_training(config)
    assert WRONG[name] in str(caught.value)
    assert not (tmp_path / "runs").exists()


def broken(**changes: Any) -> type[nn.Module]:
    """A network with another constructor or forward."""

    def construct(self: Any, obs: ObsSpec) -> None:
        nn.Module.__init__(self)
        self.layer = nn.Linear(obs.num_features, 4)
        self.num_features = 4
        changes.get("more", lambda one: None)(self)

    forward = changes.get("forward", lambda self, obs: self.layer(obs))
    return type(
        "Broken", (nn.Module,), {"__init__": changes.get("init", construct), "forward": forward}
    )


def set_features(value: Any) -> Any:
    return lambda one: setattr(one, "num_features", value)


FAULTS = {
    "takes nothing": (
        {"init": lambda self: nn.Module.__init__(self)},
        r"Broken\(obs\).* raised TypeError",
    ),
    "raises": ({"more": lambda one: 1 / 0}, "ZeroDivisionError"),
    "no number": (
        {"more": lambda one: delattr(one, "num_features")},
        "has no attribute num_features",
    ),
    "wrong number": ({"more": set_features(4.0)}, r"num_features 4\.0: set self\.num_features"),
    "wrong shape": (
        {"more": set_features(5)},
        r"returned float32 \[2, 4\]: return float32 \[2, 5\]",
    ),
    "no tensor": ({"forward": lambda self, obs: None}, "returned a NoneType"),
    "wrong type": (
        {"forward": lambda self, obs: self.layer(obs).double()},
        r"returned float64 \[2, 4\]",
    ),
    "forward raises": (
        {"forward": lambda self, obs: self.layer(obs[:, :1])},
        "forward of Broken raised RuntimeError",
    ),
    "unused": (
        {"more": lambda one: setattr(one, "other", nn.Linear(2, 2))},
        "does not depend on .* 'other.weight'",
    ),
    "no gradient": (
        {"forward": lambda self, obs: self.layer(obs).detach()},
        "does not depend on .* 'layer.weight'",
    ),
    "double": (
        {"more": lambda one: one.double(), "forward": lambda s, o: s.layer(o.double()).float()},
        "float64",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_network_is_one_clear_error(fault: str, tmp_path: Path) -> None:
    changes, message = FAULTS[fault]
    agent = SAC("Pendulum-v1", network=broken(**changes), output_dir=tmp_path / "runs", **SMALL)
    with pytest.raises(ConfigError, match=message):
        agent.learn()
    assert not (tmp_path / "runs").exists()


def test_the_count_of_weights_is_a_lower_bound(tmp_path: Path) -> None:
    class Tiny(nn.Module):
        def __init__(self, obs: ObsSpec) -> None:
            super().__init__()
            self.num_features = 1
            self.layer = nn.Linear(obs.num_features, 1)

        def forward(self, obs: Tensor) -> Tensor:
            return self.layer(obs)

    for sizes in ((), (8,), (8, 8)):
        kwargs = {"network": Tiny, "hidden_sizes": sizes}
        config = small_config("dqn", tmp_path, total_timesteps=32, algo_kwargs=kwargs)
        algorithm = load_algorithm(run_training(config).run_dir)[1]
        held = sum(parameter.numel() for parameter in algorithm.network.parameters())
        assert count_weights(algorithm.config, algorithm.spaces)[1] <= held


def test_another_network_cannot_replace_it_on_resume(tmp_path: Path) -> None:
    config = small_config("dqn", tmp_path, total_timesteps=32)
    run_dir = run_training(config).run_dir
    changes = {"algo_kwargs": {"network": f"{__name__}:Encoder"}}
    with pytest.raises(ConfigError, match=r"algo_kwargs\.network' cannot change"):
        resume_training(run_dir, total_timesteps=64, changes=changes)


def test_an_offline_agent_takes_the_class(tmp_path: Path) -> None:
    data = {"dataset_kind": "random", "dataset_size": 200, "batch_size": 16, "hidden_sizes": (8,)}
    agent = IQL(env_of("iql"), network=Encoder, output_dir=tmp_path, **SMALL, **data)
    assert np.isfinite(agent.learn().metrics["eval_return_mean"])


class TestDocumentation:
    """The page about networks: its files, commands and configuration run as they stand."""

    PAGE = (TESTS.parent / "docs" / "networks.md").read_text()

    @pytest.fixture
    def snippets(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The Python blocks of the page; those that are files lie in the working directory."""
        monkeypatch.chdir(tmp_path)
        found = re.findall(r"^```python\n(.*?)^```", self.PAGE, re.DOTALL | re.MULTILINE)
        for text in found:
            if text.startswith("# "):
                (tmp_path / text.splitlines()[0].removeprefix("# ")).write_text(text)
        return found

    def test_the_python_example_runs(self, snippets: list[str], tmp_path: Path) -> None:
        (script,) = (text for text in snippets if not text.startswith("# "))
        (tmp_path / "script.py").write_text(script)
        ended = warm.run(["script.py"], tmp_path, target=warm.SCRIPT)
        assert ended.returncode == 0, ended.stderr
        assert float(ended.stdout.splitlines()[-1]) > 0

    def test_the_commands_and_the_configuration_run(
        self, snippets: list[str], tmp_path: Path
    ) -> None:
        (words,) = re.findall(r"^rl-training (train .*?) +#", self.PAGE, re.MULTILINE)
        assert (
            main(
                [
                    *words.split(),
                    "total_timesteps=64",
                    "algo_kwargs.num_steps=32",
                    "eval_episodes=1",
                ]
            )
            == 0
        )
        (run_dir,) = (tmp_path / "runs").iterdir()
        commands = re.findall(
            r"^rl-training ((?:resume|eval) runs/RUN .*)$", self.PAGE, re.MULTILINE
        )
        assert len(commands) == 3
        for command in commands[:2]:
            assert main(command.replace("runs/RUN", str(run_dir)).split()) == 0
        (text,) = re.findall(r"^```yaml\n(.*?)^```", self.PAGE, re.DOTALL | re.MULTILINE)
        (tmp_path / "sac.yaml").write_text(text)
        assert (
            main(["train", "--config", "sac.yaml", "total_timesteps=120", "eval_episodes=1"]) == 0
        )

    def test_the_example_for_parts_reads_a_camera_and_numbers(self, snippets: list[str]) -> None:
        network = find_network("robot_nets.py:CameraAndJoints")
        parts = {"camera": Box(0, 255, (40, 48, 3), np.uint8), "joints": Box(-1, 1, (7,))}
        spec = describe_observation(Dict(parts))
        encoder = make_encoder(network, spec, torch.Generator().manual_seed(0))
        rows = torch.from_numpy(
            spec.as_stored({name: np.stack([part.sample()] * 3) for name, part in parts.items()})
        )
        assert encoder(rows).shape == (3, 24)


class InPlace(nn.Linear):
    """Doubles its input in place."""

    num_features = 4

    def __init__(self, obs):
        super().__init__(obs.num_features, 4)

    def forward(self, obs):
        obs *= 2.0
        return super().forward(obs)


class Noisy(InPlace):
    def forward(self, obs):
        return nn.Linear.forward(self, obs) + torch.randn(4)


class Counting(InPlace):
    def __init__(self, obs):
        super().__init__(obs)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, obs):
        self.calls += 1.0
        return nn.Linear.forward(self, obs)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (InPlace, "changes its input in place"),
        (Noisy, "another output for the same input"),
        (Counting, "changes the module"),
    ],
)
def test_a_forward_with_side_effects_is_refused(network, message, tmp_path) -> None:
    with pytest.raises(ConfigError, match=message):
        PPO(
            "CartPole-v1", network=network, total_timesteps=64, output_dir=tmp_path, progress=False
        ).learn()
    assert not list(tmp_path.iterdir())


def test_an_object_that_is_no_class_is_refused(tmp_path) -> None:
    for network in (nn.Linear(4, 4), lambda obs: None):
        with pytest.raises(ConfigError, match="give the class itself"):
            PPO("CartPole-v1", network=network, output_dir=tmp_path)

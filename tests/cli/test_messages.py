"""What a mistake in the settings is answered with: the remedy, ready to be typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import small_config

from rl_training.algorithms.config import AlgorithmConfig, OffPolicyConfig, OnPolicyConfig
from rl_training.algorithms.ppo import PPOConfig
from rl_training.cli import main
from rl_training.data.dataset_loaders import load_transition_dataset
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.execution import Execution
from rl_training.runtime.run import run_training
from rl_training.views.findings import describe_machine

DATA = ("algo_kwargs.dataset_kind=npz", "algo_kwargs.dataset_path=data.npz")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["ppo", "CartPole"], "environment id 'CartPole' lacks its version: write 'CartPole-v1'"),
        (
            ["ppo", "CartPole-v1", "algo_kwargs.learning_rate=linear"],
            "bad value 'linear' for 'learning_rate' of ppo: should be a number, or"
            " {kind: linear|cosine, start: …, end: …}",
        ),
        (
            ["td3_bc", "Pendulum-v1", "algo_kwargs.dataset_path=nofile.npz"],
            "dataset_kind 'random' does not read it: set algo_kwargs.dataset_kind=npz",
        ),
        (
            ["bc", "Pendulum-v1"],
            "record an .npz file with `rl-training data collect RUN --steps 20000 --out pendulum.npz`, where RUN is a"
            " run folder, for example of `rl-training train ppo Pendulum-v1`",
        ),
        (
            ["bc", *DATA, "algo_kwargs.early_stopping={}"],
            "remove early_stopping or give env_id",
        ),
    ],
)
def test_the_remedy_is_named(
    words: list[str], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    data = load_transition_dataset("random", env_id="Pendulum-v1", size=300)
    names = ("obs", "actions", "rewards", "next_obs", "terminated", "truncated")
    np.savez("data.npz", **{name: getattr(data, name) for name in names})
    assert main(["train", *words]) == 2
    assert part in capsys.readouterr().err
    assert not Path("runs").exists()


def test_an_environment_that_is_out_of_date_is_told_once(
    tmp_path: Path, capsys: Any, recwarn: Any
) -> None:
    run_training(small_config("ppo", tmp_path, env_id="CartPole-v0", total_timesteps=16))
    assert capsys.readouterr().err.count("out of date: use 'CartPole-v1'") == 1
    assert not [warning for warning in recwarn if "out of date" in str(warning.message)]


def test_the_doctor_lists_the_packages_of_every_extra() -> None:
    assert {"gymnasium-robotics", "envpool"} <= describe_machine().keys()


@pytest.mark.parametrize(
    ("algo_config", "is_compiled"),
    [
        (OnPolicyConfig(), False),
        (AlgorithmConfig(), False),
        (OffPolicyConfig(), True),
        (PPOConfig(), True),
    ],
)
def test_auto_compiles_only_where_the_number_of_gradient_steps_is_known(
    algo_config: AlgorithmConfig, is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_training.runtime.execution.has_compiler", lambda: True)
    config = TrainConfig(algo="ppo", env_id="CartPole-v1", total_timesteps=1_000_000)
    assert Execution.choose(config, algo_config).compile is is_compiled


FAULTY_CALLBACKS = """
class Makes:
    def __init__(self):
        raise KeyError("token")

    def on_log(self, trainer, metrics): ...

class Reads:
    @property
    def on_log(self):
        raise OSError("no such device")

class Saves:
    def on_log(self, trainer, metrics): ...

    def state_dict(self):
        return {}["missing"]

    def load_state_dict(self, state): ...
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Makes", "callback 'faulty_callbacks.py:Makes' cannot be used: it raised KeyError"),
        ("Reads", "callback 'faulty_callbacks.py:Reads' cannot be used: it raised OSError"),
        ("Saves", "callback Saves in state_dict"),
    ],
)
def test_a_callback_that_raises_is_named(
    name: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "faulty_callbacks.py").write_text(FAULTY_CALLBACKS)
    assert main(["train", "ppo", "CartPole-v1", "--callback", f"faulty_callbacks.py:{name}"]) == 2
    said = capsys.readouterr().err
    assert message in said
    if name == "Saves":  # with its own lines of code, and none of ours
        assert 'return {}["missing"]' in said
        assert "callbacks.py" not in said.replace("faulty_callbacks.py", "")
    else:
        assert "Traceback" not in said
        assert not (tmp_path / "runs").exists()

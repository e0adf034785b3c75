"""`rl-training import sb3`: its output, its run folder, and how the run goes on."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sb3_models import (
    Weights,
    adam_state,
    continuous_weights,
    forward,
    ppo_weights,
    sequential,
    settings_of,
    write_model,
)

from rl_training.api import PPO
from rl_training.cli import main
from rl_training.experiment.checkpointing import CheckpointState, load_checkpoint
from rl_training.runtime.workflows import predict_checkpoint


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of PPO with its optimizer."""
    monkeypatch.chdir(tmp_path)
    weights = ppo_weights(4, 2)
    moments = [one * 0.01 for one in weights.values()]
    optimizers = {"policy": adam_state(moments, [one.square() for one in moments], 500)}
    settings = settings_of("ppo", clip_range={":type:": "<class 'function'>"})
    return write_model(tmp_path / "model.zip", settings, weights, optimizers)


def imported(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["import", "sb3", *arguments, "--json"]) == 0
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def test_the_table_says_what_was_taken_and_left(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", "sb3", str(model), "--env", "CartPole-v1"]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[0] == "run=runs/ppo__CartPole-v1__seed0__model"
    taken, left = said.out.split("left\n")
    assert re.search("optimizer of policy .*500 steps", taken)
    assert "clip_range" in left
    resume = "rl-training resume runs/ppo__CartPole-v1__seed0__model --total-timesteps 8000"
    assert resume in said.err


def test_the_run_is_evaluated_resumed_and_started_from(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--env", "CartPole-v1", "--out", "here", "--run-suffix", "mine")
    value = imported(capsys, str(model), *where)
    run = value["run"]
    assert run == "here/ppo__CartPole-v1__seed0__mine"
    assert (value["algo"], value["global_step"]) == ("ppo", 4000)
    assert (value["sb3_version"], value["verified"]) == ("2.9.2", None)
    obs = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    agent = PPO.load(run, progress=False)
    assert (agent.predict(obs) == predict_checkpoint(run, obs)).all()
    assert main(["runs", "here", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["state"], listed["name"]) == ("stopped", "ppo__CartPole-v1__seed0__mine")
    before = load_checkpoint(run).algorithm_state["members"]["policy"]["networks.weight_0"]
    assert main(["eval", run, "--json"]) == 0
    score = json.loads(capsys.readouterr().out)["eval_return_mean"]
    assert score == value["metrics"]["eval_return_mean"]
    assert main(["resume", run, "--total-timesteps", "4064", "-q"]) == 0
    state = load_checkpoint(run)
    assert state.metadata["global_step"] == 4064
    # 64 steps are two rollouts of 32, each with 3 epochs of 2 minibatches, on top of the 500 steps of SB3's Adam.
    members = state.algorithm_state["members"]
    assert float(members["optimizer"]["step"]) == 512
    assert not torch.equal(members["policy"]["networks.weight_0"], before)
    started = ["train", "--config", f"{run}/config.yaml", f"init_from={run}", "total_timesteps=32"]
    assert main([*started, "--run-suffix", "new", "-q"]) == 0


def test_an_off_policy_run_warms_up_from_the_policy(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_model(tmp_path / "model.zip", settings_of("sac"), continuous_weights(3, 1))
    run = imported(capsys, str(path), "--env", "Pendulum-v1", "eval_episodes=1")["run"]
    assert main(["resume", run, "--total-timesteps", "4100"]) == 0
    told = capsys.readouterr().err
    assert "the policy refills the replay buffer until step" in told
    assert "nothing will be learned in the environment: learning_starts 100" in told
    assert "raise total_timesteps" in told
    assert "lower algo_kwargs.learning_starts" not in told  # it cannot change on a resume
    assert steps_of(load_checkpoint(run))["critic_optimizer"] == 0
    assert main(["resume", run, "--total-timesteps", "4120", "-q"]) == 0
    # learning_starts counts from the import
    assert steps_of(load_checkpoint(run))["critic_optimizer"] == 20


def steps_of(state: CheckpointState) -> dict[str, float]:
    members = state.algorithm_state["members"]
    return {name: float(members[name]["step"]) for name in members if name.endswith("optimizer")}


def test_a_q_network_refills_its_replay_with_its_own_policy(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    weights: Weights = {}
    for name in ("q_net", "q_net_target"):
        sequential(weights, f"{name}.q_net.", (4, 8, 6, 2), torch.Generator().manual_seed(4))
    settings = settings_of("dqn", exploration_final_eps=0.0, train_freq=4, gradient_steps=2)
    path = write_model(tmp_path / "model.zip", settings, weights)
    value = imported(capsys, str(path), "--env", "CartPole-v1")
    run, score = value["run"], value["metrics"]["eval_return_mean"]
    more = ["--total-timesteps", "4500", "--output-dir", "forks", "-q"]  # buffer_size is 500
    assert main(["resume", run, *more]) == 0
    (fork,) = Path("forks").iterdir()
    state = load_checkpoint(fork)
    (rows,) = [segment.arrays for segment in state.buffer_state["segments"]]
    obs, actions = rows["obs"].reshape(-1, 4), rows["actions"].reshape(-1)
    assert len(actions) == 500
    stems = [f"q_net.q_net.{number}" for number in (0, 2, 4)]
    assert (forward(weights, stems, obs, "relu").argmax(1) == actions).all()
    assert steps_of(state)["optimizer"] == 0
    assert state.trainer_state["session"]["best_return"] == score  # a fork knows the imported score
    assert main(["resume", str(fork), "--total-timesteps", "4508", "-q"]) == 0
    assert steps_of(load_checkpoint(fork))["optimizer"] == 4  # two updates every four steps
    capsys.readouterr()
    for env, message in (
        ("Pendulum-v1", "DQN needs Discrete actions, not Box"),
        ("CartPole-v1", "exists already: choose a name of its own by --run-suffix NAME"),
    ):
        assert main(["import", "sb3", str(path), "--env", env]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--env", "CartPole-v1", "algo=dqn"], "'algo' follows from the model"),
        (
            ["--env", "CartPole-v1", "--sb3-python", "python"],
            "--sb3-python has no effect without --verify",
        ),
        (["--env", "NoSuch-v1"], "NoSuch"),
        (["--env", "CartPole-v1", "algo_kwargs.num_stepz=3"], "num_stepz"),
        (["--env", "CartPole-v1", "--vecnormalize", "absent.pkl"], "absent.pkl"),
        (["--env", "CartPole-v1", "--verify", "--sb3-python", "no-such-python"], "no-such-python"),
        ([], "--env"),
    ],
)
def test_a_mistake_leaves_nothing_behind(
    arguments: list[str], message: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", "sb3", str(model), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert [entry.name for entry in model.parent.iterdir()] == ["model.zip"]


STAND_IN = """
import numpy as np

class PPO:
    @classmethod
    def load(cls, path, device, custom_objects):
        assert path.endswith("model.zip") and device == "cpu" and "learning_rate" in custom_objects
        return cls()

    def predict(self, obs, deterministic):
        weights = np.load("weights.npz")
        for stem in ("policy_net.0", "policy_net.2", "action_net"):
            obs = obs @ weights[stem + ".weight"].T + weights[stem + ".bias"]
            obs = obs if stem == "action_net" else np.tanh(obs)
        return obs.argmax(1), None
"""


@pytest.mark.parametrize("change", [0.0, 5.0], ids=["equal", "different"])
def test_verify_compares_with_the_package_in_another_process(
    change: float, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a stand-in for SB3, which is not installed here: what is asked of it, and what its answer does."""
    weights = ppo_weights(4, 2)
    weights["action_net.bias"] += torch.tensor([change, 0.0])
    np.savez(
        "weights.npz",
        **{key.removeprefix("mlp_extractor."): one.numpy() for key, one in weights.items()},
    )
    package = model.parent / "packages"
    package.mkdir()
    (package / "stable_baselines3.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(package))
    code = main(["import", "sb3", str(model), "--env", "CartPole-v1", "--verify", "--json"])
    said = capsys.readouterr()
    if change:
        assert (code, (model.parent / "runs").exists()) == (2, False)
        assert "the import acts differently from SB3" in said.err
        return
    verified = {"num_observations": 512, "largest_difference": 0.0, "num_different": 0}
    assert json.loads(said.out)["verified"] == verified
    assert main(["import", "sb3", str(model), "--env", "CartPole-v1"]) == 2
    assert "exists" in capsys.readouterr().err


def test_verify_names_the_packages_that_are_missing(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if find_spec("stable_baselines3") is not None:
        pytest.skip("SB3 is installed")
    assert main(["import", "sb3", str(model), "--env", "CartPole-v1", "--verify"]) == 2
    assert "pip install stable-baselines3 sb3-contrib" in capsys.readouterr().err

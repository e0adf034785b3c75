"""A run resumed on another kind of machine reports that it is not bit-exact, and why."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_tools import forge_manifest
from conftest import HELPERS, small_config
from run_tools import StopAt

from rl_training.experiment.checkpointing import load_checkpoint, resolve_checkpoint
from rl_training.plugins.user_code import fingerprints, load_code
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import resume_training


def exactness(run_dir: Path) -> tuple[str, list[str]]:
    metadata = load_checkpoint(run_dir).metadata
    return metadata["exactness"], metadata["inexact_reasons"]


@pytest.mark.parametrize("algo", ["ppo", "iql"])
def test_a_run_resumed_with_another_instruction_set_is_approximate(
    algo, tmp_path, monkeypatch, capsys
):
    monkeypatch.delenv("MKL_ENABLE_INSTRUCTIONS", raising=False)
    stopped = run_training(small_config(algo, tmp_path), callbacks=[StopAt(40, "update")])
    assert exactness(stopped.run_dir) == ("exact", [])
    monkeypatch.setenv("MKL_ENABLE_INSTRUCTIONS", "SSE4_2")
    resume_training(stopped.run_dir)
    reason = "another machine: MKL_ENABLE_INSTRUCTIONS was not set and is SSE4_2"
    assert exactness(stopped.run_dir) == ("approximate", [reason])
    assert reason in capsys.readouterr().err


def test_a_run_stays_approximate_when_it_returns_to_its_first_machine(tmp_path, monkeypatch):
    run_dir = run_training(small_config("ppo", tmp_path), callbacks=[StopAt(40, "update")]).run_dir
    with monkeypatch.context() as other_machine:
        other_machine.setenv("MKL_CBWR", "COMPATIBLE")
        resume_training(run_dir, callbacks=[StopAt(80, "update")])
    resume_training(run_dir)
    assert exactness(run_dir)[0] == "approximate"


def test_a_run_resumed_on_the_same_machine_is_exact(tmp_path):
    run_dir = run_training(small_config("ppo", tmp_path), callbacks=[StopAt(40, "update")]).run_dir
    resume_training(run_dir)
    assert exactness(run_dir) == ("exact", [])


def test_a_run_resumed_with_a_changed_file_of_its_environment_is_approximate(tmp_path, capsys):
    env_id = f"{HELPERS / 'toy_envs.py'}:NoisyEnv"
    run_dir = run_training(
        small_config("ppo", tmp_path, env_id=env_id), callbacks=[StopAt(40, "update")]
    ).run_dir
    forge_manifest(
        resolve_checkpoint(run_dir),
        lambda manifest: manifest["metadata"]["code"].update({env_id: "0" * 16}),
    )
    resume_training(run_dir)
    reason = f"other code: the file of '{env_id}' has changed since the checkpoint"
    assert exactness(run_dir) == ("approximate", [reason])
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "num_known"),
    [
        (["toy_envs.py:NoisyEnv"], 1),
        (["toy_envs:NoisyEnv"], 1),
        (["CartPole-v1", "gymnasium.wrappers:ClipReward"], 0),
    ],
)
def test_code_of_the_user_has_a_checksum(names, num_known, monkeypatch):
    monkeypatch.chdir(HELPERS)
    load_code("toy_envs")
    assert len(fingerprints(names)) == num_known

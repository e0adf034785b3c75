"""Devices, run folders, seeds, threads and checkpoints of a run."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from conftest import small_config

from rl_training import TrainConfig
from rl_training.algorithms.dqn import DQNConfig
from rl_training.algorithms.ppo import PPOConfig
from rl_training.algorithms.sac import SACConfig
from rl_training.errors import ConfigError, RLTrainingError, RunExistsError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.runtime import execution
from rl_training.runtime.execution import Execution
from rl_training.runtime.ppo_trainer import train_ppo
from rl_training.runtime.run_utils import (
    RunSeeds,
    create_training_run,
    resolve_device,
    save_training_checkpoint,
    serialize_train_config,
)


def test_auto_falls_back_to_the_cpu_when_the_accelerator_cannot_allocate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    asked = []
    zeros = torch.zeros

    def failing_zeros(*shape: int, **kwargs: object) -> torch.Tensor:
        if str(kwargs.get("device")) == "cuda":
            asked.append("cuda")
            raise RuntimeError("CUDA error: out of memory")
        return zeros(*shape, **kwargs)

    monkeypatch.setattr(torch, "zeros", failing_zeros)
    assert resolve_device("auto") == torch.device("cpu")
    assert asked == ["cuda"]


def test_a_named_device_is_used_or_refused() -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match="abacus"):
        resolve_device("abacus")


def test_a_serialized_config_is_json_compatible(tmp_path: Path) -> None:
    values = serialize_train_config(small_config("ppo", tmp_path, tags=("a", "b")))
    assert values["output_dir"] == str(tmp_path)
    assert values["tags"] == ["a", "b"]
    assert values["log_interval"] == 1
    assert json.loads(json.dumps(values)) == values
    assert TrainConfig(**yaml.safe_load(yaml.safe_dump(values))).tags == ("a", "b")


def test_a_run_folder_holds_its_config_and_metadata(tmp_path: Path) -> None:
    config = small_config("ppo", tmp_path, env_id="pkg.module:Some/Env-v0")
    run = create_training_run(config, run_suffix="x")
    assert run.run_dir == tmp_path / "ppo__pkg.module-Some-Env-v0__seed1__x"
    assert yaml.safe_load((run.run_dir / "config.yaml").read_text()) == serialize_train_config(
        config
    )
    metadata = json.loads((run.run_dir / "metadata.json").read_text())
    assert {"command", "versions", "git_commit", "seed", "status"} <= metadata.keys()


def test_metadata_names_the_build_of_torch_that_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.13.0+cu130")
    run = create_training_run(small_config("ppo", tmp_path))
    metadata = json.loads((run.run_dir / "metadata.json").read_text())
    assert metadata["versions"]["torch"] == "2.13.0+cu130"


def test_an_existing_run_folder_is_never_reused(tmp_path: Path) -> None:
    config = small_config("ppo", tmp_path)
    create_training_run(config, run_suffix="x")
    with pytest.raises(RunExistsError, match="exists already"):
        create_training_run(config, run_suffix="x")
    unnamed = {create_training_run(config).run_dir for _ in range(3)}
    assert len(unnamed) == 3


class TestRunLog:
    def test_a_new_run_has_a_logger_of_its_own(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        before = (
            list(logging.root.handlers),
            logging.root.level,
            set(logging.root.manager.loggerDict),
        )
        run = create_training_run(small_config("ppo", tmp_path), run_suffix="x")
        assert isinstance(run.logger, logging.Logger)
        assert run.config_path == run.run_dir / "config.yaml"
        assert run.config_path.is_file()
        run.logger.info("my own %s", "words")
        run.logger.debug("not worth a line")
        run.close()
        run.close()
        lines = (run.run_dir / "run.log").read_text().splitlines()
        assert [line.split(" ", 1)[1] for line in lines] == [
            "INFO created: ppo on CartPole-v1, seed 1, 128 timesteps",
            "INFO my own words",
        ]
        assert before == (
            list(logging.root.handlers),
            logging.root.level,
            set(logging.root.manager.loggerDict),
        )
        assert capfd.readouterr() == ("", "")

    def test_a_closed_logger_is_silent_and_the_run_can_log_again(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        run = create_training_run(small_config("ppo", tmp_path))
        old = run.logger
        run.close()
        old.error("to nobody")
        run.logger.info("once")
        text = (run.run_dir / "run.log").read_text()
        assert "to nobody" not in text
        assert text.count("once") == 1
        assert capfd.readouterr() == ("", "")

    def test_start_resume_stop_and_error_are_written(self, tmp_path: Path) -> None:
        class Stop:
            def on_update_end(self, trainer, result) -> None:
                trainer.request_stop("enough")

        class Fail:
            def on_update_end(self, trainer, result) -> None:
                if trainer.global_step == 48:
                    raise KeyError("my mistake")

        result = train_ppo(
            small_config("ppo", tmp_path, checkpoint_interval=16), callbacks=[Stop()]
        )
        manager = DefaultExperimentManager()
        with pytest.raises(KeyError, match="my mistake"):
            manager.resume(result.run_dir, callbacks=[Fail()]).train()
        manager.resume(result.run_dir).train()
        text = (result.run_dir / "run.log").read_text()
        entries = [line.split(" ", 1)[1] for line in text.splitlines() if line[:2] == "20"]
        assert entries == [
            "INFO created: ppo on CartPole-v1, seed 1, 128 timesteps",
            "INFO stopped: enough",
            "INFO resumed at step 16 of 128",
            "ERROR failed: KeyError: 'my mistake'",
            "INFO resumed at step 32 of 128",
            "INFO finished",
        ]
        assert "Traceback (most recent call last)" in text

    def test_a_run_whose_settings_are_refused_leaves_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(RLTrainingError):
            train_ppo(small_config("ppo", tmp_path, env_id="NoSuchEnv-v0"))
        assert not list(tmp_path.iterdir())


def test_an_output_dir_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RLTrainingError, match="file"):
        create_training_run(small_config("ppo", tmp_path / "file"))


def test_a_saved_checkpoint_can_be_loaded(tmp_path: Path) -> None:
    path = save_training_checkpoint(
        tmp_path / "here",
        config=small_config("ppo", tmp_path),
        algorithm_state={
            "weight": torch.arange(3.0),
            "nested": {"list": [1, None, "x", float("inf")]},
        },
        trainer_state={"generator": np.random.default_rng(0).bit_generator.state},
        buffer_state={"array": np.arange(6, dtype=np.uint8).reshape(2, 3)},
    )
    state = load_checkpoint(path)
    assert state.algorithm_state["weight"].tolist() == [0, 1, 2]
    assert state.algorithm_state["nested"]["list"] == [1, None, "x", float("inf")]
    assert state.trainer_state["generator"] == np.random.default_rng(0).bit_generator.state
    assert state.buffer_state["array"].dtype == np.uint8
    assert state.config["algo"] == "ppo"


def test_the_streams_of_a_run_differ_and_repeat() -> None:
    seeds, again, other = RunSeeds.from_seed(7), RunSeeds.from_seed(7), RunSeeds.from_seed(8)
    assert seeds.env_seeds(4) == again.env_seeds(4) != other.env_seeds(4)
    assert seeds.eval_seeds(3) == seeds.eval_seeds(10)[:3]
    assert not set(seeds.env_seeds(100)) & set(seeds.eval_seeds(100))
    draws = [
        torch.rand(1, generator=s.policy_generator(torch.device("cpu"))).item()
        for s in (seeds, again, other)
    ]
    assert draws[0] == draws[1] != draws[2]


def test_threads_depend_on_the_layer_sizes_and_are_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(execution.os, "cpu_count", lambda: 2)
    config = TrainConfig(algo="ppo", env_id="x", total_timesteps=1000)
    assert Execution.choose(config, PPOConfig()).num_threads == 1
    assert Execution.choose(config, SACConfig()).num_threads == 2
    assert Execution.choose(config.replace(num_threads=3), PPOConfig()).num_threads == 3
    before = torch.get_num_threads()
    with Execution(num_threads=2, compile=False).applied():
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == before


def num_flushed() -> int:
    """How many of a million denormal products, computed by all threads, were flushed to zero."""
    return int((torch.full((1 << 20,), 1e-30) * 1e-10 == 0.0).sum())


@pytest.mark.skipif(
    not execution.end_openmp_threads(), reason="this OpenMP library cannot end its threads"
)
@pytest.mark.parametrize("main_thread_flushes", [False, True])
def test_denormals_are_flushed_in_threads_older_than_the_run(main_thread_flushes: bool) -> None:
    torch.set_num_threads(2)
    assert num_flushed() == 0  # and now the second thread exists
    torch.set_flush_denormal(main_thread_flushes)
    try:
        with Execution(num_threads=2, compile=False).applied():
            assert num_flushed() == 1 << 20
        torch.set_num_threads(2)
        assert num_flushed() == (1 << 20 if main_thread_flushes else 0)
    finally:
        execution.flush_denormals(False)


def test_auto_compiles_runs_with_enough_gradient_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "has_compiler", lambda: True)
    config = TrainConfig(algo="sac", env_id="x", total_timesteps=1_000_000)
    assert Execution.choose(config, SACConfig()).compile
    assert not Execution.choose(config.replace(total_timesteps=1000), SACConfig()).compile
    assert not Execution.choose(config, DQNConfig(train_frequency=1000)).compile
    assert not Execution.choose(config.replace(compile=False), SACConfig()).compile
    monkeypatch.setattr(execution, "has_compiler", lambda: False)
    assert not Execution.choose(config, SACConfig()).compile
    with pytest.raises(ConfigError, match="compiler"):
        Execution.choose(config.replace(compile=True), SACConfig())

"""Setting up and resuming runs by name, and registering an algorithm of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import small_config

from rl_training import TrainConfig
from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.ppo import PPOAlgorithm, PPOConfig
from rl_training.errors import ConfigError, EnvError
from rl_training.experiment import registry
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.registry import (
    AlgorithmSpec,
    Loop,
    get_algorithm_spec,
    list_algorithm_specs,
    register_algorithm,
)
from rl_training.runtime.workflows import evaluate_checkpoint
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.spec import Spaces


class BaselineConfig(PPOConfig):
    """PPO with a setting of its own."""

    baseline: float = 0.0
    """Not used."""


class Baseline(PPOAlgorithm):
    """A user's own algorithm."""

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        if spaces.action.kind is not ActionKind.DISCRETE:
            raise EnvError("mine needs a Discrete action space")


SPEC = AlgorithmSpec("mine", "a test's own algorithm", Baseline, BaselineConfig, Loop.ON_POLICY)


@pytest.fixture
def own_config(tmp_path: Path) -> Iterator[TrainConfig]:
    """The configuration of a run of a registered algorithm."""
    with registry.registered(SPEC):
        yield small_config("mine", tmp_path)


def test_setup_trains_and_resume_goes_on_in_the_same_folder(tmp_path: Path) -> None:
    manager = DefaultExperimentManager()
    first = manager.setup(small_config("dqn", tmp_path)).train()
    again = manager.resume(first.checkpoint_path, total_timesteps=200, eval_episodes=3).train()
    assert first.metrics["global_step"] == 128
    assert again.metrics["global_step"] == 200
    assert again.metrics["eval_episodes"] == 3
    assert again.run_dir == first.run_dir
    options = {"total_timesteps": 208, "output_dir": tmp_path / "fork"}
    assert manager.resume(first.run_dir, **options).train().run_dir.parent == tmp_path / "fork"


def test_the_registry_lists_the_built_in_algorithms_with_their_loops() -> None:
    loops = {spec.name: spec.loop for spec in list_algorithm_specs()}
    assert loops["ppo"] is Loop.ON_POLICY
    assert loops["dqn"] is loops["sac"] is Loop.OFF_POLICY
    for spec in list_algorithm_specs():
        assert issubclass(spec.algorithm_class(), Algorithm)
        spec.config_class()()
    assert get_algorithm_spec("PPO").name == "ppo"


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ConfigError, match="already registered"):
        register_algorithm(AlgorithmSpec("ppo", "mine", Baseline, BaselineConfig, Loop.ON_POLICY))
    with pytest.raises(ConfigError, match="lower case"):
        register_algorithm(AlgorithmSpec("Mine", "mine", Baseline, BaselineConfig, Loop.ON_POLICY))


def test_a_users_own_algorithm_trains_resumes_and_evaluates(own_config: TrainConfig) -> None:
    manager = DefaultExperimentManager()
    first = manager.setup(own_config).train()
    assert "policy_loss" in first.metrics
    again = manager.resume(first.run_dir, total_timesteps=256).train()
    assert again.metrics["global_step"] == 256
    score = evaluate_checkpoint(again.run_dir)["eval_return_mean"]
    assert score == again.metrics["eval_return_mean"]


def test_a_users_own_algorithm_has_its_settings_and_spaces_checked(
    own_config: TrainConfig, tmp_path: Path
) -> None:
    manager = DefaultExperimentManager()
    with pytest.raises(
        ConfigError, match="unknown key 'basline' for mine: did you mean 'baseline'"
    ):
        manager.setup(own_config.replace(algo_kwargs={"basline": 1.0}))
    with pytest.raises(EnvError, match="Discrete"):
        manager.setup(own_config.replace(env_id="Pendulum-v1")).train()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", ["", " "])
def test_an_empty_run_suffix_is_refused(suffix: str, tmp_path: Path) -> None:
    config, manager = small_config("ppo", tmp_path), DefaultExperimentManager()
    with pytest.raises(ConfigError, match="the run suffix is empty"):
        manager.resume_or_start(config, run_suffix=suffix)
    with pytest.raises(ConfigError, match="the run suffix is empty"):
        manager.setup(config, run_suffix=suffix).train()
    assert not any(tmp_path.iterdir())

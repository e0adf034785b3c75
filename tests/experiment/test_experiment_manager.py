"""Setting up and resuming runs by name, and registering an algorithm of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import small_config
from torch import Tensor

from rl_training import TrainConfig
from rl_training.algorithms.base import ActResult, Algorithm, Resources, Stateful, UpdateResult
from rl_training.algorithms.config import OnPolicyConfig, value_at
from rl_training.algorithms.optim import Adam, descend
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
from rl_training.replay.transitions import Transitions
from rl_training.runtime.workflows import evaluate_checkpoint
from rl_training.spaces.actions import ActionKind
from rl_training.spaces.spec import Spaces


class ReinforceConfig(OnPolicyConfig):
    """Settings of the small algorithm below."""

    baseline: float = 0.0
    """Subtracted from the returns."""


class Reinforce(Algorithm[ReinforceConfig]):
    """The policy gradient in its plainest form: a user's own algorithm."""

    def __init__(self, config: ReinforceConfig, spaces: Spaces, resources: Resources) -> None:
        super().__init__(config, spaces, resources)
        self.policy = self.mlp_spec.make(spaces.obs.num_features, spaces.action.choices[0])
        self.optimizer = Adam(self.policy.parameters())

    @classmethod
    def check_spaces(cls, spaces: Spaces) -> None:
        if spaces.action.kind is not ActionKind.DISCRETE:
            raise EnvError("reinforce needs a Discrete action space")

    @torch.no_grad()
    def act(
        self, obs: Tensor, state: Tensor | None = None, *, explore: bool, mask: Tensor | None = None
    ) -> ActResult:
        logits = self.policy(obs)
        if not explore:
            return ActResult(logits.argmax(-1))
        return ActResult(
            torch.multinomial(logits.softmax(-1), 1, generator=self.generator).squeeze(-1)
        )

    def update(self, batch: Transitions) -> UpdateResult:
        returns = torch.zeros_like(batch.rewards)
        running = torch.zeros_like(batch.rewards[0])
        for t in reversed(range(len(batch.rewards))):
            running = batch.rewards[t] + self.config.gamma * running * ~batch.dones[t]
            returns[t] = running
        log_probs = self.policy(batch.obs.flatten(0, 1)).log_softmax(-1)
        chosen = log_probs.gather(1, batch.actions.flatten().unsqueeze(1)).squeeze(1)
        loss = -(chosen * (returns.flatten() - self.config.baseline)).mean()
        self.optimizer.set_learning_rate(value_at(self.config.learning_rate, self.progress))
        descend(loss, self.optimizer)
        return UpdateResult({"policy_loss": loss.detach()})

    def parts(self) -> dict[str, Stateful]:
        return {"policy": self.policy, "optimizer": self.optimizer}


SPEC = AlgorithmSpec(
    "reinforce", "a test's own algorithm", Reinforce, ReinforceConfig, Loop.ON_POLICY
)


@pytest.fixture
def _registered() -> Iterator[None]:
    register_algorithm(SPEC)
    yield
    del registry._SPECS["reinforce"]


def reinforce_config(output_dir: Path, **changes: object) -> TrainConfig:
    algo_kwargs = {"num_steps": 16, "hidden_sizes": [8]}
    return small_config("ppo", output_dir).replace(
        algo="reinforce", algo_kwargs=algo_kwargs, **changes
    )


def test_setup_trains_and_resume_goes_on_in_the_same_folder(tmp_path: Path) -> None:
    manager = DefaultExperimentManager()
    first = manager.setup(small_config("dqn", tmp_path)).train()
    again = manager.resume(first.checkpoint_path, total_timesteps=200, eval_episodes=3).train()
    assert first.metrics["global_step"] == 128
    assert again.metrics["global_step"] == 200
    assert again.metrics["eval_episodes"] == 3
    assert again.run_dir == first.run_dir


def test_resume_into_another_output_dir_leaves_the_first_run_alone(tmp_path: Path) -> None:
    manager = DefaultExperimentManager()
    first = manager.setup(small_config("ppo", tmp_path / "a")).train()
    before = {path: path.stat().st_mtime_ns for path in first.run_dir.rglob("*") if path.is_file()}
    again = manager.resume(first.run_dir, total_timesteps=256, output_dir=tmp_path / "b").train()
    assert again.run_dir.parent == tmp_path / "b"
    assert again.metrics["global_step"] == 256
    assert before == {
        path: path.stat().st_mtime_ns for path in first.run_dir.rglob("*") if path.is_file()
    }


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
        register_algorithm(AlgorithmSpec("ppo", "mine", Reinforce, ReinforceConfig, Loop.ON_POLICY))
    with pytest.raises(ConfigError, match="lower case"):
        register_algorithm(
            AlgorithmSpec("Mine", "mine", Reinforce, ReinforceConfig, Loop.ON_POLICY)
        )


@pytest.mark.usefixtures("_registered")
def test_a_users_own_algorithm_trains_resumes_and_evaluates(tmp_path: Path) -> None:
    manager = DefaultExperimentManager()
    first = manager.setup(reinforce_config(tmp_path)).train()
    assert "policy_loss" in first.metrics
    again = manager.resume(first.run_dir, total_timesteps=256).train()
    assert again.metrics["global_step"] == 256
    assert (
        evaluate_checkpoint(again.run_dir)["eval_return_mean"] == again.metrics["eval_return_mean"]
    )


@pytest.mark.usefixtures("_registered")
def test_a_users_own_algorithm_has_its_settings_and_spaces_checked(tmp_path: Path) -> None:
    manager = DefaultExperimentManager()
    config = reinforce_config(tmp_path)
    with pytest.raises(
        ConfigError, match="unknown key 'basline' for reinforce: did you mean 'baseline'"
    ):
        manager.setup(config.replace(algo_kwargs={"basline": 1.0}))
    with pytest.raises(EnvError, match="Discrete"):
        manager.setup(config.replace(env_id="Pendulum-v1")).train()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", ["", " "])
def test_an_empty_run_suffix_is_refused(suffix: str, tmp_path: Path) -> None:
    config, manager = small_config("ppo", tmp_path), DefaultExperimentManager()
    with pytest.raises(ConfigError, match="the run suffix is empty"):
        manager.resume_or_start(config, run_suffix=suffix)
    with pytest.raises(ConfigError, match="the run suffix is empty"):
        manager.setup(config, run_suffix=suffix).train()
    assert not any(tmp_path.iterdir())

"""Fields of an algorithm's own: what `act` returns and the info holds reaches the updates, and is resumed exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from conftest import HELPERS, small_config
from run_tools import StopAt, assert_same_end

from rl_training.algorithms.base import ActResult
from rl_training.algorithms.dqn import DQNAlgorithm, DQNConfig
from rl_training.algorithms.ppo import PPOAlgorithm, PPOConfig
from rl_training.errors import ConfigError, EnvError
from rl_training.experiment.registry import AlgorithmSpec, Loop, registered
from rl_training.replay.transitions import StepField, Transitions
from rl_training.runtime.run import run_training
from rl_training.runtime.workflows import resume_training
from rl_training.testing import check_algorithm

ENV = f"{HELPERS / 'masked_envs.py'}:RandomMasks"
INFO = {"number": StepField((), "int64"), "pair": StepField((2,))}


class Noted:
    """Stores twice the observation with each step, and keeps the batches it is given."""

    info_fields = INFO
    batches: ClassVar[list[Transitions]] = []

    def act(self, obs: Any, state: Any = None, *, explore: bool, mask: Any = None) -> ActResult:
        acted = super().act(obs, state, explore=explore, mask=mask)  # type: ignore[misc]
        return acted._replace(fields={**acted.fields, "twice": 2 * obs} if explore else {})

    def step_fields(self) -> Any:
        return {**super().step_fields(), "twice": StepField((3,))}  # type: ignore[misc]

    def update(self, batch: Transitions) -> Any:
        Noted.batches.append(
            Transitions.from_tensors(
                {name: value.clone() for name, value in batch.tensors().items()}
            )
        )
        return super().update(batch)  # type: ignore[misc]


class NotedDQN(Noted, DQNAlgorithm):
    pass


class NotedPPO(Noted, PPOAlgorithm):
    pass


class MissingInfo(NotedDQN):
    info_fields: ClassVar[Any] = {**INFO, "absent": StepField()}


class KnownField(NotedDQN):
    def step_fields(self) -> Any:
        return {"rewards": StepField()}


SPECS = {
    "noted_dqn": AlgorithmSpec("noted_dqn", "a test's own", NotedDQN, DQNConfig, Loop.OFF_POLICY),
    "noted_ppo": AlgorithmSpec("noted_ppo", "a test's own", NotedPPO, PPOConfig, Loop.ON_POLICY),
    "missing": AlgorithmSpec("missing", "a test's own", MissingInfo, DQNConfig, Loop.OFF_POLICY),
    "known": AlgorithmSpec("known", "a test's own", KnownField, DQNConfig, Loop.OFF_POLICY),
}
CASES = {
    "on_policy": ("noted_ppo", {}),
    "one_step": ("noted_dqn", {}),
    "n_step": ("noted_dqn", {"n_step": 3}),
    "prioritized": ("noted_dqn", {"n_step": 3, "replay": {"kind": "prioritized"}}),
}


@pytest.fixture(autouse=True)
def _no_batches() -> None:
    Noted.batches.clear()


def config_of(name: str, folder: Path, backend: str = "sync", **algo_kwargs: Any) -> Any:
    values = {
        "env_id": ENV,
        "env_kwargs": {"backend": backend},
        "num_envs": 2,
        "total_timesteps": 96,
    }
    return small_config(name, folder, **values, algo_kwargs={"eval_interval": 48, **algo_kwargs})


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("backend", ["sync", "async"])
def test_both_kinds_of_fields_reach_the_update(case: str, backend: str, tmp_path: Path) -> None:
    name, algo_kwargs = CASES[case]
    with registered(SPECS[name]):
        run_training(config_of(name, tmp_path, backend, **algo_kwargs))
    assert Noted.batches
    for batch in Noted.batches:
        assert set(batch.extras) - {"outputs", "values"} == {"twice", "number", "pair"}
        assert torch.equal(batch.extras["twice"], 2 * batch.obs)
        # The info of a step counts the steps of the episode; its observation shows the count before it.
        assert torch.equal(batch.extras["number"], batch.obs[..., 0].long() + 1)
        assert torch.equal(batch.extras["pair"][..., 0], batch.extras["number"].float())
        assert batch.extras["pair"][..., 1].eq(1.0).all()
        assert batch.extras["number"].dtype == torch.int64
        assert batch.masks is not None
        if case == "n_step":
            assert (batch.next_obs[..., 0] - batch.obs[..., 0]).max() == 3


@pytest.mark.parametrize("case", ["on_policy", "n_step"])
def test_the_fields_are_resumed_exactly(case: str, tmp_path: Path) -> None:
    name, algo_kwargs = CASES[case]
    with registered(SPECS[name]):
        whole = run_training(config_of(name, tmp_path / "whole", **algo_kwargs))
        expected = list(Noted.batches)
        Noted.batches.clear()
        stop = StopAt(50, "collect")
        stopped = run_training(
            config_of(name, tmp_path / "stopped", **algo_kwargs), callbacks=[stop]
        )
        assert_same_end(whole, resume_training(stopped.run_dir))
    for one, other in zip(expected, Noted.batches, strict=True):
        for field, tensor in one.tensors().items():
            assert torch.equal(tensor, other.tensors()[field]), field


def test_the_checks_of_every_algorithm_hold_for_one_with_own_fields() -> None:
    check_algorithm(NotedDQN, DQNConfig, Loop.OFF_POLICY, env_id=ENV, algo_kwargs={"n_step": 3})
    check_algorithm(NotedPPO, PPOConfig, Loop.ON_POLICY, env_id=ENV)


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_an_info_key_that_is_missing_is_a_named_error(backend: str, tmp_path: Path) -> None:
    keys = r"\(its keys: 'action_mask', 'number', 'pair'\)"
    message = f"the info of step has no 'absent', which the algorithm reads {keys}"
    with registered(SPECS["missing"]), pytest.raises(EnvError, match=message):
        run_training(config_of("missing", tmp_path, backend))


def test_a_field_that_exists_is_refused(tmp_path: Path) -> None:
    with (
        registered(SPECS["known"]),
        pytest.raises(ConfigError, match="declares the step field 'rewards', which exists"),
    ):
        run_training(config_of("known", tmp_path))
    assert not list(tmp_path.iterdir())

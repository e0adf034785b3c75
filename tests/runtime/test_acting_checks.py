"""What an algorithm declares and returns is checked at the first step, with one sentence that names it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from rl_training.algorithms.base import ActResult
from rl_training.algorithms.config import OffPolicyConfig
from rl_training.errors import ConfigError, EnvError
from rl_training.evaluation.prediction import predict
from rl_training.replay.sequences import Sampling
from rl_training.replay.transitions import StepField
from rl_training.runtime.collector import check_acted, check_info, initial_state_of, stored_fields
from rl_training.spaces.spec import describe_spaces

SPACES = describe_spaces(Box(-1, 1, (2,), np.float32), Discrete(3))
ACTIONS, STATE = torch.zeros(2, dtype=torch.int64), torch.zeros(2, 4)


def algorithm(fields: Any = None, state: Any = None, info: Any = None) -> Any:
    return SimpleNamespace(
        spaces=SPACES,
        info_fields=info or {},
        step_fields=lambda: fields or {},
        initial_state=lambda count: state,
    )


@pytest.mark.parametrize(
    ("acted", "message"),
    [
        (ACTIONS, "returns a Tensor: return ActResult"),
        (
            ActResult(ACTIONS[:1], STATE, {"x": STATE}),
            r"actions of shape \(1,\): return shape \(2,\)",
        ),
        (
            ActResult(ACTIONS, None, {"x": STATE}),
            r"returns the state of a NoneType: return shape \(2, 4\)",
        ),
        (
            ActResult(ACTIONS, STATE[:, :3], {"x": STATE}),
            r"state of shape \(2, 3\): return shape \(2, 4\)",
        ),
        (ActResult(ACTIONS, STATE), r"fields \[\], and step_fields declares \['x'\]"),
        (ActResult(ACTIONS, STATE, {"x": STATE, "y": STATE}), r"fields \['x', 'y'\]"),
        (
            ActResult(ACTIONS, STATE, {"x": STATE[:, :1]}),
            r"field 'x' of shape \(2, 1\): return shape \(2, 4\)",
        ),
    ],
)
def test_a_wrong_result_of_act_is_named(acted: Any, message: str) -> None:
    owner = algorithm({"x": StepField((4,))}, STATE)
    check_acted(ActResult(ACTIONS, STATE, {"x": STATE}), owner, 2)
    with pytest.raises(ConfigError, match=message):
        check_acted(acted, owner, 2)


@pytest.mark.parametrize(
    ("fields", "info", "message"),
    [
        ({"obs": StepField()}, {}, "step field 'obs', which exists"),
        ({"x": (64,)}, {}, "step field 'x' of SimpleNamespace is"),
        ({"x": StepField((2,), "complex99")}, {}, "write StepField"),
        ({"x": StepField()}, {"x": StepField()}, "in step_fields and in info_fields"),
    ],
)
def test_a_wrong_declaration_is_named(fields: Any, info: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        stored_fields(algorithm(fields, info=info))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ((STATE,), "returns a tuple"),
        (STATE[:1], r"shape \(1, 4\): return 2 rows"),
        (torch.zeros(()), "2 rows"),
    ],
)
def test_a_wrong_initial_state_is_named(state: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        initial_state_of(algorithm(state=state), 2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([None, 1.0]), r"info\['cost'\] is None in environment 0"),
        (np.array([[1.0, 2.0]] * 2), r"reads float32 of shape \(\)"),
        (np.array(["a", "b"]), r"info\['cost'\] is"),
        (np.array([1.0, np.nan]), r"info\['cost'\] of environment 1 is nan"),
    ],
)
def test_wrong_info_is_named(values: Any, message: str) -> None:
    check_info({"cost": np.array([1, 2])}, {"cost": StepField()})
    with pytest.raises(EnvError, match=message):
        check_info({"cost": values}, {"cost": StepField()})


def test_a_wrong_sampling_is_named() -> None:
    with pytest.raises(
        ConfigError, match="unknown kind 'sequence' of Sampling: did you mean 'sequences'"
    ):
        Sampling("sequence", 8)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="length of Sampling is 0"):
        Sampling("sequences", 0)
    assert OffPolicyConfig().sampling() == Sampling()


def test_the_state_of_one_observation_has_no_batch_axis() -> None:
    def act(obs: torch.Tensor, state: torch.Tensor, *, explore: bool, mask: Any) -> ActResult:
        return ActResult(torch.zeros(len(obs), dtype=torch.int64), state + 1.0)

    policy = SimpleNamespace(
        spaces=SPACES,
        obeys_masks=False,
        device=torch.device("cpu"),
        act=act,
        initial_state=lambda n: torch.zeros(n, 4),
    )
    obs: Any = np.zeros(2, np.float32)
    _, state = predict(policy, obs, state=None)  # type: ignore[arg-type]
    assert state.shape == (4,)
    with pytest.raises(ConfigError, match=r"shape \(1, 4\), where \(4,\) is expected"):
        predict(policy, obs, state=state[None])  # type: ignore[arg-type]

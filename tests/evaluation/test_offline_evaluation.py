"""Fitted Q evaluation: values that are known by hand, and the command that gives them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from rl_training.algorithms.base import ActResult
from rl_training.cli import main
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.errors import DatasetError
from rl_training.evaluation import fitted_q
from rl_training.evaluation.fitted_q import discounted_return, fitted_q_evaluation
from rl_training.spaces.spec import describe_spaces

BOX = Box(-1, 1, (2,), np.float32)


def policy(action: Any, action_space: Any, gamma: float = 0.9) -> Any:
    """An algorithm that always does the same."""
    dtype = torch.int64 if isinstance(action_space, Discrete) else torch.float32

    def act(obs: torch.Tensor, *, explore: bool, mask: torch.Tensor | None) -> ActResult:
        return ActResult(torch.tensor(action, dtype=dtype).expand(len(obs), *np.shape(action)))

    spaces = describe_spaces(BOX, action_space)
    config = SimpleNamespace(gamma=gamma)
    return SimpleNamespace(
        spaces=spaces,
        config=config,
        device=torch.device("cpu"),
        act=act,
        initial_state=lambda count: None,
    )


def one_step_worlds(actions: np.ndarray, rewards: np.ndarray) -> TransitionDataset:
    """Episodes of one step that terminate."""
    count = len(rewards)
    obs = np.random.default_rng(0).uniform(-1, 1, (count, 2)).astype(np.float32)
    return TransitionDataset(
        obs, actions, rewards, obs[::-1].copy(), np.ones(count, bool), np.zeros(count, bool)
    )


def test_the_value_is_the_policys_and_not_the_behaviours() -> None:
    actions = np.random.default_rng(1).uniform(-1, 1, (2000, 1)).astype(np.float32)
    data = one_step_worlds(actions, 1.0 - (actions[:, 0] - 0.5) ** 2)
    score = fitted_q_evaluation(
        policy([0.5], Box(-1, 1, (1,), np.float32)), data, num_updates=400, learning_rate=3e-3
    )
    assert score.fqe_return_mean == pytest.approx(1.0, abs=0.05)
    assert score.behaviour_return_mean == pytest.approx(1 - 0.25 - 1 / 3, abs=0.1)
    assert score.fqe_return_low <= score.fqe_return_mean <= score.fqe_return_high
    assert abs(score.fqe_drift) < 0.1 * abs(score.fqe_return_mean)
    assert score.held_out_episodes == 400


def test_an_action_beyond_its_bounds_is_worth_what_the_environment_executes() -> None:
    actions = np.random.default_rng(1).uniform(-1, 1, (2000, 1)).astype(np.float32)
    data = one_step_worlds(actions, actions[:, 0])
    score = fitted_q_evaluation(
        policy([3.0], Box(-1, 1, (1,), np.float32)), data, num_updates=400, learning_rate=3e-3
    )
    assert score.fqe_return_mean == pytest.approx(1.0, abs=0.1)


def test_discrete_actions_have_values_too() -> None:
    actions = np.random.default_rng(1).integers(0, 3, 2000)
    data = one_step_worlds(actions, actions.astype(np.float32))
    score = fitted_q_evaluation(policy(2, Discrete(3)), data, num_updates=400, learning_rate=3e-3)
    assert score.fqe_return_mean == pytest.approx(2.0, abs=0.05)


def test_a_world_without_end_is_worth_its_endless_sum() -> None:
    count, length = 1000, 10
    obs = np.zeros((count, 2), np.float32)
    truncated = np.arange(count) % length == length - 1
    actions = np.zeros((count, 1), np.float32)
    data = TransitionDataset(obs, actions, np.ones(count), obs, np.zeros(count, bool), truncated)
    algorithm = policy([0.0], Box(-1, 1, (1,), np.float32), gamma=0.5)
    score = fitted_q_evaluation(
        algorithm, data, num_updates=1500, batch_size=32, learning_rate=3e-3
    )
    assert score.fqe_return_mean == pytest.approx(2.0, abs=0.1)
    assert score.behaviour_return_mean == pytest.approx((1 - 0.5**10) / 0.5, abs=1e-5)


def test_a_hundred_horizons_of_updates_reach_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table instead of the network, which learns at once what it is shown: only the target's pace is left."""

    class Table(torch.nn.Module):
        def __init__(self, *_: Any) -> None:
            super().__init__()
            self.network = torch.nn.Linear(1, 1, bias=False)
            self.network.weight.data.zero_()

        def forward(self, obs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
            return self.network.weight[0].expand(len(obs))

    def learn_at_once(loss: torch.Tensor, optimizer: Any) -> None:
        (weight,) = optimizer.parameters
        (slope,) = torch.autograd.grad(loss, weight)
        weight.data -= slope / 2.0  # the loss is (weight - target)^2

    monkeypatch.setattr(fitted_q, "_QFunction", Table)
    monkeypatch.setattr(fitted_q, "descend", learn_at_once)
    obs, never = np.zeros((20, 2), np.float32), np.zeros(20, bool)
    data = TransitionDataset(
        obs, np.zeros((20, 1), np.float32), np.full(20, -8.0), obs, never, np.arange(20) % 2 == 1
    )
    algorithm = policy([0.0], Box(-1, 1, (1,), np.float32), gamma=0.9)
    score = fitted_q_evaluation(algorithm, data, num_updates=1000, batch_size=1)
    assert score.fqe_return_mean == pytest.approx(-80.0, rel=0.02)
    assert score.behaviour_return_mean == pytest.approx(-8.0 * 1.9)
    assert score.tail_weight == pytest.approx(0.9**2)


@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_the_scale_of_rewards_does_not_matter_to_the_fit(size: float) -> None:
    actions = np.random.default_rng(1).uniform(-1, 1, (500, 1)).astype(np.float32)
    algorithm = policy([0.5], Box(-1, 1, (1,), np.float32))
    plain, scaled = (
        fitted_q_evaluation(
            algorithm, one_step_worlds(actions, factor * (2.0 + actions[:, 0])), num_updates=20
        )
        for factor in (1.0, size)
    )
    assert scaled.fqe_return_mean == pytest.approx(size * plain.fqe_return_mean, rel=1e-3)
    assert scaled.fqe_drift == pytest.approx(size * plain.fqe_drift, rel=1e-2)
    assert plain.tail_weight == 0.0


def test_an_estimate_that_has_not_converged_is_reported(capsys: Any) -> None:
    obs, never = np.zeros((1000, 2), np.float32), np.zeros(1000, bool)
    data = TransitionDataset(
        obs, np.zeros((1000, 1)), np.ones(1000), obs, never, np.arange(1000) % 10 == 9
    )
    algorithm = policy([0.0], Box(-1, 1, (1,), np.float32), gamma=0.99)
    score = fitted_q_evaluation(algorithm, data, num_updates=300, batch_size=32, learning_rate=3e-3)
    assert not score.fqe_converged
    message = capsys.readouterr().err
    assert "has not converged" in message
    assert "raise --fqe-updates" in message
    algorithm = policy([0.0], Box(-1, 1, (1,), np.float32), gamma=0.5)
    score = fitted_q_evaluation(
        algorithm, data, num_updates=1000, batch_size=32, learning_rate=1e-3
    )
    assert score.fqe_converged
    assert capsys.readouterr().err == ""


def test_the_change_left_is_extrapolated_from_the_drift() -> None:
    # The distance from the end shrinks by exp(-0.05 * 0.01) per update: by exp(-0.5) in the last 1,000 of 10,000.
    assert fitted_q._change_left(-2.0, 0.99, 10_000) == pytest.approx(2.0 / (np.exp(0.5) - 1.0))
    assert fitted_q._change_left(4.9, 0.99, 200) == pytest.approx(4.9 / (np.exp(0.01) - 1.0))
    assert fitted_q._change_left(2.0, 0.5, 10_000) == 2.0


def test_discounting_by_hand() -> None:
    assert discounted_return(np.array([1.0, 2.0, 4.0]), 0.5) == 1 + 1 + 1


def test_too_few_episodes_are_refused() -> None:
    data = one_step_worlds(np.zeros((1, 1), np.float32), np.ones(1, np.float32))
    with pytest.raises(DatasetError, match="1 episodes"):
        fitted_q_evaluation(policy([0.0], Box(-1, 1, (1,), np.float32)), data, num_updates=1)


def test_the_return_of_a_checkpoint_is_estimated_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        main(["data", "collect", "--env", "Pendulum-v1", "--steps", "1000", "--out", "a.npz"]) == 0
    )
    words = [
        "algo_kwargs.dataset_kind=npz",
        "algo_kwargs.dataset_path=a.npz",
        "algo_kwargs.hidden_sizes=[8]",
    ]
    assert main(["train", "--total-timesteps", "20", "--run-suffix", "x", "algo=iql", *words]) == 0
    capsys.readouterr()
    command = [
        "eval",
        "--checkpoint",
        "runs/iql__offline__seed0__x",
        "--dataset",
        "a.npz",
        "--fqe-updates",
        "30",
    ]
    assert main([*command, "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)
    assert {
        "fqe_return_mean",
        "fqe_return_low",
        "fqe_return_high",
        "behaviour_return_mean",
    } <= metrics.keys()
    assert metrics["global_step"] == 20
    assert metrics["held_out_episodes"] == 1
    scaled = [*words, "algo_kwargs.reward_scale=0.1"]
    assert main(["train", "--total-timesteps", "20", "--run-suffix", "y", "algo=iql", *scaled]) == 0
    capsys.readouterr()
    assert main([*command[:2], "runs/iql__offline__seed0__y", *command[3:], "--json"]) == 0
    assert (
        json.loads(capsys.readouterr().out)["behaviour_return_mean"]
        == metrics["behaviour_return_mean"]
    )
    assert main([*command, "--eval-episodes", "3"]) == 2
    assert "--eval-episodes has no effect with --dataset" in capsys.readouterr().err
    assert main([*command[:3], "--fqe-updates", "3"]) == 2
    assert "--fqe-updates has no effect without --dataset" in capsys.readouterr().err


def test_data_with_errors_gives_no_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        main(["data", "collect", "--env", "Pendulum-v1", "--steps", "1000", "--out", "a.npz"]) == 0
    )
    words = [
        "algo_kwargs.dataset_kind=npz",
        "algo_kwargs.dataset_path=a.npz",
        "algo_kwargs.hidden_sizes=[8]",
    ]
    assert main(["train", "--total-timesteps", "20", "--run-suffix", "x", "algo=bc", *words]) == 0
    fields = dict(np.load("a.npz"))
    fields["rewards"][3] = np.nan
    np.savez("nan.npz", **fields)
    command = [
        "eval",
        "--checkpoint",
        "runs/bc__offline__seed0__x",
        "--dataset",
        "nan.npz",
        "--fqe-updates",
        "2",
    ]
    assert main(command) == 2
    assert "rewards has NaN in 1 of 1,000 rows" in capsys.readouterr().err

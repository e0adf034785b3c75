"""NaN and infinity: the run stops within one update, says what was bad first, and keeps the last good checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import HELPERS, algorithms_for_faults, env_of, small_config
from torch import Tensor

from rl_training.algorithms.optim import Adam
from rl_training.errors import NonFiniteError
from rl_training.experiment.checkpointing import resolve_checkpoint, verify_checkpoint
from rl_training.experiment.registry import learns_offline
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import find_non_finite
from rl_training.runtime.metrics import MetricAccumulator
from rl_training.runtime.run import run_training
from rl_training.runtime.session import UPDATES_BETWEEN_CHECKS
from rl_training.runtime.trainer import TrainerState
from rl_training.runtime.workflows import load_algorithm, resume_training
from rl_training.spaces.observations import ObsSpec

ALGOS = algorithms_for_faults()
ONLINE = [
    name for name in ALGOS if not learns_offline(name) and name != "her"
]  # whose environments have goals
FAULTY = f"{HELPERS / 'toy_envs.py'}:FaultyEnv"
CHECKPOINTED = {"checkpoint_interval": 32, "algo_kwargs": {"eval_interval": 1000}}


class Poison(Callback):
    """Makes one number of the algorithm bad after a step, and remembers how far the run went."""

    def __init__(self, step: int, target: str, value: float) -> None:
        self.step, self.target, self.value = step, target, value
        self.updates_after: int | None = None

    def on_update_end(self, trainer: TrainerState, result: object) -> None:
        if self.updates_after is not None:
            self.updates_after += 1
        elif trainer.global_step >= self.step:
            self.updates_after = 0
            parts = trainer.algorithm.stateful_members()
            tensors = [
                tensor for name, part in parts.items() for tensor in self._tensors(name, part)
            ]
            with torch.no_grad():
                tensors[0].view(-1)[0] = self.value

    def _tensors(self, name: str, part: Any) -> list[Tensor]:
        if self.target == "network":
            return list(part.parameters()) if isinstance(part, torch.nn.Module) else []
        return part._first if isinstance(part, Adam) else []


def assert_kept(tmp_path: Path) -> None:
    """The last checkpoint is intact and finite, and can be resumed."""
    (run_dir,) = tmp_path.iterdir()
    last = resolve_checkpoint(run_dir)
    verify_checkpoint(last)
    _, algorithm, _ = load_algorithm(run_dir)
    for part in algorithm.stateful_members().values():
        for value in part.state_dict().values():
            assert not isinstance(value, Tensor) or value.isfinite().all()
    metadata = json.loads((run_dir / "metadata.json").read_text())
    assert metadata["status"] == "failed"
    assert "not finite" in metadata["stop_reason"]
    assert resume_training(run_dir).metrics["global_step"] == 128


@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_bad_parameter_stops_the_run_within_one_update(
    algo: str, value: float, tmp_path: Path
) -> None:
    poison = Poison(70, "network", value)
    with pytest.raises(NonFiniteError, match=r"not finite at step \d+") as caught:
        run_training(small_config(algo, tmp_path, **CHECKPOINTED), callbacks=[poison])
    assert poison.updates_after is not None
    assert poison.updates_after <= UPDATES_BETWEEN_CHECKS
    assert f"the last good checkpoint is '{resolve_checkpoint(next(tmp_path.iterdir()))}'" in str(
        caught.value
    )
    assert_kept(tmp_path)


@pytest.mark.parametrize("algo", ALGOS)
def test_bad_optimizer_state_is_not_saved(algo: str, tmp_path: Path) -> None:
    poison = Poison(0, "optimizer", np.nan)
    with pytest.raises(NonFiniteError, match="not finite at step"):
        run_training(small_config(algo, tmp_path), callbacks=[poison])
    assert poison.updates_after is not None
    assert poison.updates_after <= 2


@pytest.mark.parametrize("algo", ONLINE)
@pytest.mark.parametrize(
    "fault", ["nan observation", "inf observation", "nan reward", "inf reward"]
)
def test_a_bad_observation_or_reward_is_named_with_its_environment_and_step(
    algo: str, fault: str, tmp_path: Path
) -> None:
    action = "box" if env_of(algo) == "Pendulum-v1" else "discrete"
    kwargs = {"fault": fault, "after": 40, "action": action, "once": str(tmp_path / "once")}
    config = small_config(
        algo, tmp_path / "runs", env_id=FAULTY, env_kwargs=kwargs, num_envs=1, **CHECKPOINTED
    )
    with pytest.raises(NonFiniteError) as caught:
        run_training(config)
    assert fault.split()[1] in str(caught.value)
    assert "of environment 0 is not finite at step 40: " in str(caught.value)
    assert_kept(tmp_path / "runs")


def test_a_bad_gradient_is_found_under_a_finite_loss() -> None:
    metrics = {"critic_loss": torch.tensor(1.0), "critic_grad_norm": torch.tensor(np.inf)}
    accumulator = MetricAccumulator()
    assert accumulator.add_update(metrics)
    assert accumulator.find_non_finite() == ("critic_grad_norm", np.inf)


def test_infinities_that_cancel_are_still_found() -> None:
    accumulator = MetricAccumulator()
    assert accumulator.add_update({"a": torch.tensor(np.inf), "b": torch.tensor(-np.inf)})
    assert accumulator.find_non_finite() == ("a", np.inf)


OBS = ObsSpec((3,), "float32")


def rows(**changes: Any) -> dict[str, np.ndarray]:
    shape = {"obs": (4, 2, 3), "actions": (4, 2, 1), "rewards": (4, 2), "next_obs": (4, 2, 3)}
    arrays = {name: np.ones(size, np.float32) for name, size in shape.items()}
    for name, index in changes.items():
        arrays[name][index] = np.nan
    return arrays


def test_the_first_bad_number_is_found_in_the_order_of_cause() -> None:
    assert find_non_finite(rows(), OBS) is None
    assert find_non_finite(rows(rewards=(2, 1)), OBS) == ("rewards", 2, 1)
    assert find_non_finite(rows(next_obs=(1, 0, 2), obs=(2, 0, 2), rewards=(1, 0)), OBS) == (
        "rewards",
        1,
        0,
    )
    assert find_non_finite(rows(obs=(3, 1, 0), actions=(3, 0, 0)), OBS) == ("obs", 3, 1)


def test_large_but_finite_numbers_are_no_fault() -> None:
    arrays = rows()
    arrays["obs"][:] = 3e38
    assert find_non_finite(arrays, OBS) is None


def test_bytes_and_categories_are_not_asked() -> None:
    arrays = rows() | {"obs": np.zeros((4, 2, 8), np.uint8), "actions": np.zeros((4, 2), np.int64)}
    assert find_non_finite(arrays, OBS) is None

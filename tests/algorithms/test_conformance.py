"""What every registered algorithm must do, besides `check_algorithm`; a new one is covered by being registered."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import HELPERS, TRY_ALL, algorithms_for_faults, as_observation, env_of, small_config
from run_tools import StopAt, assert_same_end

from rl_training import TrainConfig
from rl_training.errors import EnvError
from rl_training.experiment.checkpointing import load_checkpoint
from rl_training.experiment.logs import read_metrics
from rl_training.experiment.registry import (
    Loop,
    get_algorithm_spec,
    learns_offline,
    list_algorithm_specs,
)
from rl_training.runtime.run import run_training
from rl_training.runtime.trainer import TrainResult
from rl_training.runtime.workflows import (
    evaluate_checkpoint,
    load_algorithm,
    predict_checkpoint,
    resume_training,
)

ALGOS = [spec.name for spec in list_algorithm_specs()]
LOOPS = algorithms_for_faults()
"""The algorithms of tests of what the loops do; `check_algorithm` stops and resumes each algorithm."""
STOPS = {
    "before-the-updates-of-the-first-best": ("collect", 64, LOOPS),
    "within-the-updates-of-the-first-best": ("update", 64, LOOPS),
    "within-the-last-updates": ("update", 192, LOOPS),
}


@pytest.mark.parametrize("algo", ALGOS)
def test_a_run_leaves_everything_a_run_should(algo: str, tmp_path: Path) -> None:
    result = run_training(small_config(algo, tmp_path, total_timesteps=160))
    assert result.stop_reason is None
    assert result.metrics["global_step"] == 160
    assert result.metrics["gradient_steps"] > 0
    assert result.metrics["eval_episodes"] == 2
    assert {"eval_return_mean", "eval_return_std"} <= result.metrics.keys()
    assert all(np.isfinite(value) for value in result.metrics.values())
    names = {path.name for path in result.run_dir.iterdir()}
    lines = {"metrics.jsonl", "timing.jsonl", "evaluations.jsonl", "run.log"}
    assert names == {"config.yaml", "metadata.json", "tensorboard", "checkpoints", "owner"} | lines
    metadata = json.loads((result.run_dir / "metadata.json").read_text())
    assert metadata["status"] == "finished"
    assert metadata["versions"]["torch"] == torch.__version__
    assert (result.run_dir / "checkpoints" / "best").is_file()
    assert load_checkpoint(result.run_dir).config["algo"] == algo


def with_stops(algo: str, output_dir: Path) -> TrainConfig:
    """A run with evaluations at 64, 128 and 192, and, off-policy, iterations of more updates than one sampling."""
    rhythm = (
        {"train_frequency": 32, "gradient_steps": 40}
        if get_algorithm_spec(algo).loop is Loop.OFF_POLICY
        else {}
    )
    algo_kwargs = {"eval_interval": 64, **rhythm}
    return small_config(algo, output_dir, total_timesteps=192, algo_kwargs=algo_kwargs)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TrainResult]:
    """The run that is never stopped, made once for an algorithm."""

    @functools.cache
    def train(algo: str) -> TrainResult:
        torch.set_num_threads(1)
        return run_training(with_stops(algo, tmp_path_factory.mktemp("undisturbed")))

    return train


@pytest.mark.parametrize(
    ("algo", "event", "step"),
    [
        pytest.param(algo, event, step, id=f"{name}-{algo}")
        for name, (event, step, algos) in STOPS.items()
        for algo in algos
    ],
)
def test_a_stopped_and_resumed_run_equals_one_that_never_stopped(
    algo: str, event: str, step: int, undisturbed: Callable[[str], TrainResult], tmp_path: Path
) -> None:
    if event == "collect" and learns_offline(algo):
        event = "update"
    whole = undisturbed(algo)
    stopped = run_training(with_stops(algo, tmp_path), callbacks=[StopAt(step, event)])
    assert stopped.stop_reason == "test"
    resumed = resume_training(stopped.run_dir)
    assert resumed.run_dir == stopped.run_dir
    assert resumed.stop_reason is None
    assert_same_end(whole, resumed)
    assert (
        evaluate_checkpoint(resumed.run_dir)["eval_return_mean"]
        == whole.metrics["eval_return_mean"]
    )


@pytest.mark.parametrize("algo", LOOPS)
def test_a_finished_run_can_be_extended_in_place(algo: str, tmp_path: Path) -> None:
    changes = {"log_interval": 32, "checkpoint_interval": 64, "algo_kwargs": {"eval_interval": 32}}
    whole = run_training(small_config(algo, tmp_path / "whole", total_timesteps=192, **changes))
    first = run_training(small_config(algo, tmp_path / "parts", total_timesteps=96, **changes))
    extended = resume_training(first.run_dir, total_timesteps=192)
    assert extended.metrics["global_step"] == whole.metrics["global_step"] == 192
    steps = [line["global_step"] for line in read_metrics(extended.run_dir / "metrics.jsonl")]
    assert steps == sorted(set(steps))


@pytest.mark.parametrize("algo", ALGOS)
def test_prediction_fits_the_action_space_alone_and_in_a_batch(algo: str, tmp_path: Path) -> None:
    result = run_training(small_config(algo, tmp_path))
    _, algorithm, _ = load_algorithm(result.run_dir)
    spec = algorithm.spaces.obs
    batch = np.random.default_rng(0).normal(size=(4, *spec.shape))
    actions = predict_checkpoint(result.run_dir, as_observation(spec, batch))
    alone = predict_checkpoint(result.run_dir, as_observation(spec, batch[2]))
    assert actions.shape == (4, *algorithm.spaces.action.shape)
    assert np.shape(alone) == algorithm.spaces.action.shape
    np.testing.assert_allclose(alone, actions[2], rtol=1e-4)


@pytest.mark.parametrize("algo", LOOPS)
def test_training_leaves_the_global_generators_alone(algo: str, tmp_path: Path) -> None:
    torch.manual_seed(5)
    np.random.seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    run_training(small_config(algo, tmp_path))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()


@pytest.mark.parametrize("algo", LOOPS)
def test_the_number_of_updates_does_not_depend_on_the_number_of_environments(
    algo: str, tmp_path: Path
) -> None:
    counts = set()
    for num_envs in (1, 4):
        changes = {"num_envs": num_envs, "total_timesteps": 160}
        if get_algorithm_spec(algo).loop is Loop.ON_POLICY:
            changes["algo_kwargs"] = {"num_steps": 32 // num_envs}
        counts.add(
            run_training(small_config(algo, tmp_path / str(num_envs), **changes)).metrics[
                "gradient_steps"
            ]
        )
    assert len(counts) == 1


@pytest.mark.parametrize("algo", ALGOS)
def test_a_failing_environment_ends_the_run_with_its_own_error(algo: str, tmp_path: Path) -> None:
    kind = "box" if env_of(algo) == "Pendulum-v1" else "discrete"
    changes = {"env_id": f"{HELPERS / 'toy_envs.py'}:BrokenEnv", "env_kwargs": {"action": kind}}
    if "Goal" in env_of(algo):
        changes = {"env_id": f"{HELPERS / 'toy_envs.py'}:BrokenGoalEnv"}
    with pytest.raises(
        EnvError,
        match=r"(?s)environment 0 of 1 failed in step.*ZeroDivisionError: the simulator exploded",
    ):
        run_training(small_config(algo, tmp_path, **changes))
    if learns_offline(algo):
        assert not any(tmp_path.iterdir())  # it failed while the data was collected
        return
    (run_dir,) = tmp_path.iterdir()
    metadata = json.loads((run_dir / "metadata.json").read_text())
    assert metadata["status"] == "failed"
    assert "the simulator exploded" in metadata["stop_reason"]


@pytest.mark.parametrize("algo", ALGOS if TRY_ALL else ["ppo"])
def test_a_compiled_update_computes_what_the_plain_one_does(algo: str, tmp_path: Path) -> None:
    """Takes more than ten seconds: the C++ compiler."""
    changes = {"total_timesteps": 48, "log_interval": 48}
    plain = run_training(small_config(algo, tmp_path / "plain", **changes))
    compiled = run_training(small_config(algo, tmp_path / "compiled", compile=True, **changes))
    one, other = (load_checkpoint(r.run_dir).algorithm_state["members"] for r in (plain, compiled))
    for name, part in one.items():
        for key, value in part.items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(
                    other[name][key], value, rtol=1e-3, atol=1e-5, msg=f"{name}/{key}"
                )
